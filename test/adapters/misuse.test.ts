/** Mistakes at mounting: the guard uncalled, on a route it does not protect, on a second engine. */
import type { ErrorRequestHandler, RequestHandler } from 'express'
import { Hono } from 'hono'
import { describe, expect, it, onTestFinished } from 'vitest'
import { idempotency as onExpress } from '../../src/adapters/express.ts'
import { idempotency as onFetch } from '../../src/adapters/fetch.ts'
import { idempotency as onHono, singleTenant } from '../../src/adapters/hono.ts'
import { idempotency as onKoa } from '../../src/adapters/koa.ts'
import { idempotency as onNode } from '../../src/adapters/node.ts'
import { createEngine } from '../../src/core/engine.ts'
import { memoryStore } from '../../src/stores/memory/memory-store.ts'
import { EXPRESSES, guardOf, serve, text, turns } from './run-express.ts'
import { guardOf as koaGuardOf, KOAS, Router, serveKoa } from './run-koa.ts'

function warnings(): string[] {
  const heard: string[] = []
  const listen = ({ message }: Error) => void heard.push(message)
  process.on('warning', listen)
  onTestFinished(() => void process.off('warning', listen))
  return heard
}

describe('idempotency that is mounted without being called', () => {
  const SENTENCE = 'Call it where you mount it, as in app.use(idempotency({ store, tenant }))'

  it.each(EXPRESSES)('fails each request of %s with a sentence', async (_name, express) => {
    const app = express()
    app.use(onExpress as unknown as RequestHandler)
    app.post('/', () => expect.fail('ran'))
    app.use(((error: Error, _req, res, _next) => {
      res.status(500).send(error.message)
    }) as ErrorRequestHandler)
    const { send } = await serve(app)
    const reply = await send({ key: 'k' })
    expect([reply.status, text(reply)]).toEqual([500, expect.stringContaining(SENTENCE)])
  })

  it.each(KOAS)('fails each request of %s with a sentence', async (_name, koa) => {
    const { send, errors } = await serveKoa(koa, onKoa as never, () => expect.fail('ran'))
    expect((await send({ key: 'k' })).status).toBe(500)
    expect(errors.map(({ message }) => message)).toEqual([expect.stringContaining(SENTENCE)])
  })

  it('fails each request of Hono with a sentence', async () => {
    const app = new Hono()
    app.use(onHono as never)
    app.post('/', () => expect.fail('ran'))
    app.onError((error, c) => c.text(error.message, 500))
    const reply = await app.request('/', { method: 'POST' })
    expect([reply.status, await reply.text()]).toEqual([500, expect.stringContaining(SENTENCE)])
  })

  it('throws for requests of node:http and fetch', async () => {
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
    expect(errors.map(String)).toEqual([expect.stringContaining(SENTENCE)])
    expect(() => onFetch(new Request('http://localhost') as never)).toThrow(SENTENCE)
  })
})

describe('a guard on a route whose method it does not protect', () => {
  it.each(EXPRESSES)('is warned of once in %s', async (name, express) => {
    const heard = warnings()
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
    expect(heard).toEqual([
      `idempotency() is mounted on GET ${path}/:id, where it protects nothing: GET requests ` +
        'change nothing and pass untouched. Leave it out there',
      expect.stringContaining(
        `PUT ${path}, where it protects nothing: PUT requests pass untouched`,
      ),
    ])
    expect(heard[1]).toContain(`{ methods: ['PUT'] }`)
  })

  it('is not seen in a guard that only comes after such a route', async () => {
    const heard = warnings()
    const [, express] = EXPRESSES[0]!
    const app = express()
    app.get('/after', (_req, _res, next) => next())
    app.use(guardOf())
    app.use((_req, res) => void res.send('ok'))
    const { send } = await serve(app)
    expect((await send({ method: 'GET', path: '/after' })).status).toBe(200)
    await turns()
    expect(heard).toEqual([])
  })

  it.each(KOAS)('is warned of once in %s', async (name, koa) => {
    const heard = warnings()
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
    expect(heard).toEqual([
      expect.stringContaining(`mounted on GET ${path}/:id, where it protects nothing`),
    ])
  })

  it('is warned of once in Hono', async () => {
    const heard = warnings()
    const guard = onHono({ store: memoryStore(), tenant: singleTenant })
    const app = new Hono()
    app.use('/used/*', guard)
    app.get('/used/a', (c) => c.text('ok'))
    app.get('/hono/:id', guard, (c) => c.text('ok'))
    for (const path of ['/used/a', '/hono/1', '/hono/2']) {
      expect((await app.request(path)).status).toBe(200)
    }
    await turns()
    expect(heard).toEqual([
      expect.stringContaining('mounted on GET /hono/:id, where it protects nothing'),
    ])
  })
})

it('warns once of two open engines on one store, and not of one after the other', async () => {
  const heard = warnings()
  const options = { tenant: singleTenant }
  const store = memoryStore()
  const first = createEngine({ store })
  await first.close()
  const guard = onExpress({ store, ...options })
  // Guards share the engine of their store.
  onKoa({ store, ...options })
  onExpress({ engine: guard.engine, ...options })
  await turns()
  expect(heard).toEqual([])
  const second = createEngine({ store })
  const third = createEngine({ store })
  await turns()
  expect(heard).toEqual([
    expect.stringContaining('the memory store has two engines in this process'),
  ])
  expect(heard[0]).toContain('idempotency({ engine, tenant })')
  for (const engine of [guard.engine, second, third]) await engine.close()
})
