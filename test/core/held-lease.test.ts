import { describe, expect, it } from 'vitest'
import { LeaseLostError } from '../../src/core/errors.ts'
import type { Work } from '../../src/core/execution.ts'
import type { RunContext } from '../../src/core/run-context.ts'
import type { Renewal } from '../../src/core/store.ts'
import { FakeClock } from '../../src/testing/fake-clock.ts'
import { bytes, engineFixture, heldWork, type EngineFixture } from './engine-fixture.ts'

const MAX_RUN_MS = 900_000

/** Work that shows its context and ends when the test says so. */
function openWork() {
  const { work, end, fail } = heldWork()
  let context: RunContext | undefined
  const open: Work = (given) => {
    context = given
    return work()
  }
  return { work: open, end, fail, context: () => context! }
}

/** As in a process that was frozen, timers fire late: all of them once it wakes. */
class StallingClock extends FakeClock {
  #late: (() => void)[] | undefined

  override after(ms: number, run: () => void): () => void {
    return super.after(ms, () => {
      if (this.#late === undefined) run()
      else this.#late.push(run)
    })
  }

  stall(ms: number): void {
    this.#late = []
    this.advance(ms)
    const late = this.#late
    this.#late = undefined
    for (const run of late) run()
  }
}

function renewals({ store }: EngineFixture): Renewal[] {
  return (store.asked('renew') as Renewal[][]).flat()
}

const lostEvents = ({ kinds }: EngineFixture): number =>
  kinds().filter((kind) => kind === 'lease_lost').length

describe('a lease', () => {
  it('is renewed every third of its length while the work runs, and not after it', async () => {
    const fixture = engineFixture()
    const { clock, run } = fixture
    const { work, end } = openWork()
    const running = run(work)
    await clock.advanceAsync(19_999)
    expect(renewals(fixture)).toHaveLength(0)
    await clock.advanceAsync(1)
    expect(renewals(fixture)).toHaveLength(1)
    await clock.advanceAsync(40_000)
    expect(renewals(fixture)).toHaveLength(3)
    expect(renewals(fixture)[0]).toMatchObject({ attempt: 1, leaseMs: 60_000 })
    end()
    expect(await running).toMatchObject({ kind: 'ran' })
    expect(clock.pendingTimers).toBe(0)
    await clock.advanceAsync(60_000)
    expect(renewals(fixture)).toHaveLength(3)
  })

  it('outlives its length while it is renewed', async () => {
    const { clock, run } = engineFixture()
    const { work, end, context } = openWork()
    const running = run(work)
    await clock.advanceAsync(600_000)
    context().assertHeld()
    expect(context().signal.aborted).toBe(false)
    expect(await run(() => bytes('x'))).toMatchObject({ kind: 'in_progress' })
    end()
    expect(await running).toMatchObject({ kind: 'ran' })
  })

  // The claim takes 4 s to be answered: the store may have counted from its first moment.
  it('is counted from before its claim was sent', async () => {
    const fixture = engineFixture()
    const { clock, run, store } = fixture
    store.next('claim', { lateMs: 4_000 })
    store.always('renew', 'hang')
    const { work, context } = openWork()
    void run(work)
    await clock.advanceAsync(20_000)
    expect(renewals(fixture)).toHaveLength(1)
    await clock.advanceAsync(39_999)
    context().assertHeld()
    await clock.advanceAsync(1)
    expect(() => context().assertHeld()).toThrow(LeaseLostError)
  })

  it('is not bent by a wall clock that jumps', async () => {
    const { clock, run } = engineFixture()
    const { work, end, context } = openWork()
    const running = run(work)
    await clock.advanceAsync(0)
    clock.jumpWallTime(-3_600_000)
    await clock.advanceAsync(100_000)
    context().assertHeld()
    end()
    expect(await running).toMatchObject({ kind: 'ran' })
  })
})

describe('a lease that the store says is gone', () => {
  // B takes over A's key (as after a stall of A); A hears of it with its next renewal.
  it('aborts the signal, fails assertHeld, is reported, and cannot complete', async () => {
    const fixture = engineFixture({ onLapse: 'rerun' })
    const { clock, run, node, records } = fixture
    const { work, end, context } = openWork()
    const running = run(work)
    await clock.advanceAsync(0)
    const { signal } = context()
    clock.jumpWallTime(60_000)
    await records.sweep({ limit: 10 })
    expect(await node()(() => bytes('from B'))).toMatchObject({ kind: 'ran' })
    await clock.advanceAsync(20_000)
    expect(signal.aborted).toBe(true)
    expect(signal.reason).toBeInstanceOf(LeaseLostError)
    expect(() => context().assertHeld()).toThrow(LeaseLostError)
    expect(lostEvents(fixture)).toBe(1)

    end('from A')
    expect(await running).toMatchObject({ kind: 'replayed', result: bytes('from B') })
    expect(fixture.kinds()).toContain('settle_fenced')
    expect(clock.pendingTimers).toBe(0)
    await clock.advanceAsync(60_000)
    expect(renewals(fixture)).toHaveLength(1)
  })

  it('has an aborted signal also for work that asks for it only then', async () => {
    const { clock, run, store } = engineFixture()
    store.always('renew', 'hang')
    const { work, context } = openWork()
    void run(work)
    await clock.advanceAsync(60_000)
    expect(context().signal.aborted).toBe(true)
    expect(context().signal.reason).toBeInstanceOf(LeaseLostError)
  })

  it('leaves nothing to show where the record has no result', async () => {
    const fixture = engineFixture({ onLapse: 'rerun' })
    const { clock, run, node, records } = fixture
    const { work, end } = openWork()
    const running = run(work)
    await clock.advanceAsync(0)
    clock.jumpWallTime(60_000)
    await records.sweep({ limit: 10 })
    void node()(heldWork().work)
    await clock.advanceAsync(0)
    end('from A')
    expect(await running).toMatchObject({ kind: 'lease_lost' })
  })

  // The store hangs on the very read that would show the other's result.
  it('is answered for even where the store does not say what the record holds', async () => {
    const { clock, run, node, records, store, kinds } = engineFixture({ onLapse: 'rerun' })
    const { work, end } = openWork()
    const running = run(work)
    await clock.advanceAsync(0)
    clock.jumpWallTime(60_000)
    await records.sweep({ limit: 10 })
    await node()(() => bytes('from B'))
    store.next('read', 'hang')
    end('from A')
    await clock.advanceAsync(5_000)
    expect(await running).toMatchObject({ kind: 'lease_lost' })
    expect(kinds()).toContain('store_error')
  })
})

describe('a renewal that fails', () => {
  it('is tried again, sooner, and the lease goes on once one succeeds', async () => {
    const fixture = engineFixture()
    const { clock, run, store } = fixture
    store.next('renew', 'fail', 'lose', 'ok')
    const { work, end, context } = openWork()
    const running = run(work)
    await clock.advanceAsync(20_000 + 6_000 + 6_000)
    expect(renewals(fixture)).toHaveLength(3)
    await clock.advanceAsync(59_000)
    context().assertHeld()
    expect(lostEvents(fixture)).toBe(0)
    end()
    expect(await running).toMatchObject({ kind: 'ran' })
  })

  it('until the holder’s time is up loses the lease then, not later', async () => {
    const fixture = engineFixture()
    const { clock, run, store } = fixture
    store.always('renew', 'fail')
    const { work, context } = openWork()
    void run(work)
    await clock.advanceAsync(59_999)
    context().assertHeld()
    expect(context().signal.aborted).toBe(false)
    await clock.advanceAsync(1)
    expect(context().signal.aborted).toBe(true)
    expect(lostEvents(fixture)).toBe(1)
  })

  it('by silence loses the lease at the same time', async () => {
    const fixture = engineFixture({ leaseMs: 1_000 })
    const { clock, run, store } = fixture
    store.always('renew', 'hang')
    const { work, context } = openWork()
    void run(work)
    await clock.advanceAsync(999)
    const { signal } = context()
    expect(signal.aborted).toBe(false)
    await clock.advanceAsync(1)
    expect(signal.aborted).toBe(true)
    expect(lostEvents(fixture)).toBe(1)
    await clock.advanceAsync(30_000)
    expect(lostEvents(fixture)).toBe(1)
  })

  it('does not make the result of the work wrong: its own record takes it', async () => {
    const { clock, run, store, state } = engineFixture()
    store.always('renew', 'fail')
    const { work, end } = openWork()
    const running = run(work)
    await clock.advanceAsync(70_000)
    end('late, but true')
    expect(await running).toMatchObject({ kind: 'ran', result: bytes('late, but true') })
    expect(await state()).toBe('completed')
    expect(clock.pendingTimers).toBe(0)
  })

  // The process stands still for longer than the lease, and nobody has asked for the key.
  it('is not assumed after a stall: the store knows whether the key is still ours', async () => {
    const clock = new StallingClock()
    const fixture = engineFixture({ clock })
    const { run } = fixture
    const { work, end, context } = openWork()
    const running = run(work)
    await clock.advanceAsync(0)
    clock.stall(70_000)
    expect(() => context().assertHeld()).toThrow(LeaseLostError)
    await clock.advanceAsync(0)
    context().assertHeld()
    expect(lostEvents(fixture)).toBe(0)
    end()
    expect(await running).toMatchObject({ kind: 'ran' })
  })
})

describe('a renewal that succeeds late', () => {
  // It is sent at 20 s and answered at 24 s: the store may have counted from 20 s.
  it('counts from when it was sent', async () => {
    const { clock, run, store } = engineFixture()
    store.next('renew', { lateMs: 4_000 }, ...Array.from({ length: 50 }, () => 'hang' as const))
    const { work, context } = openWork()
    void run(work)
    await clock.advanceAsync(79_999)
    context().assertHeld()
    await clock.advanceAsync(1)
    expect(() => context().assertHeld()).toThrow(LeaseLostError)
  })

  // Frozen past its lease, the holder asks, and the store takes a while to say yes.
  it('after a stall gives the lease back', async () => {
    const clock = new StallingClock()
    const fixture = engineFixture({ clock })
    fixture.store.next('renew', { lateMs: 2_000 })
    const { work, context } = openWork()
    void fixture.run(work)
    await clock.advanceAsync(0)
    clock.stall(70_000)
    await clock.advanceAsync(1_000)
    expect(() => context().assertHeld()).toThrow(LeaseLostError)
    await clock.advanceAsync(1_000)
    context().assertHeld()
    expect(lostEvents(fixture)).toBe(0)
  })
})

describe('work that runs longer than maxRunMs', () => {
  it('is answered for as unknown, and renewed no more', async () => {
    const fixture = engineFixture()
    const { clock, run, kinds, record } = fixture
    const { work, context } = openWork()
    const running = run(work)
    await clock.advanceAsync(MAX_RUN_MS - 1)
    const { signal } = context()
    const before = renewals(fixture).length
    await clock.advanceAsync(1)
    expect(await running).toMatchObject({ kind: 'unknown', retryAfterMs: 0 })
    expect(signal.aborted).toBe(true)
    expect(() => context().assertHeld()).toThrow(LeaseLostError)
    expect(await record()).toMatchObject({ state: 'unknown', errorCode: 'max_run_exceeded' })
    expect(kinds()).toEqual(['reserve_created', 'reconcile_scheduled'])
    expect(clock.pendingTimers).toBe(0)
    expect(renewals(fixture)).toHaveLength(before)
  })

  it('gives the verdict itself when it completes after all', async () => {
    const { clock, run, events } = engineFixture()
    const { work, end } = openWork()
    const running = run(work)
    await clock.advanceAsync(MAX_RUN_MS)
    await running
    end('late')
    await clock.advanceAsync(0)
    expect(events.at(-1)).toMatchObject({ kind: 'reconcile_resolved', to: 'completed' })
    expect(await run(() => bytes('x'))).toMatchObject({ kind: 'replayed', result: bytes('late') })
  })

  it('leaves the doubt where it fails without proof', async () => {
    const { clock, run, kinds, state } = engineFixture()
    const { work, fail } = openWork()
    const running = run(work)
    await clock.advanceAsync(MAX_RUN_MS)
    await running
    fail(new Error('gave up'))
    await clock.advanceAsync(0)
    expect(await state()).toBe('unknown')
    expect(kinds().at(-1)).toBe('settle_fenced')
  })

  it('may be run again by the next caller where the route says that is safe', async () => {
    const { clock, run, node, state } = engineFixture({ onLapse: 'rerun' })
    const { work, end } = openWork()
    const running = run(work)
    await clock.advanceAsync(MAX_RUN_MS)
    expect(await running).toMatchObject({ kind: 'in_progress', retryAfterMs: 60_000 })
    expect(await node()(() => bytes('B'))).toMatchObject({ kind: 'in_progress' })
    await clock.advanceAsync(60_000)
    expect(await node()(() => bytes('from B'))).toMatchObject({ kind: 'ran' })
    end('from A')
    await clock.advanceAsync(0)
    expect(await state()).toBe('completed')
    expect(await run(() => bytes('x'))).toMatchObject({ result: bytes('from B') })
  })

  it('completes after all where nobody has taken the key meanwhile', async () => {
    const { clock, run } = engineFixture({ onLapse: 'rerun' })
    const { work, end } = openWork()
    const running = run(work)
    await clock.advanceAsync(MAX_RUN_MS)
    await running
    end('late')
    await clock.advanceAsync(0)
    expect(await run(() => bytes('x'))).toMatchObject({ kind: 'replayed', result: bytes('late') })
  })

  it('is answered for also where its lease had been lost before', async () => {
    const fixture = engineFixture()
    const { clock, run, node, records } = fixture
    const { work } = openWork()
    const running = run(work)
    await clock.advanceAsync(0)
    clock.jumpWallTime(60_000)
    await records.sweep({ limit: 10 })
    const [unknown] = await records.list({ state: 'unknown', limit: 1 })
    const verdict = { kind: 'failed_retryable' } as const
    const { recordId } = unknown!
    await records.resolve([{ ref: { recordId }, verdict, retentionMs: 86_400_000 }])
    await node()(() => bytes('from B'))
    await clock.advanceAsync(20_000)
    expect(lostEvents(fixture)).toBe(1)
    await clock.advanceAsync(MAX_RUN_MS)
    expect(await running).toMatchObject({ kind: 'replayed', result: bytes('from B') })
    expect(clock.pendingTimers).toBe(0)
  })

  it('is not doubted where it has ended and its result is on its way', async () => {
    const { clock, run, store, state, kinds } = engineFixture({ maxRunMs: 1_000 })
    const { work, end } = openWork()
    const running = run(work)
    await clock.advanceAsync(900)
    store.next('settle', 'fail', 'fail', 'fail')
    end()
    await clock.advanceAsync(2_000)
    expect(await running).toMatchObject({ kind: 'ran' })
    expect(await state()).toBe('completed')
    expect(kinds()).not.toContain('reconcile_scheduled')
  })
})
