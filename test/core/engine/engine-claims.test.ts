import { describe, expect, it } from 'vitest'
import { StoreFailedError } from '../../../src/core/errors.ts'
import type { Settlement } from '../../../src/core/store/store.ts'
import { bytes, engineFixture, heldWork, standing, type EngineFixture } from './engine-fixture.ts'

/** The settlements that released a claim by its token. */
function releases({ store }: EngineFixture): Settlement[] {
  return (store.asked('settle') as Settlement[][])
    .flat()
    .filter(({ kind, lease }) => kind === 'release' && lease.attempt === 0)
}

/** Runs work that must not start, and returns the error. */
async function refused({ run, clock }: EngineFixture, waitMs: number): Promise<StoreFailedError> {
  const { work, entered } = heldWork()
  const failure = run(work).then(
    () => expect.fail('expected the claim to be refused'),
    (error: unknown) => error,
  )
  await clock.advanceAsync(waitMs)
  expect(entered()).toBe(0)
  const error = await failure
  expect(error).toBeInstanceOf(StoreFailedError)
  return error as StoreFailedError
}

describe('a claim that fails', () => {
  it('a claim that fails is STORE_FAILED, and the work does not run', async () => {
    const fixture = engineFixture()
    fixture.store.next('claim', 'fail')
    const error = await refused(fixture, 0)
    expect(error).toMatchObject({ code: 'STORE_FAILED', store: 'faulty', operation: 'claim' })
    expect(fixture.events[0]).toMatchObject({ kind: 'store_error', call: 'claim', error })
    expect(await fixture.run(() => bytes('ok'))).toMatchObject({ kind: 'ran' })
  })

  it('a rejected or overloaded claim needs no release, because it wrote nothing', async () => {
    for (const failure of ['rejected', 'overloaded'] as const) {
      const fixture = engineFixture()
      const cause = new Error('no room')
      const error = new StoreFailedError({ store: 'faulty', operation: 'claim', failure, cause })
      fixture.store.next('claim', error)
      expect(await refused(fixture, 60_000)).toBe(error)
      expect(releases(fixture)).toEqual([])
      expect(fixture.clock.pendingTimers).toBe(0)
    }
  })

  it('a claim times out after storeTimeoutMs', async () => {
    const fixture = engineFixture({ storeTimeoutMs: 700 })
    fixture.store.next('claim', 'hang')
    const running = fixture.run(() => bytes('x')).catch((error: unknown) => error)
    await fixture.clock.advanceAsync(699)
    expect(await standing(running)).toBe('pending')
    await fixture.clock.advanceAsync(1)
    expect(await running).toMatchObject({ code: 'STORE_FAILED', failure: 'unavailable' })
  })
})

describe('a claim whose answer is lost', () => {
  it('a claim whose answer is lost is released by its token, which frees the key', async () => {
    for (const fate of ['lose', 'swallow'] as const) {
      const fixture = engineFixture()
      fixture.store.next('claim', fate)
      await refused(fixture, 5_000)
      expect(await fixture.record()).toMatchObject({
        state: 'failed_retryable',
        proof: 'proven',
        errorCode: 'claim_unanswered',
      })
      expect(await fixture.run(() => bytes('ok'))).toMatchObject({ kind: 'ran' })
      expect(fixture.clock.pendingTimers).toBe(0)
    }
  })

  // The first releases find nothing; then the claim takes effect; then a release finds it.
  it('a lost claim is released even if it takes effect after the first release', async () => {
    const fixture = engineFixture()
    const { store, clock, records } = fixture
    store.next('claim', { swallowAfterMs: 20_000 })
    await refused(fixture, 5_000)
    expect(releases(fixture).length).toBeGreaterThan(0)
    await clock.advanceAsync(14_999)
    expect(await records.list({ state: 'failed_retryable', limit: 1 })).toEqual([])
    // At the latest in the second half of the lease.
    await clock.advanceAsync(15_001)
    expect(await fixture.record()).toMatchObject({ state: 'failed_retryable', proof: 'proven' })
    await clock.advanceAsync(60_000)
    expect(clock.pendingTimers).toBe(0)
  })

  it('a lost claim is released in spite of failures of the store', async () => {
    const fixture = engineFixture()
    fixture.store.next('claim', 'lose')
    fixture.store.next('settle', 'fail', 'hang', 'fail', 'lose')
    await refused(fixture, 0)
    await fixture.clock.advanceAsync(10_000)
    expect(await fixture.state()).toBe('failed_retryable')
    expect(await fixture.run(() => bytes('ok'))).toMatchObject({ kind: 'ran' })
  })

  it('the engine stops looking for a lost claim after its lease would be over', async () => {
    const fixture = engineFixture()
    fixture.store.next('claim', 'hang')
    await refused(fixture, 5_000)
    await fixture.clock.advanceAsync(65_000)
    const tries = releases(fixture).length
    // At once, after 1, 4 and 13 s, in the middle of the lease and near its end.
    expect(tries).toBe(6)
    await fixture.clock.advanceAsync(600_000)
    expect(releases(fixture)).toHaveLength(tries)
    expect(fixture.clock.pendingTimers).toBe(0)
  })

  // The claim of A is lost without effect; B then takes the key.
  it('a lost claim never releases the claim of another node', async () => {
    const fixture = engineFixture()
    const { work, end } = heldWork()
    fixture.store.next('claim', 'hang')
    await refused(fixture, 5_000)
    const other = fixture.node()(work)
    await fixture.clock.advanceAsync(100_000)
    expect(await fixture.state()).toBe('in_progress')
    end()
    expect(await other).toMatchObject({ kind: 'ran' })
  })

  it('the engine tracks at most ten thousand lost claims', async () => {
    const { engine, run, store, clock } = engineFixture({ breaker: false })
    store.always('claim', 'fail')
    for (let round = 0; round < 2; round++) {
      const keys = Array.from({ length: 6_000 }, (_, n) => `${round}:${n}`)
      await Promise.all(keys.map((key) => run(() => bytes('x'), { key }).catch(() => undefined)))
    }
    await clock.advanceAsync(0)
    // One timer for all of them.
    expect(clock.pendingTimers).toBe(1)
    const before = store.asked('settle').flat().length
    const closing = engine.close()
    await clock.advanceAsync(100)
    await closing
    expect(store.asked('settle').flat().length - before).toBe(10_000)
  })

  it('releases of lost claims use a separate queue, which leaves room for results', async () => {
    const fixture = engineFixture()
    const { run, store, clock } = fixture
    const { work, end } = heldWork()
    const running = run(work, { key: 'runs already' })
    await clock.advanceAsync(0)
    store.always('claim', 'fail')
    const failed = Array.from({ length: 10_500 }, (_, n) =>
      run(work, { key: `k${n}` }).catch((error: unknown) => error),
    )
    store.next('settle', 'hang')
    await clock.advanceAsync(1)
    end()
    expect(await running).toMatchObject({ kind: 'ran' })
    await Promise.all(failed)
  })
})

describe('a claim that is answered too late', () => {
  // The answer takes longer than the lease, so another node may hold the key.
  it('a claim that is answered after its lease is released and does not run', async () => {
    const fixture = engineFixture({ leaseMs: 1_000 })
    fixture.store.next('claim', { lateMs: 0 })
    const clock = fixture.clock
    const { work, entered } = heldWork()
    const running = fixture.run(work).catch((error: unknown) => error)
    await clock.advanceAsync(0)
    expect(entered()).toBe(1)

    const late = engineFixture({ leaseMs: 1_000 })
    late.store.next('claim', { lateMs: 1_000 })
    const error = await refused(late, 1_000)
    expect(error.message).toContain('after the lease of 1000 ms had ended')
    expect(late.kinds()).toContain('store_error')
    await late.clock.advanceAsync(0)
    expect(await late.state()).toBe('failed_retryable')
    expect(await standing(running)).toBe('pending')
  })
})
