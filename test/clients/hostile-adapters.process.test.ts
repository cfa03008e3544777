import type { IncomingMessage, ServerResponse } from 'node:http'
import { PassThrough, Readable } from 'node:stream'
import consumers from 'node:stream/consumers'
import { pipeline } from 'node:stream/promises'
import { describe, expect, it, onTestFinished } from 'vitest'
import { withIdempotency as withFetch } from '../../src/adapters/fetch/index.ts'
import { singleTenant } from '../../src/http/guard/guard-options.ts'
import { withIdempotency, type IdempotencyOptions } from '../../src/adapters/node/index.ts'
import { createEngine } from '../../src/core/engine/engine.ts'
import { memoryStore } from '../../src/stores/memory/store.ts'
import { FakeClock } from '../../src/testing/fake-clock.ts'
import {
  Client,
  gate,
  header,
  problemOf,
  serve,
  text,
  turns,
  wrapStore,
  type TestServer,
} from '../adapters/run-express.ts'
import { serveWeb } from '../adapters/web/serve-web.ts'
import { wireRequest } from './wire.ts'

// Hostile clients and handlers, on the two adapters without a framework.

/** Returns the reply, or never. It has read the whole request body. */
type Handle = (body: string, run: number) => Promise<string> | string

interface Scene {
  readonly handle: Handle
  readonly runTimeoutMs?: number
  /** Waits before each claim. */
  readonly beforeClaim?: () => Promise<void>
}

interface Served extends TestServer {
  readonly clock: FakeClock
  readonly accidents: readonly unknown[]
  runs(): number
  state(): Promise<string | undefined>
}

type Adapter = (
  handle: (body: string) => Promise<string>,
  options: IdempotencyOptions,
) => Promise<TestServer>

const ADAPTERS: readonly (readonly [name: string, open: Adapter])[] = [
  [
    'node:http',
    (handle, options) =>
      serve(
        withIdempotency(
          async (req, res) => {
            const chunks: Buffer[] = []
            for await (const chunk of req) chunks.push(chunk as Buffer)
            res.end(await handle(Buffer.concat(chunks).toString()))
          },
          { ...options, onRequestError: (_error, _req, res) => res.writeHead(500).end() },
        ),
      ),
  ],
  [
    'fetch',
    (handle, { engine }) =>
      serveWeb(
        withFetch(async (request) => new Response(await handle(await request.text())), {
          engine: engine!,
          tenant: singleTenant,
        }),
      ),
  ],
]

async function setup(open: Adapter, { handle, runTimeoutMs = 60_000, beforeClaim }: Scene) {
  const clock = new FakeClock()
  const memory = memoryStore({ clock })
  const store = wrapStore(memory, {
    claim: async (requests) => {
      await beforeClaim?.()
      return memory.claim(requests)
    },
  })
  const engine = createEngine({ store, clock, runTimeoutMs })
  let runs = 0
  const server = await open(async (body) => handle(body, ++runs), { engine, tenant: singleTenant })
  const states = ['in_progress', 'completed', 'failed_retryable', 'unknown'] as const
  const state = async () => {
    for (const one of states) {
      if ((await store.list({ state: one, limit: 1 })).length > 0) return one
    }
    return undefined
  }
  return {
    ...server,
    clock,
    accidents: collectUnhandled(),
    runs: () => runs,
    state,
  } satisfies Served
}

/** Collects the errors that would have ended the process. */
function collectUnhandled(): readonly unknown[] {
  const accidents: unknown[] = []
  const note = (error: unknown) => accidents.push(error)
  for (const event of ['unhandledRejection', 'uncaughtException'] as const) {
    process.on(event, note)
    onTestFinished(() => {
      process.off(event, note)
    })
  }
  return accidents
}

const BODY = '{"amount":100}'
const REQUEST = { path: '/payments', key: 'order-1', json: { amount: 100 } }
const wire = () => wireRequest(['Idempotency-Key: order-1'])

describe.each(ADAPTERS)('%s:', (_name, open) => {
  it('a client that disconnects before its claim is answered gets its work done', async () => {
    const [claiming, answered, ended] = [gate(), gate(), gate<string>()]
    const { port, send, runs, accidents } = await setup(open, {
      beforeClaim: () => {
        claiming.open()
        return answered.passed
      },
      handle: (body, run) => {
        ended.open(body)
        return `run ${run}`
      },
    })
    const client = await Client.connect(port)
    client.socket.write(wire())
    await claiming.passed
    client.cut()
    await turns()
    answered.open()
    expect(await ended.passed).toBe(BODY)
    await turns()
    const retry = await send(REQUEST)
    expect([text(retry), header(retry, 'idempotent-replayed')]).toEqual(['run 1', 'true'])
    expect([runs(), accidents]).toEqual([1, []])
  })

  it('a client that disconnects while the work runs changes nothing', async () => {
    const [entered, opened] = [gate(), gate()]
    const { port, send, runs, accidents } = await setup(open, {
      handle: async (_body, run) => {
        entered.open()
        await opened.passed
        return `run ${run}`
      },
    })
    const client = await Client.connect(port)
    client.socket.write(wire())
    await entered.passed
    client.cut()
    await turns()
    opened.open()
    await turns()
    const retry = await send(REQUEST)
    expect([text(retry), header(retry, 'idempotent-replayed')]).toEqual(['run 1', 'true'])
    expect([runs(), accidents]).toEqual([1, []])
  })

  it.each([1, 60])('an upload cut %i bytes before its end leaves no record', async (missing) => {
    const { port, send, runs, state, accidents, server } = await setup(open, {
      handle: (_body, run) => `run ${run}`,
    })
    const closed = gate()
    server.on('connection', (socket) => socket.on('close', () => closed.open()))
    const client = await Client.connect(port)
    client.socket.write(wire().subarray(0, -missing))
    await turns()
    client.cut()
    await closed.passed
    await turns()
    expect([runs(), await state(), accidents]).toEqual([0, undefined, []])
    expect(text(await send({ ...REQUEST, json: { amount: 7 } }))).toBe('run 1')
  })

  // The handler hangs until its run time is over, and answers after that.
  it('a handler that never ends is timed out, and its late reply is recorded', async () => {
    const [entered, opened] = [gate(), gate()]
    const { send, clock, runs, state, accidents } = await setup(open, {
      runTimeoutMs: 1000,
      handle: async (_body, run) => {
        entered.open()
        await opened.passed
        return `run ${run}`
      },
    })
    const first = send(REQUEST)
    await entered.passed
    await clock.advanceAsync(1000)
    expect(problemOf(await first)).toEqual([409, 'idempotency_outcome_unknown'])
    expect(problemOf(await send(REQUEST))).toEqual([409, 'idempotency_outcome_unknown'])
    expect(await state()).toBe('unknown')
    opened.open()
    while ((await state()) !== 'completed') await turns(1)
    const late = await send(REQUEST)
    expect([text(late), header(late, 'idempotent-replayed')]).toEqual(['run 1', 'true'])
    expect([runs(), accidents]).toEqual([1, []])
  })

  it('a handler that never ends is timed out although its client has disconnected', async () => {
    const entered = gate()
    const { port, send, clock, runs, state, accidents } = await setup(open, {
      runTimeoutMs: 1000,
      handle: () => {
        entered.open()
        return new Promise<string>(() => undefined)
      },
    })
    const client = await Client.connect(port)
    client.socket.write(wire())
    await entered.passed
    client.cut()
    await turns()
    await clock.advanceAsync(1000)
    await turns()
    expect(await state()).toBe('unknown')
    expect(problemOf(await send(REQUEST))).toEqual([409, 'idempotency_outcome_unknown'])
    expect([runs(), accidents]).toEqual([1, []])
  })

  it('a duplicate is not disturbed by an upload that is cut at the same time', async () => {
    const { port, send, runs, accidents } = await setup(open, {
      handle: (_body, run) => `run ${run}`,
    })
    const client = await Client.connect(port)
    client.socket.write(wire().subarray(0, -1))
    await turns()
    const duplicate = send(REQUEST)
    client.cut()
    expect(text(await duplicate)).toBe('run 1')
    await turns()
    expect(text(await send(REQUEST))).toBe('run 1')
    expect([runs(), accidents]).toEqual([1, []])
  })
})

/** How listeners read a body, and what each waits for: `end`, `close`, or a byte count. */
const WAYS: Readonly<Record<string, (req: IncomingMessage) => Promise<string>>> = {
  'for await': async (req) => {
    const chunks: Buffer[] = []
    for await (const chunk of req) chunks.push(chunk as Buffer)
    return Buffer.concat(chunks).toString()
  },
  'stream/consumers': (req) => consumers.text(req),
  pipeline: async (req) => {
    const through = new PassThrough()
    const [read] = await Promise.all([consumers.text(through), pipeline(req, through)])
    return read
  },
  'a web stream': (req) => new Response(Readable.toWeb(req) as ReadableStream).text(),
  events: (req) =>
    new Promise((resolve) => {
      let read = ''
      req.on('data', (chunk: Buffer) => {
        read += chunk.toString()
      })
      req.on('end', () => resolve(read))
    }),
}

describe.each(Object.entries(WAYS))('a node:http listener that reads by %s', (_way, read) => {
  it.each(['during the claim', 'before it reads'] as const)(
    'gets the whole body of a client that disconnected %s',
    async (moment) => {
      const [claiming, entered, gone, got] = [gate(), gate(), gate(), gate<string>()]
      const memory = memoryStore()
      const store = wrapStore(memory, {
        claim: async (requests) => {
          claiming.open()
          if (moment === 'during the claim') await gone.passed
          return memory.claim(requests)
        },
      })
      const listener = async (req: IncomingMessage, res: ServerResponse) => {
        entered.open()
        await gone.passed
        got.open(await read(req))
        res.end('done')
      }
      const { port, send } = await serve(withIdempotency(listener, { store, tenant: singleTenant }))
      const accidents = collectUnhandled()
      const body = JSON.stringify({ note: 'x'.repeat(200_000) })
      const client = await Client.connect(port)
      client.socket.write(wireRequest(['Idempotency-Key: order-1'], { body }))
      await (moment === 'during the claim' ? claiming : entered).passed
      client.cut()
      await turns()
      gone.open()
      expect((await got.passed).length).toBe(body.length)
      await turns()
      const retry = await send({ path: '/payments', key: 'order-1', body, headers: JSON_TYPE })
      expect([text(retry), header(retry, 'idempotent-replayed')]).toEqual(['done', 'true'])
      expect(accidents).toEqual([])
    },
  )
})

const JSON_TYPE = { 'Content-Type': 'application/json' }

describe('node:http listeners', () => {
  async function listen(listener: (req: IncomingMessage, res: ServerResponse) => unknown) {
    const errors: unknown[] = []
    let runs = 0
    const engine = createEngine({ store: memoryStore() })
    const guarded = withIdempotency(
      (req, res) => {
        runs++
        return listener(req, res)
      },
      {
        engine,
        tenant: singleTenant,
        onRequestError: (error, _req, res) => {
          errors.push(error)
          if (!res.headersSent) res.writeHead(500).end('failed')
          else res.destroy()
        },
      },
    )
    return { ...(await serve(guarded)), errors, accidents: collectUnhandled(), runs: () => runs }
  }

  it('a listener that is wrapped twice is refused, and its key stays free', async () => {
    const options = { store: memoryStore(), tenant: singleTenant }
    const errors: unknown[] = []
    const onRequestError: IdempotencyOptions['onRequestError'] = (error, _req, res) => {
      errors.push(error)
      res.writeHead(500).end()
    }
    const inner = withIdempotency((_req, res) => res.end('ok'), options)
    const outer = withIdempotency((req, res) => inner(req, res), { ...options, onRequestError })
    const twice = await serve(outer)
    expect((await twice.send(REQUEST)).status).toBe(500)
    expect(errors).toMatchObject([
      { code: 'INVALID_OPTIONS', message: expect.stringContaining('twice') },
    ])
    const once = await serve(inner)
    expect(text(await once.send(REQUEST))).toBe('ok')
  })

  it('a listener that replies twice has replied once', async () => {
    const { send, runs, accidents } = await listen((_req, res) => {
      res.writeHead(201).end('first')
      res.end('second')
      res.write('third')
    })
    for (const replayed of [undefined, 'true']) {
      const reply = await send(REQUEST)
      expect([reply.status, text(reply)]).toEqual([201, 'first'])
      expect(header(reply, 'idempotent-replayed')).toBe(replayed)
    }
    expect([runs(), accidents]).toEqual([1, []])
  })

  it('a listener that replies and then fails has replied', async () => {
    const { send, runs, errors, accidents } = await listen(async (_req, res) => {
      res.writeHead(201).end('paid')
      throw new Error('the mail was not sent')
    })
    for (const replayed of [undefined, 'true']) {
      const reply = await send(REQUEST)
      expect([reply.status, text(reply)]).toEqual([201, 'paid'])
      expect(header(reply, 'idempotent-replayed')).toBe(replayed)
    }
    expect([runs(), errors.length, accidents]).toEqual([1, 1, []])
  })

  it('a listener that writes a second head gets an error, and the first is kept', async () => {
    const { send, errors, runs } = await listen((_req, res) => {
      res.writeHead(201).end('first')
      res.writeHead(500)
    })
    expect((await send(REQUEST)).status).toBe(201)
    expect(errors).toMatchObject([{ code: 'ERR_HTTP_HEADERS_SENT' }])
    expect((await send(REQUEST)).status).toBe(201)
    expect(runs()).toBe(1)
  })

  it('a listener that fails within its reply cuts the connection, and may run again', async () => {
    let isBroken = true
    const { port, send, runs, accidents } = await listen((_req, res) => {
      res.writeHead(201, { 'Content-Length': 4 })
      res.write('pa')
      if (isBroken) throw new Error('broken')
      res.end('id')
    })
    const client = await Client.connect(port)
    client.socket.write(wire())
    expect(await client.closed()).toBe('')
    isBroken = false
    expect(text(await send(REQUEST))).toBe('paid')
    expect(text(await send(REQUEST))).toBe('paid')
    expect([runs(), accidents]).toEqual([2, []])
  })
})

describe('fetch handlers', () => {
  async function listen(
    handler: (request: Request) => Response | Promise<Response>,
    options: { readonly replyBytesMax?: number } = {},
  ) {
    let runs = 0
    const engine = createEngine({ store: memoryStore() })
    const guarded = withFetch(
      (request) => {
        runs++
        return handler(request)
      },
      { engine, tenant: singleTenant, ...options },
    )
    return { ...(await serveWeb(guarded)), accidents: collectUnhandled(), runs: () => runs }
  }

  it('a fetch handler that leaves its request unread is answered', async () => {
    const { send, runs, accidents } = await listen(() => new Response('ok'))
    const request = { ...REQUEST, json: { note: 'x'.repeat(300_000) } }
    for (const replayed of [undefined, 'true']) {
      const reply = await send(request)
      expect([text(reply), header(reply, 'idempotent-replayed')]).toEqual(['ok', replayed])
    }
    expect([runs(), accidents]).toEqual([1, []])
  })

  it('a fetch handler that returns a used body leaves its outcome unknown', async () => {
    let isSpent = true
    const { send, runs, accidents } = await listen(async () => {
      const response = new Response('paid')
      if (isSpent) await response.text()
      return response
    })
    expect((await send(REQUEST)).status).toBe(500)
    isSpent = false
    expect((await send(REQUEST)).status).toBe(409)
    expect([runs(), accidents]).toEqual([1, []])
  })

  it('a fetch handler whose body breaks off before the cap sends no part of it', async () => {
    let isBroken = true
    const { send, runs, accidents } = await listen(() => {
      const chunks = async function* () {
        yield Buffer.from('pa')
        if (isBroken) throw new Error('broken')
        yield Buffer.from('id')
      }
      return new Response(ReadableStream.from(chunks()), { status: 201 })
    })
    expect((await send(REQUEST)).status).toBe(500)
    isBroken = false
    expect(text(await send(REQUEST))).toBe('paid')
    expect(text(await send(REQUEST))).toBe('paid')
    expect([runs(), accidents]).toEqual([2, []])
  })

  it('a fetch handler has its reply recorded when its client disconnects in it', async () => {
    const respond = () => new Response('x'.repeat(100_000))
    const { port, send, runs, accidents } = await listen(respond, { replyBytesMax: 1000 })
    const client = await Client.connect(port)
    client.socket.write(wire())
    await client.until(/x{100}/)
    client.cut()
    await turns()
    const retry = await send(REQUEST)
    expect([retry.status, header(retry, 'idempotent-body-elided')]).toEqual([200, 'true'])
    expect([runs(), accidents]).toEqual([1, []])
  })
})
