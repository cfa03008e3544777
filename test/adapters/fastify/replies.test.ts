/** The first reply and its replay have the same bytes, for each way of sending a reply. */
import { once } from 'node:events'
import { Readable } from 'node:stream'
import { gunzipSync } from 'node:zlib'
import compress from '@fastify/compress'
import cors from '@fastify/cors'
import type { FastifyInstance, RouteHandlerMethod } from 'fastify'
import { describe, expect, it } from 'vitest'
import { idempotency } from '../../../src/adapters/fastify/index.ts'
import { guardedApp, newApp, optionsOf, serveApp } from '../run-fastify.ts'
import { header, text, type Reply, type Send, type TestServer } from '../run-express.ts'

const BYTES = Buffer.from([0, 255, 128, 10, 13, 0])

const HANDLERS: Readonly<Record<string, RouteHandlerMethod>> = {
  'a string': () => 'text',
  'an object': async () => ({ paid: true }),
  'a buffer': async (_request, reply) => reply.type('image/png').send(BYTES),
  'a typed array': (_request, reply) => reply.send(new Uint8Array(BYTES)),
  'a callback': (_request, reply) => {
    setImmediate(() => void reply.code(201).header('location', '/payments/1').send({ id: 1 }))
  },
  'return reply': async (_request, reply) => {
    setImmediate(() => void reply.code(202).send({ id: 2 }))
    return reply
  },
  'await reply': async (_request, reply) => {
    await reply.code(202).send({ id: 3 })
  },
  'a stream': (_request, reply) => reply.type('text/plain').send(Readable.from(['a', 'b', 'é'])),
  'a web stream': (_request, reply) =>
    reply.type('application/octet-stream').send(new Blob([BYTES]).stream()),
  'a Response': () =>
    new Response('from fetch', { status: 201, headers: { etag: '"1"', 'content-type': 'text/x' } }),
  'an empty Response': () => new Response(null, { status: 204 }),
  'no content': (_request, reply) => reply.code(204).send(),
  'an empty body': async (_request, reply) => reply.code(200).send(),
  'an async handler that returns nothing': async () => undefined,
  'a redirect': (_request, reply) => reply.redirect('/elsewhere', 303),
  'a hijacked reply': (_request, reply) => {
    void reply.hijack()
    reply.raw.writeHead(201, { 'Content-Type': 'text/plain', ETag: '"2"' })
    reply.raw.write('one ')
    reply.raw.end('two')
  },
  'not found': (_request, reply) => reply.callNotFound(),
  'an error of the client': async () => {
    throw Object.assign(new Error('too little'), { statusCode: 402 })
  },
}

/** The parts of a reply that must be the same in a replay. */
function seen({ status, headers, body }: Reply): unknown {
  const names = ['content-type', 'content-length', 'etag', 'location', 'content-encoding']
  return [status, names.map((name) => headers.get(name)?.join()), body.toString('latin1')]
}

/** A held stream is sent in one piece, and gets a Content-Length. */
function withLength(reply: Reply): Reply {
  if (reply.status === 204) return reply
  const length: [string, string[]] = ['content-length', [String(reply.body.length)]]
  return { ...reply, headers: new Map([...reply.headers, length]) }
}

async function twice(server: TestServer, options: Send = {}): Promise<[Reply, Reply]> {
  const first = await server.send({ key: 'k', ...options })
  const replay = await server.send({ key: 'k', ...options })
  expect(header(first, 'idempotent-replayed')).toBeUndefined()
  expect(header(replay, 'idempotent-replayed')).toBe('true')
  return [first, replay]
}

function counted(app: FastifyInstance, handler: RouteHandlerMethod): { runs: number } {
  const count = { runs: 0 }
  app.post('/', function (request, reply) {
    count.runs++
    return handler.call(this, request, reply)
  })
  return count
}

describe.each(Object.entries(HANDLERS))('%s', (_name, handler) => {
  it('sends and replays the same reply as without the guard', async () => {
    const bare = newApp()
    counted(bare, handler)
    const app = await guardedApp()
    const count = counted(app, handler)
    const plain = await (await serveApp(bare)).send()
    const [first, replay] = await twice(await serveApp(app))
    expect(seen(first)).toEqual(seen(withLength(plain)))
    expect(seen(replay)).toEqual(seen(first))
    expect(header(first, 'idempotency-expires')).toMatch(/GMT$/)
    expect(count.runs).toBe(1)
  })

  it('replays the same reply under inject', async () => {
    const app = await guardedApp()
    const count = counted(app, handler)
    const inject = () =>
      app.inject({ method: 'POST', url: '/', headers: { 'idempotency-key': 'k' } })
    const [first, replay] = [await inject(), await inject()]
    expect(replay.statusCode).toBe(first.statusCode)
    expect(replay.rawPayload).toEqual(first.rawPayload)
    expect(replay.headers['content-type']).toBe(first.headers['content-type'])
    expect(replay.headers['idempotent-replayed']).toBe('true')
    expect(count.runs).toBe(1)
  })
})

it('runs no onSend hooks on a replay, because they changed the recorded reply', async () => {
  const app = newApp()
  let sends = 0
  app.addHook('onSend', async (_request, reply, payload) => {
    void reply.header('etag', `"${++sends}"`)
    return `${String(payload)} #${sends}`
  })
  await app.register(idempotency, optionsOf())
  app.post('/', { onSend: async (_r, _s, payload) => `<${String(payload)}>` }, () => 'paid')
  const [first, replay] = await twice(await serveApp(app))
  expect([text(first), header(first, 'etag')]).toEqual(['<paid #1>', '"1"'])
  expect([text(replay), header(replay, 'etag')]).toEqual(['<paid #1>', '"1"'])
  expect(sends).toBe(1)
})

it('records the reply as serialized by the response schema', async () => {
  const app = await guardedApp()
  const schema = {
    response: { 200: { type: 'object', properties: { id: { type: 'number' } } } },
  } as const
  app.post('/', { schema }, () => ({ id: 1, secret: 'x' }))
  const [first, replay] = await twice(await serveApp(app))
  expect([text(first), text(replay)]).toEqual(['{"id":1}', '{"id":1}'])
})

it('sends trailers with the first reply, and replays only the body', async () => {
  const app = await guardedApp()
  app.post('/', (_request, reply) => {
    reply.trailer('etag', (_reply, _payload, done) => done(null, 'sum'))
    return reply.send('summed')
  })
  const server = await serveApp(app)
  const raw = await (await server.connect({ key: 'k' })).until(/etag: sum/)
  expect(raw).toMatch(/summed[^]*etag: sum/)
  const replay = await server.send({ key: 'k' })
  expect([text(replay), header(replay, 'trailer')]).toEqual(['summed', undefined])
})

it('streams a reply above the cap completely, and replays it without its body', async () => {
  const app = await guardedApp({ replyBytesMax: 1000 })
  const big = 'x'.repeat(100_000)
  app.post('/', (_request, reply) =>
    reply.type('text/plain').send(Readable.from([big, big], { objectMode: false })),
  )
  const [first, replay] = await twice(await serveApp(app))
  expect(text(first)).toBe(big + big)
  expect(header(replay, 'idempotent-body-elided')).toBe('true')
})

it('keeps the headers of earlier hooks on replays and problems', async () => {
  const app = newApp()
  await app.register(cors, { origin: true, exposedHeaders: ['Idempotent-Replayed'] })
  app.addHook('onRequest', async (_request, reply) => {
    void reply.header('set-cookie', 'a=1').header('set-cookie', 'b=2')
    reply.raw.setHeader('x-raw', '1')
  })
  await app.register(idempotency, optionsOf())
  app.post('/', (_request, reply) =>
    reply.header('x-own', '1').header('set-cookie', 'c=3').send('ok'),
  )
  const server = await serveApp(app)
  const [first, replay] = [
    await server.send({ key: 'k', headers: { Origin: 'https://a.example' } }),
    await server.send({ key: 'k', headers: { Origin: 'https://b.example' } }),
  ]
  const problem = await server.send({ headers: { Origin: 'https://c.example' } })
  const allowed = (reply: Reply) => header(reply, 'access-control-allow-origin')
  expect([first, replay, problem].map(allowed)).toEqual([
    'https://a.example',
    'https://b.example',
    'https://c.example',
  ])
  expect(header(replay, 'access-control-expose-headers')).toBe('Idempotent-Replayed')
  expect(first.headers.get('set-cookie')).toEqual(['a=1', 'b=2', 'c=3'])
  expect(replay.headers.get('set-cookie')).toEqual(['a=1', 'b=2'])
  expect([problem.status, header(problem, 'x-raw'), header(replay, 'x-raw')]).toEqual([
    400,
    '1',
    '1',
  ])
  expect(header(replay, 'x-own')).toBeUndefined()
})

it('keeps the headers of earlier hooks on a problem in place of a reply', async () => {
  const app = newApp()
  await app.register(cors, { origin: true })
  await app.register(idempotency, optionsOf())
  app.post('/', async (request, reply) => {
    request.idempotency!.outcomeUnknown()
    return reply.header('x-own', '1').code(201).send('done?')
  })
  const server = await serveApp(app)
  const problem = await server.send({ key: 'k', headers: { Origin: 'https://a.example' } })
  expect(problem.status).toBe(409)
  expect(header(problem, 'access-control-allow-origin')).toBe('https://a.example')
  expect(header(problem, 'x-own')).toBeUndefined()
})

it('compresses only unprotected replies, so that every client can read a replay', async () => {
  const app = newApp()
  await app.register(compress, { threshold: 0 })
  await app.register(idempotency, optionsOf())
  const big = 'x'.repeat(5000)
  app.post('/', () => big)
  app.post('/stream', (_request, reply) => reply.type('text/plain').send(Readable.from([big])))
  app.post('/explicit', (_request, reply) => reply.type('text/plain').compress(big))
  app.get('/', () => big)
  const server = await serveApp(app)
  const gzip = { 'Accept-Encoding': 'gzip' }
  for (const path of ['/', '/stream', '/explicit']) {
    const [first, replay] = await twice(server, { path, headers: gzip })
    expect([text(first), header(first, 'content-encoding')]).toEqual([big, undefined])
    expect([text(replay), header(replay, 'content-encoding')]).toEqual([big, undefined])
  }
  const other = await server.send({ method: 'GET', headers: gzip })
  expect(header(other, 'content-encoding')).toBe('gzip')
  expect(gunzipSync(other.body).toString()).toBe(big)
})

it('runs onResponse hooks for first replies, replays and problems, and closes', async () => {
  const app = newApp()
  const seenByHook: number[] = []
  let onSeen: () => void = () => undefined
  app.addHook('onResponse', async (_request, reply) => {
    seenByHook.push(reply.statusCode)
    onSeen()
  })
  await app.register(idempotency, optionsOf())
  app.post('/', (_request, reply) => reply.code(201).send('ok'))
  const address = await app.listen({ port: 0, host: '127.0.0.1' })
  const post = async (key?: string) => {
    const answered = new Promise<void>((resolve) => {
      onSeen = resolve
    })
    const headers = key === undefined ? {} : { 'Idempotency-Key': key }
    await fetch(address, { method: 'POST', headers })
    await answered
  }
  await post('k')
  await post('k')
  await post()
  expect(seenByHook).toEqual([201, 201, 400])
  const closed = once(app.server, 'close')
  await app.close()
  await closed
})
