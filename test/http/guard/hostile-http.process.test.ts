import fc from 'fast-check'
import { describe, expect, it, onTestFinished } from 'vitest'
import { keepRawBody } from '../../../src/adapters/express/index.ts'
import { createEngine } from '../../../src/core/engine/engine.ts'
import { memoryStore } from '../../../src/stores/memory/store.ts'
import {
  Client,
  EXPRESSES,
  guardOf,
  serve,
  type ExpressModule,
  type TestServer,
} from '../../adapters/run-express.ts'

// Every request gets an answer below 500, and the server keeps running. The requests are written to
// the socket directly, because an HTTP client would refuse to send most of them.

/** The position of the parser, which decides how the guard reads the body. */
const SETUPS = ['a parser behind the guard', 'a parser before it', 'a raw body kept'] as const

async function setup(express: ExpressModule, kind: (typeof SETUPS)[number]) {
  const accidents: unknown[] = []
  const onAccident = (error: unknown) => accidents.push(error)
  for (const event of ['unhandledRejection', 'uncaughtException'] as const) {
    process.on(event, onAccident)
    onTestFinished(() => {
      process.off(event, onAccident)
    })
  }
  const app = express()
  const engine = createEngine({ store: memoryStore(), storeTimeoutMs: 60_000 })
  const guard = guardOf({ engine, requestBytesMax: 4096, refusePersonalKeys: true })
  const verify = kind === 'a raw body kept' ? { verify: keepRawBody } : {}
  const parsers = [
    express.json({ limit: '1mb', strict: false, ...verify }),
    express.urlencoded({ limit: '1mb', extended: true, ...verify }),
    express.text({ limit: '1mb', ...verify }),
  ]
  if (kind === 'a parser behind the guard') app.use(guard, ...parsers)
  else app.use(...parsers, guard)
  app.post('/items/:id', (req, res) => {
    res.json({ id: req.params['id'] })
  })
  app.use((req, res) => {
    res.json({ got: typeof req.body })
  })
  const server = await serve(app)
  return { server, accidents }
}

interface Message {
  readonly method: string
  readonly path: string
  readonly key: string
  readonly type: string
  readonly body: Buffer
  readonly framing: 'length' | 'chunked' | 'none'
}

/** One byte per character: the string is sent as it is. */
const bytesOf = (text: string) => Buffer.from(text, 'latin1')

function wire({ method, path, key, type, body, framing }: Message): Buffer {
  const head =
    `${method} ${path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n` +
    `Idempotency-Key: ${key}\r\n${type === '' ? '' : `Content-Type: ${type}\r\n`}`
  if (framing === 'none') return bytesOf(`${head}\r\n`)
  if (framing === 'length') {
    return Buffer.concat([bytesOf(`${head}Content-Length: ${body.length}\r\n\r\n`), body])
  }
  const chunk = body.length === 0 ? '' : `${body.length.toString(16)}\r\n`
  const start = bytesOf(`${head}Transfer-Encoding: chunked\r\n\r\n${chunk}`)
  return Buffer.concat([start, body, bytesOf(`${body.length === 0 ? '' : '\r\n'}0\r\n\r\n`)])
}

async function statusOf(server: TestServer, message: Message): Promise<number> {
  const client = await Client.connect(server.port)
  client.socket.write(wire(message))
  const received = await client.until(/\r\n\r\n/)
  client.socket.destroy()
  return Number(/^HTTP\/1\.1 (\d{3}) /.exec(received)?.[1])
}

const byte = (min: number, max: number) =>
  fc.integer({ min, max }).map((code) => String.fromCharCode(code))
const textOf = (unit: fc.Arbitrary<string>, maxLength: number) => fc.string({ unit, maxLength })

/** Keys: plausible, almost valid, and arbitrary bytes. */
const key = fc.oneof(
  fc.uuid(),
  textOf(byte(0x20, 0x7e), 300),
  textOf(byte(0x20, 0x7e), 40).map((inner) => `"${inner}"`),
  textOf(byte(0x00, 0xff), 40),
  textOf(fc.constantFrom('"', '\\', ',', ';', '=', ':', '?1', '(', ')', 'a', ' ', '\t'), 20),
  fc.constantFrom(
    '',
    ' ',
    '"',
    '""',
    '"\\',
    '"a";b',
    '"a", "b"',
    'a,b',
    '\x7f',
    'a\0b',
    'a\r\nB: c',
  ),
  fc.constantFrom('ann@example.org', '+49 30 123456', ':YWJj:', '?1', '@1', '1.5', '%"a"'),
  fc.integer({ min: 250, max: 9000 }).map((length) => 'k'.repeat(length)),
)

const path = fc.oneof(
  fc.constantFrom('/', '/items/1', '/items/%', '/items/%00', '/items/%E0%A4%A', '//', '/..', '/?'),
  fc.constantFrom('/?a=1&a=2', '/?%ff', '/?a[b]=1', '/__proto__', '/items/..%2f', '*', '/#x'),
  fc.webPath().map((generated) => `/${generated}`),
  textOf(byte(0x21, 0x7e), 40).map((rest) => `/${rest}`),
  textOf(byte(0x80, 0xff), 10).map((rest) => `/${rest}`),
  fc.integer({ min: 900, max: 5000 }).map((length) => `/${'x'.repeat(length)}`),
)

const type = fc.oneof(
  { weight: 4, arbitrary: fc.constantFrom('application/json', 'application/merge-patch+json') },
  { weight: 2, arbitrary: fc.constantFrom('', 'text/plain', 'application/x-www-form-urlencoded') },
  fc.constantFrom('application/json; charset=utf-16', 'application/json; charset=klingon'),
  fc.constantFrom('multipart/form-data; boundary=x', 'multipart/form-data', 'multipart/'),
  fc.constantFrom('application/json;', '/', ';', 'json', 'APPLICATION/JSON', 'text/plain; a="'),
  textOf(byte(0x20, 0xff), 30),
)

const nested = (depth: number, [open, close]: readonly [string, string]) =>
  open.repeat(depth) + close.repeat(depth)

const jsonText = fc.oneof(
  fc.json(),
  fc.json().map((text) => text.slice(0, -1)),
  fc.constantFrom('', ' ', 'null', '1e999', '-0', '"\\ud800"', '{"a":1,"a":2}', '[1,]', 'NaN'),
  fc.constantFrom('{"__proto__":{"x":1}}', '{"constructor":{"prototype":1}}', '\ufeff{}', '{"":0}'),
  fc.constantFrom('9'.repeat(500), `0.${'1'.repeat(500)}`, '1E-400', '"\\u0000"'),
  fc.integer({ min: 1, max: 2000 }).map((depth) => nested(depth, ['[', ']'])),
  fc.integer({ min: 1, max: 800 }).map((depth) => nested(depth, ['{"a":', '}'])),
)

const body = fc.oneof(
  jsonText.map((text) => Buffer.from(text)),
  fc.uint8Array({ maxLength: 200 }).map((bytes) => Buffer.from(bytes)),
  fc
    .constantFrom('--x\r\n', '--x--', '--x\r\n\r\n--x--', '----', 'a=1&b=2', 'a[b][c]=1&a=2', '%')
    .map((text) => Buffer.from(text)),
  fc.constantFrom(4095, 4096, 4097, 20_000).map((length) => Buffer.alloc(length, 'z')),
)

const message: fc.Arbitrary<Message> = fc.record({
  method: fc.constantFrom('POST', 'POST', 'PATCH'),
  path: fc.oneof({ weight: 3, arbitrary: fc.constant('/') }, path),
  key: fc.oneof(fc.constantFrom('k-1', 'k-2', 'k-3'), key),
  type,
  body,
  framing: fc.constantFrom('length', 'chunked', 'none'),
})

const MESSAGES = 1000
const AT_ONCE = 25
const SEED = 20_260_101

describe.each(EXPRESSES)('%s', (_name, express) => {
  it.each(SETUPS)('with %s, every hostile request gets an answer below 500', async (kind) => {
    const { server, accidents } = await setup(express, kind)
    const messages = fc.sample(message, { numRuns: MESSAGES, seed: SEED })
    const counts = new Map<number, number>()
    const faults: unknown[] = []
    while (messages.length > 0) {
      const batch = messages.splice(0, AT_ONCE)
      const statuses = await Promise.all(batch.map((one) => statusOf(server, one)))
      for (const [index, status] of statuses.entries()) {
        counts.set(status, (counts.get(status) ?? 0) + 1)
        const isClear = status >= 200 && status < 500
        if (!isClear) faults.push({ status, ...batch[index], body: String(batch[index]?.body) })
      }
    }
    expect(faults).toEqual([])
    expect(accidents).toEqual([])
    // Some requests were valid: each kind of answer occurred.
    for (const status of [200, 400, 413, 422]) expect(counts.get(status)).toBeGreaterThan(0)
    expect((await server.send({ key: 'still-here', json: {} })).status).toBe(200)
  })
})
