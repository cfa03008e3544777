/** All kinds of replies in Koa. A retry gets the same reply. */
import { currentIdempotency } from '../../../src/http/guard/current.ts'
import { idempotencyOf } from '../../../src/adapters/koa/index.ts'
import { Readable } from 'node:stream'
import type { Context } from 'koa'
import { describe, expect, it } from 'vitest'
import { header, text, type Reply } from '../run-express.ts'
import { counted, guardOf, KOAS, serveKoa, type KoaModule } from '../run-koa.ts'

/** Sends a request twice with one key. */
async function twice(koa: KoaModule, handle: (ctx: Context) => unknown) {
  const handler = counted(handle)
  const { send, errors } = await serveKoa(koa, guardOf(), handler)
  const first = await send({ key: 'k', json: { amount: 1 } })
  const retry = await send({ key: 'k', json: { amount: 1 } })
  expect(errors).toEqual([])
  expect(handler.runs).toBe(1)
  expect(header(first, 'idempotent-replayed')).toBeUndefined()
  expect(header(retry, 'idempotent-replayed')).toBe('true')
  expect(header(first, 'idempotency-expires')).toBe(header(retry, 'idempotency-expires'))
  return [first, retry] as const
}

const shown = (reply: Reply) => [
  reply.status,
  header(reply, 'content-type'),
  reply.body.toString('latin1'),
]

const BYTES = Buffer.from([0, 255, 254, 10, 13, 128])

const BODIES: readonly (readonly [name: string, body: () => unknown, shown: unknown[]])[] = [
  [
    'a string',
    () => 'créé',
    [200, 'text/plain; charset=utf-8', Buffer.from('créé').toString('latin1')],
  ],
  ['markup', () => '<p>', [200, 'text/html; charset=utf-8', '<p>']],
  ['an object', () => ({ id: 1 }), [200, 'application/json; charset=utf-8', '{"id":1}']],
  ['bytes', () => BYTES, [200, 'application/octet-stream', BYTES.toString('latin1')]],
  ['an empty string', () => '', [200, 'text/plain; charset=utf-8', '']],
  ['null', () => null, [204, undefined, '']],
  [
    'a stream',
    () => Readable.from([BYTES, Buffer.from('-'), BYTES]),
    [200, 'application/octet-stream', `${BYTES.toString('latin1')}-${BYTES.toString('latin1')}`],
  ],
]

const WEB_BODIES: typeof BODIES = [
  ['a Blob', () => new Blob([BYTES]), [200, 'application/octet-stream', BYTES.toString('latin1')]],
  [
    'a ReadableStream',
    () => new Blob([BYTES]).stream(),
    [200, 'application/octet-stream', BYTES.toString('latin1')],
  ],
  [
    'a Response',
    () => new Response('made', { status: 201, headers: { 'content-type': 'text/x-own' } }),
    [201, 'text/x-own', 'made'],
  ],
]

describe.each(KOAS)('%s', (name, koa) => {
  const bodies = name === 'koa 3' ? [...BODIES, ...WEB_BODIES] : BODIES

  it.each(bodies)('replays %s byte for byte', async (_name, body, expected) => {
    const [first, retry] = await twice(koa, (ctx) => {
      ctx.body = body()
    })
    expect(shown(first)).toEqual(expected)
    expect(shown(retry)).toEqual(expected)
  })

  it.each([204, 205, 304])('replays a %d with an empty body', async (status) => {
    const [first, retry] = await twice(koa, (ctx) => {
      ctx.status = status
    })
    expect([first.status, text(first)]).toEqual([status, ''])
    expect([retry.status, text(retry)]).toEqual([status, ''])
  })

  it('replays the default body that Koa sends for a status', async () => {
    const [first, retry] = await twice(koa, (ctx) => {
      ctx.status = 201
    })
    expect([first.status, text(first)]).toEqual([201, 'Created'])
    expect([retry.status, text(retry)]).toEqual([201, 'Created'])
  })

  it('replays a redirect with its location', async () => {
    const [first, retry] = await twice(koa, (ctx) => ctx.redirect('/payments/1'))
    for (const reply of [first, retry]) {
      expect([reply.status, header(reply, 'location')]).toEqual([302, '/payments/1'])
    }
    expect(retry.body).toEqual(first.body)
  })

  it('sends cookies only to the first request', async () => {
    const [first, retry] = await twice(koa, (ctx) => {
      ctx.cookies.set('session', 'secret')
      ctx.body = 'ok'
    })
    expect(header(first, 'set-cookie')).toContain('session=secret')
    expect(header(retry, 'set-cookie')).toBeUndefined()
  })

  it('captures and replays a reply after ctx.flushHeaders()', async () => {
    const [first, retry] = await twice(koa, (ctx) => {
      ctx.status = 202
      ctx.type = 'application/x-own'
      ctx.flushHeaders()
      expect(ctx.headerSent).toBe(true)
      ctx.body = 'flushed'
    })
    expect(shown(first)).toEqual([202, 'application/x-own', 'flushed'])
    expect(shown(retry)).toEqual([202, 'application/x-own', 'flushed'])
  })

  it('replays a reply that the handler writes to ctx.res', async () => {
    const [first, retry] = await twice(koa, (ctx) => {
      ctx.respond = false
      ctx.res.writeHead(201, { 'Content-Type': 'text/x-own' })
      ctx.res.write('piece by ')
      ctx.res.end('piece')
    })
    expect(shown(first)).toEqual([201, 'text/x-own', 'piece by piece'])
    expect(shown(retry)).toEqual([201, 'text/x-own', 'piece by piece'])
  })

  it('replays a reply that ends after the handler has returned', async () => {
    const [first, retry] = await twice(koa, (ctx) => {
      ctx.respond = false
      setImmediate(() => ctx.res.end('later'))
      ctx.res.statusCode = 201
    })
    expect([first.status, text(first)]).toEqual([201, 'later'])
    expect([retry.status, text(retry)]).toEqual([201, 'later'])
  })

  it('sends a reply above replyBytesMax and records it without its body', async () => {
    const handler = counted((ctx) => {
      ctx.body = Readable.from([Buffer.alloc(600, 1), Buffer.alloc(600, 2)])
    })
    const { send } = await serveKoa(koa, guardOf({ replyBytesMax: 1000 }), handler)
    const first = await send({ key: 'k' })
    const retry = await send({ key: 'k' })
    expect([first.status, first.body.length, handler.runs]).toEqual([200, 1200, 1])
    expect(header(retry, 'idempotent-body-elided')).toBe('true')
  })

  it('gives handlers the same context by ctx.idempotency and currentIdempotency()', async () => {
    const [first] = await twice(koa, async (ctx) => {
      await Promise.resolve()
      expect(currentIdempotency()).toBe(ctx.idempotency)
      ctx.body = idempotencyOf(ctx).key
    })
    expect(text(first)).toBe('k')
  })

  it('runs other methods, and requests without a required key, unprotected', async () => {
    const handler = counted((ctx, run) => {
      expect(ctx.idempotency).toBeUndefined()
      ctx.body = String(run)
    })
    const { send } = await serveKoa(koa, guardOf({ keyRequired: false }), handler)
    expect(text(await send({ method: 'GET', key: 'k' }))).toBe('1')
    expect(text(await send())).toBe('2')
    expect((await send({ method: 'HEAD', key: 'k' })).status).toBe(200)
    expect(handler.runs).toBe(3)
  })
})
