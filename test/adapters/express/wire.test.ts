import { once } from 'node:events'
import type { AddressInfo } from 'node:net'
import type { RequestHandler } from 'express'
import { describe, expect, it, onTestFinished } from 'vitest'
import { WebSocket, WebSocketServer } from 'ws'
import type { Store } from '../../../src/core/store/store.ts'
import { memoryStore } from '../../../src/stores/memory/store.ts'
import {
  Client,
  EXPRESSES,
  gate,
  guardOf,
  header,
  rawRequest,
  serve,
  text,
  turns,
  wrapStore,
  type ExpressModule,
} from '../run-express.ts'

/** Serves one protected route, and counts the runs of its handler. */
async function setup(express: ExpressModule, handler: RequestHandler, store?: Store) {
  const app = express()
  let runs = 0
  app.post('/', guardOf(store === undefined ? {} : { store }), (req, res, next) => {
    runs++
    return handler(req, res, next)
  })
  return { ...(await serve(app)), runs: () => runs }
}

/** The end of a chunked reply: the empty chunk, and the trailers if there are any. */
const CHUNKED_END = /\r\n0\r\n[^]*\r\n$/

describe.each(EXPRESSES)('%s: trailers', (_name, express) => {
  it.each([['announced'], ['unannounced']])(
    'sends %s trailers with the first reply, and with no replay',
    async (how) => {
      const { connect, runs } = await setup(express, (_req, res) => {
        if (how === 'announced') res.setHeader('Trailer', 'X-Checksum')
        res.write('a long ')
        res.write('story')
        res.addTrailers({ 'X-Checksum': 'abc' })
        res.end()
      })
      const first = await (await connect({ key: 'k' })).until(CHUNKED_END)
      expect(first).toContain('Transfer-Encoding: chunked')
      expect(first).toMatch(/\r\n0\r\nX-Checksum: abc\r\n\r\n$/)
      const replay = await (await connect({ key: 'k' })).until(/a long story$/)
      expect(replay).toContain('Idempotent-Replayed: true')
      expect(replay).toContain('Content-Length: 12')
      expect(replay.toLowerCase()).not.toMatch(/x-checksum|trailer/)
      expect(runs()).toBe(1)
    },
  )
})

describe.each(EXPRESSES)('%s: informational responses', (_name, express) => {
  it('sends early hints while the reply is held, and does not replay them', async () => {
    const settling = gate()
    const proceed = gate()
    const inner = memoryStore()
    const store = wrapStore(inner, {
      settle: async (settlements) => {
        settling.open()
        await proceed.passed
        return inner.settle(settlements)
      },
    })
    const { connect, runs } = await setup(
      express,
      (_req, res) => {
        res.writeEarlyHints({ link: '</style.css>; rel=preload; as=style' })
        res.writeProcessing()
        res.status(201).send('done')
      },
      store,
    )
    const client = await connect({ key: 'k' })
    await settling.passed
    const early = await client.until(/102 Processing\r\n\r\n/)
    expect(early).toMatch(/^HTTP\/1.1 103 Early Hints\r\nLink: <\/style.css>/)
    expect(early).not.toContain('201')
    proceed.open()
    expect(await client.until(/done$/)).toContain('HTTP/1.1 201 Created')
    const replay = await (await connect({ key: 'k' })).until(/done$/)
    expect(replay).toMatch(/^HTTP\/1.1 201 /)
    expect(runs()).toBe(1)
  })

  it('drops early hints after the client got another reply', async () => {
    const replied = gate()
    const written = gate()
    const app = express()
    const guard = guardOf({ runTimeoutMs: 1 })
    app.post('/', guard, async (_req, res) => {
      await replied.passed
      res.writeEarlyHints({ link: '</late.css>; rel=preload' }, written.open)
      res.end('late')
    })
    const { connect } = await serve(app)
    const client = await connect({ key: 'k' })
    expect(await client.until(/\}$/)).toContain('idempotency_outcome_unknown')
    replied.open()
    await written.passed
    await turns()
    expect(client.received).not.toContain('103 Early Hints')
  })

  it('sends 100 to a client that waits for it before it sends its body', async () => {
    const { port, runs } = await setup(express, (req, res) => {
      req.pipe(res)
    })
    const headers = { Expect: '100-continue', 'Content-Length': 5, 'Content-Type': 'text/plain' }
    for (let n = 0; n < 2; n++) {
      const client = await Client.connect(port)
      client.socket.write(rawRequest({ key: 'k', headers }))
      expect(await client.until(/\r\n\r\n/)).toBe('HTTP/1.1 100 Continue\r\n\r\n')
      client.socket.write('hello')
      expect(await client.until(/hello$/)).toContain('HTTP/1.1 200 OK')
    }
    expect(runs()).toBe(1)
  })
})

describe.each(EXPRESSES)('%s: conditional requests', (_name, express) => {
  it('ignores conditional headers in a replay and in the comparison of requests', async () => {
    const { send, runs } = await setup(express, (_req, res) => {
      res.status(200).json({ a: 1 })
    })
    const first = await send({ key: 'k' })
    const etag = header(first, 'etag')!
    expect(etag).toBeDefined()
    const headers = { 'If-None-Match': etag, 'If-Match': '"other"', 'If-Modified-Since': 'now' }
    const replay = await send({ key: 'k', headers })
    expect([replay.status, text(replay), header(replay, 'etag')]).toEqual([200, '{"a":1}', etag])
    expect(runs()).toBe(1)
  })

  it.each([204, 304, 412])('replays a %i of the handler with its ETag', async (status) => {
    const { send, runs } = await setup(express, (_req, res) => {
      res.status(status).set('ETag', '"v2"').end()
    })
    const [first, replay] = [await send({ key: 'k' }), await send({ key: 'k' })]
    for (const reply of [first, replay]) {
      expect([reply.status, header(reply, 'etag'), text(reply)]).toEqual([status, '"v2"', ''])
    }
    expect(header(replay, 'content-length')).toBe(status === 412 ? '0' : undefined)
    expect(runs()).toBe(1)
  })
})

describe.each(EXPRESSES)('%s: server-sent events', (_name, express) => {
  it('streams events one by one, and replays a note in their place', async () => {
    const proceed = gate()
    const { connect, send, runs } = await setup(express, async (_req, res) => {
      res.status(200).type('text/event-stream')
      res.flushHeaders()
      res.write('data: 1\n\n')
      await proceed.passed
      res.end('data: 2\n\n')
    })
    const client = await connect({ key: 'k' })
    const begun = await client.until(/data: 1\n\n/)
    expect(begun).toContain('Idempotency-Expires: ')
    expect(begun).not.toContain('data: 2')
    // The key is already recorded, so a retry starts no second stream.
    const replay = await send({ key: 'k' })
    expect([replay.status, header(replay, 'idempotent-body-elided')]).toEqual([200, 'true'])
    expect(header(replay, 'content-type')).toContain('application/json')
    proceed.open()
    expect(await client.until(CHUNKED_END)).toContain('data: 2\n\n')
    expect(runs()).toBe(1)
  })

  it('sends the head of an event stream before the first event', async () => {
    const { connect } = await setup(express, (_req, res) => {
      res.writeHead(200, { 'Content-Type': 'text/event-stream; charset=utf-8' })
      res.flushHeaders()
    })
    const client = await connect({ key: 'k' })
    expect(await client.until(/\r\n\r\n/)).toContain('text/event-stream; charset=utf-8')
  })

  it('does not treat an event stream with a 503 as a success', async () => {
    const { send, runs } = await setup(express, (_req, res) => {
      res.status(503).type('text/event-stream').end('data: sorry\n\n')
    })
    for (let n = 1; n <= 2; n++) {
      expect((await send({ key: 'k' })).status).toBe(503)
      expect(runs()).toBe(n)
    }
  })
})

describe.each(EXPRESSES)('%s: other features of a server', (_name, express) => {
  it('upgrades to WebSocket as without the guard', async () => {
    const app = express()
    app.use(guardOf(), (_req, res) => {
      res.end('http')
    })
    const { server, send } = await serve(app)
    const sockets = new WebSocketServer({ server, path: '/ws' })
    onTestFinished(() => sockets.close())
    sockets.on('connection', (socket) => {
      socket.on('message', (data: Buffer) => socket.send(`echo ${data.toString()}`))
    })
    const { port } = server.address() as AddressInfo
    const client = new WebSocket(`ws://127.0.0.1:${port}/ws`, {
      headers: { 'Idempotency-Key': 'k' },
    })
    onTestFinished(() => client.terminate())
    await once(client, 'open')
    const answered = once(client, 'message')
    client.send('hello')
    const [data] = (await answered) as [Buffer]
    expect(data.toString()).toBe('echo hello')
    for (let n = 0; n < 2; n++) expect(text(await send({ key: 'k' }))).toBe('http')
  })

  it('leaves HEAD and OPTIONS of a protected path to Express', async () => {
    const app = express()
    app.use('/pay', guardOf())
    app
      .route('/pay')
      .get((_req, res) => {
        res.send('the list')
      })
      .post((_req, res) => {
        res.sendStatus(201)
      })
    const { send } = await serve(app)
    const head = await send({ method: 'HEAD', path: '/pay', key: 'k' })
    expect([head.status, header(head, 'content-length'), text(head)]).toEqual([200, '8', ''])
    expect(header(head, 'idempotency-expires')).toBeUndefined()
    const options = await send({ method: 'OPTIONS', path: '/pay' })
    expect([options.status, header(options, 'allow')]).toEqual([
      200,
      expect.stringContaining('POST'),
    ])
    expect((await send({ method: 'POST', path: '/pay', key: 'k' })).status).toBe(201)
  })
})
