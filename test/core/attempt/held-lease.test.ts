import { describe, expect, it } from 'vitest'
import { LeaseLostError } from '../../../src/core/errors.ts'
import type { Work, RunContext } from '../../../src/core/attempt/run-context.ts'
import type { Renewal } from '../../../src/core/store/store.ts'
import { FakeClock } from '../../../src/testing/fake-clock.ts'
import { bytes, engineFixture, heldWork, type EngineFixture } from '../engine/engine-fixture.ts'

const MAX_RUN_MS = 900_000

/** Work that exposes its context and ends when the test ends it. */
function openWork() {
  const { work, end, fail } = heldWork()
  let context: RunContext | undefined
  const open: Work = (own) => {
    context = own
    return work()
  }
  return { work: open, end, fail, context: () => context! }
}

/** A clock of a suspended process: all timers that were due fire when it resumes. */
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
  it('renews the lease after each third of it while the work runs, and not later', async () => {
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

  it('holds the key longer than leaseMs while the lease is renewed', async () => {
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

  // The claim is answered after 4 s: the store may count the lease from the moment it was sent.
  it('counts the lease from the time at which the claim was sent', async () => {
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

  it('keeps the lease when the wall clock jumps', async () => {
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

describe('a lease that is lost', () => {
  // B takes over the key of A, as after a suspension of A. The next renewal of A finds out.
  it('aborts the signal, fails assertHeld and fences the result of a lost lease', async () => {
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

  it('returns an aborted signal if the work first reads it after the lease is lost', async () => {
    const { clock, run, store } = engineFixture()
    store.always('renew', 'hang')
    const { work, context } = openWork()
    void run(work)
    await clock.advanceAsync(60_000)
    expect(context().signal.aborted).toBe(true)
    expect(context().signal.reason).toBeInstanceOf(LeaseLostError)
  })

  it('answers lease_lost if the record of a lost lease has no result', async () => {
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

  // The store does not answer the read that would find the result of B.
  it('answers lease_lost if the record of a lost lease cannot be read', async () => {
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
  it('repeats a failed renewal after a tenth of the lease', async () => {
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

  it('loses the lease exactly at its end if no renewal succeeds', async () => {
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

  it('loses the lease exactly at its end if the store does not answer', async () => {
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

  it('records the result of a lost lease if no other request took the key', async () => {
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

  // The process is suspended for longer than the lease, and no other request claims the key.
  it('asks the store after a suspension instead of giving the lease up', async () => {
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
  // Sent at 20 s and answered at 24 s: the store may count the lease from 20 s.
  it('extends the lease from the time at which the renewal was sent', async () => {
    const { clock, run, store } = engineFixture()
    store.next('renew', { lateMs: 4_000 }, ...Array.from({ length: 50 }, () => 'hang' as const))
    const { work, context } = openWork()
    void run(work)
    await clock.advanceAsync(79_999)
    context().assertHeld()
    await clock.advanceAsync(1)
    expect(() => context().assertHeld()).toThrow(LeaseLostError)
  })

  // The process resumes after the end of its lease, and the store confirms the lease 2 s later.
  it('restores the lease by a renewal that succeeds late after a suspension', async () => {
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

describe('work that runs longer than runTimeoutMs', () => {
  it('answers unknown after runTimeoutMs and ends the renewals', async () => {
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

  it('resolves the unknown record when the work completes after runTimeoutMs', async () => {
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

  it('leaves the record unknown if the work fails after runTimeoutMs without proof', async () => {
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

  it('runs the key for the next caller after runTimeoutMs with onLapse: rerun', async () => {
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

  it('records a result after runTimeoutMs if no other request took the key', async () => {
    const { clock, run } = engineFixture({ onLapse: 'rerun' })
    const { work, end } = openWork()
    const running = run(work)
    await clock.advanceAsync(MAX_RUN_MS)
    await running
    end('late')
    await clock.advanceAsync(0)
    expect(await run(() => bytes('x'))).toMatchObject({ kind: 'replayed', result: bytes('late') })
  })

  it('answers after runTimeoutMs even if the lease was lost before', async () => {
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

  it('does not mark the record unknown if runTimeoutMs passes during the settlement', async () => {
    const { clock, run, store, state, kinds } = engineFixture({ runTimeoutMs: 1_000 })
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
