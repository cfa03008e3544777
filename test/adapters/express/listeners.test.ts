/** A held or replaced response, as other listeners and a late handler see it. */
import { once } from 'node:events'
import { writeFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import { PassThrough, Readable } from 'node:stream'
import { pipeline } from 'node:stream/promises'
import compression from 'compression'
import type { ErrorRequestHandler, Request, RequestHandler, Response } from 'express'
import { describe, expect, it, onTestFinished } from 'vitest'
import { createEngine } from '../../../src/core/engine/engine.ts'
import type { Store } from '../../../src/core/store/store.ts'
import { memoryStore } from '../../../src/stores/memory/store.ts'
import { FakeClock } from '../../../src/testing/fake-clock.ts'
import { scratchFolder } from '../../stores/scratch-folder.ts'
import {
  EXPRESSES,
  caught,
  gate,
  guardOf,
  header,
  problemOf,
  serve,
  text,
  turns,
  wrapStore,
  type ExpressModule,
} from '../run-express.ts'

type OnFinished = (res: Response, listener: () => void) => void
const onFinished = createRequire(import.meta.url)('on-finished') as OnFinished

/** The fields that an access log writes about a response. */
const lineOf = (res: Response) => ({
  status: res.headersSent ? res.statusCode : '-',
  type: res.getHeader('content-type'),
  paid: res.hasHeader('x-paid'),
  isEnded: res.writableEnded,
})

const PROBLEM = { type: 'application/problem+json; charset=utf-8', paid: false, isEnded: true }

/** Logs by the three common means: `finish`, `close` and the on-finished package. */
function logger(): { lines: Record<string, unknown>; log: RequestHandler } {
  const lines: Record<string, unknown> = {}
  const log: RequestHandler = (_req, res, next) => {
    res.on('finish', () => {
      lines['finish'] = lineOf(res)
    })
    res.once('close', () => {
      lines['close'] = lineOf(res)
      lines['closed'] = res.closed
    })
    onFinished(res, () => {
      lines['on-finished'] = lineOf(res)
    })
    next()
  }
  return { lines, log }
}

interface Overrun {
  readonly before?: readonly RequestHandler[]
  readonly between?: readonly RequestHandler[]
  readonly handler: (req: Request, res: Response, late: Promise<void>) => unknown
}

/** A minimal `transaction` without a rollback: it shows what is committed, and when. */
function withTransactions(store: Store): Store {
  return wrapStore(store, {
    transaction: async (lease, work) => {
      const { result, retentionMs } = await work({})
      const [outcome] = await store.settle([{ kind: 'complete', lease, result, retentionMs }])
      return outcome!
    },
  })
}

/** Serves a handler that still runs after its client got `idempotency_outcome_unknown`. */
async function overrun(express: ExpressModule, { before, between, handler }: Overrun) {
  const clock = new FakeClock()
  const store = withTransactions(memoryStore({ clock }))
  const engine = createEngine({ store, clock, runTimeoutMs: 1000, retentionMs: 100_000 })
  const [entered, late, finished] = [gate(), gate(), gate()]
  const app = express()
  if (before !== undefined) app.use(...before)
  app.post(
    '/',
    guardOf({ engine }),
    ...(between ?? []),
    caught(async (req, res) => {
      try {
        const running = handler(req, res, late.passed)
        entered.open()
        await running
      } finally {
        finished.open()
      }
    }),
  )
  const { send, connect } = await serve(app)
  const client = await connect({ key: 'k', headers: { 'Accept-Encoding': 'gzip' } })
  await entered.passed
  await turns()
  await clock.advanceAsync(1000)
  expect(await client.until(/\}$/)).toContain('idempotency_outcome_unknown')
  return {
    send,
    client,
    async finish() {
      late.open()
      await finished.passed
      await turns()
    },
  }
}

describe.each(EXPRESSES)('%s: listeners before the guard', (_name, express) => {
  it('listeners before the guard see the sent reply, not that of the handler', async () => {
    const store = memoryStore()
    const failing = wrapStore(store, { settle: () => Promise.reject(new Error('down')) })
    const engine = createEngine({ store: failing, settleTimeoutMs: 1 })
    const { lines, log } = logger()
    const inside = gate<unknown>()
    const app = express()
    app.use(log)
    app.post('/', guardOf({ engine }), (_req, res) => {
      res.on('finish', () => inside.open(lineOf(res)))
      res.status(201).set('X-Paid', 'yes').send({ paid: true })
    })
    const { connect } = await serve(app)
    const client = await connect({ key: 'k', headers: { Connection: 'close' } })
    expect(await client.closed()).toContain('idempotency_outcome_not_recorded')
    await turns()
    const sent = { status: 503, ...PROBLEM }
    expect(lines).toEqual({ finish: sent, close: sent, 'on-finished': sent, closed: true })
    // The handler sees its own reply as sent.
    const own = { type: 'application/json; charset=utf-8', paid: true, isEnded: true }
    expect(await inside.passed).toEqual({ status: 201, ...own })
  })

  it('listeners before the guard see the sent reply while the handler still runs', async () => {
    const { lines, log } = logger()
    const { finish, send } = await overrun(express, {
      before: [log],
      handler: async (_req, res, late) => {
        res.status(202).set('X-Paid', 'yes')
        await late
        expect([res.statusCode, res.getHeader('x-paid'), res.headersSent]).toEqual([
          202,
          'yes',
          false,
        ])
        res.end('paid')
        expect(res.headersSent).toBe(true)
      },
    })
    await turns()
    const sent = { status: 409, ...PROBLEM }
    expect(lines).toEqual({ finish: sent, close: sent, 'on-finished': sent, closed: true })
    await finish()
    const replay = await send({ key: 'k' })
    expect([replay.status, text(replay)]).toEqual([202, 'paid'])
  })

  it.each(['before', 'during'])(
    'on-finished does not stop a file when the client leaves %s it',
    async (when) => {
      const folder = scratchFolder()
      onTestFinished(folder.remove)
      const file = folder.file('statement.bin')
      writeFileSync(file, Buffer.alloc(300_000, 'f'))
      const [entered, gone] = [gate(), gate()]
      let logged = 0
      let runs = 0
      const app = express()
      app.use((_req, res, next) => {
        onFinished(res, () => logged++)
        next()
      })
      app.post(
        '/',
        guardOf(),
        caught(async (_req, res) => {
          runs++
          if (when === 'during') res.sendFile(file)
          entered.open()
          await gone.passed
          if (when === 'before') res.sendFile(file)
        }),
      )
      const { connect, send, server } = await serve(app)
      server.once('connection', (socket) => {
        socket.once('close', () => gone.open())
      })
      const client = await connect({ key: 'k' })
      await entered.passed
      client.cut()
      await gone.passed
      // A retry gets 409 until the file is recorded.
      let retries = 1
      let reply = await send({ key: 'k' })
      for (; reply.status === 409 && retries < 1000; retries++) reply = await send({ key: 'k' })
      expect([reply.status, reply.body.length]).toEqual([200, 300_000])
      expect(runs).toBe(1)
      expect(logged).toBe(1 + retries)
    },
  )
})

describe.each(EXPRESSES)('%s: a handler that exceeds its timeout', (_name, express) => {
  it('records what the handler wrote before and after the timeout', async () => {
    const { finish, send } = await overrun(express, {
      handler: async (_req, res, late) => {
        res.status(201).write('one, ')
        await late
        res.end('two')
      },
    })
    await finish()
    const replay = await send({ key: 'k' })
    expect([replay.status, text(replay)]).toEqual([201, 'one, two'])
  })

  it('records a compressed reply that ends after the timeout', async () => {
    const compress = compression({ threshold: 0 })
    const { finish, send } = await overrun(express, {
      between: [compress],
      handler: async (_req, res, late) => {
        res.type('text/plain')
        res.write('one, ')
        await late
        const ended = once(res, 'finish')
        res.end('two')
        await ended
      },
    })
    await finish()
    expect(text(await send({ key: 'k' }))).toBe('one, two')
  })

  it('records the reply of a transaction that commits after the timeout', async () => {
    const { finish, send } = await overrun(express, {
      handler: async (req, res, late) => {
        await req.idempotency!.transaction(async () => {
          res.status(201).json({ paid: true })
          await late
        })
      },
    })
    await finish()
    const replay = await send({ key: 'k' })
    expect([replay.status, text(replay)]).toEqual([201, '{"paid":true}'])
  })

  it('records a piped reply to its end after the client has disconnected', async () => {
    const { client, finish, send } = await overrun(express, {
      handler: async (_req, res, late) => {
        const file = new PassThrough()
        file.pipe(res)
        onFinished(res, () => file.destroy())
        file.write('one, ')
        await late
        await turns()
        file.end('two')
      },
    })
    client.cut()
    await turns()
    await finish()
    expect(text(await send({ key: 'k' }))).toBe('one, two')
  })

  it('passes the error of a failed stream to the handler, also above the cap', async () => {
    const errors: unknown[] = []
    const { finish, send } = await overrun(express, {
      handler: async (_req, res, late) => {
        const pieces = async function* () {
          await late
          yield 'x'.repeat(1_100_000)
          throw new Error('the source failed')
        }
        await pipeline(Readable.from(pieces()), res).catch((error: unknown) => errors.push(error))
      },
    })
    await finish()
    expect(errors).toEqual([expect.objectContaining({ message: 'the source failed' })])
    expect(header(await send({ key: 'k' }), 'idempotent-body-elided')).toBe('true')
  })

  it('passes the error of a failed stream to the handler', async () => {
    const errors: unknown[] = []
    const { finish, send } = await overrun(express, {
      handler: async (_req, res, late) => {
        const pieces = async function* () {
          yield 'one, '
          await late
          throw new Error('the source failed')
        }
        await pipeline(Readable.from(pieces()), res).catch((error: unknown) => errors.push(error))
      },
    })
    await finish()
    expect(errors).toEqual([expect.objectContaining({ message: 'the source failed' })])
    expect(problemOf(await send({ key: 'k' }))).toEqual([409, 'idempotency_outcome_unknown'])
    expect(header(await send({ key: 'k' }), 'idempotent-replayed')).toBeUndefined()
  })
})

describe.each(EXPRESSES)('%s: a status that is set after the reply', (_name, express) => {
  it('a status that is set after the reply does not change it, as without the guard', async () => {
    let runs = 0
    const app = express()
    app.post('/', guardOf(), (_req, res) => {
      runs++
      res.status(201).send('paid')
      throw new Error('after the reply')
    })
    const onError: ErrorRequestHandler = (_error, _req, res, next) => {
      res.status(500)
      if (!res.headersSent) next()
    }
    app.use(onError)
    const { send } = await serve(app)
    for (let n = 0; n < 2; n++) {
      const reply = await send({ key: 'k' })
      expect([reply.status, reply.message, text(reply)]).toEqual([201, 'Created', 'paid'])
    }
    expect(runs).toBe(1)
  })
})
