/** The outcome of a key when a Koa handler fails. */
import { once } from 'node:events'
import { Readable } from 'node:stream'
import type { Context, Middleware } from 'koa'
import { describe, expect, it } from 'vitest'
import { NotExecutedError, OutcomeUnknownError } from '../../../src/core/errors.ts'
import { idempotencyOf } from '../../../src/adapters/koa/index.ts'
import { header, json, problemOf, text } from '../run-express.ts'
import { counted, guardOf, KOAS, serveKoa, type KoaModule } from '../run-koa.ts'

const UNKNOWN = [409, 'idempotency_outcome_unknown']

const catchAll: Middleware = async (ctx, next) => {
  try {
    await next()
  } catch {
    ctx.status = 500
    ctx.body = { error: 'internal' }
  }
}

/** Serves a handler that fails on its first run and succeeds on the next. */
async function setup(koa: KoaModule, fail: (ctx: Context) => unknown, ...before: Middleware[]) {
  const handler = counted(async (ctx, run) => {
    if (run === 1) await fail(ctx)
    else ctx.body = 'done'
  })
  return { handler, ...(await serveKoa(koa, ...before, guardOf(), handler)) }
}

describe.each(KOAS)('%s', (name, koa) => {
  it('records the 4xx replies that Koa makes for ctx.throw and ctx.assert', async () => {
    const handler = counted((ctx: Context) => {
      ctx.assert(ctx.get('x-way') === 'throw', 404, 'no such account')
      ctx.throw(422, 'amount is negative', { headers: { 'Retry-After': '7' } })
    })
    const { send } = await serveKoa(koa, guardOf(), handler)
    const headers = { 'x-way': 'throw' }
    const thrown = [await send({ key: 'a', headers }), await send({ key: 'a', headers })]
    const asserted = [await send({ key: 'b' }), await send({ key: 'b' })]
    expect(thrown.map((one) => [one.status, text(one), header(one, 'retry-after')])).toEqual([
      [422, 'amount is negative', '7'],
      [422, 'amount is negative', '7'],
    ])
    expect(asserted.map((one) => [one.status, text(one)])).toEqual([
      [404, 'no such account'],
      [404, 'no such account'],
    ])
    expect(header(asserted[1]!, 'idempotent-replayed')).toBe('true')
    expect(handler.runs).toBe(2)
  })

  it.each([401, 403, 408, 425, 429])('releases the key after a %d', async (status) => {
    const { send } = await setup(koa, (ctx) => {
      ctx.status = status
    })
    expect((await send({ key: 'k' })).status).toBe(status)
    expect(text(await send({ key: 'k' }))).toBe('done')
  })

  it('releases the key after an error that is not a lost network call', async () => {
    const { send, errors } = await setup(koa, () => {
      throw new Error('a bug')
    })
    const failed = await send({ key: 'k' })
    expect([failed.status, text(failed)]).toEqual([500, 'Internal Server Error'])
    expect(errors.map(({ message }) => message)).toEqual(['a bug'])
    expect(text(await send({ key: 'k' }))).toBe('done')
  })

  it.each([
    ['is not caught', []],
    ['is caught before the guard', [catchAll]],
  ])(
    'leaves the outcome unknown when the error of a lost network call %s',
    async (_how, before) => {
      const lost = Object.assign(new Error('read'), { code: 'ECONNRESET' })
      const { send, handler } = await setup(
        koa,
        () => {
          throw lost
        },
        ...before,
      )
      expect((await send({ key: 'k' })).status).toBe(500)
      expect(problemOf(await send({ key: 'k' }))).toEqual(UNKNOWN)
      expect(handler.runs).toBe(1)
    },
  )

  it('follows OutcomeUnknownError and NotExecutedError', async () => {
    const doubted = await setup(
      koa,
      () => {
        throw new OutcomeUnknownError()
      },
      catchAll,
    )
    await doubted.send({ key: 'k' })
    expect(problemOf(await doubted.send({ key: 'k' }))).toEqual(UNKNOWN)
    const proven = await setup(
      koa,
      (ctx) => {
        idempotencyOf(ctx).downstreamKey()
        throw new NotExecutedError()
      },
      catchAll,
    )
    await proven.send({ key: 'k' })
    expect(text(await proven.send({ key: 'k' }))).toBe('done')
  })

  it('replays a 4xx that an error middleware makes from an error', async () => {
    const asProblem: Middleware = async (ctx, next) => {
      try {
        await next()
      } catch (error) {
        ctx.status = 409
        ctx.body = { problem: (error as Error).message }
      }
    }
    const { send, handler } = await setup(
      koa,
      () => {
        throw new Error('sold out')
      },
      asProblem,
    )
    const replies = [await send({ key: 'k' }), await send({ key: 'k' })]
    expect(replies.map((one) => [one.status, json(one)])).toEqual([
      [409, { problem: 'sold out' }],
      [409, { problem: 'sold out' }],
    ])
    expect(handler.runs).toBe(1)
  })

  it('releases the key when a handler replies with a 5xx', async () => {
    const { send } = await setup(koa, (ctx) => {
      ctx.status = 503
    })
    expect((await send({ key: 'k' })).status).toBe(503)
    expect(text(await send({ key: 'k' }))).toBe('done')
  })

  it('releases the key when a handler writes a 5xx directly to ctx.res', async () => {
    const { send } = await setup(koa, (ctx) => {
      ctx.respond = false
      ctx.res.statusCode = 503
      ctx.res.end()
    })
    expect((await send({ key: 'k' })).status).toBe(503)
    expect(text(await send({ key: 'k' }))).toBe('done')
  })

  it('replays a 4xx of a handler that writes to ctx.res and then still runs', async () => {
    const { send, handler } = await setup(koa, async (ctx) => {
      ctx.respond = false
      const finished = once(ctx.res, 'finish')
      ctx.res.statusCode = 422
      ctx.res.end('own')
      // Middlewares of other frameworks wait like this in koa-connect.
      await finished
    })
    expect((await send({ key: 'k' })).status).toBe(422)
    expect(text(await send({ key: 'k' }))).toBe('own')
    expect(handler.runs).toBe(1)
  })

  it.each([
    ['before its first byte', []],
    ['after its first byte', [Buffer.from('begun')]],
  ])('releases the key when a stream fails %s', async (_when, chunks) => {
    const { send } = await setup(koa, (ctx) => {
      ctx.body = Readable.from(failing(chunks))
    })
    // Koa 3 cuts the connection. Koa 2 replies with 500 if no byte was sent.
    const first = await send({ key: 'k' }).then(
      ({ status }) => status,
      () => 'cut',
    )
    expect(first).toBe(name === 'koa 2' && chunks.length === 0 ? 500 : 'cut')
    expect(text(await send({ key: 'k' }))).toBe('done')
  })

  it('leaves the outcome unknown when a stream loses a network call', async () => {
    const { send, handler } = await setup(koa, (ctx) => {
      const lost = Object.assign(new Error('read'), { code: 'ECONNRESET' })
      ctx.body = Readable.from(failing([], lost))
    })
    await send({ key: 'k' }).catch(() => undefined)
    expect(problemOf(await send({ key: 'k' }))).toEqual(UNKNOWN)
    expect(handler.runs).toBe(1)
  })

  it('cuts the connection and releases the key when a handler fails in its reply', async () => {
    const { send, errors } = await setup(koa, (ctx) => {
      ctx.res.write('begun')
      throw new Error('a bug')
    })
    await expect(send({ key: 'k' })).rejects.toThrow(/hang up|aborted/)
    expect(errors.map(({ message }) => message)).toContain('a bug')
    expect(text(await send({ key: 'k' }))).toBe('done')
  })

  it('cuts the connection but never runs again when an oversized stream fails', async () => {
    const handler = counted((ctx) => {
      ctx.body = Readable.from(failing([Buffer.alloc(2000)]))
    })
    const { send } = await serveKoa(koa, guardOf({ replyBytesMax: 1000 }), handler)
    await expect(send({ key: 'k' })).rejects.toThrow(/hang up|aborted/)
    const retry = await send({ key: 'k' })
    expect([header(retry, 'idempotent-body-elided'), handler.runs]).toEqual(['true', 1])
  })

  it('passes an error of tenant() to the error middlewares before the guard', async () => {
    const seen: unknown[] = []
    const watch: Middleware = async (ctx, next) => {
      try {
        await next()
      } catch (error) {
        seen.push((error as Error).message)
        ctx.status = 500
        ctx.body = 'caught'
      }
    }
    const handler = counted(() => undefined)
    const { send } = await serveKoa(koa, watch, guardOf({ tenant: () => '' }), handler)
    expect(text(await send({ key: 'k' }))).toBe('caught')
    expect(seen[0]).toMatch('tenant(request) returned')
    expect(handler.runs).toBe(0)
  })

  it('records a 5xx when onError is store', async () => {
    const handler = counted((ctx) => ctx.throw(500, 'kept'))
    const { send } = await serveKoa(koa, guardOf({ onError: 'store' }), handler)
    await send({ key: 'k' })
    const retry = await send({ key: 'k' })
    expect([retry.status, header(retry, 'idempotent-replayed'), handler.runs]).toEqual([
      500,
      'true',
      1,
    ])
  })
})

it('releases the key when a web stream fails in koa 3', async () => {
  const { send } = await setup(KOAS[0]![1], (ctx) => {
    ctx.body = ReadableStream.from(failing([Buffer.from('begun')]))
  })
  await expect(send({ key: 'k' })).rejects.toThrow(/hang up|aborted/)
  expect(text(await send({ key: 'k' }))).toBe('done')
})

async function* failing(chunks: readonly Buffer[], error = new Error('the stream broke')) {
  yield* chunks
  await Promise.resolve()
  throw error
}
