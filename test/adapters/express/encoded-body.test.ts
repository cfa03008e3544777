import { brotliCompressSync, deflateSync, gzipSync, zstdCompressSync } from 'node:zlib'
import type { ErrorRequestHandler, Request, RequestHandler } from 'express'
import multer from 'multer'
import { describe, expect, it } from 'vitest'
import { keepRawBody, type IdempotencyOptions } from '../../../src/adapters/express/index.ts'
import {
  EXPRESSES,
  guardOf,
  header,
  json,
  problemOf,
  serve,
  type ExpressModule,
  type Send,
} from '../run-express.ts'

interface Options {
  readonly before?: readonly RequestHandler[]
  readonly after?: readonly RequestHandler[]
  readonly guard?: Partial<IdempotencyOptions>
  readonly show?: (req: Request) => unknown
}

async function setup(express: ExpressModule, options: Options = {}) {
  const { before = [], after = [], guard = {}, show = (req): unknown => req.body } = options
  const app = express()
  let runs = 0
  app.post('/', ...before, guardOf(guard), ...after, (req, res) => {
    runs++
    res.json({ body: show(req) })
  })
  const { send } = await serve(app)
  return { send, runs: () => runs }
}

const JSON_TYPE = { 'Content-Type': 'application/json' }
const PLAIN = '{"amount": 100, "to": "acme"}'

const encoded = (coding: string, body: Uint8Array): Send => ({
  body,
  headers: { ...JSON_TYPE, 'Content-Encoding': coding },
})

const CODINGS: Readonly<Record<string, (text: string) => Uint8Array>> = {
  gzip: (text) => gzipSync(text),
  deflate: (text) => deflateSync(text),
  br: (text) => brotliCompressSync(text),
}

describe.each(EXPRESSES)('%s: an encoded request', (name, express) => {
  // The parser of Express 4 does not support br, but the guard compares such requests.
  const parsers = (coding: string) =>
    name === 'express 4' && coding === 'br' ? [] : [express.json()]

  it.each(Object.entries(CODINGS))(
    'compares a %s request by its decoded body',
    async (coding, encode) => {
      const { send, runs } = await setup(express, { after: parsers(coding) })
      expect((await send({ key: 'k', ...encoded(coding, encode(PLAIN)) })).status).toBe(200)
      const retries: Send[] = [
        encoded(coding, encode('{"to":"acme","amount":100}')),
        { body: PLAIN, headers: JSON_TYPE },
        encoded('GZIP', gzipSync(PLAIN, { level: 0 })),
      ]
      for (const retry of retries) {
        expect(header(await send({ key: 'k', ...retry }), 'idempotent-replayed')).toBe('true')
      }
      const other = encoded(coding, encode('{"amount": 101, "to": "acme"}'))
      expect((await send({ key: 'k', ...other })).status).toBe(422)
      expect(runs()).toBe(1)
    },
  )

  it.each(Object.entries(CODINGS))(
    'applies the size limit to the decoded body of a %s request',
    async (coding, encode) => {
      const { send, runs } = await setup(express, { guard: { requestBytesMax: 10_000 } })
      const bomb = encode(`"${'0'.repeat(1_000_000)}"`)
      expect(bomb.byteLength).toBeLessThan(10_000)
      expect(problemOf(await send({ key: 'k', ...encoded(coding, bomb) }))).toEqual([
        413,
        'idempotency_request_too_large',
      ])
      const fits = encode(`"${'0'.repeat(9_998)}"`)
      expect((await send({ key: 'k', ...encoded(coding, fits) })).status).toBe(200)
      expect(runs()).toBe(1)
    },
  )

  it('compares the encoded bytes of a request with zstd or several encodings', async () => {
    const { send, runs } = await setup(express, { show: () => 'ok' })
    const bodies = [
      encoded('zstd', zstdCompressSync(PLAIN)),
      encoded('gzip, br', brotliCompressSync(gzipSync(PLAIN))),
    ]
    for (const [index, body] of bodies.entries()) {
      const key = `k${index}`
      for (let n = 0; n < 2; n++) expect((await send({ key, ...body })).status).toBe(200)
      expect((await send({ key, body: PLAIN, headers: JSON_TYPE })).status).toBe(422)
    }
    expect(runs()).toBe(2)
  })

  it('leaves a body that is not in its declared encoding to the parser', async () => {
    const { send, runs } = await setup(express, { after: [express.json()] })
    const reply = await send({ key: 'k', ...encoded('gzip', Buffer.from(PLAIN)) })
    expect(reply.status).toBe(400)
    expect(runs()).toBe(0)
  })

  // A parser passes decoded bytes to its `verify` hook. Here they are valid gzip again: if the
  // guard decoded them a second time, different requests would look the same.
  it('does not decode a body twice when a parser has decoded it before the guard', async () => {
    const { send, runs } = await setup(express, {
      before: [express.raw({ type: () => true, verify: keepRawBody })],
      show: () => 'ok',
    })
    const twice = (text: string) => encoded('gzip', gzipSync(gzipSync(text)))
    const level0 = encoded('gzip', gzipSync(gzipSync('one', { level: 0 })))
    expect((await send({ key: 'k', ...twice('one') })).status).toBe(200)
    expect(header(await send({ key: 'k', ...twice('one') }), 'idempotent-replayed')).toBe('true')
    expect((await send({ key: 'k', ...level0 })).status).toBe(422)
    expect(runs()).toBe(1)
  })

  it('treats an encoded and an unencoded request parsed before the guard as the same', async () => {
    const { send, runs } = await setup(express, {
      before: [express.json({ verify: keepRawBody })],
    })
    expect((await send({ key: 'k', ...encoded('gzip', gzipSync(PLAIN)) })).status).toBe(200)
    const plain = await send({ key: 'k', body: PLAIN, headers: JSON_TYPE })
    expect(header(plain, 'idempotent-replayed')).toBe('true')
    expect(runs()).toBe(1)
  })
})

describe.each(EXPRESSES)('%s: a form with files', (_name, express) => {
  const form = (boundary: string, file: Uint8Array): Send => ({
    headers: { 'Content-Type': `multipart/form-data; boundary=${boundary}` },
    body: Buffer.concat([
      Buffer.from(
        `--${boundary}\r\nContent-Disposition: form-data; name="note"\r\n\r\nhello\r\n` +
          `--${boundary}\r\nContent-Disposition: form-data; name="scan"; filename="a.bin"\r\n` +
          'Content-Type: application/octet-stream\r\n\r\n',
      ),
      file,
      Buffer.from(`\r\n--${boundary}--\r\n`),
    ]),
  })

  it('parses a form behind the guard, and replays a retry with another boundary', async () => {
    const { send, runs } = await setup(express, {
      after: [multer().single('scan')],
      show: (req) => ({
        note: (req.body as { note?: unknown }).note,
        size: (req as Request & { file?: { size: number } }).file?.size,
      }),
    })
    const file = Buffer.from([0, 13, 10, 45, 45, 255])
    const first = await send({ key: 'k', ...form('AAAA', file) })
    expect(json(first)).toEqual({ body: { note: 'hello', size: 6 } })
    const retry = await send({ key: 'k', ...form('BBBB', file) })
    expect([header(retry, 'idempotent-replayed'), json(retry)]).toEqual(['true', json(first)])
    expect((await send({ key: 'k', ...form('AAAA', Buffer.from([1])) })).status).toBe(422)
    expect(runs()).toBe(1)
  })

  it('rejects a form that was consumed before the guard, and says what to do', async () => {
    const app = express()
    const errors: unknown[] = []
    app.post('/', multer().single('scan'), guardOf(), (_req, res) => {
      res.end()
    })
    const report: ErrorRequestHandler = (error, _req, res, _next) => {
      errors.push(error)
      res.sendStatus(500)
    }
    app.use(report)
    const { send } = await serve(app)
    expect((await send({ key: 'k', ...form('AAAA', Buffer.from([1])) })).status).toBe(500)
    expect(errors).toEqual([
      expect.objectContaining({
        message: expect.stringContaining('mount idempotency() before the parser'),
      }),
    ])
  })
})
