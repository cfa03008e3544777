import { describe, expect, it } from 'vitest'
import { OutcomeNotRecordedError, StoreFailedError } from '../../../src/core/errors.ts'
import type { Settlement } from '../../../src/core/store/store.ts'
import {
  bytes,
  engineFixture,
  heldWork,
  standing,
  type EngineFixture,
} from '../engine/engine-fixture.ts'

const HOUR_MS = 3_600_000

/** Runs work whose result the store does not record. */
async function unrecorded(fixture: EngineFixture, waitMs: number) {
  fixture.store.always('settle', 'fail')
  const running = fixture.run(() => bytes('paid')).catch((error: unknown) => error)
  await fixture.clock.advanceAsync(waitMs)
  return running
}

describe('a result that the store fails to record', () => {
  it('sends a result again while its caller waits', async () => {
    const fixture = engineFixture()
    const { run, store, clock, kinds } = fixture
    store.next('settle', 'fail', 'lose', 'ok')
    const running = run(() => bytes('paid'))
    await clock.advanceAsync(49)
    expect(await standing(running)).toBe('pending')
    await clock.advanceAsync(101)
    // The second try had been applied without an answer: the third gets the answer `settled`.
    expect(await running).toMatchObject({ kind: 'ran', result: bytes('paid') })
    expect(kinds()).not.toContain('settle_late')
    expect(clock.pendingTimers).toBe(0)
  })

  it('rejects instead of returning an unrecorded result after settleTimeoutMs', async () => {
    const fixture = engineFixture({ settleTimeoutMs: 2_000 })
    fixture.store.always('settle', 'fail')
    const answer = fixture.run(() => bytes('paid')).catch((reason: unknown) => reason)
    await fixture.clock.advanceAsync(1_999)
    expect(await standing(answer)).toBe('pending')
    await fixture.clock.advanceAsync(1)
    const error = (await answer) as OutcomeNotRecordedError
    expect(error).toBeInstanceOf(OutcomeNotRecordedError)
    expect(error.cause).toBeInstanceOf(StoreFailedError)
    expect(error.recordId).toBe((await fixture.record())?.recordId)
    expect(fixture.kinds().at(-1)).toBe('settle_late')
  })

  it('rejects after settleTimeoutMs if the store does not answer', async () => {
    const fixture = engineFixture({ settleTimeoutMs: 2_000 })
    fixture.store.always('settle', 'hang')
    const answer = fixture.run(() => bytes('paid')).catch((reason: unknown) => reason)
    await fixture.clock.advanceAsync(2_000)
    expect(await answer).toMatchObject({ code: 'OUTCOME_NOT_RECORDED' })
    expect(String(((await answer) as Error).cause)).toContain('no answer within 2000 ms')
  })

  // The call is answered after its caller got OutcomeNotRecordedError.
  it('records a result by a call that is answered after settleTimeoutMs', async () => {
    const fixture = engineFixture({ settleTimeoutMs: 2_000 })
    fixture.store.next('settle', { lateMs: 3_000 })
    const answer = fixture.run(() => bytes('paid')).catch((reason: unknown) => reason)
    await fixture.clock.advanceAsync(2_000)
    expect(await answer).toBeInstanceOf(OutcomeNotRecordedError)
    await fixture.clock.advanceAsync(1_000)
    expect(await fixture.state()).toBe('completed')
    expect(fixture.store.asked('settle')).toHaveLength(1)
    expect(fixture.clock.pendingTimers).toBe(0)
  })

  it('records a result in the background when the store works again', async () => {
    const fixture = engineFixture()
    const { clock, store, run } = fixture
    expect(await unrecorded(fixture, 5_000)).toBeInstanceOf(OutcomeNotRecordedError)
    await clock.advanceAsync(100_000)
    store.always('settle', 'ok')
    await clock.advanceAsync(5_000)
    expect(await run(() => bytes('x'))).toMatchObject({ kind: 'replayed', result: bytes('paid') })
    expect(clock.pendingTimers).toBe(0)
  })

  it('renews the lease of a result until the result is recorded', async () => {
    const fixture = engineFixture()
    const { clock, run } = fixture
    await unrecorded(fixture, 5_000)
    await clock.advanceAsync(500_000)
    expect(await run(() => bytes('x'))).toMatchObject({ kind: 'in_progress' })
    expect(await fixture.state()).toBe('in_progress')
  })

  it('wakes the waiting requests when a result is recorded in the background', async () => {
    const fixture = engineFixture({ whileInProgress: { waitMs: 60_000 } })
    const { clock, run, store } = fixture
    await unrecorded(fixture, 5_000)
    const waiting = run(() => bytes('x'))
    await clock.advanceAsync(10_000)
    expect(await standing(waiting)).toBe('pending')
    store.always('settle', 'ok')
    await clock.advanceAsync(5_000)
    expect(await waiting).toMatchObject({ kind: 'replayed', result: bytes('paid') })
  })

  it('abandons a result after an hour and reports settle_abandoned', async () => {
    const fixture = engineFixture()
    await unrecorded(fixture, 5_000)
    await fixture.clock.advanceAsync(HOUR_MS - 5_001)
    expect(fixture.kinds()).not.toContain('settle_abandoned')
    await fixture.clock.advanceAsync(10_000)
    expect(fixture.kinds().at(-1)).toBe('settle_abandoned')
    expect(fixture.clock.pendingTimers).toBe(0)
  })

  it('resolves a record that became unknown before the store worked again', async () => {
    const fixture = engineFixture()
    const { clock, store, records } = fixture
    store.always('renew', 'fail')
    await unrecorded(fixture, 5_000)
    await clock.advanceAsync(100_000)
    await records.sweep({ limit: 10 })
    expect(await fixture.state()).toBe('unknown')
    store.always('settle', 'ok')
    await clock.advanceAsync(5_000)
    expect(await fixture.record()).toMatchObject({ state: 'completed', result: bytes('paid') })
  })
})

describe('a release that the store fails to record', () => {
  it('returns the result or error of failed work even if its release is not recorded', async () => {
    const fixture = engineFixture()
    const { clock, store, run, kinds } = fixture
    store.always('settle', 'fail')
    const end = { kind: 'fail', result: bytes('failed'), error: new Error('x') } as const
    const released = run(() => end)
    const failing = () => Promise.reject(new Error('declined'))
    const thrown = run(failing, { key: 'b' }).catch((error: unknown) => error)
    await clock.advanceAsync(5_000)
    expect(await released).toMatchObject({ kind: 'released', result: bytes('failed') })
    expect(await thrown).toMatchObject({ message: 'declined' })
    expect(kinds().filter((kind) => kind === 'settle_late')).toHaveLength(2)
    store.always('settle', 'ok')
    await clock.advanceAsync(5_000)
    expect(await fixture.state()).toBe('failed_retryable')
    expect(clock.pendingTimers).toBe(0)
  })
})

describe('settlements in the background', () => {
  it('abandons a result that would exceed the bytes kept in the background', async () => {
    const fixture = engineFixture()
    const { clock, store, run, kinds } = fixture
    store.always('settle', 'fail')
    const large = new Uint8Array(40 * 1024 * 1024)
    const both = ['a', 'b'].map((key) => run(() => large, { key }).catch((error: unknown) => error))
    await clock.advanceAsync(5_000)
    for (const error of await Promise.all(both))
      expect(error).toBeInstanceOf(OutcomeNotRecordedError)
    // One continues; the other is abandoned, and not reported as late, too.
    expect(kinds().filter((kind) => kind === 'settle_late')).toHaveLength(1)
    expect(kinds().filter((kind) => kind === 'settle_abandoned')).toHaveLength(1)
    store.always('settle', 'ok')
    await clock.advanceAsync(5_000)
    expect(clock.pendingTimers).toBe(0)
  })

  it('abandons a result that would exceed the number kept in the background', async () => {
    const { run, clock, store, kinds } = engineFixture({ settleTimeoutMs: 1 })
    store.always('settle', 'hang')
    for (let round = 0; round < 3; round++) {
      // In rounds, because the number of requests that wait for the store is limited.
      const keys = Array.from({ length: 3_500 }, (_, n) => `${round}:${n}`)
      const runs = keys.map((key) => run(() => bytes('x'), { key }).catch(() => undefined))
      await clock.advanceAsync(1)
      await Promise.all(runs)
    }
    expect(kinds().filter((kind) => kind === 'settle_late')).toHaveLength(10_000)
    expect(kinds().filter((kind) => kind === 'settle_abandoned')).toHaveLength(500)
  })

  it('records a result of the background once, with unchanged bytes', async () => {
    const fixture = engineFixture()
    await unrecorded(fixture, 5_000)
    const tries = fixture.store.asked('settle').length
    fixture.store.always('settle', 'ok')
    await fixture.clock.advanceAsync(60_000)
    const asked = (fixture.store.asked('settle') as Settlement[][]).slice(tries)
    expect(asked).toHaveLength(1)
    expect(asked[0]).toMatchObject([{ kind: 'complete', result: bytes('paid') }])
  })
})

describe('a result that the store rejects', () => {
  it('does not send a rejected result again and marks its record unknown', async () => {
    const { store, clock, run, state, record } = engineFixture()
    const cause = new Error('too large')
    store.next(
      'settle',
      new StoreFailedError({ store: 'faulty', operation: 'settle', failure: 'rejected', cause }),
    )
    await expect(run(() => bytes('too much'))).rejects.toMatchObject({
      code: 'OUTCOME_NOT_RECORDED',
    })
    expect(store.asked('settle')).toHaveLength(2)
    expect(await state()).toBe('unknown')
    expect(await record()).toMatchObject({ errorCode: 'result_rejected' })
    expect(clock.pendingTimers).toBe(0)
  })
})

describe('a settlement of a lost lease', () => {
  it('reports a fenced settlement with the error of the work', async () => {
    const fixture = engineFixture({ onLapse: 'rerun' })
    const { clock, run, node, records, events } = fixture
    const { work, fail } = heldWork()
    const running = run(work)
    await clock.advanceAsync(0)
    clock.jumpWallTime(60_000)
    await records.sweep({ limit: 1 })
    await node()(() => bytes('from B'))
    const error = new Error('too late')
    fail(error)
    await expect(running).rejects.toThrow('too late')
    expect(events.at(-1)).toMatchObject({ kind: 'settle_fenced', attempt: 1, error })
    expect(await fixture.record()).toMatchObject({ state: 'completed', result: bytes('from B') })
  })
})
