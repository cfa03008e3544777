import { createHash } from 'node:crypto'
import { text as textOf } from 'node:stream/consumers'
import { gzipSync } from 'node:zlib'
import type { ErrorRequestHandler, Request, RequestHandler } from 'express'
import { describe, expect, it } from 'vitest'
import { keepRawBody, type ExpressOptions } from '../../src/adapters/express.ts'
import { memoryStore } from '../../src/stores/memory/memory-store.ts'
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
} from './run-express.ts'

type Parsers = (express: ExpressModule) => RequestHandler[]

interface Options {
  readonly before?: Parsers
  readonly after?: Parsers
  readonly guard?: Partial<ExpressOptions>
  /** What the handler answers with. */
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
      'by %s reaches the handler',
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

    it('is the same in any order of its members and with any space', async () => {
      const { send, runs } = await setup(express, { [place]: (e: ExpressModule) => [e.json()] })
      await send({ key: 'k', ...asJson('{"a":1,"b":[1,2]}') })
      const same = await send({ key: 'k', ...asJson('{ "b" : [1, 2.0],\n "a" : 1 }') })
      expect(header(same, 'idempotent-replayed')).toBe('true')
      expect((await send({ key: 'k', ...asJson('{"a":1,"b":[2,1]}') })).status).toBe(422)
      expect(runs()).toBe(1)
    })

    it('that is chunked and empty is no obstacle', async () => {
      const { send, runs } = await setup(express, { [place]: (e: ExpressModule) => [e.json()] })
      const empty: Send = { chunks: [], headers: { ...JSON_TYPE, 'Transfer-Encoding': 'chunked' } }
      expect((await send({ key: 'k', ...empty })).status).toBe(200)
      expect(header(await send({ key: 'k', ...empty }), 'idempotent-replayed')).toBe('true')
      expect(runs()).toBe(1)
    })

    it('that is no JSON is refused by the parser, and the key stays usable', async () => {
      const { send, runs } = await setup(express, { [place]: (e: ExpressModule) => [e.json()] })
      for (let n = 0; n < 2; n++) {
        expect((await send({ key: 'k', ...asJson('{"a":') })).status).toBe(400)
      }
      expect(runs()).toBe(0)
    })
  })

  it('of 900 KB reaches a parser behind the guard whole', async () => {
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

  it('that trickles in is read to its end', async () => {
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

  it('reaches a handler that reads the stream itself', async () => {
    const { send } = await setup(express, { show: (req) => textOf(req) })
    expect(json(await send({ key: 'k', body: 'as it is' }))).toEqual({ body: 'as it is' })
  })

  it('that is compressed is unpacked behind the guard', async () => {
    const { send } = await setup(express, { after: (e) => [e.json()] })
    const headers = { ...JSON_TYPE, 'Content-Encoding': 'gzip' }
    const reply = await send({ key: 'k', body: gzipSync('{"a":1}'), headers })
    expect(json(reply)).toEqual({ body: { a: 1 } })
  })

  it('of multipart form data is compared by its parts, not by its boundary', async () => {
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

describe.each(EXPRESSES)('%s: numbers too big for JavaScript', (_name, express) => {
  const [one, other] = [asJson('{"id":9007199254740993}'), asJson('{"id":9007199254740992}')]

  it.each([
    ['with the parser behind the guard', { after: (e: ExpressModule) => [e.json()] }],
    ['with keepRawBody', { before: (e: ExpressModule) => [e.json({ verify: keepRawBody })] }],
  ])('are told apart %s', async (_how, options) => {
    const { send } = await setup(express, options)
    expect((await send({ key: 'k', ...one })).status).toBe(200)
    expect((await send({ key: 'k', ...other })).status).toBe(422)
    expect((await send({ key: 'k', ...one })).status).toBe(200)
  })
})

describe.each(EXPRESSES)('%s: a body that is too large', (_name, express) => {
  const guard = { requestBytesMax: 100 }
  const large = { a: 'x'.repeat(100) }

  const bodies: Readonly<Record<string, Send>> = {
    'of a stated length': { json: large },
    'in chunks': { chunks: [JSON.stringify(large)], headers: JSON_TYPE },
  }

  it.each(Object.entries(bodies))('%s is refused before anything runs', async (_what, body) => {
    const { send, store, runs } = await setup(express, { guard, after: (e) => [e.json()] })
    expect(problemOf(await send({ key: 'k', ...body }))).toEqual([
      413,
      'idempotency_request_too_large',
    ])
    expect(await store.list({ state: 'in_progress', limit: 1 })).toEqual([])
    expect((await send({ key: 'k', json: { a: 1 } })).status).toBe(200)
    expect(runs()).toBe(1)
  })

  it.each([
    ['as it was sent', { verify: keepRawBody }],
    ['by its stated length', {}],
  ])('and parsed already is refused %s', async (_how, options) => {
    const { send, runs } = await setup(express, { guard, before: (e) => [e.json(options)] })
    expect((await send({ key: 'k', json: large })).status).toBe(413)
    expect(runs()).toBe(0)
  })

  it('by a byte is refused, and one that just fits is not', async () => {
    const { send } = await setup(express, { guard, show: () => 'ok' })
    expect((await send({ key: 'a', body: 'x'.repeat(100) })).status).toBe(200)
    expect((await send({ key: 'b', body: 'x'.repeat(101) })).status).toBe(413)
  })
})

describe.each(EXPRESSES)('%s: a body that somebody else has read', (_name, express) => {
  const reader: RequestHandler = (req, _res, next) => {
    textOf(req).then(() => next(), next)
  }

  it.each([
    ['alone', (_e: ExpressModule) => [reader]],
    // In Express 4, a parser that does not feel responsible leaves an empty object behind.
    ['after a parser that let it be', (e: ExpressModule) => [e.json(), reader]],
  ])('%s gives a clear error, and nothing runs', async (_how, before) => {
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

  it('as multipart form data needs the raw body', async () => {
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

  it('is taken from req.body where a parser of another make has put it', async () => {
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

  it('cannot be compared where it refers to itself', async () => {
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

describe.each(EXPRESSES)('%s: what makes two requests different', (_name, express) => {
  it('is only the stated fields, where there are some', async () => {
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

  it('survives a change of the secret, and the loss of one is a mismatch', async () => {
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
    // One path for all, so that only the secret differs.
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

describe.each(EXPRESSES)('%s: a body that comes as text already', (_name, express) => {
  it.each([{ body: 'grüße' }, { chunks: ['grü', 'ße'] }])(
    'is refused as one that was read, and breaks nothing: %j',
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
