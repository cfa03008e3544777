import { EventEmitter, once } from 'node:events'
import http from 'node:http'
import http2 from 'node:http2'
import type { AddressInfo } from 'node:net'
import { describe, expect, it, onTestFinished } from 'vitest'
import {
  currentIdempotency,
  idempotency,
  idempotencyOf,
  singleTenant,
  withIdempotency,
  type NodeListener,
  type NodeOptions,
} from '../../src/adapters/node.ts'
import { memoryStore } from '../../src/stores/memory/memory-store.ts'
import { gate, header, problemOf, serve, text, turns } from './run-express.ts'

const own = (): NodeOptions => ({ store: memoryStore(), tenant: singleTenant })

function setup(listener: NodeListener, options: Partial<NodeOptions> = {}) {
  return serve(withIdempotency(listener, { ...own(), ...options }))
}

/** The warnings of the process until the test ends. */
function warnings(): Error[] {
  const heard: Error[] = []
  const listen = (warning: Error) => void heard.push(warning)
  process.on('warning', listen)
  onTestFinished(() => {
    process.off('warning', listen)
  })
  return heard
}

describe('a protected listener', () => {
  it('gives its context by the request, and deep inside by itself', async () => {
    const { send } = await setup((req, res) => {
      const context = idempotencyOf(req)
      res.end(JSON.stringify([context.key, context === currentIdempotency(), context.scope]))
    })
    const scope = { tenant: 'single', operation: 'POST /pay' }
    expect(JSON.parse(text(await send({ path: '/pay?dry=1', key: 'k' })))).toEqual([
      'k',
      true,
      scope,
    ])
  })

  it('is called at once where the method is not protected, and has no context', async () => {
    const emitter = Object.assign(new EventEmitter(), { method: 'GET', url: '/' })
    let called = false
    const listener = withIdempotency((req) => {
      called = true
      expect(() => idempotencyOf(req)).toThrow('GET / is not protected')
    }, own())
    listener(emitter as never, new EventEmitter() as never)
    expect(called).toBe(true)
  })

  it('shares its engine with the others on its store', () => {
    const options = own()
    const protect = idempotency(options)
    expect(withIdempotency(() => undefined, options).engine).toBe(protect.engine)
    expect(protect.with({ operation: 'pay' }).engine).toBe(protect.engine)
    expect(protect(() => undefined).engine).toBe(protect.engine)
  })

  it('takes no request in any more once its engine is closed', async () => {
    const protect = idempotency(own())
    const { send } = await serve(protect((_req, res) => res.end('ran')))
    await protect.engine.close()
    expect(problemOf(await send({ key: 'k' }))).toEqual([503, 'idempotency_server_stopping'])
  })
})

describe('routes', () => {
  it('say differently what they want otherwise', async () => {
    const protect = idempotency({ ...own(), keyHeader: 'x-key' })
    const echo: NodeListener = (req, res) => res.end(idempotencyOf(req).scope.operation)
    const pay = protect.with({ operation: 'pay' })(echo)
    const refund = protect.with({ operation: 'refund', keyField: 'id' })(echo)
    const { send } = await serve((req, res) => (req.url === '/pay' ? pay : refund)(req, res))
    expect(text(await send({ path: '/pay', headers: { 'x-key': 'k' } }))).toBe('pay')
    expect(text(await send({ path: '/refund', json: { id: 'k' } }))).toBe('refund')
    expect(problemOf(await send({ path: '/refund', headers: { 'x-key': 'k' } }))).toEqual([
      400,
      'idempotency_key_missing',
    ])
  })

  it('may answer their errors themselves', async () => {
    const protect = idempotency({ ...own(), onRequestError: (_e, _q, res) => res.end('all') })
    const fail = () => {
      throw new Error('broken')
    }
    const one = protect.with({ onRequestError: (_e, _q, res) => res.end('one') })(fail)
    const rest = protect(fail)
    const { send } = await serve((req, res) => (req.url === '/one' ? one : rest)(req, res))
    expect(text(await send({ path: '/one', key: 'k' }))).toBe('one')
    expect(text(await send({ path: '/two', key: 'k' }))).toBe('all')
  })
})

describe('errors', () => {
  const broken: NodeListener = async () => {
    await Promise.resolve()
    throw new Error('secret detail')
  }

  it.each(['POST', 'GET'])('of %s become a 500 without details, and a warning', async (method) => {
    const heard = warnings()
    const { send } = await setup(broken)
    const reply = await send({ method, key: 'k' })
    expect([reply.status, text(reply)]).toEqual([500, 'Internal Server Error'])
    await turns()
    expect(heard.map(({ message }) => message)).toEqual(['secret detail'])
  })

  it('reach onRequestError, whose reply is judged like any other', async () => {
    const errors: unknown[] = []
    let runs = 0
    const { send } = await setup(
      (req, res) => {
        runs++
        return broken(req, res)
      },
      {
        onRequestError: async (error, _req, res) => {
          errors.push(error)
          await Promise.resolve()
          res.writeHead(422).end('refused')
        },
      },
    )
    expect((await send({ key: 'k' })).status).toBe(422)
    const replay = await send({ key: 'k' })
    expect([header(replay, 'idempotent-replayed'), text(replay)]).toEqual(['true', 'refused'])
    expect(errors).toEqual([new Error('secret detail')])
    expect(runs).toBe(1)
  })

  it.each([
    ['throws', () => Promise.resolve().then(() => expect.fail('again'))],
    [
      'throws at once',
      () => {
        throw new Error('again')
      },
    ],
  ])('are answered although onRequestError %s itself', async (_how, onRequestError) => {
    warnings()
    const { send } = await setup(broken, { onRequestError })
    expect((await send({ key: 'k' })).status).toBe(500)
  })

  it('after a whole reply do not change it', async () => {
    const heard = warnings()
    const { send } = await setup((_req, res) => {
      res.end('done')
      throw new Error('too late')
    })
    expect(text(await send({ key: 'k' }))).toBe('done')
    expect(header(await send({ key: 'k' }), 'idempotent-replayed')).toBe('true')
    await turns()
    expect(heard.map(({ message }) => message)).toEqual(['too late'])
  })

  it('in the middle of a reply cut it off', async () => {
    warnings()
    let runs = 0
    const { send } = await setup(async (_req, res) => {
      if (++runs > 1) return res.end('whole')
      res.write('half')
      await turns(2)
      throw new Error('source failed')
    })
    await expect(send({ key: 'k' })).rejects.toThrow('socket hang up')
    expect(text(await send({ key: 'k' }))).toBe('whole')
  })

  it('of a client that gave its upload up are none', async () => {
    const heard = warnings()
    const closed = gate()
    const listener = withIdempotency(() => expect.fail('ran'), own())
    const { connect } = await serve((req, res) => {
      res.once('close', () => closed.open())
      listener(req, res)
    })
    const headers = { 'Content-Length': 100, 'Idempotency-Key': 'k' }
    const client = await connect({ headers })
    client.socket.write('half')
    await turns()
    client.cut()
    await closed.passed
    await turns()
    expect(heard).toEqual([])
  })
})

describe('misuse', () => {
  it.each<[string, () => unknown, string]>([
    ['without options', () => idempotency(undefined as never), 'tenant must be a function'],
    ['of a misspelt option', () => idempotency({ ...own(), key: 1 } as never), 'no option "key"'],
    [
      'of an onRequestError that is no function',
      () => idempotency({ ...own(), onRequestError: 500 as never }),
      'onRequestError must be a function, got 500',
    ],
    [
      'without a listener',
      () => withIdempotency(undefined as never, own()),
      'needs a request listener, got undefined',
    ],
    [
      'of a listener that is protected already',
      () =>
        withIdempotency(
          withIdempotency(() => undefined, own()),
          own(),
        ),
      'wrapped in withIdempotency() twice',
    ],
    ['of a route', () => idempotency(own()).with('pay' as never), "a route's options must be"],
  ])('%s is refused at once', (_what, misuse, message) => {
    expect(misuse).toThrow(message)
  })

  it('of two guards on the way to one listener is an error of the first request', async () => {
    const errors: unknown[] = []
    const inner = withIdempotency(() => expect.fail('ran'), own())
    const { send } = await setup((req, res) => inner(req, res), {
      onRequestError: (error, _req, res) => {
        errors.push(error)
        res.writeHead(500).end()
      },
    })
    expect((await send({ key: 'k' })).status).toBe(500)
    expect(String(errors[0])).toContain('wrapped in withIdempotency() twice')
  })

  it('of HTTP/2 runs nothing, and says so', async () => {
    const heard = warnings()
    const listener = withIdempotency(() => expect.fail('ran'), own())
    const server = http2.createServer((req, res) => listener(req as never, res as never))
    server.listen(0, '127.0.0.1')
    await once(server, 'listening')
    const { port } = server.address() as AddressInfo
    const session = http2.connect(`http://127.0.0.1:${port}`)
    onTestFinished(() => {
      session.destroy()
      server.close()
    })
    const stream = session.request({ ':method': 'POST', ':path': '/', 'idempotency-key': 'k' })
    const [headers] = (await once(stream, 'response')) as [http2.IncomingHttpHeaders]
    expect(headers).toMatchObject({ ':status': 500 })
    await turns()
    expect(heard[0]?.message).toContain('compatibility API of node:http2')
  })
})

describe('a connection', () => {
  it('may wait to be asked for the body, where the server decides about that', async () => {
    const protect = idempotency(own())
    const listener = protect((req, res) => {
      req.pipe(res.writeHead(201))
    })
    const server = http.createServer(listener)
    server.on('checkContinue', (req, res) => {
      res.writeContinue()
      listener(req, res)
    })
    server.listen(0, '127.0.0.1')
    await once(server, 'listening')
    onTestFinished(() => {
      server.close()
    })
    const { port } = server.address() as AddressInfo
    const headers = { Expect: '100-continue', 'Idempotency-Key': 'k' }
    const request = http.request({ port, host: '127.0.0.1', method: 'POST', headers, agent: false })
    request.flushHeaders()
    await once(request, 'continue')
    request.end('the body')
    const [response] = (await once(request, 'response')) as [http.IncomingMessage]
    const chunks: Buffer[] = []
    for await (const chunk of response) chunks.push(chunk as Buffer)
    expect([response.statusCode, Buffer.concat(chunks).toString()]).toEqual([201, 'the body'])
  })

  it('is kept after a run, a replay and a refusal', async () => {
    const { send, server } = await setup((_req, res) => res.end('ran'))
    let connections = 0
    server.on('connection', () => connections++)
    const agent = new http.Agent({ keepAlive: true, maxSockets: 1 })
    onTestFinished(() => agent.destroy())
    for (const key of ['k', 'k', '"']) await send({ key, agent })
    expect(connections).toBe(1)
  })
})
