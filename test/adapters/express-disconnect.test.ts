import { once } from 'node:events'
import { writeFileSync } from 'node:fs'
import { Readable } from 'node:stream'
import { pipeline } from 'node:stream/promises'
import type { ErrorRequestHandler, Request, RequestHandler, Response } from 'express'
import { describe, expect, it, onTestFinished } from 'vitest'
import { idempotencyErrors } from '../../src/adapters/express.ts'
import type { Store } from '../../src/core/store.ts'
import { memoryStore } from '../../src/stores/memory/memory-store.ts'
import { scratchFolder } from '../stores/scratch-folder.ts'
import {
  EXPRESSES,
  caught,
  gate,
  guardOf,
  header,
  serve,
  text,
  turns,
  wrapStore,
  type Client,
  type ExpressModule,
} from './run-express.ts'

interface Scene {
  readonly req: Request
  readonly res: Response
  /** Resolves when the server has noticed that the client is gone. */
  readonly gone: Promise<void>
}

interface Stage {
  readonly handler: (scene: Scene) => unknown
  readonly store?: Store
  /** Mounted between the guard and the handler. */
  readonly between?: (express: ExpressModule, gone: Promise<void>) => RequestHandler[]
}

/** One handler, and a first client whose going away the handler can wait for. */
async function setup(express: ExpressModule, { handler, store = memoryStore(), between }: Stage) {
  const app = express()
  const entered = gate()
  const gone = gate()
  const finished = gate()
  let runs = 0
  const guard = guardOf({ store })
  const run = caught(async (req, res) => {
    runs++
    entered.open()
    await handler({ req, res, gone: gone.passed })
    finished.open()
  })
  app.post('/', guard, ...(between?.(express, gone.passed) ?? []), run)
  const errors: unknown[] = []
  const report: ErrorRequestHandler = (error, _req, _res, next) => {
    errors.push(error)
    next(error)
  }
  app.use(idempotencyErrors(), report)
  const server = await serve(app)
  server.server.once('connection', (socket) => {
    socket.once('close', () => gone.open())
  })
  return {
    ...server,
    store,
    errors,
    runs: () => runs,
    entered: entered.passed,
    finished: finished.passed,
    gone: gone.passed,
  }
}

const BODY = { amount: 5, to: 'acc_1' }

const WAYS: readonly (readonly [string, (client: Client) => void])[] = [
  ['resets', (client) => client.cut()],
  ['closes', (client) => client.socket.destroy()],
  ['closes one way', (client) => client.socket.end()],
]

const HANDLERS: Readonly<Record<string, Stage['handler']>> = {
  'replies after it': async ({ res, gone }) => {
    await gone
    res.status(201).json({ id: 1 })
  },
  'replies with nothing, and waits for its callback': async ({ res, gone }) => {
    await gone
    await new Promise<void>((resolve) => {
      res.status(204).end(resolve)
    })
  },
  'was in the middle of its reply': async ({ res, gone }) => {
    res.write('one, ')
    await gone
    res.write('two, ')
    await new Promise<void>((resolve) => {
      res.end('three', () => resolve())
    })
  },
  'starts a pipeline after it': async ({ res, gone }) => {
    await gone
    await pipeline(Readable.from(['x', 'y', 'z']), res)
  },
  'was in the middle of a pipeline': async ({ res, gone }) => {
    await pipeline(
      Readable.from(
        (async function* () {
          yield 'before, '
          await gone
          yield 'after'
        })(),
      ),
      res,
    )
  },
  'pipes after it': async ({ res, gone }) => {
    await gone
    await once(Readable.from(['p', 'q']).pipe(res), 'close')
  },
  'asks whether the client is there': async ({ req, res, gone }) => {
    await gone
    const looks = [res.destroyed, res.closed, res.writableEnded, res.socket?.writable]
    res.json({ looks, ip: req.ip })
  },
}

describe.each(EXPRESSES)('%s: a client that goes away', (_name, express) => {
  describe.each(WAYS)('and %s', (_way, leave) => {
    it.each(Object.entries(HANDLERS))(
      'changes nothing for a handler that %s',
      async (_, handler) => {
        const { connect, send, runs, entered, finished } = await setup(express, { handler })
        const client = await connect({ key: 'k', json: BODY })
        await entered
        leave(client)
        await finished
        const replay = await send({ key: 'k', json: BODY })
        expect(header(replay, 'idempotent-replayed')).toBe('true')
        expect(replay.status).toBeLessThan(300)
        expect(runs()).toBe(1)
      },
    )
  })

  it('is told the same as one that stayed', async () => {
    const { handler } = { handler: HANDLERS['was in the middle of its reply']! }
    const { connect, send, entered, finished } = await setup(express, { handler })
    const client = await connect({ key: 'k' })
    await entered
    client.cut()
    await finished
    expect(text(await send({ key: 'k' }))).toBe('one, two, three')
  })

  it.each(['before', 'during'])('changes nothing for a file sent %s', async (when) => {
    const folder = scratchFolder()
    onTestFinished(folder.remove)
    const file = folder.file('statement.bin')
    writeFileSync(file, Buffer.alloc(300_000, 'f'))
    const { connect, send, runs, entered } = await setup(express, {
      handler: async ({ res, gone }) => {
        if (when === 'before') await gone
        res.sendFile(file)
        if (when === 'during') await gone
      },
    })
    const client = await connect({ key: 'k' })
    await entered
    client.cut()
    // Whoever asks meanwhile is told to wait, and gets the file in the end.
    let reply = await send({ key: 'k' })
    while (reply.status === 409) reply = await send({ key: 'k' })
    expect(reply.body.length).toBe(300_000)
    expect(runs()).toBe(1)
  })

  it('above the cap: the stream ends, and the record stands', async () => {
    const { connect, send, runs, entered, finished } = await setup(express, {
      handler: async ({ res, gone }) => {
        const pieces = async function* () {
          yield 'x'.repeat(1_100_000)
          await gone
          yield 'y'.repeat(1_100_000)
        }
        await pipeline(Readable.from(pieces()), res).catch(() => undefined)
      },
    })
    const client = await connect({ key: 'k' })
    await entered
    await client.until(/x{1000}/)
    client.cut()
    await finished
    expect(header(await send({ key: 'k' }), 'idempotent-body-elided')).toBe('true')
    expect(runs()).toBe(1)
  })

  it('while it waits for the reply to another: nobody is kept waiting', async () => {
    const app = express()
    const [entered, opened] = [gate(), gate()]
    app.post(
      '/',
      guardOf({ whileInProgress: { waitMs: 100_000 } }),
      caught(async (_req, res) => {
        entered.open()
        await opened.passed
        res.end('done')
      }),
    )
    const { connect, send, server } = await serve(app)
    const first = send({ key: 'k' })
    await entered.passed
    const gone = gate()
    server.once('connection', (socket) => {
      socket.once('close', () => gone.open())
    })
    const duplicate = await connect({ key: 'k' })
    await turns()
    duplicate.cut()
    await gone.passed
    opened.open()
    expect(text(await first)).toBe('done')
    expect(text(await send({ key: 'k' }))).toBe('done')
  })

  it('while its body is sent: nothing is claimed and nothing runs', async () => {
    const store = memoryStore()
    const { connect, gone, runs } = await setup(express, {
      store,
      handler: ({ res }) => res.json({}),
    })
    const client = await connect({ key: 'k', headers: { 'Content-Length': 100 } })
    client.socket.write('only this')
    await turns()
    client.cut()
    await gone
    await turns()
    expect(runs()).toBe(0)
    for (const state of ['in_progress', 'completed', 'failed_retryable', 'unknown'] as const) {
      expect(await store.list({ state, limit: 10 })).toEqual([])
    }
  })

  it('while its tenant is looked up: nothing is claimed and nothing runs', async () => {
    const app = express()
    const asked = gate()
    const known = gate()
    const store = memoryStore()
    const errors: unknown[] = []
    const lookUp = async () => {
      asked.open()
      await known.passed
      return 'acme'
    }
    app.post('/', guardOf({ store, tenant: lookUp }), (_req, res) => res.json({}))
    const reported = gate()
    const report: ErrorRequestHandler = (error, _req, _res, _next) => {
      errors.push(error)
      reported.open()
    }
    app.use(report)
    const { connect, server } = await serve(app)
    const gone = gate()
    server.once('connection', (socket) => {
      socket.once('close', () => gone.open())
    })
    const client = await connect({ key: 'k', json: BODY })
    await asked.passed
    client.cut()
    await gone.passed
    known.open()
    await reported.passed
    expect(errors).toEqual([expect.objectContaining({ message: 'request aborted', status: 400 })])
    expect(await store.list({ state: 'in_progress', limit: 10 })).toEqual([])
  })
})

// A body parser behind the guard reads what the guard has put back. It asks the socket first, and
// without a client it would skip the body (or say that the request was aborted), and the handler
// would run, or fail, on a request that nobody sent.
describe.each(EXPRESSES)('%s: a parser behind the guard, and no client', (_name, express) => {
  it('gets the whole body when the client went during the claim', async () => {
    const memory = memoryStore()
    const claiming = gate()
    const held: { claim: Promise<void> } = { claim: Promise.resolve() }
    const store = wrapStore(memory, {
      claim: async (requests) => {
        claiming.open()
        await held.claim
        return memory.claim(requests)
      },
    })
    const { connect, send, runs, gone, finished } = await setup(express, {
      store,
      between: (express) => [express.json()],
      handler: ({ req, res }) => res.status(201).json({ got: req.body as unknown }),
    })
    held.claim = gone
    const client = await connect({ key: 'k', json: BODY })
    await claiming.passed
    client.cut()
    await finished
    const replay = await send({ key: 'k', json: BODY })
    expect([replay.status, text(replay)]).toEqual([201, JSON.stringify({ got: BODY })])
    expect(runs()).toBe(1)
  })

  it('gets the whole body when the client went before the parser', async () => {
    const { connect, send, runs, finished, gone } = await setup(express, {
      between: (express, gone) => [
        caught(async (_q, _s, next) => next(await gone)),
        express.json(),
      ],
      handler: ({ req, res }) => res.status(201).json({ got: req.body as unknown }),
    })
    const client = await connect({ key: 'k', json: BODY })
    await turns()
    client.cut()
    await gone
    await finished
    const replay = await send({ key: 'k', json: BODY })
    expect([replay.status, text(replay)]).toEqual([201, JSON.stringify({ got: BODY })])
    expect(runs()).toBe(1)
  })

  it('is not needed: whoever listens is told of the end once the reply is recorded', async () => {
    const events: string[] = []
    const { connect, entered, finished } = await setup(express, {
      handler: async ({ req, res, gone }) => {
        res.on('close', () => events.push('response closed'))
        req.socket.once('close', () => events.push('socket closed'))
        req.once('close', () => events.push('request closed'))
        await gone
        await turns()
        events.push('replied')
        await new Promise<void>((resolve) => {
          res.end('x', () => resolve())
        })
      },
    })
    const client = await connect({ key: 'k', json: BODY })
    await entered
    client.cut()
    await finished
    await turns()
    expect(events[0]).toBe('replied')
    expect(events.toSorted()).toEqual([
      'replied',
      'request closed',
      'response closed',
      'socket closed',
    ])
  })
})

// Express cuts the connection when an error comes after the reply has begun.
describe.each(EXPRESSES)('%s: an error in the middle of a reply', (_name, express) => {
  it('settles the record, and a retry runs', async () => {
    let fails = true
    const { connect, send, runs } = await setup(express, {
      handler: ({ res }) => {
        res.write('half of ')
        if (fails) throw new Error('the template broke')
        res.end('a page')
      },
    })
    const client = await connect({ key: 'k' })
    expect(await client.closed()).toBe('')
    await turns()
    fails = false
    expect(text(await send({ key: 'k' }))).toBe('half of a page')
    expect(runs()).toBe(2)
  })

  it('settles the record also when the client was gone before', async () => {
    let fails = true
    const { connect, send, runs, entered, gone } = await setup(express, {
      handler: async ({ res, gone }) => {
        res.write('half of ')
        if (fails) {
          await gone
          throw new Error('the template broke')
        }
        res.end('a page')
      },
    })
    const client = await connect({ key: 'k' })
    await entered
    client.cut()
    await gone
    await turns()
    fails = false
    expect(text(await send({ key: 'k' }))).toBe('half of a page')
    expect(runs()).toBe(2)
  })

  it('is unknown where an outside effect had begun', async () => {
    const { connect, send } = await setup(express, {
      handler: ({ req, res }) => {
        req.idempotency!.downstreamKey()
        res.write('half of ')
        throw new Error('the template broke')
      },
    })
    const client = await connect({ key: 'k' })
    await client.closed()
    await turns()
    expect((await send({ key: 'k' })).status).toBe(409)
  })

  it('cuts off a client whose stream breaks below the cap', async () => {
    let fails = true
    const { connect, send, runs, errors } = await setup(express, {
      handler: async ({ res }) => {
        const pieces = async function* () {
          yield 'one '
          if (fails) throw new Error('the source broke')
          yield 'two'
        }
        await pipeline(Readable.from(pieces()), res)
      },
    })
    const client = await connect({ key: 'k' })
    expect(await client.closed()).toBe('')
    await turns()
    // The handler has given its error to Express; nobody gives it a second time.
    expect(errors).toEqual([new Error('the source broke')])
    fails = false
    expect(text(await send({ key: 'k' }))).toBe('one two')
    expect(runs()).toBe(2)
  })
})
