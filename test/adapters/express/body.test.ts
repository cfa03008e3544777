import { createHash } from 'node:crypto'
import { text as textOf } from 'node:stream/consumers'
import { gzipSync } from 'node:zlib'
import type { ErrorRequestHandler, Request, RequestHandler } from 'express'
import { describe, expect, it } from 'vitest'
import { keepRawBody, type IdempotencyOptions } from '../../../src/adapters/express/index.ts'
import { memoryStore } from '../../../src/stores/memory/store.ts'
import {
  EXPRESSES,
  caught,
  guardOf,
  header,
  json,
  problemOf,
  serve,
  text,
  type ExpressModule,
  type Send,
} from '../run-express.ts'

type Parsers = (express: ExpressModule) => RequestHandler[]

interface Options {
  readonly before?: Parsers
  readonly after?: Parsers
  readonly guard?: Partial<IdempotencyOptions>
  /** Returns the body of the reply. */
  readonly show?: (req: Request) => unknown
}

const bodyOf = (req: Request): unknown => req.body

async function setup(express: ExpressModule, options: Options) {
  const { before, after, guard, show = bodyOf } = options
  const store = memoryStore()
  const app = express()
  const errors: unknown[] = []
  let runs = 0
  app.post(
    '/',
    ...(before?.(express) ?? []),
    guardOf({ store, ...guard }),
    ...(after?.(express) ?? []),
    caught(async (req, res) => {
      runs++
      res.json({ body: await show(req) })
    }),
  )
  const report: ErrorRequestHandler = (error, _req, _res, next) => {
    errors.push(error)
    next(error)
  }
  app.use(report)
  const { send, connect } = await serve(app)
  return { send, connect, store, errors, runs: () => runs }
}

const JSON_TYPE = { 'Content-Type': 'application/json' }
const asJson = (body: string): Send => ({ body, headers: JSON_TYPE })

const PARSERS: Readonly<Record<string, readonly [parser: Parsers, send: Send, seen: unknown]>> = {
  'express.json': [(e) => [e.json()], { json: { a: [1, 'ä'] } }, { a: [1, 'ä'] }],
  'express.urlencoded': [
    (e) => [e.urlencoded({ extended: true })],
    { body: 'a=1&b[c]=2', headers: { 'Content-Type': 'application/x-www-form-urlencoded' } },
    { a: '1', b: { c: '2' } },
  ],
  'express.text': [
    (e) => [e.text()],
    { body: 'Grüße', headers: { 'Content-Type': 'text/plain' } },
    'Grüße',
  ],
  'express.raw': [
    (e) => [e.raw()],
    { body: Buffer.from([0, 1, 254]), headers: { 'Content-Type': 'application/octet-stream' } },
    { type: 'Buffer', data: [0, 1, 254] },
  ],
}

describe.each(EXPRESSES)('%s: a body', (_name, express) => {
  describe.each(['before', 'after'] as const)('parsed %s the guard', (place) => {
    it.each(Object.entries(PARSERS))(
      'passes the body from %s to the handler, and compares it on a retry',
      async (_what, [parser, body, seen]) => {
        const { send, runs } = await setup(express, { [place]: parser })
        const first = await send({ key: 'k', ...body })
        expect([first.status, json(first)]).toEqual([200, { body: seen }])
        const replay = await send({ key: 'k', ...body })
        expect([header(replay, 'idempotent-replayed'), json(replay)]).toEqual([
          'true',
          { body: seen },
        ])
        const other = await send({
          key: 'k',
          ...body,
          ...OTHER_BODY[body.json === undefined ? 0 : 1],
        })
        expect(other.status).toBe(422)
        expect(runs()).toBe(1)
      },
    )

    it('treats JSON with another member order or other whitespace as the same body', async () => {
      const { send, runs } = await setup(express, { [place]: (e: ExpressModule) => [e.json()] })
      await send({ key: 'k', ...asJson('{"a":1,"b":[1,2]}') })
      const same = await send({ key: 'k', ...asJson('{ "b" : [1, 2.0],\n "a" : 1 }') })
      expect(header(same, 'idempotent-replayed')).toBe('true')
      expect((await send({ key: 'k', ...asJson('{"a":1,"b":[2,1]}') })).status).toBe(422)
      expect(runs()).toBe(1)
    })

    it('accepts an empty chunked body, and replays its reply', async () => {
      const { send, runs } = await setup(express, { [place]: (e: ExpressModule) => [e.json()] })
      const empty: Send = { chunks: [], headers: { ...JSON_TYPE, 'Transfer-Encoding': 'chunked' } }
      expect((await send({ key: 'k', ...empty })).status).toBe(200)
      expect(header(await send({ key: 'k', ...empty }), 'idempotent-replayed')).toBe('true')
      expect(runs()).toBe(1)
    })

    it('returns the 400 of the parser for invalid JSON, also on a retry', async () => {
      const { send, runs } = await setup(express, { [place]: (e: ExpressModule) => [e.json()] })
      for (let n = 0; n < 2; n++) {
        expect((await send({ key: 'k', ...asJson('{"a":') })).status).toBe(400)
      }
      expect(runs()).toBe(0)
    })
  })

  it('passes a body of 900 KB completely to a parser behind the guard', async () => {
    const large = Buffer.alloc(900_000, 'abcdefghij')
    const hash = createHash('sha256').update(large).digest('hex')
    const { send, runs } = await setup(express, {
      after: (e) => [e.raw({ limit: '1mb' })],
      show: (req) =>
        createHash('sha256')
          .update(req.body as Buffer)
          .digest('hex'),
    })
    const type = { 'Content-Type': 'application/octet-stream' }
    expect(json(await send({ key: 'k', body: large, headers: type }))).toEqual({ body: hash })
    const chunks = [large.subarray(0, 1), large.subarray(1, 500_000), large.subarray(500_000)]
    const chunked = await send({ key: 'k', chunks, headers: type })
    expect(header(chunked, 'idempotent-replayed')).toBe('true')
    expect(json(chunked)).toEqual({ body: hash })
    expect(runs()).toBe(1)
  })

  it('reads a body that arrives in small pieces to its end', async () => {
    const { connect, runs } = await setup(express, { after: (e) => [e.json()] })
    const client = await connect({ key: 'k', headers: { ...JSON_TYPE, 'Content-Length': 13 } })
    for (const piece of ['{"amo', 'unt":', '42', '}']) {
      client.socket.write(piece)
      await new Promise((resolve) => {
        setImmediate(resolve)
      })
    }
    expect(await client.until(/\}\}$/)).toContain('{"body":{"amount":42}}')
    expect(runs()).toBe(1)
  })

  it('passes the body to a handler that reads the stream itself', async () => {
    const { send } = await setup(express, { show: (req) => textOf(req) })
    expect(json(await send({ key: 'k', body: 'as it is' }))).toEqual({ body: 'as it is' })
  })

  it('passes a compressed body to a parser behind the guard', async () => {
    const { send } = await setup(express, { after: (e) => [e.json()] })
    const headers = { ...JSON_TYPE, 'Content-Encoding': 'gzip' }
    const reply = await send({ key: 'k', body: gzipSync('{"a":1}'), headers })
    expect(json(reply)).toEqual({ body: { a: 1 } })
  })

  it('compares multipart form data by its parts, not by its boundary', async () => {
    const { send, runs } = await setup(express, { show: (req) => textOf(req) })
    const form = (boundary: string, value: string): Send => ({
      headers: { 'Content-Type': `multipart/form-data; boundary=${boundary}` },
      body:
        `--${boundary}\r\nContent-Disposition: form-data; name="a"\r\n\r\n${value}\r\n` +
        `--${boundary}--\r\n`,
    })
    expect((await send({ key: 'k', ...form('AAAA', '1') })).status).toBe(200)
    const retry = await send({ key: 'k', ...form('BBBB', '1') })
    expect(header(retry, 'idempotent-replayed')).toBe('true')
    expect((await send({ key: 'k', ...form('AAAA', '2') })).status).toBe(422)
    expect(runs()).toBe(1)
  })
})

const OTHER_BODY: readonly Send[] = [{ body: 'something else' }, { json: { another: true } }]

describe.each(EXPRESSES)('%s: numbers too large for JavaScript', (_name, express) => {
  const [one, other] = [asJson('{"id":9007199254740993}'), asJson('{"id":9007199254740992}')]

  it.each([
    ['with the parser behind the guard', { after: (e: ExpressModule) => [e.json()] }],
    ['with keepRawBody', { before: (e: ExpressModule) => [e.json({ verify: keepRawBody })] }],
  ])('distinguishes two numbers too large for JavaScript %s', async (_how, options) => {
    const { send } = await setup(express, options)
    expect((await send({ key: 'k', ...one })).status).toBe(200)
    expect((await send({ key: 'k', ...other })).status).toBe(422)
    expect((await send({ key: 'k', ...one })).status).toBe(200)
  })
})

describe.each(EXPRESSES)('%s: a body above the limit', (_name, express) => {
  const guard = { requestBytesMax: 100 }
  const large = { a: 'x'.repeat(100) }

  const bodies: Readonly<Record<string, Send>> = {
    'with a Content-Length': { json: large },
    'in chunks': { chunks: [JSON.stringify(large)], headers: JSON_TYPE },
  }

  it.each(Object.entries(bodies))(
    'returns 413 for a body %s before anything runs',
    async (_what, body) => {
      const { send, store, runs } = await setup(express, { guard, after: (e) => [e.json()] })
      expect(problemOf(await send({ key: 'k', ...body }))).toEqual([
        413,
        'idempotency_request_too_large',
      ])
      expect(await store.list({ state: 'in_progress', limit: 1 })).toEqual([])
      expect((await send({ key: 'k', json: { a: 1 } })).status).toBe(200)
      expect(runs()).toBe(1)
    },
  )

  it.each([
    ['its raw bytes', { verify: keepRawBody }],
    ['its Content-Length', {}],
  ])('returns 413 for an already parsed body by %s', async (_how, options) => {
    const { send, runs } = await setup(express, { guard, before: (e) => [e.json(options)] })
    expect((await send({ key: 'k', json: large })).status).toBe(413)
    expect(runs()).toBe(0)
  })

  it('accepts a body at the limit, and returns 413 for one byte more', async () => {
    const { send } = await setup(express, { guard, show: () => 'ok' })
    expect((await send({ key: 'a', body: 'x'.repeat(100) })).status).toBe(200)
    expect((await send({ key: 'b', body: 'x'.repeat(101) })).status).toBe(413)
  })
})

describe.each(EXPRESSES)('%s: a body that was read before the guard', (_name, express) => {
  const reader: RequestHandler = (req, _res, next) => {
    textOf(req).then(() => next(), next)
  }

  it.each([
    ['by middleware', (_e: ExpressModule) => [reader]],
    // The parser of Express 4 sets an empty object when it skips a body.
    ['by middleware after a parser that skipped it', (e: ExpressModule) => [e.json(), reader]],
  ])('rejects a body read %s with INVALID_REQUEST, and runs nothing', async (_how, before) => {
    const { send, errors, store, runs } = await setup(express, { before })
    for (const body of ['<a/>', '<b/>']) {
      const reply = await send({ key: 'k', body, headers: { 'Content-Type': 'text/xml' } })
      expect(reply.status).toBe(500)
    }
    expect(errors).toHaveLength(2)
    expect(errors[0]).toMatchObject({
      code: 'INVALID_REQUEST',
      message: expect.stringContaining('the body was read before idempotency()'),
    })
    expect(await store.list({ state: 'completed', limit: 1 })).toEqual([])
    expect(runs()).toBe(0)
  })

  it('returns 500 for multipart form data that was parsed without its raw body', async () => {
    const parse: RequestHandler = (req, _res, next) => {
      textOf(req).then(() => {
        req.body = { a: '1' }
        next()
      }, next)
    }
    const { send, runs } = await setup(express, { before: () => [parse] })
    const headers = { 'Content-Type': 'multipart/form-data; boundary=x' }
    expect((await send({ key: 'k', body: '--x--', headers })).status).toBe(500)
    expect(runs()).toBe(0)
  })

  it('compares req.body when a third-party parser has set it', async () => {
    const parse: RequestHandler = (req, _res, next) => {
      textOf(req).then((xml) => {
        req.body = { xml }
        next()
      }, next)
    }
    const { send, runs } = await setup(express, { before: () => [parse] })
    const headers = { 'Content-Type': 'text/xml' }
    expect((await send({ key: 'k', body: '<a/>', headers })).status).toBe(200)
    expect((await send({ key: 'k', body: '<a/>', headers })).status).toBe(200)
    expect((await send({ key: 'k', body: '<b/>', headers })).status).toBe(422)
    expect(runs()).toBe(1)
  })

  it('returns 400 for a parsed body with a circular reference', async () => {
    const parse: RequestHandler = (req, _res, next) => {
      textOf(req).then(() => {
        const body: Record<string, unknown> = {}
        body['self'] = body
        req.body = body
        next()
      }, next)
    }
    const { send, runs } = await setup(express, { before: () => [parse] })
    const reply = await send({ key: 'k', body: 'x', headers: { 'Content-Type': 'text/odd' } })
    expect(problemOf(reply)).toEqual([400, 'idempotency_request_unreadable'])
    expect(runs()).toBe(0)
  })
})

describe.each(EXPRESSES)('%s: the fingerprint', (_name, express) => {
  it('compares only the fields of fingerprintFields when the option is set', async () => {
    const { send } = await setup(express, {
      after: (e) => [e.json()],
      guard: { fingerprintFields: ['amount', 'to.id'] },
    })
    const body = (amount: number, id: string, note: string): Send => ({
      json: { amount, to: { id }, note },
    })
    expect((await send({ key: 'k', ...body(1, 'a', 'first') })).status).toBe(200)
    expect(text(await send({ key: 'k', ...body(1, 'a', 'second') }))).toContain('first')
    expect((await send({ key: 'k', ...body(2, 'a', 'first') })).status).toBe(422)
    expect((await send({ key: 'k', ...body(1, 'b', 'first') })).status).toBe(422)
  })

  it('matches after a rotation of the secret, and returns 422 without the old one', async () => {
    const store = memoryStore()
    const app = express()
    const secrets = (...ids: string[]) =>
      ids.map((id) => ({ id, secret: `${id}-secret-of-32-characters-at-least` }))
    const done: RequestHandler = (_req, res) => {
      res.end('done')
    }
    const operation = 'pay'
    app.post('/old', guardOf({ store, operation, fingerprintSecrets: secrets('a') }), done)
    app.post('/new', guardOf({ store, operation, fingerprintSecrets: secrets('b', 'a') }), done)
    app.post('/lost', guardOf({ store, operation, fingerprintSecrets: secrets('b') }), done)
    // All requests have the same path, so that only the secret differs.
    const routed: typeof app = express()
    routed.use((req, res, next) => {
      const route = String(req.headers['x-route'])
      req.url = route
      req.originalUrl = '/'
      app(req, res, next)
    })
    const { send } = await serve(routed)
    const on = (route: string): Send => ({ key: 'k', body: 'x', headers: { 'X-Route': route } })
    expect((await send(on('/old'))).status).toBe(200)
    expect(header(await send(on('/new')), 'idempotent-replayed')).toBe('true')
    expect((await send(on('/lost'))).status).toBe(422)
  })
})

describe.each(EXPRESSES)('%s: a body that is decoded to text', (_name, express) => {
  it.each([{ body: 'grüße' }, { chunks: ['grü', 'ße'] }])(
    'rejects a request after setEncoding() with INVALID_REQUEST: %j',
    async (body) => {
      const { send, errors, runs } = await setup(express, {
        before: () => [
          (req, _res, next) => {
            req.setEncoding('utf8')
            next()
          },
        ],
      })
      expect((await send({ key: 'k', ...body })).status).toBe(500)
      expect(errors).toEqual([expect.objectContaining({ code: 'INVALID_REQUEST' })])
      expect(runs()).toBe(0)
    },
  )
})
