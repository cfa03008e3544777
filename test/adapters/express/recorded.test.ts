import { once } from 'node:events'
import { Readable } from 'node:stream'
import { pipeline } from 'node:stream/promises'
import type { Request, Response } from 'express'
import { describe, expect, it } from 'vitest'
import { createEngine } from '../../../src/core/engine/engine.ts'
import type { EngineEvent } from '../../../src/core/events.ts'
import type { RecordView, Store } from '../../../src/core/store/store.ts'
import { memoryStore } from '../../../src/stores/memory/store.ts'
import { FakeClock } from '../../../src/testing/fake-clock.ts'
import {
  EXPRESSES,
  caught,
  gate,
  guardOf,
  header,
  json,
  problemOf,
  serve,
  text,
  turns,
  wrapStore,
  type ExpressModule,
} from '../run-express.ts'

type Handler = (req: Request, res: Response) => unknown

/** A store whose `settle` waits for `open()`. `reached` resolves when `settle` is called. */
function gatedStore(store: Store = memoryStore()) {
  const reached = gate()
  const opened = gate()
  const gated = wrapStore(store, {
    settle: async (settlements) => {
      reached.open()
      await opened.passed
      return store.settle(settlements)
    },
  })
  return { store: gated, reached: reached.passed, open: opened.open }
}

async function setup(
  express: ExpressModule,
  {
    handler,
    store,
    replyBytesMax = 1024,
  }: { handler: Handler; store: Store; replyBytesMax?: number },
) {
  const app = express()
  let runs = 0
  const guard = guardOf({ store, replyBytesMax })
  const counted = caught((req, res) => {
    runs++
    return handler(req, res)
  })
  app.post('/', guard, counted)
  const server = await serve(app)
  const view = async () => {
    const [{ recordId }] = (await guard.engine.list({ state: 'completed' })) as [RecordView]
    return guard.engine.read({ recordId })
  }
  return { ...server, engine: guard.engine, runs: () => runs, view }
}

describe.each(EXPRESSES)('%s: the record before the reply', (_name, express) => {
  const replies: Readonly<Record<string, Handler>> = {
    'a JSON reply': (_req, res) => res.json({ ok: true }),
    'a reply whose head was flushed': (_req, res) => {
      res.flushHeaders()
      res.end('done')
    },
    'a reply in pieces': (_req, res) => {
      res.writeHead(200)
      res.write('a')
      res.end('b')
    },
    'an empty reply': (_req, res) => res.status(204).end(),
    'a reply above the cap': (_req, res) => res.end(Buffer.alloc(5000, 'x')),
    'a stream above the cap': (_req, res) =>
      pipeline(Readable.from(Array.from({ length: 10 }, () => 'y'.repeat(500))), res),
  }

  it.each(Object.entries(replies))(
    'sends no byte of %s before the record',
    async (_what, handler) => {
      const { store, reached, open } = gatedStore()
      const { connect } = await setup(express, { handler, store })
      const client = await connect({ key: 'k' })
      await reached
      await turns()
      expect(client.received).toBe('')
      open()
      expect(await client.until(/\r\n\r\n/)).toMatch(/^HTTP\/1\.1 20[04]/)
    },
  )

  it('sends a reply above the cap completely, and replays its head', async () => {
    const pieces = Array.from({ length: 40 }, (_, n) => String(n % 10).repeat(1000))
    const { send, runs, view } = await setup(express, {
      store: memoryStore(),
      handler: async (_req, res) => {
        res.status(201).set({ ETag: '"big"', Location: '/exports/1' }).type('text/csv')
        await pipeline(Readable.from(pieces), res)
      },
    })
    const first = await send({ key: 'k' })
    expect(first.status).toBe(201)
    expect(text(first)).toBe(pieces.join(''))
    expect(header(first, 'idempotency-expires')).toBeDefined()
    expect((await view())?.result?.byteLength).toBeLessThan(1024)

    const replay = await send({ key: 'k' })
    expect(replay.status).toBe(201)
    expect(header(replay, 'location')).toBe('/exports/1')
    expect(header(replay, 'idempotent-replayed')).toBe('true')
    expect(header(replay, 'idempotent-body-elided')).toBe('true')
    expect(json(replay)).toMatchObject({ code: 'idempotency_body_elided' })
    // The ETag of the omitted body would be wrong for the note in its place.
    expect(replay.headers.has('etag')).toBe(false)
    expect(header(replay, 'content-type')).toContain('application/json')
    expect(runs()).toBe(1)
  })

  it('records a body of exactly the cap, and elides a body of one byte more', async () => {
    const { send } = await setup(express, {
      store: memoryStore(),
      replyBytesMax: 10,
      handler: (req, res) => res.end('x'.repeat(Number(req.query['length']))),
    })
    for (const [length, elided] of [
      ['10', undefined],
      ['11', 'true'],
    ] as const) {
      await send({ key: length, path: `/?length=${length}` })
      const replay = await send({ key: length, path: `/?length=${length}` })
      expect(header(replay, 'idempotent-body-elided')).toBe(elided)
    }
  })

  it('applies backpressure above the cap, and emits drain after the record', async () => {
    const { store, reached, open } = gatedStore()
    const log: unknown[] = []
    const { send } = await setup(express, {
      store,
      handler: async (_req, res) => {
        log.push(res.write('a'.repeat(1000)), res.write('b'.repeat(100)))
        res.write('c', () => log.push('called back'))
        await once(res, 'drain')
        log.push('drained')
        res.end('!')
      },
    })
    const first = send({ key: 'k' })
    await reached
    await turns()
    expect(log).toEqual([true, false])
    open()
    expect(text(await first)).toBe(`${'a'.repeat(1000)}${'b'.repeat(100)}c!`)
    expect(log.slice(2)).toEqual(['called back', 'drained'])
  })

  // The stream fails before or after the guard has sent its first bytes.
  it.each(['held', 'flowing'])(
    'closes the connection when a stream above the cap fails while %s',
    async (phase) => {
      const { store, reached, open } = gatedStore()
      const broke = gate()
      async function* broken() {
        yield 'x'.repeat(2000)
        await (phase === 'held' ? Promise.resolve() : broke.passed)
        throw new Error('the export broke')
      }
      const { connect, send, runs, view } = await setup(express, {
        store,
        handler: (_req, res) => pipeline(Readable.from(broken()), res),
      })
      const client = await connect({ key: 'k' })
      await reached
      await turns()
      open()
      if (phase === 'flowing') await client.until(/x{2000}/)
      broke.open()
      // An incomplete chunked body has no last chunk.
      expect(await client.closed()).not.toMatch(/\r\n0\r\n\r\n/)
      expect((await view())?.state).toBe('completed')
      const replay = await send({ key: 'k' })
      expect(header(replay, 'idempotent-body-elided')).toBe('true')
      expect(runs()).toBe(1)
    },
  )

  it('returns 503 when a reply above the cap cannot be recorded', async () => {
    const store = memoryStore()
    const isDown = { value: true }
    const events: EngineEvent[] = []
    const failing = wrapStore(store, {
      settle: async (settlements) => {
        if (isDown.value) throw new Error('disk full')
        return store.settle(settlements)
      },
    })
    const settled = gate()
    const app = express()
    const engine = createEngine({
      store: failing,
      settleTimeoutMs: 1,
      onEvent: (event) => events.push(event),
    })
    app.post(
      '/',
      guardOf({ engine, replyBytesMax: 10 }),
      caught(async (_req, res) => {
        await pipeline(Readable.from(['a'.repeat(20), 'b'.repeat(20), 'c'.repeat(20)]), res)
        settled.open()
      }),
    )
    const { send } = await serve(app)
    const first = await send({ key: 'k' })
    expect(problemOf(first)).toEqual([503, 'idempotency_outcome_not_recorded'])
    // The handler is not blocked: its stream ends, and the data is discarded.
    await settled.passed
    isDown.value = false
    expect(await engine.close()).toEqual({ abandoned: 0 })
    expect((await store.list({ state: 'completed', limit: 1 }))[0]?.key).toBe('k')
    expect(events.map(({ kind }) => kind)).toContain('settle_late')
  })

  it('records the reply of a handler that exceeded its timeout', async () => {
    const clock = new FakeClock()
    const store = memoryStore({ clock })
    const engine = createEngine({ store, clock, runTimeoutMs: 1000, retentionMs: 100_000 })
    const entered = gate()
    const late = gate()
    const finished = gate()
    const app = express()
    app.post(
      '/',
      guardOf({ engine }),
      caught(async (_req, res) => {
        entered.open()
        await late.passed
        res.status(201).set('Location', '/payments/1').json({ id: 'pay_1' })
        finished.open()
      }),
    )
    const { send } = await serve(app)
    const first = send({ key: 'k' })
    await entered.passed
    await clock.advanceAsync(1000)
    expect(problemOf(await first)).toEqual([409, 'idempotency_outcome_unknown'])
    expect(problemOf(await send({ key: 'k' }))).toEqual([409, 'idempotency_outcome_unknown'])
    late.open()
    await finished.passed
    await turns()
    const replay = await send({ key: 'k' })
    expect([replay.status, json(replay)]).toEqual([201, { id: 'pay_1' }])
    expect(header(replay, 'location')).toBe('/payments/1')
    expect(replay.headers.has('link')).toBe(false)
  })
})

describe.each(EXPRESSES)('%s: a keep-alive connection', (_name, express) => {
  it('a keep-alive connection stays usable after every kind of reply', async () => {
    const app = express()
    const entered = gate()
    const opened = gate()
    const guard = guardOf({ requestBytesMax: 100 })
    app.post(
      '/',
      guard,
      caught(async (req, res) => {
        if (req.query['slow'] !== undefined) {
          entered.open()
          await opened.passed
        }
        res.json({ ok: true })
      }),
    )
    const { send, server } = await serve(app)
    const slow = send({ key: 'slow', path: '/?slow' })
    await entered.passed
    let connections = 0
    server.on('connection', () => connections++)
    const answers = [
      await send({ key: 'k' }),
      await send({ key: 'k' }),
      await send({ key: 'slow', path: '/?slow' }),
      await send({ key: 'k', body: 'other' }),
      await send({ key: 'big', body: 'x'.repeat(101) }),
      await send({ key: 'big', chunks: ['x'.repeat(60), 'y'.repeat(60)] }),
      await send({ key: '' }),
      await send({}),
      await send({ key: 'next' }),
    ]
    const statuses = answers.map(({ status }) => status)
    expect(statuses).toEqual([200, 200, 409, 422, 413, 413, 400, 400, 200])
    expect(connections).toBe(1)
    opened.open()
    expect((await slow).status).toBe(200)
  })

  it('answers pipelined requests in order', async () => {
    const app = express()
    const first = gate()
    app.post(
      '/',
      guardOf(),
      caught(async (req, res) => {
        if (req.idempotency?.key === 'a') await first.passed
        else first.open()
        res.end(`<${req.idempotency?.key}>`)
      }),
    )
    const { connect } = await serve(app)
    const client = await connect({ key: 'a' })
    client.socket.write('POST / HTTP/1.1\r\nHost: x\r\nIdempotency-Key: b\r\n\r\n')
    expect(await client.until(/<b>/)).toMatch(/<a>[^]*<b>/)
  })
})
