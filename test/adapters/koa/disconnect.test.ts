/** When a client disconnects, the handler runs to its end and the retry gets its reply. */
import { once } from 'node:events'
import { PassThrough, Readable } from 'node:stream'
import bodyParser from 'koa-bodyparser'
import compress from 'koa-compress'
import type { Context, Middleware } from 'koa'
import { describe, expect, it } from 'vitest'
import { gate, header, json, text, turns } from '../run-express.ts'
import { counted, guardOf, KOAS, serveKoa, type KoaModule } from '../run-koa.ts'

/** Disconnects while the handler runs, lets the handler end, and sends a retry. */
async function abandoned(
  koa: KoaModule,
  how: 'cut' | 'closed',
  handle: (ctx: Context) => unknown,
  ...behind: Middleware[]
) {
  const [entered, left] = [gate(), gate()]
  const handler = counted(async (ctx) => {
    entered.open()
    await left.passed
    await handle(ctx)
  })
  const guard = guardOf({ whileInProgress: { waitMs: 5000 } })
  const served = await serveKoa(koa, guard, ...behind, handler)
  const gone = once(served.server, 'connection').then(([socket]) => once(socket, 'close'))
  const client = await served.connect({ key: 'k', json: { amount: 7 } })
  await entered.passed
  if (how === 'cut') client.cut()
  else client.socket.destroy()
  // A reset by the client is an error of the socket, and a normal end is not.
  await gone.catch(() => undefined)
  await turns()
  left.open()
  const retry = await served.send({ key: 'k', json: { amount: 7 } })
  expect(handler.runs).toBe(1)
  expect(header(retry, 'idempotent-replayed')).toBe('true')
  return { retry, ...served }
}

describe.each(KOAS)('%s', (_name, koa) => {
  describe.each(['cut', 'closed'] as const)('%s connection', (how) => {
    it('replays a plain reply to the retry', async () => {
      const { retry } = await abandoned(koa, how, (ctx) => {
        expect(ctx.writable).toBe(true)
        ctx.status = 201
        ctx.body = { paid: true }
      })
      expect([retry.status, json(retry)]).toEqual([201, { paid: true }])
    })

    it('replays a streamed reply to the retry', async () => {
      const { retry } = await abandoned(koa, how, (ctx) => {
        ctx.body = Readable.from(slowly(['piece ', 'by ', 'piece']))
      })
      expect([retry.status, text(retry)]).toEqual([200, 'piece by piece'])
    })

    it('replays a compressed reply to the retry', async () => {
      const zipped = compress({ defaultEncoding: 'gzip', threshold: 0 })
      const respond = (ctx: Context) => {
        ctx.type = 'text/plain'
        ctx.body = Readable.from(slowly(['piece ', 'by ', 'piece']))
      }
      const { retry } = await abandoned(koa, how, respond, zipped)
      expect([retry.status, text(retry)]).toEqual([200, 'piece by piece'])
    })

    it('lets a parser behind the guard read the body after the disconnect', async () => {
      const { retry } = await abandoned(koa, how, async (ctx) => {
        await bodyParser()(ctx, async () => undefined)
        ctx.body = { got: ctx.request.body }
      })
      expect(json(retry)).toEqual({ got: { amount: 7 } })
    })
  })

  it('emits the error of a broken connection on the app, as Koa does', async () => {
    const { errors } = await abandoned(koa, 'cut', (ctx) => {
      ctx.body = 'ok'
    })
    expect(errors.map((error) => (error as NodeJS.ErrnoException).code)).toEqual(['ECONNRESET'])
  })

  it('runs a stream to its end when the client disconnects in the middle', async () => {
    const [begun, left] = [gate(), gate()]
    const handler = counted((ctx) => {
      ctx.body = Readable.from(
        (async function* () {
          yield Buffer.from('one ')
          begun.open()
          await left.passed
          yield Buffer.from('two')
        })(),
      )
    })
    const guard = guardOf({ whileInProgress: { waitMs: 5000 } })
    const { connect, send, server } = await serveKoa(koa, guard, handler)
    const gone = once(server, 'connection').then(([socket]) => once(socket, 'close'))
    const client = await connect({ key: 'k' })
    await begun.passed
    client.cut()
    await gone.catch(() => undefined)
    await turns()
    left.open()
    expect(text(await send({ key: 'k' }))).toBe('one two')
    expect(handler.runs).toBe(1)
  })

  it.each([
    ['of events', 'text/event-stream'],
    ['above replyBytesMax', 'text/plain'],
  ])('destroys a stream %s when the client disconnects', async (_kind, type) => {
    const stream = new PassThrough()
    const closed = once(stream, 'close')
    const handler = counted((ctx) => {
      ctx.type = type
      ctx.body = stream
    })
    const { connect, send } = await serveKoa(koa, guardOf({ replyBytesMax: 4 }), handler)
    const client = await connect({ key: 'k' })
    stream.write('data: one\n\n')
    expect(await client.until(/data: one/)).toMatch(/data: one/)
    expect(header(await send({ key: 'k' }), 'idempotent-body-elided')).toBe('true')
    client.cut()
    await closed.catch(() => undefined)
    expect([stream.destroyed, handler.runs]).toEqual([true, 1])
  })

  it('reports no error when the client disconnects before its replay is sent', async () => {
    const handler = counted((ctx) => {
      ctx.body = 'ok'
    })
    const [entered, left] = [gate(), gate()]
    const slow: Middleware = async (ctx, next) => {
      await next()
      if (ctx.get('x-slow') === '') return
      entered.open()
      await left.passed
    }
    const { connect, send, errors } = await serveKoa(koa, slow, guardOf(), handler)
    await send({ key: 'k' })
    const client = await connect({ key: 'k', headers: { 'x-slow': '1' } })
    await entered.passed
    client.socket.destroy()
    await turns()
    left.open()
    expect(text(await send({ key: 'k' }))).toBe('ok')
    expect([handler.runs, errors]).toEqual([1, []])
  })
})

async function* slowly(chunks: readonly string[]) {
  for (const chunk of chunks) {
    await turns(2)
    yield Buffer.from(chunk)
  }
}
