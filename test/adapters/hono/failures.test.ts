/** Failures around protected Hono handlers, and the outcomes that are recorded. */
import { Hono, type Context, type MiddlewareHandler } from 'hono'
import { HTTPException } from 'hono/http-exception'
import { mount } from 'hono/mount'
import { stream, streamSSE } from 'hono/streaming'
import type { ContentfulStatusCode } from 'hono/utils/http-status'
import { describe, expect, it } from 'vitest'
import { singleTenant } from '../../../src/http/guard/guard-options.ts'
import { currentIdempotency } from '../../../src/http/guard/current.ts'
import {
  idempotency,
  idempotencyOf,
  type IdempotencyOptions,
} from '../../../src/adapters/hono/index.ts'
import { OutcomeUnknownError } from '../../../src/core/errors.ts'
import { memoryStore } from '../../../src/stores/memory/store.ts'
import { gate, header, problemOf, text, turns, wrapStore } from '../run-express.ts'
import { serveHono } from '../web/serve-web.ts'

const guardOf = (options: Partial<IdempotencyOptions> = {}) =>
  idempotency({ tenant: singleTenant, store: memoryStore(), ...options })

const UNKNOWN = [409, 'idempotency_outcome_unknown']

/** A body that fails after its first bytes. */
const failing = (error: Error) =>
  new ReadableStream({
    start: (controller) => controller.enqueue(new TextEncoder().encode('begun')),
    pull: (controller) => controller.error(error),
  })

describe('middlewares before the guard that do not await next()', () => {
  /** Stops waiting for requests with `x-hurry` when `isOver` resolves. */
  const impatient =
    (isOver: Promise<void>, giveUp: (c: Context) => Response): MiddlewareHandler =>
    async (c, next) => {
      const ended = next()
      if (c.req.header('x-hurry') === undefined) return ended
      await Promise.race([ended, isOver])
      return giveUp(c)
    }

  const returning = (status: ContentfulStatusCode) => (c: Context) => c.text('too slow', status)
  const throwing = (status: ContentfulStatusCode) => () => {
    throw new HTTPException(status)
  }

  it.each([
    ['returns 200', returning(200)],
    ['returns 422', returning(422)],
    ['returns 408', returning(408)],
    ['throws 408', throwing(408)],
    ['returns 503', returning(503)],
    ['throws 503', throwing(503)],
    ['throws 504', throwing(504)],
  ])(
    'leaves the outcome unknown if a middleware %s while the handler runs',
    async (_how, giveUp) => {
      const [entered, go] = [gate(), gate()]
      let runs = 0
      const app = new Hono()
      app.use(impatient(entered.passed, giveUp))
      app.post('/', guardOf(), async (c) => {
        runs++
        entered.open()
        await go.passed
        return c.text('paid')
      })
      app.onError((error, c) => (error instanceof HTTPException ? error.getResponse() : c.text('')))
      const { send } = await serveHono(app)
      expect(text(await send({ key: 'k', headers: { 'x-hurry': '1' } }))).not.toBe('paid')
      go.open()
      await turns()
      expect(problemOf(await send({ key: 'k' }))).toEqual(UNKNOWN)
      expect(runs).toBe(1)
    },
  )

  it('does not run the handler if a middleware has answered before it was entered', async () => {
    const isBusy = gate()
    const store = memoryStore()
    const claim: typeof store.claim = async (requests) => {
      await isBusy.passed
      return store.claim(requests)
    }
    let runs = 0
    const app = new Hono()
    app.use(impatient(Promise.resolve(), (c) => c.text('too slow', 503)))
    app.post('/', guardOf({ store: wrapStore(store, { claim }) }), (c) => c.text(`run ${++runs}`))
    app.onError((_error, c) => c.text('', 500))
    const { send } = await serveHono(app)
    expect(text(await send({ key: 'k', headers: { 'x-hurry': '1' } }))).toBe('too slow')
    isBusy.open()
    await turns()
    expect(runs).toBe(0)
    expect(text(await send({ key: 'k' }))).toBe('run 1')
  })
})

describe('errors', () => {
  it('settles the key by the class of an error for which app.onError throws', async () => {
    let runs = 0
    const app = new Hono()
    app.post('/', guardOf(), (c) => {
      if (++runs === 1) throw new TypeError('fetch failed')
      return c.text('ran')
    })
    app.onError((error, c) => {
      if (runs === 1 && error.message === 'fetch failed') throw new Error('a bug in onError')
      return c.text(error.message, 500)
    })
    const { send } = await serveHono(app)
    expect((await send({ key: 'k' })).status).toBe(500)
    expect(problemOf(await send({ key: 'k' }))).toEqual(UNKNOWN)
    expect(runs).toBe(1)
  })

  it.each([
    ['a plain error', new Error('disk'), 'ran'],
    ['a lost call', new TypeError('fetch failed'), 'unknown'],
  ])(
    'treats %s of a body as an error of the handler, and drops its headers',
    async (_name, e, then) => {
      let runs = 0
      const app = new Hono()
      app.post('/', guardOf(), (c) => {
        if (++runs > 1) return c.text('ran')
        const headers = { 'Content-Length': '1000', Location: '/o', 'Set-Cookie': 'a=1' }
        return c.body(failing(e), 201, headers)
      })
      app.onError((error, c) => c.text(error.message, 500))
      const { send } = await serveHono(app)
      const failed = await send({ key: 'k' })
      expect([failed.status, text(failed)]).toEqual([500, e.message])
      expect(header(failed, 'location')).toBeUndefined()
      expect(header(failed, 'set-cookie')).toBeUndefined()
      const retry = await send({ key: 'k' })
      if (then === 'ran') expect(text(retry)).toBe('ran')
      else expect(problemOf(retry)).toEqual(UNKNOWN)
    },
  )

  it('records a success that app.onError returns for an error', async () => {
    let runs = 0
    const app = new Hono()
    app.post('/', guardOf(), () => {
      runs++
      throw new Error('ignored')
    })
    app.onError((_error, c) => c.text('fine'))
    const { send } = await serveHono(app)
    expect(text(await send({ key: 'k' }))).toBe('fine')
    expect(header(await send({ key: 'k' }), 'idempotent-replayed')).toBe('true')
    expect(runs).toBe(1)
  })
})

describe('streams', () => {
  const app = (handler: (c: Context) => Response) =>
    serveHono(new Hono().post('/', guardOf(), handler))

  it('holds the key while a stream is produced after the handler has returned', async () => {
    const { send } = await app((c) =>
      c.body(
        new ReadableStream({
          async pull(controller) {
            await turns(2)
            currentIdempotency().assertHeld()
            controller.enqueue(new TextEncoder().encode(currentIdempotency().key))
            controller.close()
          },
        }),
      ),
    )
    const { send: sendHelper } = await app((c) =>
      stream(c, async (sink) => {
        await turns(2)
        idempotencyOf(c).assertHeld()
        await sink.write(currentIdempotency().key)
      }),
    )
    expect(text(await send({ key: 'k' }))).toBe('k')
    expect(text(await sendHelper({ key: 'k' }))).toBe('k')
  })

  it('sends nothing of a stream whose callback reports its failure', async () => {
    let runs = 0
    const { send } = await app((c) =>
      stream(
        c,
        async (sink) => {
          runs++
          await sink.write('begun')
          throw new Error('disk')
        },
        async (cause) => idempotencyOf(c).failed(new OutcomeUnknownError('cut off', { cause })),
      ),
    )
    expect(problemOf(await send({ key: 'k' }))).toEqual(UNKNOWN)
    expect(problemOf(await send({ key: 'k' }))).toEqual(UNKNOWN)
    expect(runs).toBe(1)
  })

  it('aborts a stream of events when the client disconnects', async () => {
    const left = gate()
    const { connect } = await app((c) =>
      streamSSE(c, async (sink) => {
        sink.onAbort(() => left.open())
        await sink.writeSSE({ data: 'one' })
        await left.passed
      }),
    )
    const client = await connect({ key: 'k' })
    await client.until(/data: one/)
    client.cut()
    await left.passed
  })
})

describe('responses', () => {
  it('sends a response that a handler returns for several requests unchanged', async () => {
    let shared: Response | undefined
    const headers = { 'content-type': 'text/plain', 'x-made': 'once' }
    const make = () => new Response('shared', { status: 201, headers })
    const guard = guardOf({ tenant: (c) => c.req.header('x-tenant') ?? 'none' })
    const { send } = await serveHono(new Hono().post('/', guard, () => (shared ??= make())))
    for (const tenant of ['one', 'two']) {
      const first = await send({ key: 'k', headers: { 'x-tenant': tenant } })
      expect([first.status, text(first), header(first, 'x-made')]).toEqual([201, 'shared', 'once'])
      const again = await send({ key: 'k', headers: { 'x-tenant': tenant } })
      expect([text(again), header(again, 'idempotent-replayed')]).toEqual(['shared', 'true'])
    }
    expect([...shared!.headers.keys()]).toEqual(['content-type', 'x-made'])
  })

  it('refuses a response whose stream was sent for an earlier request', async () => {
    const shared = new Response(new Blob(['shared']).stream(), { status: 201 })
    const app = new Hono().post('/', guardOf(), () => shared)
    app.onError((error, c) => c.text(error.message, 500))
    const { send } = await serveHono(app)
    expect(text(await send({ key: 'a' }))).toBe('shared')
    expect(text(await send({ key: 'b' }))).toMatch(/body was read already/)
    expect(text(await send({ key: 'a' }))).toBe('shared')
  })

  it('lets a middleware before the guard replace first replies and replays', async () => {
    const app = new Hono()
    app.use(async (c, next) => {
      await next()
      const data: unknown = await c.res.json()
      c.res = Response.json({ data }, c.res)
    })
    app.post('/', guardOf(), (c) => c.json({ paid: true }, 201))
    const { send } = await serveHono(app)
    for (const replayed of [undefined, 'true']) {
      const reply = await send({ key: 'k' })
      expect([reply.status, text(reply)]).toEqual([201, '{"data":{"paid":true}}'])
      expect(header(reply, 'idempotent-replayed')).toBe(replayed)
    }
  })
})

describe('mounted apps', () => {
  it('passes the body to a mounted app, and records its reply under its path', async () => {
    const app = new Hono()
    app.use(guardOf())
    const legacy = async (request: Request) => {
      const { pathname } = new URL(request.url)
      return new Response(`${pathname} ${await request.text()}`)
    }
    app.all('/legacy/*', mount(legacy))
    const { send } = await serveHono(app)
    const path = '/legacy/pay'
    const first = await send({ path, key: 'k', body: 'x' })
    expect(text(first)).toMatch(/pay x$/)
    expect((await send({ path, key: 'k', body: 'x' })).body).toEqual(first.body)
    expect((await send({ path: '/legacy/refund', key: 'k', body: 'x' })).status).toBe(422)
  })
})
