/** What others hear of a response that is held back, or that was replaced. */
import { once } from 'node:events'
import { writeFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import { PassThrough, Readable } from 'node:stream'
import { pipeline } from 'node:stream/promises'
import compression from 'compression'
import type { ErrorRequestHandler, Request, RequestHandler, Response } from 'express'
import { describe, expect, it, onTestFinished } from 'vitest'
import { idempotencyErrors } from '../../src/adapters/express.ts'
import { createEngine } from '../../src/core/engine.ts'
import type { Store } from '../../src/core/store.ts'
import { memoryStore } from '../../src/stores/memory/memory-store.ts'
import { FakeClock } from '../../src/testing/fake-clock.ts'
import { scratchFolder } from '../stores/scratch-folder.ts'
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
} from './run-express.ts'

type OnFinished = (res: Response, listener: () => void) => void
const onFinished = createRequire(import.meta.url)('on-finished') as OnFinished

/** What an access log writes about a response. */
const lineOf = (res: Response) => ({
  status: res.headersSent ? res.statusCode : '-',
  type: res.getHeader('content-type'),
  paid: res.hasHeader('x-paid'),
  isEnded: res.writableEnded,
})

const PROBLEM = { type: 'application/problem+json; charset=utf-8', paid: false, isEnded: true }

/** Access logs of the usual kinds, mounted before the guard. */
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

/** One connection, and nothing to roll back: enough to see what is committed, and when. */
function withTransactions(store: Store): Store {
  return wrapStore(store, {
    transaction: async (lease, work) => {
      const { result, retentionMs } = await work({})
      const [outcome] = await store.settle([{ kind: 'complete', lease, result, retentionMs }])
      return outcome!
    },
  })
}

/** A handler that goes on after its client was told that its outcome is unknown. */
async function overrun(express: ExpressModule, { before, between, handler }: Overrun) {
  const clock = new FakeClock()
  const store = withTransactions(memoryStore({ clock }))
  const engine = createEngine({ store, clock, maxRunMs: 1000, retentionMs: 100_000 })
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
    async goOn() {
      late.open()
      await finished.passed
      await turns()
    },
  }
}

describe.each(EXPRESSES)('%s: those who listen outside', (_name, express) => {
  it('see what was sent, not what the handler had replied', async () => {
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
    // To the handler it is its own reply that has left.
    const own = { type: 'application/json; charset=utf-8', paid: true, isEnded: true }
    expect(await inside.passed).toEqual({ status: 201, ...own })
  })

  it('see what was sent while the handler has not replied yet', async () => {
    const { lines, log } = logger()
    const { goOn, send } = await overrun(express, {
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
    await goOn()
    const replay = await send({ key: 'k' })
    expect([replay.status, text(replay)]).toEqual([202, 'paid'])
  })

  it.each(['before', 'during'])('end no file whose client leaves %s it', async (when) => {
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
    // Whoever asks meanwhile is told to wait, and gets the file in the end.
    let asked = 1
    let reply = await send({ key: 'k' })
    for (; reply.status === 409 && asked < 1000; asked++) reply = await send({ key: 'k' })
    expect([reply.status, reply.body.length]).toEqual([200, 300_000])
    expect(runs).toBe(1)
    expect(logged).toBe(1 + asked)
  })
})

describe.each(EXPRESSES)('%s: a handler that goes on after its reply', (_name, express) => {
  it('keeps what it had written before', async () => {
    const { goOn, send } = await overrun(express, {
      handler: async (_req, res, late) => {
        res.status(201).write('one, ')
        await late
        res.end('two')
      },
    })
    await goOn()
    const replay = await send({ key: 'k' })
    expect([replay.status, text(replay)]).toEqual([201, 'one, two'])
  })

  it('keeps it in the encoding it had begun with', async () => {
    const compress = compression({ threshold: 0 })
    const { goOn, send } = await overrun(express, {
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
    await goOn()
    expect(text(await send({ key: 'k' }))).toBe('one, two')
  })

  it('keeps the reply of the transaction that it was in', async () => {
    const { goOn, send } = await overrun(express, {
      handler: async (req, res, late) => {
        await req.idempotency!.transaction(async () => {
          res.status(201).json({ paid: true })
          await late
        })
      },
    })
    await goOn()
    const replay = await send({ key: 'k' })
    expect([replay.status, text(replay)]).toEqual([201, '{"paid":true}'])
  })

  it('sends its file to the end, whatever the client does', async () => {
    const { client, goOn, send } = await overrun(express, {
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
    await goOn()
    expect(text(await send({ key: 'k' }))).toBe('one, two')
  })

  it('hears that its reply was cut off above the cap, too', async () => {
    const errors: unknown[] = []
    const { goOn, send } = await overrun(express, {
      handler: async (_req, res, late) => {
        const pieces = async function* () {
          await late
          yield 'x'.repeat(1_100_000)
          throw new Error('the source failed')
        }
        await pipeline(Readable.from(pieces()), res).catch((error: unknown) => errors.push(error))
      },
    })
    await goOn()
    expect(errors).toEqual([expect.objectContaining({ message: 'the source failed' })])
    expect(header(await send({ key: 'k' }), 'idempotent-body-elided')).toBe('true')
  })

  it('hears that its reply was cut off', async () => {
    const errors: unknown[] = []
    const { goOn, send } = await overrun(express, {
      handler: async (_req, res, late) => {
        const pieces = async function* () {
          yield 'one, '
          await late
          throw new Error('the source failed')
        }
        await pipeline(Readable.from(pieces()), res).catch((error: unknown) => errors.push(error))
      },
    })
    await goOn()
    expect(errors).toEqual([expect.objectContaining({ message: 'the source failed' })])
    expect(problemOf(await send({ key: 'k' }))).toEqual([409, 'idempotency_outcome_unknown'])
    expect(header(await send({ key: 'k' }), 'idempotent-replayed')).toBeUndefined()
  })
})

describe.each(EXPRESSES)('%s: a status that is set after the reply', (_name, express) => {
  it('changes nothing of it, as without us', async () => {
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
    app.use(idempotencyErrors(), onError)
    const { send } = await serve(app)
    for (let n = 0; n < 2; n++) {
      const reply = await send({ key: 'k' })
      expect([reply.status, reply.message, text(reply)]).toEqual([201, 'Created', 'paid'])
    }
    expect(runs).toBe(1)
  })
})
