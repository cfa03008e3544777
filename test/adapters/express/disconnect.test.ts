import { once } from 'node:events'
import { writeFileSync } from 'node:fs'
import { Readable } from 'node:stream'
import { pipeline } from 'node:stream/promises'
import type { ErrorRequestHandler, Request, RequestHandler, Response } from 'express'
import { describe, expect, it, onTestFinished } from 'vitest'
import type { Store } from '../../../src/core/store/store.ts'
import { memoryStore } from '../../../src/stores/memory/store.ts'
import { scratchFolder } from '../../stores/scratch-folder.ts'
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
} from '../run-express.ts'

interface Exchange {
  readonly req: Request
  readonly res: Response
  /** Resolves when the server has noticed that the client has disconnected. */
  readonly gone: Promise<void>
}

interface Options {
  readonly handler: (exchange: Exchange) => unknown
  readonly store?: Store
  /** Mounted between the guard and the handler. */
  readonly between?: (express: ExpressModule, gone: Promise<void>) => RequestHandler[]
}

/** Serves one handler, which can wait until the first client has disconnected. */
async function setup(express: ExpressModule, { handler, store = memoryStore(), between }: Options) {
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
  app.use(report)
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
  ['a reset', (client) => client.cut()],
  ['a close', (client) => client.socket.destroy()],
  ['a half-close', (client) => client.socket.end()],
]

const HANDLERS: Readonly<Record<string, Options['handler']>> = {
  'replies after the disconnect': async ({ res, gone }) => {
    await gone
    res.status(201).json({ id: 1 })
  },
  'sends an empty reply and waits for its callback': async ({ res, gone }) => {
    await gone
    await new Promise<void>((resolve) => {
      res.status(204).end(resolve)
    })
  },
  'has sent half of its reply': async ({ res, gone }) => {
    res.write('one, ')
    await gone
    res.write('two, ')
    await new Promise<void>((resolve) => {
      res.end('three', () => resolve())
    })
  },
  'starts a pipeline after the disconnect': async ({ res, gone }) => {
    await gone
    await pipeline(Readable.from(['x', 'y', 'z']), res)
  },
  'is in the middle of a pipeline': async ({ res, gone }) => {
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
  'pipes after the disconnect': async ({ res, gone }) => {
    await gone
    await once(Readable.from(['p', 'q']).pipe(res), 'close')
  },
  'checks whether the client is connected': async ({ req, res, gone }) => {
    await gone
    const looks = [res.destroyed, res.closed, res.writableEnded, res.socket?.writable]
    res.json({ looks, ip: req.ip })
  },
}

describe.each(EXPRESSES)('%s: a client that disconnects', (_name, express) => {
  describe.each(WAYS)('with %s', (_way, leave) => {
    it.each(Object.entries(HANDLERS))(
      'records and replays the reply of a handler that %s',
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

  it('replays the whole reply after the client disconnected in the middle of it', async () => {
    const { handler } = { handler: HANDLERS['has sent half of its reply']! }
    const { connect, send, entered, finished } = await setup(express, { handler })
    const client = await connect({ key: 'k' })
    await entered
    client.cut()
    await finished
    expect(text(await send({ key: 'k' }))).toBe('one, two, three')
  })

  it.each(['before', 'during'])(
    'records a file when the client disconnects %s sendFile',
    async (when) => {
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
      // A retry gets 409 until the file is recorded.
      let reply = await send({ key: 'k' })
      while (reply.status === 409) reply = await send({ key: 'k' })
      expect(reply.body.length).toBe(300_000)
      expect(runs()).toBe(1)
    },
  )

  it('ends the stream of a reply above the cap, and keeps its record', async () => {
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

  it('answers the other requests when a waiting duplicate disconnects', async () => {
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

  it('claims and runs nothing when the client disconnects while it sends the body', async () => {
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

  it('claims and runs nothing when the client disconnects during the tenant lookup', async () => {
    const app = express()
    const lookupStarted = gate()
    const lookupEnds = gate()
    const store = memoryStore()
    const errors: unknown[] = []
    const lookUp = async () => {
      lookupStarted.open()
      await lookupEnds.passed
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
    await lookupStarted.passed
    client.cut()
    await gone.passed
    lookupEnds.open()
    await reported.passed
    expect(errors).toEqual([expect.objectContaining({ message: 'request aborted', status: 400 })])
    expect(await store.list({ state: 'in_progress', limit: 10 })).toEqual([])
  })
})

// A body parser behind the guard reads the body that the guard has put back. It checks the socket
// first: without a client it would skip the body or report an aborted request, and the handler
// would run without the body, or fail.
describe.each(EXPRESSES)('%s: a parser after the disconnect', (_name, express) => {
  it('the parser gets the whole body when the client disconnects during the claim', async () => {
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

  it('the parser gets the whole body when the client disconnects before it', async () => {
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

  it('request, response and socket emit close only after the handler has replied', async () => {
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

// Express destroys the connection when an error occurs after the reply has begun.
describe.each(EXPRESSES)('%s: an error in the middle of a reply', (_name, express) => {
  it('releases the key after an error in the middle of a reply, and a retry runs', async () => {
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

  it('releases the key also when the client disconnected before the error', async () => {
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

  it('makes the record unknown when an effect had begun before the error', async () => {
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

  it('closes the connection when the stream of a handler fails below the cap', async () => {
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
    // The handler passed its error to Express. The guard does not pass it a second time.
    expect(errors).toEqual([new Error('the source broke')])
    fails = false
    expect(text(await send({ key: 'k' }))).toBe('one two')
    expect(runs()).toBe(2)
  })
})
