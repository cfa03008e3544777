import { describe, expect, it } from 'vitest'
import type { EngineEvent } from '../../../src/core/events.ts'
import {
  createWorker,
  defineOperation,
  operationPolicy,
  type Operation,
} from '../../../src/durable/index.ts'
import {
  askable,
  durableFixture,
  payment,
  replyOf,
  type DurableFixture,
} from './durable-fixture.ts'

const LEASE_MS = 60_000
/** Longer than the pause before a failed operation is resumed. */
const LATER_MS = 10 * 60_000

/** Accepts an operation as a request with this key does. */
function accept<Input>(
  { engine }: DurableFixture,
  one: Operation<Input>,
  input: Input,
  key = 'k',
): Promise<{ kind: string; recordId: string }> {
  const scope = { tenant: 'acme', operation: one.name }
  const request = { scope, key, fingerprint: 'f', policy: operationPolicy(engine) }
  return engine.run(request, async (context) => {
    await one.accept(context, input)
    return new Uint8Array(0)
  })
}

const replies = (body: unknown) => ({ status: 200, body })

function ofKind<Kind extends EngineEvent['kind']>(
  events: readonly EngineEvent[],
  kind: Kind,
): Extract<EngineEvent, { kind: Kind }>[] {
  return events.filter((event) => event.kind === kind) as Extract<EngineEvent, { kind: Kind }>[]
}

describe('an accepted operation', () => {
  it('keeps an accepted operation pending until a worker runs it with its input', async () => {
    const fixture = durableFixture()
    const { engine, provider, record, run, events } = fixture
    const pay = payment(askable(provider))
    const accepted = await accept(fixture, pay, { amount: 7 })
    expect(accepted.kind).toBe('pending')
    expect(await record(pay)).toMatchObject({ state: 'pending', attempt: 0 })
    expect(await run(pay, { amount: 7 })).toEqual({ kind: 'pending' })
    expect(provider.calls).toEqual([])

    const worker = createWorker({ engine, operations: [pay] })
    expect(await worker.runOnce()).toEqual({ completed: 1, failed: 0, missed: 0 })
    expect(provider.ledger).toMatchObject([{ amount: 7 }])
    const completed = await record(pay)
    expect(completed.recordId).toBe(accepted.recordId)
    expect(await replyOf(completed)).toMatchObject({ status: 201 })
    expect(await run(pay, { amount: 7 })).toMatchObject({ kind: 'replayed', status: 201 })
    expect(ofKind(events, 'operation_accepted')).toHaveLength(1)
    expect(ofKind(events, 'operation_resumed')).toMatchObject([{ name: pay.name, attempt: 1 }])
  })

  it('counts an accepted operation as one request after any number of worker runs', async () => {
    const fixture = durableFixture()
    const { engine, makeEngine, clock, kinds } = fixture
    let failures = 2
    const flaky = defineOperation({
      name: 'flaky',
      run: async () => {
        if (failures-- > 0) throw new Error('not now')
        return replies('ok')
      },
    })
    await accept(fixture, flaky, undefined)
    // One of the two workers is too late each time.
    const workers = [engine, makeEngine()].map((one) =>
      createWorker({ engine: one, operations: [flaky] }),
    )
    for (let pass = 0; pass < 3; pass++) {
      await Promise.all(workers.map((worker) => worker.runOnce()))
      await clock.advanceAsync(LATER_MS)
    }
    expect(kinds().filter((kind) => kind === 'operation_resumed')).toHaveLength(3)
    const counted = () => kinds().filter((kind) => kind.startsWith('reserve_'))
    expect(counted()).toEqual(['reserve_created'])
    await accept(fixture, flaky, undefined)
    expect(counted()).toEqual(['reserve_created', 'reserve_replay'])
  })

  it('does not run an accepted operation more often because its client retries', async () => {
    const fixture = durableFixture()
    const { engine, record, clock } = fixture
    let runs = 0
    const fails = defineOperation({
      name: 'fails',
      run: () => {
        runs++
        throw new Error('no')
      },
    })
    await accept(fixture, fails, undefined)
    const worker = createWorker({ engine, operations: [fails] })
    await worker.runOnce()
    for (let n = 0; n < 30; n++) {
      expect((await accept(fixture, fails, undefined)).kind).toBe('pending')
      await worker.runOnce()
    }
    expect(runs).toBe(1)
    expect(await record(fails)).toMatchObject({ state: 'pending', attempt: 1 })
    await clock.advanceAsync(1_000)
    await worker.runOnce()
    expect(runs).toBe(2)
  })

  it('runs an accepted operation once on any number of workers', async () => {
    const fixture = durableFixture()
    const { makeEngine, provider } = fixture
    const pay = payment(askable(provider))
    for (let n = 0; n < 20; n++) await accept(fixture, pay, { amount: 1 }, `k${n}`)
    const workers = Array.from({ length: 4 }, () =>
      createWorker({ engine: makeEngine(), operations: [pay], concurrency: 20 }),
    )
    const passes = await Promise.all(workers.map((worker) => worker.runOnce()))
    expect(passes.reduce((sum, { completed }) => sum + completed, 0)).toBe(20)
    expect(provider.ledger).toHaveLength(20)
  })

  it('wakes a worker of the same process when an operation is accepted', async () => {
    const fixture = durableFixture()
    const { engine } = fixture
    const done = Promise.withResolvers<void>()
    const note = defineOperation({
      name: 'note',
      async run() {
        done.resolve()
        return replies('ok')
      },
    })
    const stop = new AbortController()
    const running = createWorker({ engine, operations: [note] }).run(stop.signal)
    await accept(fixture, note, undefined)
    // The clock does not advance: only the store signal can have woken the worker.
    await done.promise
    stop.abort()
    await running
  })
})

describe('an operation without its client', () => {
  it('resumes a failed operation after a pause that grows with every attempt', async () => {
    const { engine, provider, run, clock, record, events } = durableFixture()
    const pay = payment({ ...askable(provider), resendWithinMs: 100 * LATER_MS })
    provider.faults.push('error before effect', 'error before effect')
    await expect(run(pay, { amount: 1 })).rejects.toThrow('socket hang up')
    const worker = createWorker({ engine, operations: [pay] })
    expect(await worker.runOnce()).toEqual({ completed: 0, failed: 0, missed: 0 })

    await clock.advanceAsync(1_000)
    expect(await worker.runOnce()).toEqual({ completed: 0, failed: 1, missed: 0 })
    expect(ofKind(events, 'operation_failed')).toMatchObject([{ attempt: 2 }])
    await clock.advanceAsync(1_999)
    expect(await worker.runOnce()).toEqual({ completed: 0, failed: 0, missed: 0 })
    await clock.advanceAsync(1)
    expect(await worker.runOnce()).toEqual({ completed: 1, failed: 0, missed: 0 })
    expect((await record(pay)).state).toBe('completed')
    expect(provider.ledger).toHaveLength(1)
  })

  it('takes an operation over when the lease of its crashed process is over', async () => {
    const { engine, run, clock, record, provider } = durableFixture()
    let dies = true
    const pay = defineOperation({
      name: 'pay',
      effects: { charge: askable(provider) },
      async run(op, { amount }: { amount: number }) {
        await op.external('charge', { amount })
        // A crashed process: its work neither ends nor renews its lease.
        if (dies) await new Promise<never>(() => undefined)
        return replies('paid')
      },
    })
    void run(pay, { amount: 1 })
    await clock.advanceAsync(0)
    await until(async () => (await record(pay)).recoveryPoint === 'charge')
    dies = false
    const { store } = engine
    // The lease is not renewed any more.
    store.renew = async (renewals) => renewals.map(() => false)
    await clock.advanceAsync(LEASE_MS + 1)
    expect(await engine.sweep()).toBe(1)
    const worker = createWorker({ engine, operations: [pay] })
    expect(await worker.runOnce()).toMatchObject({ completed: 1 })
    expect(provider.ledger).toHaveLength(1)
  })
})

describe('the policy of a route', () => {
  it('applies the policy of the route to a key that a worker has completed', async () => {
    const { engine, clock } = durableFixture()
    const note = defineOperation({ name: 'note', run: () => replies('ok') })
    const policy = operationPolicy(engine, { afterExpiry: 'refuse' })
    const scope = { tenant: 'acme', operation: note.name }
    const ask = () =>
      engine.run({ scope, key: 'k', fingerprint: 'f', policy }, async (context) => {
        await note.accept(context, undefined)
        return new Uint8Array(0)
      })
    await ask()
    await createWorker({ engine, operations: [note] }).runOnce()
    await clock.advanceAsync(48 * 60 * 60_000)
    await engine.reap()
    expect((await ask()).kind).toBe('expired')
  })
})

describe('operations of other names and versions', () => {
  it('does not run unregistered operations, and emits operation_orphaned', async () => {
    const fixture = durableFixture()
    const { engine, record, events } = fixture
    const one = (version: number) =>
      defineOperation({ name: 'one', version, run: () => replies(version) })
    const two = defineOperation({ name: 'two', run: () => replies('two') })
    await accept(fixture, one(1), undefined, 'a')
    await accept(fixture, one(2), undefined, 'b')
    await accept(fixture, two, undefined, 'c')
    const worker = createWorker({ engine, operations: [one(2)] })
    expect(await worker.runOnce()).toMatchObject({ completed: 1 })
    expect((await record(one(1), 'a')).state).toBe('pending')
    expect((await record(one(2), 'b')).state).toBe('completed')
    expect((await record(two, 'c')).state).toBe('pending')
    const orphans = ofKind(events, 'operation_orphaned').map(({ name, version }) => ({
      name,
      version,
    }))
    expect(orphans.toSorted((a, b) => a.name.localeCompare(b.name))).toEqual([
      { name: 'one', version: 1 },
      { name: 'two', version: 1 },
    ])
  })
})

describe('a worker', () => {
  it('runs at most concurrency operations at once, and the rest after them', async () => {
    const fixture = durableFixture()
    const { engine, clock } = fixture
    let [running, most, done] = [0, 0, 0]
    const gates: (() => void)[] = []
    const slow = defineOperation({
      name: 'slow',
      async run() {
        most = Math.max(most, ++running)
        await new Promise<void>((resolve) => gates.push(resolve))
        running--
        done++
        return replies('ok')
      },
    })
    for (let n = 0; n < 5; n++) await accept(fixture, slow, undefined, `k${n}`)
    const stop = new AbortController()
    const worker = createWorker({ engine, operations: [slow], concurrency: 2 }).run(stop.signal)
    for (let n = 0; n < 5; n++) {
      await until(() => gates.length > n)
      gates[n]!()
      await clock.advanceAsync(0)
    }
    await until(() => done === 5)
    stop.abort()
    await worker
    expect(most).toBe(2)
  })

  it('waits for its operations when it is stopped', async () => {
    const fixture = durableFixture()
    const { engine, record } = fixture
    const [entered, goOn] = [Promise.withResolvers<void>(), Promise.withResolvers<void>()]
    const slow = defineOperation({
      name: 'slow',
      async run() {
        entered.resolve()
        await goOn.promise
        return replies('ok')
      },
    })
    await accept(fixture, slow, undefined)
    const stop = new AbortController()
    const worker = createWorker({ engine, operations: [slow] }).run(stop.signal)
    await entered.promise
    stop.abort()
    goOn.resolve()
    await worker
    expect((await record(slow)).state).toBe('completed')
  })

  it('continues after a store failure', async () => {
    const fixture = durableFixture()
    const { engine, store, clock, record, events } = fixture
    const { phases } = store.durable
    const due = phases.due.bind(phases)
    let failures = 2
    phases.due = async (query) => {
      if (failures-- > 0) throw new Error('the database is gone')
      return due(query)
    }
    const note = defineOperation({ name: 'note', run: () => replies('ok') })
    await accept(fixture, note, undefined)
    const stop = new AbortController()
    const worker = createWorker({ engine, operations: [note] }).run(stop.signal)
    await until(async () => {
      await clock.advanceAsync(1_000)
      return (await record(note)).state === 'completed'
    })
    stop.abort()
    await worker
    expect(ofKind(events, 'maintenance_failed')).toHaveLength(2)
  })

  it('reports a store that does not answer, and can be stopped', async () => {
    const { engine, store, clock, events } = durableFixture()
    const asked = Promise.withResolvers<void>()
    store.durable.phases.due = () => {
      asked.resolve()
      return new Promise(() => undefined)
    }
    const note = defineOperation({ name: 'note', run: () => replies('ok') })
    const stop = new AbortController()
    const worker = createWorker({ engine, operations: [note] }).run(stop.signal)
    await asked.promise
    stop.abort()
    await clock.advanceAsync(10_000)
    await worker
    expect(ofKind(events, 'maintenance_failed')).toMatchObject([{ task: 'worker' }])
  })

  it('counts an operation as completed although the answer of its commit was lost', async () => {
    const fixture = durableFixture()
    const { engine, store } = fixture
    const note = defineOperation({
      name: 'note',
      run: (op) => op.finish('only', () => replies('ok')),
    })
    await accept(fixture, note, undefined)
    const { phases } = store.durable
    const advance = phases.advance.bind(phases)
    phases.advance = async (lease, work) => {
      await advance(lease, work)
      throw new Error('connection lost')
    }
    const pass = await createWorker({ engine, operations: [note] }).runOnce()
    expect(pass).toEqual({ completed: 1, failed: 0, missed: 0 })
  })

  it('counts an operation past its time limit as failed, and emits that', async () => {
    const fixture = durableFixture({ runTimeoutMs: 30_000 })
    const { engine, clock, events } = fixture
    const entered = Promise.withResolvers<void>()
    const hangs = defineOperation({
      name: 'hangs',
      run: () => {
        entered.resolve()
        return new Promise<never>(() => undefined)
      },
    })
    await accept(fixture, hangs, undefined)
    const pass = createWorker({ engine, operations: [hangs] }).runOnce()
    await entered.promise
    await clock.advanceAsync(30_000)
    expect(await pass).toEqual({ completed: 0, failed: 1, missed: 0 })
    expect(ofKind(events, 'operation_failed')).toMatchObject([{ error: { code: 'LEASE_LOST' } }])
  })

  it('runs other operations although many fail', async () => {
    const fixture = durableFixture()
    const { engine, record } = fixture
    const fails = defineOperation({
      name: 'fails',
      run: () => {
        throw new Error('no')
      },
    })
    const note = defineOperation({ name: 'note', run: () => replies('ok') })
    for (let n = 0; n < 12; n++) await accept(fixture, fails, undefined, `k${n}`)
    await accept(fixture, note, undefined)
    const worker = createWorker({ engine, operations: [fails, note], concurrency: 5 })
    for (let n = 0; n < 3; n++) await worker.runOnce()
    expect((await record(note)).state).toBe('completed')
  })

  it('does not query in a loop for an operation that it cannot claim', async () => {
    const fixture = durableFixture()
    const { engine, store, clock } = fixture
    const note = defineOperation({ name: 'note', run: () => replies('ok') })
    await accept(fixture, note, undefined)
    const { phases } = store.durable
    const due = phases.due.bind(phases)
    let asked = 0
    phases.due = async (query) => {
      asked++
      return due(query)
    }
    // Another process holds the record at every claim.
    store.claim = async (requests) =>
      requests.map(({ recordId }) => ({
        kind: 'in_progress',
        recordId,
        leaseLeftMs: 1_000,
        expiresAt: new Date(0),
      }))
    const stop = new AbortController()
    const worker = createWorker({ engine, operations: [note] }).run(stop.signal)
    await until(() => asked > 0)
    for (let n = 0; n < 100; n++) await clock.advanceAsync(0)
    expect(asked).toBeLessThan(5)
    stop.abort()
    await worker
  })

  it('does not run a newer record of the same key', async () => {
    const fixture = durableFixture()
    const { engine, store, record } = fixture
    let runs = 0
    const note = defineOperation({
      name: 'note',
      run: () => {
        runs++
        return replies('ok')
      },
    })
    await accept(fixture, note, undefined)
    const { phases } = store.durable
    const due = phases.due.bind(phases)
    phases.due = async (query) => {
      const found = await due(query)
      return found.map((one) => ({
        ...one,
        record: { ...one.record, recordId: '0190163d-8694-739b-aea5-966c26f8ad91' },
      }))
    }
    const worker = createWorker({ engine, operations: [note] })
    expect(await worker.runOnce()).toEqual({ completed: 0, failed: 0, missed: 1 })
    expect(runs).toBe(0)
    expect((await record(note)).state).toBe('failed_retryable')
  })

  it('rejects invalid options of createWorker', () => {
    const { engine } = durableFixture()
    const note = defineOperation({ name: 'note', run: () => replies('ok') })
    expect(() => createWorker({ engine, operations: [] })).toThrow(/array of operations/)
    expect(() => createWorker({ engine, operations: [note, note] })).toThrow(/note version 1 twice/)
    expect(() => createWorker({ engine, operations: [note], concurrency: 0 })).toThrow(
      /concurrency must be/,
    )
    expect(() => createWorker({ engine: undefined as never, operations: [note] })).toThrow(
      /createWorker.engine must be/,
    )
    const policy = { onError: 'retry' } as object
    expect(() => createWorker({ engine, operations: [note], policy })).toThrow(
      /createWorker.policy has no option "onError"/,
    )
  })
})

async function until(isSo: () => boolean | Promise<boolean>): Promise<void> {
  for (let n = 0; n < 10_000; n++) {
    if (await isSo()) return
    await new Promise<void>((resolve) => setImmediate(resolve))
  }
  throw new Error('it never came')
}
