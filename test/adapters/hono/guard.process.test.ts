import { Hono, type Context } from 'hono'
import { HTTPException } from 'hono/http-exception'
import { stream, streamSSE, streamText } from 'hono/streaming'
import { validator } from 'hono/validator'
import { beforeAll, describe, expect, it, vi } from 'vitest'
import { singleTenant } from '../../../src/http/guard/guard-options.ts'
import { currentIdempotency } from '../../../src/http/guard/current.ts'
import {
  idempotency,
  idempotencyOf,
  idempotencyStatus,
  type IdempotencyOptions,
} from '../../../src/adapters/hono/index.ts'
import { NotExecutedError, OutcomeUnknownError } from '../../../src/core/errors.ts'
import type { Store } from '../../../src/core/store/store.ts'
import { memoryStore } from '../../../src/stores/memory/store.ts'
import {
  adaptOptions,
  adaptStatusOptions,
  type AdapterSubject,
  type CaseReply,
} from '../../../src/testing/index.ts'
import { runAdapterCases } from '../run-adapter-cases.ts'
import { gate, header, json, problemOf, text, turns } from '../run-express.ts'
import { serveHono } from '../web/serve-web.ts'

// Hono prints errors of apps without `onError`.
beforeAll(() => {
  vi.spyOn(console, 'error').mockReturnValue(undefined)
})

const guardOf = (options: Partial<IdempotencyOptions> = {}) =>
  idempotency({ tenant: singleTenant, store: memoryStore(), ...options })

const STATES = ['completed', 'failed_retryable', 'unknown', 'in_progress'] as const

/** The operation and the state of each record in this store. */
async function recordsOf(store: Store) {
  const found = await Promise.all(STATES.map((state) => store.list({ state, limit: 100 })))
  return found.flat().map(({ operation, state }) => `${operation}: ${state}`)
}

const headOf = (c: Context) => ({ header: (name: string) => c.req.header(name) })

function toResponse(c: Context, { status, headers = {}, body, stream: chunks }: CaseReply) {
  for (const [name, values] of Object.entries(headers)) {
    for (const value of [values].flat()) c.header(name, value, { append: true })
  }
  c.status(status as 200)
  if (chunks === undefined) return c.body((body ?? null) as string)
  // Hono's stream() would end a reply that fails as if it were complete.
  return c.body(ReadableStream.from(chunks) as ReadableStream)
}

const subject: AdapterSubject = {
  without: { validation: 'all code behind the guard counts as the handler' },
  async serve({ options, routes, status }) {
    const app = new Hono()
    const guard = idempotency(adaptOptions(options, headOf))
    for (const { method = 'POST', path, options: own, handle } of routes) {
      const handler = async (c: Context) => {
        const reply = await handle({
          ...headOf(c),
          idempotency: c.get('idempotency'),
          json: () => c.req.json(),
          bytes: async () => new Uint8Array(await c.req.arrayBuffer()),
        })
        return toResponse(c, reply)
      }
      if (own === false) app.on(method, path, handler)
      else {
        app.on(
          method,
          path,
          own === undefined ? guard : guard.with(adaptOptions(own, headOf)),
          handler,
        )
      }
    }
    if (status !== undefined) {
      const handler = idempotencyStatus(adaptStatusOptions(status.options, headOf))
      app.get(`${status.path}/:id`, handler)
    }
    return serveHono(app)
  },
}

runAdapterCases('hono', subject)

describe('protected routes', () => {
  it('provides the key with c.get, c.var, idempotencyOf and currentIdempotency', async () => {
    const app = new Hono()
    app.post('/', guardOf(), (c) => {
      const context = idempotencyOf(c)
      expect(c.get('idempotency')).toBe(context)
      expect(c.var.idempotency).toBe(context)
      expect(currentIdempotency()).toBe(context)
      return c.json({ key: context.key, attempt: context.attempt })
    })
    app.post('/open', (c) => c.text(idempotencyOf(c).key))
    app.onError((error, c) => c.text(error.message, 500))
    const { send } = await serveHono(app)

    expect(json(await send({ key: 'k' }))).toEqual({ key: 'k', attempt: 1 })
    expect(text(await send({ path: '/open', key: 'k' }))).toMatch(/^POST \/open is not protected/)
  })

  it('protects requests of app.request()', async () => {
    let runs = 0
    const app = new Hono().post('/', guardOf(), (c) => c.json({ run: ++runs }))
    const request = () =>
      app.request('/', { method: 'POST', headers: { 'idempotency-key': 'k' }, body: 'x' })

    const first = await request()
    const retry = await request()
    expect(await first.json()).toEqual({ run: 1 })
    expect(await retry.json()).toEqual({ run: 1 })
    expect(retry.headers.get('idempotent-replayed')).toBe('true')
  })

  it('passes other methods, and refuses a request without a key', async () => {
    const app = new Hono()
    app.use(guardOf())
    app.on(['GET', 'POST'], '/', (c) => c.text(typeof c.get('idempotency')))
    const { send } = await serveHono(app)

    expect(text(await send({ method: 'GET', key: 'k' }))).toBe('undefined')
    expect(problemOf(await send())).toEqual([400, 'idempotency_key_missing'])
  })

  it('throws if two guards are mounted before one handler', async () => {
    const app = new Hono()
    const guard = guardOf()
    app.use(guard)
    app.post('/', guard.with({ operation: 'pay' }), (c) => c.text('paid'))
    app.onError((error, c) => c.text(error.message, 500))
    const { send } = await serveHono(app)

    expect(text(await send({ key: 'k' }))).toMatch(/mounted twice/)
  })

  it('overrides options for one route', async () => {
    const app = new Hono()
    const guard = guardOf()
    app.post('/loose', guard.with({ keyRequired: false }), (c) => c.text('ran'))
    const { send } = await serveHono(app)

    expect(text(await send({ path: '/loose' }))).toBe('ran')
    expect(guard.with({}).engine).toBe(guard.engine)
  })
})

describe('operations', () => {
  async function operationsOf(
    build: (app: Hono, guard: ReturnType<typeof guardOf>) => Hono,
    path: string,
  ) {
    const store = memoryStore()
    const app = build(new Hono(), guardOf({ store }))
    const { send } = await serveHono(app)
    expect((await send({ path, key: 'k' })).status).toBe(200)
    return recordsOf(store)
  }

  it('names the operation after the route template, without parameter names', async () => {
    const records = await operationsOf(
      (app, guard) => app.post('/orders/:order/items/:item{[a-z]+}', guard, (c) => c.text('ok')),
      '/orders/1/items/a',
    )
    expect(records).toEqual(['POST /orders/:/items/:{[a-z]+}: completed'])
  })

  it('includes the base path and the prefix of a nested app in the operation', async () => {
    const records = await operationsOf((app, guard) => {
      const orders = new Hono().post('/:id/pay', guard, (c) => c.text('ok'))
      const nested = new Hono().basePath('/v1').route('/orders', orders)
      return app.route('/api', nested)
    }, '/api/v1/orders/7/pay')
    expect(records).toEqual(['POST /api/v1/orders/:/pay: completed'])
  })

  it('names the operation after the handler if the guard is mounted on a wider path', async () => {
    const records = await operationsOf((app, guard) => {
      app.use('/api/*', guard)
      app.use('*', async (_c, next) => next())
      app.post('/api/orders/:id', (c) => c.text('ok'))
      return app.all('*', (c) => c.text('else'))
    }, '/api/orders/7')
    expect(records).toEqual(['POST /api/orders/:: completed'])
  })

  it('does not name the operation after the path of a guard for the same method', async () => {
    const records = await operationsOf((app, guard) => {
      app.on('POST', '/api/*', guard)
      return app.post('/api/orders/:id', (c) => c.text('ok'))
    }, '/api/orders/7')
    expect(records).toEqual(['POST /api/orders/:: completed'])
  })

  it('names the operation after a handler for all methods', async () => {
    const records = await operationsOf((app, guard) => {
      app.use(guard)
      return app.all('/orders/:id', (c) => c.text('ok'))
    }, '/orders/7')
    expect(records).toEqual(['POST /orders/:: completed'])
  })

  it('separates a key by route, and refuses it for another path of the same route', async () => {
    const app = new Hono()
    app.use(guardOf())
    app.post('/orders/:id', (c) => c.text('order'))
    app.post('/refunds/:id', (c) => c.text('refund'))
    const { send } = await serveHono(app)

    expect(text(await send({ path: '/orders/1', key: 'k' }))).toBe('order')
    expect(text(await send({ path: '/refunds/1', key: 'k' }))).toBe('refund')
    expect((await send({ path: '/orders/2', key: 'k' })).status).toBe(422)
  })
})

describe('errors', () => {
  async function outcomeOf(throwIt: () => unknown, onError?: 'own') {
    const store = memoryStore()
    const app = new Hono()
    app.post('/', guardOf({ store }), () => {
      throw throwIt()
    })
    if (onError === 'own') app.onError((error, c) => c.json({ message: error.message }, 500))
    const { send } = await serveHono(app)
    const reply = await send({ key: 'k' })
    const [record] = await recordsOf(store)
    return { reply, state: record?.split(': ')[1] }
  }

  it('settles the key by the class of the error, and sends the reply of app.onError', async () => {
    const lost = Object.assign(new Error('fetch failed'), { code: 'ECONNRESET' })
    expect(await outcomeOf(() => new Error('plain'), 'own')).toMatchObject({
      reply: { status: 500, body: Buffer.from('{"message":"plain"}') },
      state: 'failed_retryable',
    })
    expect(await outcomeOf(() => lost, 'own')).toMatchObject({ state: 'unknown' })
    expect(await outcomeOf(() => new OutcomeUnknownError())).toMatchObject({ state: 'unknown' })
    expect(await outcomeOf(() => new NotExecutedError('full'))).toMatchObject({
      reply: { status: 500 },
      state: 'failed_retryable',
    })
  })

  it('settles the key by the status of an HTTPException', async () => {
    expect(await outcomeOf(() => new HTTPException(422))).toMatchObject({
      reply: { status: 422 },
      state: 'completed',
    })
    expect(await outcomeOf(() => new HTTPException(401))).toMatchObject({
      state: 'failed_retryable',
    })
    expect(await outcomeOf(() => new HTTPException(500))).toMatchObject({
      state: 'failed_retryable',
    })
    // With 502, the handler states that the outcome of a call is unknown.
    expect(await outcomeOf(() => new HTTPException(502))).toMatchObject({ state: 'unknown' })
    const cause = new TypeError('fetch failed')
    expect(await outcomeOf(() => new HTTPException(500, { cause }))).toMatchObject({
      state: 'unknown',
    })
    const res = new Response('mine', { status: 409 })
    expect(await outcomeOf(() => new HTTPException(409, { res }))).toMatchObject({
      reply: { status: 409, body: Buffer.from('mine') },
      state: 'completed',
    })
  })

  it('sees an error of a nested app that has its own onError', async () => {
    const store = memoryStore()
    const inner = new Hono().onError((_error, c) => c.text('inner', 500))
    inner.post('/', guardOf({ store }), () => {
      throw new TypeError('fetch failed')
    })
    const { send } = await serveHono(new Hono().route('/in', inner))

    expect(text(await send({ path: '/in', key: 'k' }))).toBe('inner')
    expect(await recordsOf(store)).toEqual(['POST /in: unknown'])
  })

  it('leaves the outcome unknown if a handler returns nothing', async () => {
    const store = memoryStore()
    const app = new Hono()
    app.post('/', guardOf({ store }), () => undefined as never)
    app.onError((error, c) => c.text(error.message, 500))
    const { send } = await serveHono(app)

    expect(text(await send({ key: 'k' }))).toMatch(/must return a Response.* got nothing/)
    expect(await recordsOf(store)).toEqual(['POST /: unknown'])
  })
})

describe('replies', () => {
  /** Sends a request and its retry. The handler must run once. */
  async function twice(handler: (c: Context) => Response | Promise<Response>) {
    let runs = 0
    const app = new Hono().post('/', guardOf({ replyBytesMax: 1000 }), (c) => {
      runs++
      return handler(c)
    })
    const { send } = await serveHono(app)
    const first = await send({ key: 'k' })
    const retry = await send({ key: 'k' })
    expect(runs).toBe(1)
    expect(retry.status).toBe(first.status)
    expect(header(retry, 'idempotent-replayed')).toBe('true')
    return { first, retry }
  }

  it('replays a 204 with an empty body', async () => {
    const { first, retry } = await twice((c) => c.body(null, 204))
    expect([first.status, first.body.length, retry.body.length]).toEqual([204, 0, 0])
  })

  it('replays c.notFound() and redirects', async () => {
    const missing = await twice((c) => Promise.resolve(c.notFound()))
    expect([missing.retry.status, text(missing.retry)]).toEqual([404, '404 Not Found'])
    const moved = await twice((c) => c.redirect('/there', 303))
    expect([moved.retry.status, header(moved.retry, 'location')]).toEqual([303, '/there'])
  })

  it('holds a streamed reply until it is complete, and replays it', async () => {
    const bytes = new Uint8Array([0, 255, 10, 13])
    const { first, retry } = await twice((c) =>
      stream(c, async (sink) => {
        await sink.write(bytes)
        await sink.write(bytes)
      }),
    )
    expect(first.body).toEqual(Buffer.from([...bytes, ...bytes]))
    expect(retry.body).toEqual(first.body)
    const words = await twice((c) => streamText(c, async (sink) => void (await sink.write('hi'))))
    expect(text(words.retry)).toBe('hi')
  })

  it('sends a reply above the cap completely, and replays it without its body', async () => {
    const { first, retry } = await twice((c) =>
      stream(c, async (sink) => {
        for (let i = 0; i < 40; i++) await sink.write('x'.repeat(100))
      }),
    )
    expect(first.body.length).toBe(4000)
    expect(header(retry, 'idempotent-body-elided')).toBe('true')
  })

  it('sends each event of a stream at once', async () => {
    const go = gate()
    const app = new Hono().post('/', guardOf(), (c) =>
      streamSSE(c, async (sink) => {
        await sink.writeSSE({ data: 'one' })
        await go.passed
        await sink.writeSSE({ data: 'two' })
      }),
    )
    const { connect, send } = await serveHono(app)
    const client = await connect({ key: 'k', body: '' })
    expect(await client.until(/data: one/)).toMatch(/text\/event-stream[^]*data: one/)
    const retry = await send({ key: 'k', body: '' })
    expect(header(retry, 'idempotent-body-elided')).toBe('true')
    go.open()
    expect(await client.until(/data: two/)).toMatch(/data: two/)
  })

  it('records the reply for the retry if the client has disconnected', async () => {
    const entered = gate()
    const go = gate()
    let runs = 0
    const app = new Hono().post('/', guardOf(), async (c) => {
      entered.open()
      await go.passed
      return c.json({ run: ++runs })
    })
    const { connect, send } = await serveHono(app)
    const client = await connect({ key: 'k', json: { a: 1 } })
    await entered.passed
    client.cut()
    await turns()
    expect(problemOf(await send({ key: 'k', json: { a: 1 } }))[0]).toBe(409)
    go.open()
    await turns()
    expect(json(await send({ key: 'k', json: { a: 1 } }))).toEqual({ run: 1 })
  })
})

describe('request bodies', () => {
  it('leaves the body to validators and handlers behind the guard', async () => {
    const app = new Hono().post(
      '/',
      guardOf(),
      validator('json', (value: { amount: number }) => ({ amount: value.amount })),
      async (c) => c.json({ valid: c.req.valid('json'), raw: await c.req.json() }),
    )
    const { send } = await serveHono(app)
    const reply = await send({ key: 'k', json: { amount: 1, note: 'n' } })
    expect(json(reply)).toEqual({ valid: { amount: 1 }, raw: { amount: 1, note: 'n' } })
  })

  it.each(['json', 'text', 'arrayBuffer', 'blob'] as const)(
    'compares the body if c.req.%s() was called before the guard',
    async (read) => {
      const app = new Hono()
      app.use(async (c, next) => {
        await c.req[read]()
        await next()
      })
      app.post('/', guardOf({ requestBytesMax: 100 }), async (c) => c.json(await c.req.json()))
      const { send } = await serveHono(app)
      const big = 2n ** 60n

      expect(text(await send({ key: 'k', body: '{"a":1}' }))).toBe('{"a":1}')
      expect(header(await send({ key: 'k', body: '{"a":1}' }), 'idempotent-replayed')).toBe('true')
      expect((await send({ key: 'k', body: '{"a":2}' })).status).toBe(422)
      await send({ key: 'big', body: `{"a":${big}}` })
      expect((await send({ key: 'big', body: `{"a":${big + 1n}}` })).status).toBe(422)
      expect((await send({ key: 'large', body: 'x'.repeat(101) })).status).toBe(
        read === 'json' ? 500 : 413,
      )
    },
  )

  it.each([
    ['as a form', (c: Context) => c.req.formData()],
    ['from c.req.raw', (c: Context) => c.req.raw.text()],
  ])('fails if the body was read %s before the guard', async (_how, read) => {
    let runs = 0
    const app = new Hono()
    app.use(async (c, next) => {
      await read(c)
      await next()
    })
    app.post('/', guardOf(), (c) => c.text(String(++runs)))
    app.onError((error, c) => c.text(error.message, 500))
    const { send } = await serveHono(app)
    const headers = { 'Content-Type': 'application/x-www-form-urlencoded' }

    expect(text(await send({ key: 'k', body: 'a=1', headers }))).toMatch(/was read before idempot/)
    expect(runs).toBe(0)
  })

  it('returns 413 for a body above the limit, with and without Content-Length', async () => {
    const app = new Hono().post('/', guardOf({ requestBytesMax: 10 }), (c) => c.text('ran'))
    const { send } = await serveHono(app)

    expect((await send({ key: 'k', body: 'x'.repeat(11) })).status).toBe(413)
    expect((await send({ key: 'k', chunks: ['x'.repeat(6), 'x'.repeat(6)] })).status).toBe(413)
    expect((await send({ key: 'k', body: 'x'.repeat(10) })).status).toBe(200)
  })
})
