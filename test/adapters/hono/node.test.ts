/** Hono on Node: the guard reads bodies from Node's request, without an effect on handlers. */
import { Hono, type Context, type MiddlewareHandler } from 'hono'
import { describe, expect, it } from 'vitest'
import { singleTenant } from '../../../src/http/guard/guard-options.ts'
import { idempotency } from '../../../src/adapters/hono/index.ts'
import { memoryStore } from '../../../src/stores/memory/store.ts'
import {
  gate,
  header,
  rawRequest,
  text,
  type Reply,
  type Send,
  type TestServer,
} from '../run-express.ts'
import { serveHono } from '../web/serve-web.ts'

const JSON_TYPE = { 'content-type': 'application/json' }
const FORM_TYPE = { 'content-type': 'application/x-www-form-urlencoded' }

/** More bytes than a Node stream buffers at once, and not all the same. */
const LARGE = JSON.stringify({ of: Array.from({ length: 40_000 }, (_, n) => n) })

interface Setup {
  readonly before?: MiddlewareHandler
  readonly handler: (c: Context) => Response | Promise<Response>
}

/** Serves an app after the guard has probed the server, which happens with the first request. */
async function serveProbed({ before, handler }: Setup): Promise<TestServer> {
  const app = new Hono()
  const guard = idempotency({ tenant: singleTenant, store: memoryStore() })
  app.post('/probe', guard, (c) => c.text(wasReadFromNode(c) ? 'Node' : 'stream'))
  if (before !== undefined) app.use(before)
  app.post('/', guard, handler)
  const server = await serveHono(app)
  const probe = async (key: string) =>
    text(await server.send({ key, path: '/probe', headers: JSON_TYPE, body: '{}' }))
  await probe('first')
  expect(await probe('second')).toBe('Node')
  return server
}

function wasReadFromNode(c: Context): boolean {
  const { incoming } = c.env as { readonly incoming: { readonly rawBody?: unknown } }
  return incoming.rawBody instanceof Buffer
}

const READS: readonly (readonly [how: string, read: (c: Context) => unknown])[] = [
  ['c.req.json()', async (c) => JSON.stringify(await c.req.json())],
  ['c.req.text()', (c) => c.req.text()],
  ['c.req.arrayBuffer()', async (c) => decode(await c.req.arrayBuffer())],
  ['c.req.blob()', async (c) => (await c.req.blob()).text()],
  ['c.req.raw.text()', (c) => c.req.raw.text()],
  ['c.req.raw.json()', async (c) => JSON.stringify(await c.req.raw.json())],
  ['c.req.raw.arrayBuffer()', async (c) => decode(await c.req.raw.arrayBuffer())],
  ['c.req.raw.body', (c) => new Response(c.req.raw.body).text()],
  ['c.req.raw.clone()', (c) => c.req.raw.clone().text()],
  ['new Request(c.req.raw)', (c) => new Request(c.req.raw).text()],
  ['c.req.text() twice', async (c) => (await c.req.text()) && c.req.text()],
]

function decode(buffer: ArrayBuffer): string {
  return new TextDecoder().decode(buffer)
}

describe('handlers behind the guard', () => {
  it.each(READS)('passes the body unchanged to %s', async (_how, read) => {
    const reads: boolean[] = []
    const server = await serveProbed({
      handler: async (c) => {
        reads.push(wasReadFromNode(c))
        return c.text(String(await read(c)), 201)
      },
    })
    for (const body of ['{"a":1}', '{"ä":"☃"}', LARGE]) {
      const sent: Send = { key: `k${body.length}`, headers: JSON_TYPE, body }
      expect(text(await server.send(sent))).toBe(body)
      const again = await server.send(sent)
      expect([text(again), header(again, 'idempotent-replayed')]).toEqual([body, 'true'])
    }
    expect(reads).toEqual([true, true, true])
  })

  it('passes a form to c.req.parseBody()', async () => {
    const { send } = await serveProbed({ handler: async (c) => c.json(await c.req.parseBody()) })
    const reply = await send({ key: 'k', headers: FORM_TYPE, body: 'a=1&b=two' })
    expect(text(reply)).toBe('{"a":"1","b":"two"}')
  })

  it('passes on a body that arrived in several parts', async () => {
    const server = await serveProbed({ handler: async (c) => c.text(await c.req.text(), 201) })
    const request = rawRequest({ key: 'k', headers: JSON_TYPE, body: LARGE })
    const client = await server.connect({ path: '/nowhere' })
    await client.until(/404/)
    for (let at = 0; at < request.length; at += 30_000) {
      client.socket.write(request.slice(at, at + 30_000))
      await new Promise((resolve) => setImmediate(resolve))
    }
    expect(await client.until(/39999\]\}/)).toContain('201 Created')
  })

  it('passes on the body of a client that has disconnected', async () => {
    const [entered, gone, read] = [gate(), gate(), gate<string>()]
    const server = await serveProbed({
      handler: async (c) => {
        entered.open()
        await gone.passed
        const body = await c.req.text()
        read.open(body)
        return c.text(body, 201)
      },
    })
    server.server.on('connection', (socket) => void socket.on('close', () => gone.open()))
    const client = await server.connect({ key: 'k', headers: JSON_TYPE, body: '{"a":1}' })
    await entered.passed
    client.cut()
    expect(await read.passed).toBe('{"a":1}')
    const reply = await server.send({ key: 'k', headers: JSON_TYPE, body: '{"a":1}' })
    expect(header(reply, 'idempotent-replayed')).toBe('true')
  })
})

describe('code that reads the request at the same time as the guard', () => {
  const READERS: readonly (readonly [how: string, read: (c: Context) => Promise<string>])[] = [
    ['a copy', (c) => c.req.raw.clone().text()],
    ['c.req.text()', (c) => c.req.text()],
  ]
  const cases = READERS.flatMap(([how, read]) => [10, 200_000].map((size) => ({ how, read, size })))

  // The other reader may get a part of the body. The handler must get all of it.
  it.each(cases)(
    'passes $size characters to the handler while other code reads $how',
    async ({ read, size }) => {
      const { send } = await serveProbed({
        before: async (c, next) => {
          const ended = next()
          await read(c)
          await ended
        },
        handler: async (c) => c.text(await c.req.text(), 201),
      })
      const body = JSON.stringify('x'.repeat(size))
      const reply = await send({ key: 'k', headers: JSON_TYPE, body })
      expect([reply.status, text(reply)]).toEqual([201, body])
    },
  )
})

it.each([
  ['c.json()', (c: Context) => c.json({ a: 1 }, 201)],
  ['c.text()', (c: Context) => c.text('text', 201)],
  ['c.html()', (c: Context) => c.html('<p>text</p>', 201)],
  ['c.body()', (c: Context) => c.body('text', 201)],
  ['c.body(null)', (c: Context) => c.body(null, 204)],
  ['a Response', () => new Response('text', { status: 201 })],
  ['a Response with other headers', () => new Response('text', { headers: { 'x-a': 'b' } })],
  ['c.redirect()', (c: Context) => c.redirect('/elsewhere', 303)],
] as const)('replays a reply of %s unchanged', async (_how, handler) => {
  const { send } = await serveProbed({ handler })
  const contentOf = (reply: Reply) => [
    reply.status,
    text(reply),
    ...['content-type', 'content-length', 'location'].map((name) => header(reply, name)),
  ]
  const first = await send({ key: 'k', headers: JSON_TYPE, body: '{}' })
  const again = await send({ key: 'k', headers: JSON_TYPE, body: '{}' })
  expect(contentOf(again)).toEqual(contentOf(first))
  expect(header(again, 'idempotent-replayed')).toBe('true')
})

describe('fallback to the stream', () => {
  it.each<readonly [what: string, before: MiddlewareHandler]>([
    ['has cloned the request', (c, next) => (c.req.raw.clone(), next())],
    ['has accessed its stream', (c, next) => (void c.req.raw.body, next())],
    ['has read it', async (c, next) => (await c.req.text(), next())],
    ['has replaced it', (c, next) => ((c.req.raw = new Request(c.req.raw)), next())],
  ])('reads the stream if a middleware before %s', async (_what, before) => {
    let isFromNode = true
    const { send } = await serveProbed({
      before,
      handler: async (c) => {
        isFromNode = wasReadFromNode(c)
        return c.text(await c.req.text(), 201)
      },
    })
    expect(text(await send({ key: 'k', headers: JSON_TYPE, body: '{"a":1}' }))).toBe('{"a":1}')
    expect(isFromNode).toBe(false)
    const other = await send({ key: 'k', headers: JSON_TYPE, body: '{"a":2}' })
    expect(other.status).toBe(422)
  })

  it('reads the stream of a body without Content-Length', async () => {
    const server = await serveProbed({
      handler: async (c) => c.text(`${wasReadFromNode(c)} ${await c.req.text()}`, 201),
    })
    const client = await server.connect({ path: '/nowhere' })
    await client.until(/404/)
    client.socket.write(
      'POST / HTTP/1.1\r\nHost: x\r\nIdempotency-Key: k\r\nContent-Type: application/json\r\n' +
        'Transfer-Encoding: chunked\r\n\r\n7\r\n{"a":1}\r\n0\r\n\r\n',
    )
    expect(await client.until(/"a":1\}/)).toContain('false {"a":1}')
  })

  it('reads the stream if the server does not support rawBody', async () => {
    const app = new Hono()
    const guard = idempotency({ tenant: singleTenant, store: memoryStore() })
    app.post('/', guard, async (c) => c.text(await c.req.text(), 201))
    for (const key of ['a', 'b', 'c']) {
      const request = Object.create(OLD_REQUEST) as OldRequest
      request[incomingKey] = incomingOf(key)
      const reply = await app.fetch(request as unknown as Request, {
        incoming: request[incomingKey],
      })
      expect(await reply.text()).toBe('{"a":1}')
    }
  })
})

const incomingKey = Symbol('incomingKey')

/** A request of a server that always reads the body itself. */
const OLD_REQUEST = {
  method: 'POST',
  url: 'http://localhost/',
  get headers() {
    return realOf(this).headers
  },
  get body() {
    return realOf(this).body
  },
  get bodyUsed() {
    return realOf(this).bodyUsed
  },
  text() {
    return realOf(this).text()
  },
  arrayBuffer() {
    return realOf(this).arrayBuffer()
  },
  clone() {
    return realOf(this).clone()
  },
}

const reals = new WeakMap<object, Request>()

function realOf(old: object): Request {
  const { sent = '', headers } = (old as OldRequest)[incomingKey]
  const real =
    reals.get(old) ?? new Request(OLD_REQUEST.url, { method: 'POST', body: sent, headers })
  reals.set(old, real)
  return real
}

interface OldRequest {
  [incomingKey]: ReturnType<typeof incomingOf>
}

/** An unread Node request from which the guard must not read the body. */
function incomingOf(key: string) {
  return {
    sent: '{"a":1}' as string | undefined,
    httpVersionMajor: 1,
    headers: { ...JSON_TYPE, 'content-length': '7', 'idempotency-key': key },
    readableDidRead: false,
    readableEncoding: null,
    destroyed: false,
    listenerCount: () => 0,
    read: () => {
      throw new Error('the body was read from the Node request')
    },
  }
}

it('uses no key if the client disconnects during its upload', async () => {
  let runs = 0
  const server = await serveProbed({
    handler: async (c) => {
      runs++
      return c.text(await c.req.text(), 201)
    },
  })
  const body = '{"a":1}'
  const request = rawRequest({ key: 'k', headers: JSON_TYPE, body })
  const arrived = gate()
  server.server.once('request', () => arrived.open())
  const client = await server.connect({ path: '/nowhere' })
  await client.until(/404/)
  client.socket.write(request.slice(0, -3))
  await arrived.passed
  client.cut()
  await client.closed()
  expect((await server.send({ key: 'k', headers: JSON_TYPE, body })).status).toBe(201)
  expect(runs).toBe(1)
})
