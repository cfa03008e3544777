import { EventEmitter, once } from 'node:events'
import http from 'node:http'
import http2 from 'node:http2'
import type { AddressInfo } from 'node:net'
import { describe, expect, it, onTestFinished } from 'vitest'
import { singleTenant } from '../../../src/http/guard/guard-options.ts'
import { currentIdempotency } from '../../../src/http/guard/current.ts'
import {
  idempotency,
  idempotencyOf,
  withIdempotency,
  type NodeListener,
  type IdempotencyOptions,
} from '../../../src/adapters/node/index.ts'
import { memoryStore } from '../../../src/stores/memory/store.ts'
import { gate, header, problemOf, serve, text, turns } from '../run-express.ts'

const baseOptions = (): IdempotencyOptions => ({ store: memoryStore(), tenant: singleTenant })

function setup(listener: NodeListener, options: Partial<IdempotencyOptions> = {}) {
  return serve(withIdempotency(listener, { ...baseOptions(), ...options }))
}

/** Collects the warnings of the process until the test ends. */
function collectWarnings(): Error[] {
  const warnings: Error[] = []
  const collect = (warning: Error) => void warnings.push(warning)
  process.on('warning', collect)
  onTestFinished(() => {
    process.off('warning', collect)
  })
  return warnings
}

describe('a protected listener', () => {
  it('returns the same context from idempotencyOf() and currentIdempotency()', async () => {
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

  it('calls the listener at once, without a context, for an unprotected method', async () => {
    const emitter = Object.assign(new EventEmitter(), { method: 'GET', url: '/' })
    let called = false
    const listener = withIdempotency((req) => {
      called = true
      expect(() => idempotencyOf(req)).toThrow('GET / is not protected')
    }, baseOptions())
    listener(emitter as never, new EventEmitter() as never)
    expect(called).toBe(true)
  })

  it('shares one engine among all listeners on a store', () => {
    const options = baseOptions()
    const protect = idempotency(options)
    expect(withIdempotency(() => undefined, options).engine).toBe(protect.engine)
    expect(protect.with({ operation: 'pay' }).engine).toBe(protect.engine)
    expect(protect(() => undefined).engine).toBe(protect.engine)
  })

  it('returns 503 once the engine is closed', async () => {
    const protect = idempotency(baseOptions())
    const { send } = await serve(protect((_req, res) => res.end('ran')))
    await protect.engine.close()
    expect(problemOf(await send({ key: 'k' }))).toEqual([503, 'idempotency_server_stopping'])
  })
})

describe('routes', () => {
  it('with() overrides options for one route', async () => {
    const protect = idempotency({ ...baseOptions(), keyHeader: 'x-key' })
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

  it('with() overrides onRequestError for one route', async () => {
    const protect = idempotency({
      ...baseOptions(),
      onRequestError: (_e, _q, res) => res.end('all'),
    })
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

  it.each(['POST', 'GET'])(
    'turns an error of a %s into a 500 without details, and a warning',
    async (method) => {
      const warnings = collectWarnings()
      const { send } = await setup(broken)
      const reply = await send({ method, key: 'k' })
      expect([reply.status, text(reply)]).toEqual([500, 'Internal Server Error'])
      await turns()
      expect(warnings.map(({ message }) => message)).toEqual(['secret detail'])
    },
  )

  it('passes an error to onRequestError, and records its reply like any other', async () => {
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
    ['rejects', () => Promise.resolve().then(() => expect.fail('again'))],
    [
      'throws',
      () => {
        throw new Error('again')
      },
    ],
  ])('returns 500 when onRequestError %s', async (_how, onRequestError) => {
    collectWarnings()
    const { send } = await setup(broken, { onRequestError })
    expect((await send({ key: 'k' })).status).toBe(500)
  })

  it('does not change a complete reply when the listener throws after it', async () => {
    const warnings = collectWarnings()
    const { send } = await setup((_req, res) => {
      res.end('done')
      throw new Error('too late')
    })
    expect(text(await send({ key: 'k' }))).toBe('done')
    expect(header(await send({ key: 'k' }), 'idempotent-replayed')).toBe('true')
    await turns()
    expect(warnings.map(({ message }) => message)).toEqual(['too late'])
  })

  it('cuts off a reply when the listener throws in the middle of it', async () => {
    collectWarnings()
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

  it('emits no warning when a client aborts its upload', async () => {
    const warnings = collectWarnings()
    const closed = gate()
    const listener = withIdempotency(() => expect.fail('ran'), baseOptions())
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
    expect(warnings).toEqual([])
  })
})

describe('misuse', () => {
  it.each<[string, () => unknown, string]>([
    ['missing options', () => idempotency(undefined as never), 'tenant must be a function'],
    [
      'a misspelt option',
      () => idempotency({ ...baseOptions(), key: 1 } as never),
      'no option "key"',
    ],
    [
      'an onRequestError that is no function',
      () => idempotency({ ...baseOptions(), onRequestError: 500 as never }),
      'onRequestError must be a function, got 500',
    ],
    [
      'a missing listener',
      () => withIdempotency(undefined as never, baseOptions()),
      'needs a request listener, got undefined',
    ],
    [
      'a listener that is already protected',
      () =>
        withIdempotency(
          withIdempotency(() => undefined, baseOptions()),
          baseOptions(),
        ),
      'wrapped in withIdempotency() twice',
    ],
    [
      'route options that are no object',
      () => idempotency(baseOptions()).with('pay' as never),
      "a route's options must be",
    ],
  ])('throws at once for %s', (_what, misuse, message) => {
    expect(misuse).toThrow(message)
  })

  it('reports two guards around one listener as an error of the first request', async () => {
    const errors: unknown[] = []
    const inner = withIdempotency(() => expect.fail('ran'), baseOptions())
    const { send } = await setup((req, res) => inner(req, res), {
      onRequestError: (error, _req, res) => {
        errors.push(error)
        res.writeHead(500).end()
      },
    })
    expect((await send({ key: 'k' })).status).toBe(500)
    expect(String(errors[0])).toContain('wrapped in withIdempotency() twice')
  })

  it('runs nothing over HTTP/2, and emits a warning', async () => {
    const warnings = collectWarnings()
    const listener = withIdempotency(() => expect.fail('ran'), baseOptions())
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
    expect(warnings[0]?.message).toContain('protects only listeners of node:http and node:https')
  })
})

describe('a connection', () => {
  it('supports clients that wait for 100 from a checkContinue listener', async () => {
    const protect = idempotency(baseOptions())
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

  it('keeps the connection after a run, a replay and a problem', async () => {
    const { send, server } = await setup((_req, res) => res.end('ran'))
    let connections = 0
    server.on('connection', () => connections++)
    const agent = new http.Agent({ keepAlive: true, maxSockets: 1 })
    onTestFinished(() => agent.destroy())
    for (const key of ['k', 'k', '"']) await send({ key, agent })
    expect(connections).toBe(1)
  })
})
