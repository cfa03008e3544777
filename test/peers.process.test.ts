import { Readable } from 'node:stream'
import { pipeline } from 'node:stream/promises'
import type { Request, Response } from 'express'
import { describe, expect, it, onTestFinished } from 'vitest'
import type { IdempotencyOptions } from '../src/adapters/express/index.ts'
import { createEngine } from '../src/core/engine/engine.ts'
import type { EngineOptions } from '../src/core/engine/engine-contract.ts'
import { EVENT_COUNTERS, type EngineEvent } from '../src/core/events.ts'
import { memoryStore } from '../src/stores/memory/store.ts'
import { FakeClock } from '../src/testing/fake-clock.ts'
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
} from './adapters/run-express.ts'

// Faults that occurred in some of eleven tested configurations of other packages. The titles state
// the correct behaviour.

interface Options {
  readonly handler?: (req: Request, res: Response, run: number) => unknown
  readonly guard?: Partial<IdempotencyOptions>
  readonly engine?: Partial<EngineOptions>
}

async function setup(express: ExpressModule, options: Options = {}) {
  const clock = new FakeClock()
  const { handler = (_req, res, run) => res.json({ run }), guard } = options
  const events: EngineEvent[] = []
  const engine = createEngine({
    clock,
    onEvent: (event) => events.push(event),
    ...options.engine,
    store: options.engine?.store ?? memoryStore({ clock }),
  })
  const app = express()
  let runs = 0
  const counted = caught((req, res) => handler(req, res, ++runs))
  const protect = guardOf({ engine, ...guard })
  app.post('/', protect, counted)
  app.post('/other', protect, counted)
  return { ...(await serve(app)), clock, engine, events, runs: () => runs }
}

const replayed = 'idempotent-replayed'
const HOUR_MS = 60 * 60 * 1000

describe.each(EXPRESSES)('on %s', (_name, express) => {
  it('does not replay the reply of one tenant to another', async () => {
    const tenant = (req: Request) => String(req.headers['x-tenant'])
    const { send, runs } = await setup(express, { guard: { tenant } })
    const as = (name: string) => send({ key: 'k', headers: { 'X-Tenant': name } })
    expect(json(await as('acme'))).toEqual({ run: 1 })
    expect(json(await as('globex'))).toEqual({ run: 2 })
    expect(json(await as('acme'))).toEqual({ run: 1 })
    expect(runs()).toBe(2)
  })

  it('treats a quoted and a bare key as one key', async () => {
    const { send, runs } = await setup(express)
    await send({ key: 'order-1' })
    expect(header(await send({ key: '"order-1"' }), replayed)).toBe('true')
    expect(runs()).toBe(1)
  })

  it.each([
    ['204', (res: Response) => res.status(204).end()],
    ['an empty body', (res: Response) => res.end()],
  ])('replays %s without calling the handler again', async (_what, reply) => {
    const { send, runs } = await setup(express, { handler: (_req, res) => reply(res) })
    const first = await send({ key: 'k' })
    const second = await send({ key: 'k' })
    expect([second.status, second.body.length]).toEqual([first.status, 0])
    expect(header(second, replayed)).toBe('true')
    expect(runs()).toBe(1)
  })

  it.each([
    ['res.write/end', (res: Response) => (res.write('one '), res.end('two'))],
    ['a streamed reply', (res: Response) => pipeline(Readable.from(['one ', 'two']), res)],
  ])('neither leaves the key of %s stuck nor stores it empty', async (_what, reply) => {
    const { send, runs } = await setup(express, { handler: (_req, res) => reply(res) })
    for (let n = 0; n < 2; n++) expect(text(await send({ key: 'k' }))).toBe('one two')
    expect(runs()).toBe(1)
  })

  it('sends and replays binary replies uncorrupted, and runs them once', async () => {
    const bytes = Buffer.from(Array.from({ length: 256 }, (_, n) => 255 - n))
    const { send, runs } = await setup(express, {
      handler: (_req, res) => res.type('application/octet-stream').send(bytes),
    })
    for (let n = 0; n < 2; n++) expect((await send({ key: 'k' })).body).toEqual(bytes)
    expect(runs()).toBe(1)
  })

  it('neither releases nor blocks the key of a disconnected client, nor stores ""', async () => {
    const [entered, gone, finished] = [gate(), gate(), gate()]
    const { connect, send, server, runs } = await setup(express, {
      handler: async (_req, res) => {
        entered.open()
        await gone.passed
        res.status(201).json({ paid: true })
        finished.open()
      },
    })
    server.once('connection', (socket) => {
      socket.once('close', () => gone.open())
    })
    const client = await connect({ key: 'k' })
    await entered.passed
    // While the handler runs, the key stays held, even without the client.
    expect((await send({ key: 'k' })).status).toBe(409)
    client.cut()
    await finished.passed
    await turns()
    const retry = await send({ key: 'k' })
    expect([retry.status, json(retry)]).toEqual([201, { paid: true }])
    expect(runs()).toBe(1)
  })

  it('does not let a mismatch (422) overwrite the completed record', async () => {
    const { send, runs } = await setup(express)
    const first = await send({ key: 'k', json: { amount: 1 } })
    expect((await send({ key: 'k', json: { amount: 2 } })).status).toBe(422)
    const retry = await send({ key: 'k', json: { amount: 1 } })
    expect([retry.status, retry.body]).toEqual([200, first.body])
    expect(runs()).toBe(1)
  })

  it('answers a store error at the claim with 503, without running the handler', async () => {
    const store = wrapStore(memoryStore(), { claim: () => Promise.reject(new Error('down')) })
    const { send, runs } = await setup(express, { engine: { store } })
    expect(problemOf(await send({ key: 'k' }))).toEqual([503, 'idempotency_store_unavailable'])
    expect(runs()).toBe(0)
  })

  it('causes no unhandled rejection when the store fails at completion', async () => {
    const accidents: unknown[] = []
    const onAccident = (error: unknown) => accidents.push(error)
    process.on('unhandledRejection', onAccident)
    onTestFinished(() => {
      process.off('unhandledRejection', onAccident)
    })
    const reached = gate()
    const store = wrapStore(memoryStore(), {
      settle: async () => {
        reached.open()
        throw new Error('down')
      },
    })
    const { send, clock, runs } = await setup(express, { engine: { store } })
    const pending = send({ key: 'k' })
    await reached.passed
    await clock.advanceAsync(6000)
    expect(problemOf(await pending)).toEqual([503, 'idempotency_outcome_not_recorded'])
    await turns()
    expect(accidents).toEqual([])
    expect(runs()).toBe(1)
  })

  it('lets one of many concurrent callers run after the expiry', async () => {
    const { send, clock, runs } = await setup(express, {
      guard: { retentionMs: HOUR_MS, whileInProgress: { waitMs: 1000 } },
      handler: async (_req, res, run) => {
        await turns(3)
        res.json({ run })
      },
    })
    await send({ key: 'k' })
    await clock.advanceAsync(HOUR_MS)
    const replies = await Promise.all(Array.from({ length: 20 }, () => send({ key: 'k' })))
    expect(new Set(replies.map(text))).toEqual(new Set(['{"run":2}']))
    expect(runs()).toBe(2)
  })

  // A stalls past its lease, B takes the key over and finishes, then A continues and replies.
  it('lets only one of two attempts report success after a lease overrun', async () => {
    const [entered, woken] = [gate(), gate()]
    const stalled = { value: true }
    const clock = new FakeClock()
    const memory = memoryStore({ clock })
    const store = wrapStore(memory, {
      // A stalled process does not renew its lease.
      renew: async (renewals) =>
        stalled.value ? new Promise<never>(() => undefined) : memory.renew(renewals),
    })
    const { send, runs, events } = await setup(express, {
      engine: { store, clock, leaseMs: 1000, onLapse: 'rerun' },
      handler: async (_req, res, run) => {
        if (run === 1) {
          entered.open()
          await woken.passed
        }
        res.json({ run })
      },
    })
    const a = send({ key: 'k' })
    await entered.passed
    await clock.advanceAsync(1001)
    stalled.value = false
    expect(json(await send({ key: 'k' }))).toEqual({ run: 2 })
    woken.open()
    // A has lost the key: its client gets the recorded reply, not A's.
    expect(json(await a)).toEqual({ run: 2 })
    expect(json(await send({ key: 'k' }))).toEqual({ run: 2 })
    expect(events.map(({ kind }) => kind)).toContain('settle_fenced')
    expect(runs()).toBe(2)
  })

  it('runs nothing again after a lapse when an effect may have happened', async () => {
    const entered = gate()
    const clock = new FakeClock()
    const store = wrapStore(memoryStore({ clock }), { renew: () => new Promise(() => undefined) })
    const { connect, send, runs } = await setup(express, {
      engine: { store, clock, leaseMs: 1000 },
      handler: () => entered.open(),
    })
    await connect({ key: 'k' })
    await entered.passed
    await clock.advanceAsync(1001)
    expect(problemOf(await send({ key: 'k' }))).toEqual([409, 'idempotency_outcome_unknown'])
    expect(runs()).toBe(1)
  })

  it('does not replay the reply of another route or another query string', async () => {
    const { send, runs } = await setup(express)
    expect(json(await send({ key: 'k', path: '/', json: { a: 1 } }))).toEqual({ run: 1 })
    expect(json(await send({ key: 'k', path: '/other', json: { a: 1 } }))).toEqual({ run: 2 })
    expect((await send({ key: 'k', path: '/?fast=1', json: { a: 1 } })).status).toBe(422)
    expect(runs()).toBe(2)
  })

  it('treats the same body under another key as another request', async () => {
    const { send, runs } = await setup(express)
    expect(json(await send({ key: 'a', json: { amount: 1 } }))).toEqual({ run: 1 })
    expect(json(await send({ key: 'b', json: { amount: 1 } }))).toEqual({ run: 2 })
    expect(runs()).toBe(2)
  })

  it('answers a mismatching request in progress with 422, not 409', async () => {
    const [entered, opened] = [gate(), gate()]
    const { send } = await setup(express, {
      handler: async (_req, res) => {
        entered.open()
        await opened.passed
        res.end()
      },
    })
    const first = send({ key: 'k', json: { amount: 1 } })
    await entered.passed
    expect((await send({ key: 'k', json: { amount: 2 } })).status).toBe(422)
    opened.open()
    expect((await first).status).toBe(200)
  })

  it('does not replay Set-Cookie to another client', async () => {
    const { send } = await setup(express, {
      handler: (_req, res) => res.cookie('session', 'secret').append('Set-Cookie', 'b=2').json({}),
    })
    expect((await send({ key: 'k' })).headers.get('set-cookie')).toHaveLength(2)
    expect((await send({ key: 'k' })).headers.has('set-cookie')).toBe(false)
  })

  it('neither overflows nor truncates a composite key', async () => {
    const tenant = (req: Request) => String(req.headers['x-tenant'])
    const long = 't'.repeat(254)
    const { send, runs } = await setup(express, { guard: { tenant } })
    const as = (name: string, key: string) => send({ key, headers: { 'X-Tenant': name } })
    const key = 'k'.repeat(254)
    const pairs = [`${long}a`, `${long}b`].flatMap((name) => [
      [name, `${key}1`] as const,
      [name, `${key}2`] as const,
    ])
    for (const [name, one] of [...pairs, ...pairs]) expect((await as(name, one)).status).toBe(200)
    expect(runs()).toBe(4)
    // Parts stay separate: ("a", "bc") is not ("ab", "c").
    await as('a', 'bc')
    await as('ab', 'c')
    expect(runs()).toBe(6)
  })

  it('counts events, and never names a raw key', async () => {
    const { send, events } = await setup(express)
    await send({ key: 'secret-key', json: { a: 1 } })
    await send({ key: 'secret-key', json: { a: 1 } })
    await send({ key: 'secret-key', json: { a: 2 } })
    expect(events.map(({ kind }) => EVENT_COUNTERS[kind])).toEqual([
      'api.idempotency.reserve.created.count',
      'api.idempotency.reserve.replay.count',
      'api.idempotency.reserve.key_misuse.count',
    ])
    expect(JSON.stringify(events)).not.toContain('secret-key')
  })
})

it('fails at start-up on misuse instead of doing nothing', () => {
  expect(() => guardOf({ tenant: undefined as never })).toThrow('tenant')
  expect(() => guardOf({ methods: ['GET'] })).toThrow('GET')
  expect(() => guardOf({ ttl: 60 } as never)).toThrow('ttl')
})
