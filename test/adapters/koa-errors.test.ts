/** What becomes of a key when a Koa handler fails. */
import { once } from 'node:events'
import { Readable } from 'node:stream'
import type { Context, Middleware } from 'koa'
import { describe, expect, it } from 'vitest'
import { NotExecutedError, OutcomeUnknownError } from '../../src/core/errors.ts'
import { idempotencyOf } from '../../src/adapters/koa.ts'
import { header, json, problemOf, text } from './run-express.ts'
import { counted, guardOf, KOAS, serveKoa, type KoaModule } from './run-koa.ts'

const UNKNOWN = [409, 'idempotency_outcome_unknown']

const catchAll: Middleware = async (ctx, next) => {
  try {
    await next()
  } catch {
    ctx.status = 500
    ctx.body = { error: 'internal' }
  }
}

/** The handler fails on its first run, and would succeed on the next. */
async function setup(koa: KoaModule, fail: (ctx: Context) => unknown, ...before: Middleware[]) {
  const handler = counted(async (ctx, run) => {
    if (run === 1) await fail(ctx)
    else ctx.body = 'done'
  })
  return { handler, ...(await serveKoa(koa, ...before, guardOf(), handler)) }
}

describe.each(KOAS)('%s', (name, koa) => {
  it('records what ctx.throw and ctx.assert refuse, as Koa replies to it', async () => {
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

  it.each([401, 403, 408, 425, 429])('frees the key after a %d', async (status) => {
    const { send } = await setup(koa, (ctx) => {
      ctx.status = status
    })
    expect((await send({ key: 'k' })).status).toBe(status)
    expect(text(await send({ key: 'k' }))).toBe('done')
  })

  it('frees the key after an error that says nothing of an outside call', async () => {
    const { send, errors } = await setup(koa, () => {
      throw new Error('a bug')
    })
    const failed = await send({ key: 'k' })
    expect([failed.status, text(failed)]).toEqual([500, 'Internal Server Error'])
    expect(errors.map(({ message }) => message)).toEqual(['a bug'])
    expect(text(await send({ key: 'k' }))).toBe('done')
  })

  it.each([
    ['by nobody', []],
    ['by a middleware before the guard', [catchAll]],
  ])('sees a lost outside call whose error is caught %s', async (_by, before) => {
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
  })

  it('believes the classes that speak for themselves', async () => {
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

  it('replays a 4xx that an error middleware makes of an error', async () => {
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

  it('frees the key when a handler replies with a 5xx of its own', async () => {
    const { send } = await setup(koa, (ctx) => {
      ctx.status = 503
    })
    expect((await send({ key: 'k' })).status).toBe(503)
    expect(text(await send({ key: 'k' }))).toBe('done')
  })

  it('frees the key when it does so past Koa', async () => {
    const { send } = await setup(koa, (ctx) => {
      ctx.respond = false
      ctx.res.statusCode = 503
      ctx.res.end()
    })
    expect((await send({ key: 'k' })).status).toBe(503)
    expect(text(await send({ key: 'k' }))).toBe('done')
  })

  it("takes a refusal for the handler's own that goes on past Koa", async () => {
    const { send, handler } = await setup(koa, async (ctx) => {
      ctx.respond = false
      const finished = once(ctx.res, 'finish')
      ctx.res.statusCode = 422
      ctx.res.end('own')
      // As handlers of other frameworks do it in koa-connect.
      await finished
    })
    expect((await send({ key: 'k' })).status).toBe(422)
    expect(text(await send({ key: 'k' }))).toBe('own')
    expect(handler.runs).toBe(1)
  })

  it.each([
    ['before its first byte', []],
    ['after its first byte', [Buffer.from('begun')]],
  ])('frees the key when a stream fails %s', async (_when, chunks) => {
    const { send } = await setup(koa, (ctx) => {
      ctx.body = Readable.from(failing(chunks))
    })
    // Koa 3 cuts the connection; Koa 2 still replies with 500 where nothing was sent.
    const first = await send({ key: 'k' }).then(
      ({ status }) => status,
      () => 'cut',
    )
    expect(first).toBe(name === 'koa 2' && chunks.length === 0 ? 500 : 'cut')
    expect(text(await send({ key: 'k' }))).toBe('done')
  })

  it('leaves the outcome open when a stream loses an outside call', async () => {
    const { send, handler } = await setup(koa, (ctx) => {
      const lost = Object.assign(new Error('read'), { code: 'ECONNRESET' })
      ctx.body = Readable.from(failing([], lost))
    })
    await send({ key: 'k' }).catch(() => undefined)
    expect(problemOf(await send({ key: 'k' }))).toEqual(UNKNOWN)
    expect(handler.runs).toBe(1)
  })

  it('cuts off a reply that had begun when the handler failed, and frees the key', async () => {
    const { send, errors } = await setup(koa, (ctx) => {
      ctx.res.write('begun')
      throw new Error('a bug')
    })
    await expect(send({ key: 'k' })).rejects.toThrow(/hang up|aborted/)
    expect(errors.map(({ message }) => message)).toContain('a bug')
    expect(text(await send({ key: 'k' }))).toBe('done')
  })

  it('cuts off a reply above the cap whose stream fails, and never runs it again', async () => {
    const handler = counted((ctx) => {
      ctx.body = Readable.from(failing([Buffer.alloc(2000)]))
    })
    const { send } = await serveKoa(koa, guardOf({ replyBytesMax: 1000 }), handler)
    await expect(send({ key: 'k' })).rejects.toThrow(/hang up|aborted/)
    const retry = await send({ key: 'k' })
    expect([header(retry, 'idempotent-body-elided'), handler.runs]).toEqual(['true', 1])
  })

  it('gives what cannot be protected to the error middlewares before it', async () => {
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
    expect(seen[0]).toMatch('tenant(request) gave')
    expect(handler.runs).toBe(0)
  })

  it('keeps a 5xx where the route says so', async () => {
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

it('frees the key when a web stream fails in koa 3', async () => {
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
