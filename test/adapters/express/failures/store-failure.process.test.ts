import type { Request, Response } from 'express'
import { describe, expect, it, onTestFinished } from 'vitest'
import type { IdempotencyOptions } from '../../../../src/adapters/express/index.ts'
import { createEngine } from '../../../../src/core/engine/engine.ts'
import type { EngineOptions } from '../../../../src/core/engine/engine-contract.ts'
import type { EngineEvent } from '../../../../src/core/events.ts'
import { memoryStore } from '../../../../src/stores/memory/store.ts'
import { FakeClock } from '../../../../src/testing/fake-clock.ts'
import {
  EXPRESSES,
  caught,
  gate,
  guardOf,
  header,
  json,
  problemOf,
  serve,
  turns,
  wrapStore,
  type ExpressModule,
} from '../../run-express.ts'

/** A store that works until a test breaks one of its calls. */
function breakable(clock: FakeClock) {
  const store = memoryStore({ clock })
  const broken = new Set<'claim' | 'settle'>()
  const hanging = new Set<'claim' | 'settle'>()
  const reached = gate()
  const before = async (call: 'claim' | 'settle') => {
    if (hanging.has(call)) {
      reached.open()
      await new Promise(() => undefined)
    }
    if (!broken.has(call)) return
    reached.open()
    throw new Error('connection refused')
  }
  const wrapped = wrapStore(store, {
    claim: async (requests) => {
      await before('claim')
      return store.claim(requests)
    },
    settle: async (settlements) => {
      await before('settle')
      return store.settle(settlements)
    },
  })
  return { store: wrapped, broken, hanging, reached: reached.passed }
}

interface Options {
  readonly engine?: Partial<EngineOptions>
  readonly guard?: Partial<IdempotencyOptions>
  readonly handler?: (req: Request, res: Response) => unknown
}

async function setup(express: ExpressModule, { engine: more, guard, handler }: Options = {}) {
  const clock = new FakeClock()
  const fixture = breakable(clock)
  const events: EngineEvent[] = []
  const engine = createEngine({
    store: fixture.store,
    clock,
    onEvent: (event) => events.push(event),
    ...more,
  })
  let runs = 0
  const app = express()
  app.post(
    '/',
    guardOf({ engine, ...guard }),
    caught((req, res) => {
      runs++
      return handler === undefined ? res.status(201).json({ run: runs }) : handler(req, res)
    }),
  )
  const server = await serve(app)
  const kinds = () => events.map(({ kind }) => kind)
  return { ...fixture, ...server, clock, engine, events, kinds, runs: () => runs }
}

/** Fails the test on an unhandled rejection, which would end the process. */
function failOnUnhandledRejections(): void {
  const rejections: unknown[] = []
  const onRejection = (error: unknown) => rejections.push(error)
  process.on('unhandledRejection', onRejection)
  onTestFinished(() => {
    process.off('unhandledRejection', onRejection)
    expect(rejections).toEqual([])
  })
}

describe.each(EXPRESSES)('%s: a store that fails at the claim', (_name, express) => {
  it('returns 503 and runs nothing when the store fails at the claim', async () => {
    failOnUnhandledRejections()
    const { send, broken, runs, kinds } = await setup(express)
    broken.add('claim')
    const refused = await send({ key: 'k' })
    expect(problemOf(refused)).toEqual([503, 'idempotency_store_unavailable'])
    expect(header(refused, 'retry-after')).toBe('1')
    expect(header(refused, 'content-type')).toContain('application/problem+json')
    expect(kinds()).toContain('store_error')
    expect(runs()).toBe(0)

    broken.clear()
    expect((await send({ key: 'k' })).status).toBe(201)
    expect(runs()).toBe(1)
  })

  it('returns 503 when the store does not answer the claim in time', async () => {
    const { send, hanging, reached, clock, runs } = await setup(express, {
      engine: { storeTimeoutMs: 500 },
    })
    hanging.add('claim')
    const pending = send({ key: 'k' })
    await reached
    await clock.advanceAsync(500)
    expect(problemOf(await pending)).toEqual([503, 'idempotency_store_unavailable'])
    expect(runs()).toBe(0)
  })

  it("runs unprotected and emits an event with onStoreFailure: 'open'", async () => {
    const { send, broken, runs, events } = await setup(express, {
      guard: { onStoreFailure: 'open' },
    })
    broken.add('claim')
    const reply = await send({ key: 'k', json: { amount: 1 } })
    expect([reply.status, json(reply)]).toEqual([201, { run: 1 }])
    expect(reply.headers.has('idempotency-expires')).toBe(false)
    expect(events).toContainEqual({
      kind: 'unprotected_run',
      tenant: 'single',
      operation: 'POST /',
    })
    expect((await send({ key: 'k', json: { amount: 1 } })).status).toBe(201)
    expect(runs()).toBe(2)
  })

  it('runs nothing unprotected when the engine is closed', async () => {
    const { send, engine, runs } = await setup(express, { guard: { onStoreFailure: 'open' } })
    await engine.close()
    expect(problemOf(await send({ key: 'k' }))).toEqual([503, 'idempotency_server_stopping'])
    expect(runs()).toBe(0)
  })
})

describe.each(EXPRESSES)('%s: a store that fails after the work', (_name, express) => {
  it('returns 503 for a reply that is not recorded, and records it later', async () => {
    failOnUnhandledRejections()
    const { send, broken, reached, clock, runs, kinds } = await setup(express, {
      engine: { settleTimeoutMs: 1000 },
    })
    broken.add('settle')
    const pending = send({ key: 'k' })
    await reached
    await clock.advanceAsync(1100)
    const reply = await pending
    expect(problemOf(reply)).toEqual([503, 'idempotency_outcome_not_recorded'])
    expect(header(reply, 'retry-after')).toBe('1')
    expect(kinds()).toContain('settle_late')
    expect(problemOf(await send({ key: 'k' }))).toEqual([409, 'idempotency_key_in_progress'])

    broken.clear()
    await clock.advanceAsync(10_000)
    const replay = await send({ key: 'k' })
    expect([replay.status, json(replay)]).toEqual([201, { run: 1 }])
    expect(header(replay, 'idempotent-replayed')).toBe('true')
    expect(runs()).toBe(1)
  })

  it('sends the reply when the store recovers in time', async () => {
    const { send, broken, reached, clock, runs } = await setup(express)
    broken.add('settle')
    const pending = send({ key: 'k' })
    await reached
    await clock.advanceAsync(1000)
    broken.clear()
    await clock.advanceAsync(3000)
    expect((await pending).status).toBe(201)
    expect(runs()).toBe(1)
  })

  it('returns 503 when the store does not answer the settlement', async () => {
    const { send, hanging, reached, clock, runs } = await setup(express, {
      engine: { settleTimeoutMs: 1000, storeTimeoutMs: 300 },
    })
    hanging.add('settle')
    const pending = send({ key: 'k' })
    await reached
    await clock.advanceAsync(3000)
    expect(problemOf(await pending)).toEqual([503, 'idempotency_outcome_not_recorded'])
    hanging.clear()
    await clock.advanceAsync(10_000)
    expect((await send({ key: 'k' })).status).toBe(201)
    expect(runs()).toBe(1)
  })

  it('sends an error reply even if it cannot be recorded', async () => {
    failOnUnhandledRejections()
    const { send, broken, reached, clock } = await setup(express, {
      engine: { settleTimeoutMs: 1000 },
      handler: () => {
        throw new Error('card declined')
      },
    })
    broken.add('settle')
    const pending = send({ key: 'k' })
    await reached
    await clock.advanceAsync(1100)
    expect((await pending).status).toBe(500)
  })
})

describe.each(EXPRESSES)('%s: an engine that closes', (_name, express) => {
  it('finishes running requests, and returns 503 to new ones', async () => {
    const entered = gate()
    const opened = gate()
    const { send, engine, clock, runs } = await setup(express, {
      handler: async (_req, res) => {
        entered.open()
        await opened.passed
        res.json({})
      },
    })
    const running = send({ key: 'a' })
    await entered.passed
    const closing = engine.close()
    const refused = await send({ key: 'b' })
    expect(problemOf(refused)).toEqual([503, 'idempotency_server_stopping'])
    expect(Number(header(refused, 'retry-after'))).toBeGreaterThan(0)
    opened.open()
    expect((await running).status).toBe(200)
    await clock.advanceAsync(100)
    expect(await closing).toEqual({ abandoned: 0 })
    expect(runs()).toBe(1)
  })
})

describe.each(EXPRESSES)('%s: a duplicate of a running request', (_name, express) => {
  async function racing(options: Options['guard'], engineOptions: Partial<EngineOptions> = {}) {
    const entered = gate()
    const opened = gate()
    const fixture = await setup(express, {
      engine: { leaseMs: 60_000, ...engineOptions },
      ...(options === undefined ? {} : { guard: options }),
      handler: async (_req, res) => {
        entered.open()
        await opened.passed
        res.status(201).json({ id: 1 })
      },
    })
    const first = fixture.send({ key: 'k' })
    await entered.passed
    return { ...fixture, first, finish: opened.open }
  }

  it('a duplicate gets 409 by default', async () => {
    const { send, first, finish, runs } = await racing({})
    const duplicate = await send({ key: 'k' })
    expect(problemOf(duplicate)).toEqual([409, 'idempotency_key_in_progress'])
    expect(header(duplicate, 'retry-after')).toBe('5')
    finish()
    expect((await first).status).toBe(201)
    expect(runs()).toBe(1)
  })

  it('a duplicate gets the rest of the lease as Retry-After when it is below 5 s', async () => {
    const { send, first, finish } = await racing({}, { leaseMs: 2500 })
    expect(header(await send({ key: 'k' }), 'retry-after')).toBe('3')
    finish()
    await first
  })

  it("a duplicate gets 202 and the status URL with whileInProgress: 'accepted'", async () => {
    const { send, first, finish, store } = await racing({
      whileInProgress: 'accepted',
      statusUrl: (recordId) => `/status/${recordId}`,
    })
    const duplicate = await send({ key: 'k' })
    expect(problemOf(duplicate)).toEqual([202, 'idempotency_accepted'])
    const [record] = await store.list({ state: 'in_progress', limit: 1 })
    expect(header(duplicate, 'location')).toBe(`/status/${record!.recordId}`)
    expect(header(duplicate, 'retry-after')).toBe('5')
    expect(header(duplicate, 'content-type')).toContain('application/json')
    finish()
    await first
  })

  it('a duplicate waits for the reply with waitMs', async () => {
    const { send, first, finish, runs } = await racing({ whileInProgress: { waitMs: 10_000 } })
    const duplicates = [send({ key: 'k' }), send({ key: 'k' })]
    await turns()
    finish()
    expect((await first).status).toBe(201)
    for (const duplicate of await Promise.all(duplicates)) {
      expect([duplicate.status, json(duplicate)]).toEqual([201, { id: 1 }])
      expect(header(duplicate, 'idempotent-replayed')).toBe('true')
    }
    expect(runs()).toBe(1)
  })

  it('a duplicate gets 409 when its wait is over', async () => {
    const { send, first, finish, clock, events } = await racing({
      whileInProgress: { waitMs: 1000 },
    })
    const timers = clock.pendingTimers
    const duplicate = send({ key: 'k' })
    // One more timer means that the duplicate has begun to wait.
    while (clock.pendingTimers === timers) await turns(1)
    await clock.advanceAsync(1000)
    expect(problemOf(await duplicate)).toEqual([409, 'idempotency_key_in_progress'])
    expect(events.filter(({ kind }) => kind === 'reserve_in_progress')).toHaveLength(1)
    finish()
    await first
  })
})
