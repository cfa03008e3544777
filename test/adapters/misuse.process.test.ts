/** Mistakes in mounting a guard: without a call, on an unprotected method, on a second engine. */
import type { ErrorRequestHandler, RequestHandler } from 'express'
import { Hono } from 'hono'
import { describe, expect, it, onTestFinished } from 'vitest'
import { idempotency as onExpress } from '../../src/adapters/express/index.ts'
import { idempotency as onFetch } from '../../src/adapters/fetch/index.ts'
import { singleTenant } from '../../src/http/guard/guard-options.ts'
import { idempotency as onHono } from '../../src/adapters/hono/index.ts'
import { idempotency as onKoa } from '../../src/adapters/koa/index.ts'
import { idempotency as onNode } from '../../src/adapters/node/index.ts'
import { createEngine } from '../../src/core/engine/engine.ts'
import { memoryStore } from '../../src/stores/memory/store.ts'
import { EXPRESSES, guardOf, serve, text, turns } from './run-express.ts'
import { guardOf as koaGuardOf, KOAS, Router, serveKoa } from './run-koa.ts'

function warnings(): string[] {
  const messages: string[] = []
  const listen = ({ message }: Error) => void messages.push(message)
  process.on('warning', listen)
  onTestFinished(() => void process.off('warning', listen))
  return messages
}

describe('idempotency without a call', () => {
  const ADVICE = 'Call it where you mount it, as in app.use(idempotency({ store, tenant }))'

  it.each(EXPRESSES)(
    'fails each request of %s when idempotency is mounted without a call',
    async (_name, express) => {
      const app = express()
      app.use(onExpress as unknown as RequestHandler)
      app.post('/', () => expect.fail('ran'))
      app.use(((error: Error, _req, res, _next) => {
        res.status(500).send(error.message)
      }) as ErrorRequestHandler)
      const { send } = await serve(app)
      const reply = await send({ key: 'k' })
      expect([reply.status, text(reply)]).toEqual([500, expect.stringContaining(ADVICE)])
    },
  )

  it.each(KOAS)(
    'fails each request of %s when idempotency is mounted without a call',
    async (_name, koa) => {
      const { send, errors } = await serveKoa(koa, onKoa as never, () => expect.fail('ran'))
      expect((await send({ key: 'k' })).status).toBe(500)
      expect(errors.map(({ message }) => message)).toEqual([expect.stringContaining(ADVICE)])
    },
  )

  it('fails each request of Hono when idempotency is mounted without a call', async () => {
    const app = new Hono()
    app.use(onHono as never)
    app.post('/', () => expect.fail('ran'))
    app.onError((error, c) => c.text(error.message, 500))
    const reply = await app.request('/', { method: 'POST' })
    expect([reply.status, await reply.text()]).toEqual([500, expect.stringContaining(ADVICE)])
  })

  it('throws when idempotency of node:http or fetch gets a request', async () => {
    const errors: unknown[] = []
    const { send } = await serve((req, res) => {
      try {
        ;(onNode as (...args: unknown[]) => unknown)(req, res)
      } catch (error) {
        errors.push(error)
        res.end()
      }
    })
    await send({ key: 'k' })
    expect(errors.map(String)).toEqual([expect.stringContaining(ADVICE)])
    expect(() => onFetch(new Request('http://localhost') as never)).toThrow(ADVICE)
  })
})

describe('guards on unprotected methods', () => {
  it.each(EXPRESSES)('warns once of a guard on GET or PUT in %s', async (name, express) => {
    const messages = warnings()
    const path = `/${name.replace(' ', '-')}`
    const app = express()
    const guard = guardOf()
    const handler: RequestHandler = (_req, res) => void res.send('ok')
    app.use('/used', guard, handler)
    app.get(`${path}/:id`, guard, handler)
    app.put(path, guard, handler)
    app.all(`${path}/all`, guard, handler)
    const { send } = await serve(app)
    for (const one of ['/used', `${path}/1`, `${path}/2`, `${path}/all`]) {
      expect((await send({ method: 'GET', path: one })).status).toBe(200)
    }
    await send({ method: 'PUT', path })
    await turns()
    expect(messages).toEqual([
      `idempotency() is mounted on GET ${path}/:id, where it protects nothing: GET requests ` +
        'change nothing and pass unchanged. Remove it from this route',
      expect.stringContaining(
        `PUT ${path}, where it protects nothing: PUT requests pass unchanged`,
      ),
    ])
    expect(messages[1]).toContain(`{ methods: ['PUT'] }`)
  })

  it('does not warn of a guard that is mounted behind a GET route', async () => {
    const messages = warnings()
    const [, express] = EXPRESSES[0]!
    const app = express()
    app.get('/after', (_req, _res, next) => next())
    app.use(guardOf())
    app.use((_req, res) => void res.send('ok'))
    const { send } = await serve(app)
    expect((await send({ method: 'GET', path: '/after' })).status).toBe(200)
    await turns()
    expect(messages).toEqual([])
  })

  it.each(KOAS)('warns once of a guard on GET in %s', async (name, koa) => {
    const messages = warnings()
    const path = `/${name.replace(' ', '-')}`
    const guard = koaGuardOf()
    const router = new Router()
    router.use('/used', guard)
    for (const one of [`${path}/:id`, `${path}/also/:id`]) {
      router.get(one, guard, (ctx) => {
        ctx.body = 'ok'
      })
    }
    router.get('/used', (ctx) => {
      ctx.body = 'ok'
    })
    router.all('/all', guard, (ctx) => {
      ctx.body = 'ok'
    })
    const { send } = await serveKoa(koa, router.routes())
    for (const one of ['/used', '/all', `${path}/1`, `${path}/2`]) {
      expect((await send({ method: 'GET', path: one })).status).toBe(200)
    }
    await turns()
    expect(messages).toEqual([
      expect.stringContaining(`mounted on GET ${path}/:id, where it protects nothing`),
    ])
  })

  it('warns once of a guard on GET in Hono', async () => {
    const messages = warnings()
    const guard = onHono({ store: memoryStore(), tenant: singleTenant })
    const app = new Hono()
    app.use('/used/*', guard)
    app.get('/used/a', (c) => c.text('ok'))
    app.get('/hono/:id', guard, (c) => c.text('ok'))
    for (const path of ['/used/a', '/hono/1', '/hono/2']) {
      expect((await app.request(path)).status).toBe(200)
    }
    await turns()
    expect(messages).toEqual([
      expect.stringContaining('mounted on GET /hono/:id, where it protects nothing'),
    ])
  })
})

it('warns once of two open engines on one store, but not of successive ones', async () => {
  const messages = warnings()
  const options = { tenant: singleTenant }
  const store = memoryStore()
  const first = createEngine({ store })
  await first.close()
  const guard = onExpress({ store, ...options })
  // Guards share the engine of their store.
  onKoa({ store, ...options })
  onExpress({ engine: guard.engine, ...options })
  await turns()
  expect(messages).toEqual([])
  const second = createEngine({ store })
  const third = createEngine({ store })
  await turns()
  expect(messages).toEqual([
    expect.stringContaining('the memory store has two engines in this process'),
  ])
  expect(messages[0]).toContain('idempotency({ engine, tenant })')
  for (const engine of [guard.engine, second, third]) await engine.close()
})
