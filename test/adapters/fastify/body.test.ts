/** Bodies are compared as received, and reach parsers and handlers unchanged. */
import { PassThrough } from 'node:stream'
import { createGunzip, gzipSync } from 'node:zlib'
import compress from '@fastify/compress'
import multipart from '@fastify/multipart'
import type { FastifyInstance } from 'fastify'
import { describe, expect, it } from 'vitest'
import { idempotency } from '../../../src/adapters/fastify/index.ts'
import { guardedApp, newApp, optionsOf, serveApp } from '../run-fastify.ts'
import { Client, header, problemOf, text, turns, type Send } from '../run-express.ts'

const REPLAYED = 'idempotent-replayed'
const JSON_TYPE = { 'Content-Type': 'application/json' }

/** Adds a route that replies with the parsed body. */
function echo(app: FastifyInstance): { runs: number } {
  const count = { runs: 0 }
  app.post('/', (request) => {
    count.runs++
    const { body } = request
    return body instanceof Buffer ? body.toString('hex') : JSON.stringify(body ?? null)
  })
  return count
}

/** The first reply, and whether the second request with the same key is a replay or `other`. */
async function compare(app: FastifyInstance, first: Send, second: Send): Promise<unknown[]> {
  const server = await serveApp(app)
  const one = await server.send({ key: 'k', ...first })
  const two = await server.send({ key: 'k', ...second })
  return [text(one), two.status === 422 ? 'other' : header(two, REPLAYED)]
}

it('distinguishes large integers that a parser would make equal', async () => {
  const app = await guardedApp()
  echo(app)
  const first = { headers: JSON_TYPE, body: '{"amount":9007199254740993}' }
  const second = { headers: JSON_TYPE, body: '{"amount":9007199254740992}' }
  expect((await compare(app, first, second))[1]).toBe('other')
})

it('treats JSON with another member order as the same body', async () => {
  const app = await guardedApp()
  echo(app)
  const first = { headers: JSON_TYPE, body: '{"a":1,"b":2}' }
  const second = { headers: JSON_TYPE, chunks: ['{ "b": 2,', ' "a": 1 }'] }
  expect(await compare(app, first, second)).toEqual(['{"a":1,"b":2}', 'true'])
})

it('compares text, forms, bytes and streams with custom parsers', async () => {
  const app = await guardedApp()
  app.addContentTypeParser(
    'application/x-www-form-urlencoded',
    { parseAs: 'string' },
    async (_request: unknown, body: string) => Object.fromEntries(new URLSearchParams(body)),
  )
  app.addContentTypeParser(
    'application/x-bytes',
    { parseAs: 'buffer' },
    async (_request: unknown, body: Buffer) => body,
  )
  app.addContentTypeParser(
    'application/x-stream',
    async (_request: unknown, payload: AsyncIterable<Buffer>) => {
      const chunks: Buffer[] = []
      for await (const chunk of payload) chunks.push(chunk)
      return Buffer.concat(chunks)
    },
  )
  echo(app)
  const server = await serveApp(app)
  const bodies: [type: string, body: string, parsed: string][] = [
    ['text/plain', 'tëxt', '"tëxt"'],
    ['application/x-www-form-urlencoded', 'a=1&b=%C3%A9', '{"a":"1","b":"é"}'],
    ['application/x-bytes', '\0\x01', '0001'],
    ['application/x-stream', '\0\x02', '0002'],
  ]
  for (const [type, body, parsed] of bodies) {
    const request = { key: type, headers: { 'Content-Type': type } }
    expect(text(await server.send({ ...request, body }))).toBe(parsed)
    expect(header(await server.send({ ...request, chunks: [body] }), REPLAYED)).toBe('true')
    expect((await server.send({ ...request, body: `${body}1` })).status).toBe(422)
  }
})

describe('multipart', () => {
  const form = (boundary: string, content: string): Send => ({
    headers: { 'Content-Type': `multipart/form-data; boundary=${boundary}` },
    body:
      `--${boundary}\r\nContent-Disposition: form-data; name="file"; filename="a.txt"\r\n` +
      `Content-Type: text/plain\r\n\r\n${content}\r\n--${boundary}--\r\n`,
  })

  async function uploads(options: object = {}): Promise<FastifyInstance> {
    const app = await guardedApp()
    await app.register(multipart, options)
    app.post('/', async (request) => (await (await request.file())?.toBuffer())?.toString() ?? '')
    return app
  }

  it('passes a multipart body completely to the handler, and ignores its boundary', async () => {
    const content = 'x'.repeat(300_000)
    const [got, again] = await compare(await uploads(), form('one', content), form('two', content))
    expect([got, again]).toEqual([content, 'true'])
  })

  it('distinguishes multipart bodies by their content', async () => {
    const [, again] = await compare(await uploads(), form('one', 'a'), form('one', 'b'))
    expect(again).toBe('other')
  })

  it('passes a multipart body to the handler under inject', async () => {
    const app = await uploads()
    const payload = new FormData()
    payload.set('file', new Blob(['injected']), 'a.txt')
    const headers = { 'idempotency-key': 'k' }
    const first = await app.inject({ method: 'POST', url: '/', headers, payload })
    const replay = await app.inject({ method: 'POST', url: '/', headers, payload })
    expect([first.body, replay.body]).toEqual(['injected', 'injected'])
    expect(replay.headers[REPLAYED]).toBe('true')
  })

  it('compares a multipart body that the hooks of an earlier plugin read', async () => {
    const app = newApp()
    await app.register(multipart, { attachFieldsToBody: 'keyValues' })
    await app.register(idempotency, optionsOf())
    app.post('/', (request) => String((request.body as { file: Buffer }).file))
    expect(await compare(app, form('one', 'a'), form('two', 'a'))).toEqual(['a', 'true'])
  })

  it('reads a multipart body to its end after the client has disconnected', async () => {
    const app = await guardedApp()
    await app.register(multipart)
    const entered = Promise.withResolvers<void>()
    const left = Promise.withResolvers<void>()
    app.post('/', async (request) => {
      entered.resolve()
      await left.promise
      return (await (await request.file())!.toBuffer()).toString()
    })
    const server = await serveApp(app)
    const content = 'y'.repeat(200_000)
    const client = await server.connect({ key: 'k', ...form('one', content) })
    await entered.promise
    client.cut()
    await turns()
    left.resolve()
    let retry = await server.send({ key: 'k', ...form('two', content) })
    for (let tries = 0; retry.status === 409 && tries < 100; tries++) {
      await turns()
      retry = await server.send({ key: 'k', ...form('two', content) })
    }
    expect([text(retry), header(retry, REPLAYED)]).toEqual([content, 'true'])
  })
})

it('compares an empty body, sent or injected', async () => {
  const app = await guardedApp()
  echo(app)
  expect(await compare(app, {}, { headers: { 'Content-Length': 0 } })).toEqual(['null', 'true'])
  const inject = (payload?: string) => {
    const headers = { 'idempotency-key': 'injected', 'content-type': 'text/plain' }
    return app.inject({ method: 'POST', url: '/', headers, ...(payload && { payload }) })
  }
  expect((await inject()).statusCode).toBe(200)
  expect((await inject()).headers[REPLAYED]).toBe('true')
  expect((await inject('text')).statusCode).toBe(422)
})

it('compares injected streams, which have no length', async () => {
  const app = await guardedApp()
  echo(app)
  const inject = (body: string) => {
    const headers = { 'idempotency-key': 'k', 'content-type': 'application/json' }
    const payload = new PassThrough()
    payload.end(body)
    return app.inject({ method: 'POST', url: '/', headers, payload })
  }
  expect((await inject('{"a":1}')).body).toBe('{"a":1}')
  expect((await inject('{"a":1}')).headers[REPLAYED]).toBe('true')
  expect((await inject('{"a":2}')).statusCode).toBe(422)
})

describe('a compressed body', () => {
  const GZIP = { ...JSON_TYPE, 'Content-Encoding': 'gzip' }
  const plain = { headers: JSON_TYPE, body: '{"a":1}' }
  const zipped = { headers: GZIP, body: gzipSync('{"a":1}') }
  const otherZipped = { headers: GZIP, body: gzipSync('{"a":2}') }

  it('treats a compressed body as plain with @fastify/compress behind the guard', async () => {
    const app = await guardedApp()
    await app.register(compress)
    echo(app)
    expect(await compare(app, zipped, plain)).toEqual(['{"a":1}', 'true'])
  })

  it('treats a compressed body as plain with @fastify/compress before the guard', async () => {
    const app = newApp()
    await app.register(compress)
    await app.register(idempotency, optionsOf())
    echo(app)
    expect(await compare(app, zipped, plain)).toEqual(['{"a":1}', 'true'])
    expect((await compare(app, zipped, otherZipped))[1]).toBe('other')
  })

  it('compares a body that a hook before the guard has decoded', async () => {
    const app = newApp()
    app.addHook('preParsing', async (request, _reply, payload) => {
      if (request.headers['content-encoding'] !== 'gzip') return payload
      // Leaves Content-Encoding in place, as a hook may do.
      delete request.headers['content-length']
      return payload.pipe(createGunzip())
    })
    const asBytes = async (_request: unknown, body: Buffer) => body
    app.addContentTypeParser('application/gzip', { parseAs: 'buffer' }, asBytes)
    await app.register(idempotency, optionsOf())
    echo(app)
    expect(await compare(app, zipped, plain)).toEqual(['{"a":1}', 'true'])
    const server = await serveApp(app)
    const broken = await server.send({ key: 'x', headers: GZIP, body: 'no gzip' })
    expect(broken.status).toBe(400)
    // The guard does not decode again: the two gzip files inside differ.
    const file = (level: number) => gzipSync(gzipSync('a'.repeat(100), { level }))
    const headers = { 'Content-Type': 'application/gzip', 'Content-Encoding': 'gzip' }
    expect((await server.send({ key: 'f', headers, body: file(0) })).status).toBe(200)
    expect((await server.send({ key: 'f', headers, body: file(9) })).status).toBe(422)
  })
})

describe('a body above requestBytesMax', () => {
  const big = JSON.stringify('x'.repeat(200_000))

  it('returns 413 for a body above requestBytesMax with a key', async () => {
    const app = await guardedApp({ requestBytesMax: 1000 })
    const count = echo(app)
    const server = await serveApp(app)
    const known = await server.send({ key: 'k', headers: JSON_TYPE, body: big })
    const chunked = await server.send({ key: 'k', headers: JSON_TYPE, chunks: [big] })
    expect([known, chunked].map(problemOf)).toEqual([
      [413, 'idempotency_request_too_large'],
      [413, 'idempotency_request_too_large'],
    ])
    expect(count.runs).toBe(0)
    expect((await server.send({ key: 'k', headers: JSON_TYPE, body: '1' })).status).toBe(200)
  })

  it('passes a body above requestBytesMax completely to a handler without a key', async () => {
    const app = await guardedApp({ requestBytesMax: 1000, keyRequired: false })
    echo(app)
    const server = await serveApp(app)
    expect(text(await server.send({ headers: JSON_TYPE, body: big }))).toBe(big)
    expect(text(await server.send({ headers: JSON_TYPE, chunks: [big] }))).toBe(big)
  })

  it('the bodyLimit of Fastify still returns 413', async () => {
    const app = newApp({ bodyLimit: 1000 })
    await app.register(idempotency, optionsOf())
    const count = echo(app)
    const server = await serveApp(app)
    expect((await server.send({ key: 'k', headers: JSON_TYPE, body: big })).status).toBe(413)
    expect((await server.send({ key: 'k', headers: JSON_TYPE, chunks: [big] })).status).toBe(413)
    expect(count.runs).toBe(0)
  })
})

it('runs nothing for an aborted upload, and accepts its key afterwards', async () => {
  const app = await guardedApp()
  const count = echo(app)
  const failed = Promise.withResolvers<number>()
  app.addHook('onError', async (_request, _reply, error) => {
    failed.resolve(error.statusCode ?? 500)
  })
  const server = await serveApp(app)
  const client = await Client.connect(server.port)
  client.socket.write(
    'POST / HTTP/1.1\r\nHost: a\r\nIdempotency-Key: k\r\nContent-Type: application/json\r\n' +
      'Content-Length: 100\r\n\r\n{"a":',
  )
  await turns()
  client.cut()
  expect(await failed.promise).toBe(400)
  expect(count.runs).toBe(0)
  expect((await server.send({ key: 'k', json: { a: 1 } })).status).toBe(200)
  expect(count.runs).toBe(1)
})

it('reads key and body before a schema removes or converts them', async () => {
  const app = await guardedApp()
  const headers = { type: 'object', additionalProperties: false, properties: { host: {} } }
  const body = { type: 'object', properties: { amount: { type: 'integer' } } }
  app.post('/', { schema: { headers, body } }, (request) => JSON.stringify(request.body))
  const server = await serveApp(app)
  const first = await server.send({ key: 'k', json: { amount: '1' } })
  expect(text(first)).toBe('{"amount":1}')
  expect((await server.send({ key: 'k', json: { amount: 1 } })).status).toBe(422)
})

it('claims no key for a body that fails validation', async () => {
  const app = await guardedApp()
  const schema = { body: { type: 'object', required: ['amount'] } }
  app.post('/', { schema }, () => 'ok')
  const server = await serveApp(app)
  expect((await server.send({ key: 'k', json: {} })).status).toBe(400)
  expect((await server.send({ key: 'k', headers: JSON_TYPE, body: '{"a' })).status).toBe(400)
  expect((await server.send({ key: 'k', json: { amount: 1 } })).status).toBe(200)
})
