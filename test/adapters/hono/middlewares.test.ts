/** The guard together with other middlewares of Hono, and transactions of handlers. */
import { gunzipSync } from 'node:zlib'
import { Hono, type Context, type MiddlewareHandler } from 'hono'
import { compress } from 'hono/compress'
import { setCookie } from 'hono/cookie'
import { cors } from 'hono/cors'
import { etag } from 'hono/etag'
import { secureHeaders } from 'hono/secure-headers'
import { timeout } from 'hono/timeout'
import { timing } from 'hono/timing'
import type { ExtractSchema } from 'hono/types'
import { describe, expect, expectTypeOf, it, onTestFinished } from 'vitest'
import { singleTenant } from '../../../src/http/guard/guard-options.ts'
import {
  idempotency,
  idempotencyOf,
  type IdempotencyOptions,
  type WebHandlerContext,
} from '../../../src/adapters/hono/index.ts'
import { createEngine } from '../../../src/core/engine/engine.ts'
import { memoryStore } from '../../../src/stores/memory/store.ts'
import { sqliteStore, type SqliteTransaction } from '../../../src/stores/sqlite/index.ts'
import { FakeClock } from '../../../src/testing/index.ts'
import { scratchFolder } from '../../stores/scratch-folder.ts'
import { gate, header, json, problemOf, text, turns, wrapStore } from '../run-express.ts'
import { serveHono } from '../web/serve-web.ts'

const guardOf = (options: Partial<IdempotencyOptions> = {}) =>
  idempotency({ tenant: singleTenant, store: memoryStore(), ...options })

const pay = (c: Context) => c.json({ paid: 'x'.repeat(2000) }, 201)

const serveBehind = (...middlewares: MiddlewareHandler[]) => {
  const app = new Hono()
  for (const middleware of middlewares) app.use(middleware)
  app.post('/', guardOf(), pay)
  return serveHono(app)
}

describe('middlewares before the guard', () => {
  it('adds headers of middlewares to first replies, replays and problems', async () => {
    const { send } = await serveBehind(
      cors({ origin: 'https://shop.example', exposeHeaders: ['Idempotent-Replayed'] }),
      secureHeaders(),
      timing(),
      async (c, next) => {
        c.header('X-Before', 'yes')
        setCookie(c, 'session', 'one')
        await next()
        c.header('X-After', 'yes')
        setCookie(c, 'seen', 'two')
      },
    )
    const headers = { Origin: 'https://shop.example' }
    const first = await send({ key: 'k', headers })
    const retry = await send({ key: 'k', headers })
    const problem = await send({ headers })

    expect([first.status, retry.status, problem.status]).toEqual([201, 201, 400])
    expect(header(retry, 'idempotent-replayed')).toBe('true')
    for (const reply of [first, retry, problem]) {
      expect(header(reply, 'access-control-allow-origin')).toBe('https://shop.example')
      expect(header(reply, 'access-control-expose-headers')).toBe('Idempotent-Replayed')
      expect(header(reply, 'x-frame-options')).toBe('SAMEORIGIN')
      expect(header(reply, 'server-timing')).toMatch(/total/)
      expect(header(reply, 'x-before')).toBe('yes')
      expect(header(reply, 'x-after')).toBe('yes')
      expect(reply.headers.get('set-cookie')).toEqual(['session=one; Path=/', 'seen=two; Path=/'])
    }
    expect(retry.body).toEqual(first.body)
    expect(header(problem, 'content-type')).toMatch(/problem\+json/)
  })

  it('lets the handler override headers of a middleware, as without the guard', async () => {
    const app = new Hono()
    app.use(async (c, next) => {
      c.header('Cache-Control', 'no-store')
      await next()
    })
    app.post('/', guardOf(), (c) => c.text('x', 200, { 'Cache-Control': 'max-age=1' }))
    app.post('/raw', guardOf(), () => new Response('x'))
    const { send } = await serveHono(app)

    expect(header(await send({ key: 'k' }), 'cache-control')).toBe('max-age=1')
    expect(header(await send({ key: 'k' }), 'cache-control')).toBe('max-age=1')
    expect(header(await send({ path: '/raw', key: 'k' }), 'cache-control')).toBeUndefined()
  })

  it('stores the uncompressed reply, and compresses it for clients that accept it', async () => {
    const { send } = await serveBehind(compress())
    const gzip = { 'Accept-Encoding': 'gzip' }
    const first = await send({ key: 'k', headers: gzip })
    const plain = await send({ key: 'k' })
    const again = await send({ key: 'k', headers: gzip })

    expect([first, plain, again].map((reply) => header(reply, 'content-encoding'))).toEqual([
      'gzip',
      undefined,
      'gzip',
    ])
    expect(gunzipSync(first.body)).toEqual(plain.body)
    expect(gunzipSync(again.body)).toEqual(plain.body)
    expect(header(plain, 'idempotent-replayed')).toBe('true')
  })

  it('adds etags to first replies and replays', async () => {
    const app = new Hono()
    app.use(etag())
    app.on('QUERY', '/', guardOf({ methods: ['QUERY'] }), (c) => c.text('found'))
    const { send } = await serveHono(app)
    const first = await send({ method: 'QUERY', key: 'k' })
    const retry = await send({ method: 'QUERY', key: 'k' })

    expect(header(first, 'etag')).toMatch(/^"[0-9a-f]+"$/)
    expect(header(retry, 'etag')).toBe(header(first, 'etag'))
    const headers = { 'If-None-Match': header(first, 'etag')! }
    expect((await send({ method: 'QUERY', key: 'k', headers })).status).toBe(304)
  })
})

describe('middlewares behind the guard', () => {
  it('records headers that a middleware behind the guard sets', async () => {
    let runs = 0
    const app = new Hono()
    app.post('/', guardOf({ storeHeaders: ['x-inner'] }), async (c, next) => {
      await next()
      c.header('X-Inner', String(++runs))
    })
    app.post('/', pay)
    const { send } = await serveHono(app)

    expect(header(await send({ key: 'k' }), 'x-inner')).toBe('1')
    expect(header(await send({ key: 'k' }), 'x-inner')).toBe('1')
  })

  it('replays compressed bytes, and decodes them for clients that do not accept them', async () => {
    const app = new Hono().post('/', guardOf(), compress(), pay)
    const { send } = await serveHono(app)
    const first = await send({ key: 'k', headers: { 'Accept-Encoding': 'gzip' } })
    const retry = await send({ key: 'k', headers: { 'Accept-Encoding': 'gzip' } })
    const plain = await send({ key: 'k' })

    expect(header(retry, 'content-encoding')).toBe('gzip')
    expect(retry.body).toEqual(first.body)
    expect(header(plain, 'content-encoding')).toBeUndefined()
    expect(plain.body).toEqual(gunzipSync(first.body))
  })

  it('leaves the outcome unknown if timeout() behind the guard stops waiting', async () => {
    const app = new Hono()
    app.post('/', guardOf(), timeout(1), () => new Promise<Response>(() => undefined))
    const { send } = await serveHono(app)

    expect((await send({ key: 'k' })).status).toBe(504)
    expect(problemOf(await send({ key: 'k' }))).toEqual([409, 'idempotency_outcome_unknown'])
  })
})

describe('the guard', () => {
  it('passes the execution context to handlers unchanged', async () => {
    const waited: unknown[] = []
    const executionCtx = {
      waitUntil: (promise: Promise<unknown>) => void waited.push(promise),
      passThroughOnException: () => undefined,
      props: {},
    }
    const app = new Hono<{ Bindings: { region: string } }>()
    app.post('/', guardOf(), (c) => {
      c.executionCtx.waitUntil(Promise.resolve('later'))
      return c.text(c.env.region)
    })
    const init = { method: 'POST', headers: { 'idempotency-key': 'k' } }
    const reply = await app.request('/', init, { region: 'eu' }, executionCtx)

    expect(await reply.text()).toBe('eu')
    expect(await waited[0]).toBe('later')
    expect(waited).toHaveLength(1)
  })

  it('returns 503 with headers of middlewares if the store fails, and runs nothing', async () => {
    let runs = 0
    const broken = wrapStore(memoryStore(), { claim: () => Promise.reject(new Error('down')) })
    const app = new Hono()
    app.use(cors())
    app.post('/', guardOf({ store: broken }), (c) => c.text(String(++runs)))
    const { send } = await serveHono(app)
    const reply = await send({ key: 'k' })

    expect(problemOf(reply)).toEqual([503, 'idempotency_store_unavailable'])
    expect(header(reply, 'access-control-allow-origin')).toBe('*')
    expect(runs).toBe(0)
  })

  it('sends nothing of a reply that could not be recorded', async () => {
    const store = memoryStore()
    const broken = wrapStore(store, { settle: () => Promise.reject(new Error('down')) })
    const app = new Hono()
    const guard = guardOf({ store: broken, settleTimeoutMs: 1 })
    app.post('/', guard, (c) => {
      setCookie(c, 'session', 'secret')
      return c.json({ secret: true })
    })
    const { send } = await serveHono(app)
    const reply = await send({ key: 'k' })
    onTestFinished(async () => void (await guard.engine.close({ graceMs: 0 })))

    expect(problemOf(reply)).toEqual([503, 'idempotency_outcome_not_recorded'])
    expect(header(reply, 'set-cookie')).toBeUndefined()
    expect(text(reply)).not.toMatch(/secret/)
  })
})

describe('runTimeoutMs', () => {
  it('answers when the handler runs too long, and does not record that answer', async () => {
    const clock = new FakeClock()
    const engine = createEngine({ store: memoryStore({ clock }), clock, sweepEveryMs: 0 })
    const entered = gate()
    const go = gate()
    const ended = gate()
    const app = new Hono()
    app.post(
      '/',
      idempotency({ engine, tenant: singleTenant, runTimeoutMs: 60_000 }),
      async (c) => {
        entered.open()
        await go.passed
        ended.open()
        return c.text('late')
      },
    )
    const { send } = await serveHono(app)
    const first = send({ key: 'k' })
    await entered.passed
    clock.advance(60_000)
    const unknown = [409, 'idempotency_outcome_unknown']
    expect(problemOf(await first)).toEqual(unknown)
    go.open()
    await ended.passed
    await turns()
    const retry = await send({ key: 'k' })
    expect(problemOf(retry)).toEqual(unknown)
    expect(header(retry, 'idempotent-replayed')).toBeUndefined()
  })
})

describe('transactions', () => {
  function setup(handler: (c: Context) => Response | Promise<Response | void> | void) {
    const folder = scratchFolder()
    const store = sqliteStore({ path: folder.file('keys.db') })
    onTestFinished(async () => {
      await store.close()
      folder.remove()
    })
    const app = new Hono()
    app.use(cors())
    const guard = idempotency({ store, tenant: singleTenant })
    app.post('/', guard, async (c) => (await handler(c)) as Response)
    app.onError((error, c) => c.text(error.message, 500))
    return serveHono(app)
  }
  const insert = (tx: SqliteTransaction) => {
    tx.exec('CREATE TABLE IF NOT EXISTS orders (id TEXT)')
    tx.prepare('INSERT INTO orders VALUES (?)').run('o')
    return Number(tx.prepare('SELECT count(*) AS n FROM orders').get()?.['n'])
  }

  it('commits the response of a transaction together with its rows', async () => {
    const { send } = await setup((c) =>
      idempotencyOf(c).transaction((tx: SqliteTransaction) => c.json({ orders: insert(tx) }, 201)),
    )
    const first = await send({ key: 'a' })
    const retry = await send({ key: 'a' })
    const other = await send({ key: 'b' })

    expect([first.status, json(first)]).toEqual([201, { orders: 1 }])
    expect([header(retry, 'idempotent-replayed'), json(retry)]).toEqual(['true', { orders: 1 }])
    expect(json(other)).toEqual({ orders: 2 })
    expect(header(first, 'access-control-allow-origin')).toBe('*')
  })

  it('sends a reply that a transaction returns as plain data', async () => {
    const { send } = await setup(async (c) => {
      await idempotencyOf(c).transaction((tx: SqliteTransaction) => {
        return { status: 201, headers: { Location: '/o' }, body: { orders: insert(tx) } }
      })
    })
    const first = await send({ key: 'a' })

    expect([first.status, json(first), header(first, 'location')]).toEqual([
      201,
      { orders: 1 },
      '/o',
    ])
    expect(json(await send({ key: 'a' }))).toEqual({ orders: 1 })
  })

  it('rolls back a transaction that returns a 503, and sends the 503', async () => {
    const { send } = await setup((c) =>
      idempotencyOf(c).transaction((tx: SqliteTransaction) => {
        const orders = insert(tx)
        return c.json({ orders }, c.req.header('x-fail') === undefined ? 201 : 503)
      }),
    )
    const failed = await send({ key: 'a', headers: { 'x-fail': '1' } })
    const retry = await send({ key: 'a' })

    expect([failed.status, json(failed)]).toEqual([503, { orders: 1 }])
    expect([retry.status, json(retry)]).toEqual([201, { orders: 1 }])
    expect(header(retry, 'idempotent-replayed')).toBeUndefined()
  })

  it('rolls back a transaction that throws, and sends the reply of app.onError', async () => {
    let runs = 0
    const { send } = await setup((c) =>
      idempotencyOf(c).transaction((tx: SqliteTransaction) => {
        const orders = insert(tx)
        if (++runs === 1) throw new Error('no stock')
        return c.json({ orders })
      }),
    )
    const failed = await send({ key: 'a' })
    expect([failed.status, text(failed)]).toEqual([500, 'no stock'])
    expect(json(await send({ key: 'a' }))).toEqual({ orders: 1 })
  })
})

describe('types', () => {
  it('keeps the types of apps and handlers', () => {
    type Own = { Variables: { account: string }; Bindings: { region: string } }
    const guard = idempotency<Own>({
      store: memoryStore(),
      tenant: (c) => {
        expectTypeOf(c.get('account')).toEqualTypeOf<string>()
        expectTypeOf(c.env.region).toEqualTypeOf<string>()
        return c.get('account')
      },
    })
    const app = new Hono<Own>().post('/orders/:id', guard, (c) => {
      expectTypeOf(c.req.param('id')).toEqualTypeOf<string>()
      expectTypeOf(c.get('account')).toEqualTypeOf<string>()
      expectTypeOf(c.get('idempotency')).toEqualTypeOf<WebHandlerContext | undefined>()
      expectTypeOf(c.var.idempotency).toEqualTypeOf<WebHandlerContext | undefined>()
      return c.json({ id: c.req.param('id') }, 201)
    })
    type Order = ExtractSchema<typeof app>['/orders/:id']['$post']
    expectTypeOf<Extract<Order, { status: 201 }>['output']>().toEqualTypeOf<{ id: string }>()
    new Hono().post('/plain/:id', guardOf(), (c) => {
      expectTypeOf(c.req.param('id')).toEqualTypeOf<string>()
      const sent = idempotencyOf(c).transaction(() => c.json({ a: 1 }, 201))
      expectTypeOf(sent).resolves.toExtend<Response>()
      return sent
    })
    expectTypeOf(guardOf()).toExtend<MiddlewareHandler>()
  })
})
