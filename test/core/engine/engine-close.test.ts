import { describe, expect, it } from 'vitest'
import { bytes, engineFixture, heldWork, standing } from './engine-fixture.ts'

describe('close', () => {
  it('close resolves at once when nothing runs, and leaves no timer', async () => {
    const { engine, clock } = engineFixture({ sweepEveryMs: 60_000, reapEveryMs: 3_600_000 })
    expect(clock.pendingTimers).toBe(2)
    expect(await engine.close()).toEqual({ abandoned: 0 })
    expect(clock.pendingTimers).toBe(0)
  })

  it('close waits for running work, whose result is recorded', async () => {
    const { engine, run, clock, state } = engineFixture()
    const { work, end } = heldWork()
    const running = run(work)
    await clock.advanceAsync(0)
    const closing = engine.close()
    await clock.advanceAsync(5_000)
    expect(await standing(closing)).toBe('pending')
    end()
    expect(await running).toMatchObject({ kind: 'ran' })
    expect(await closing).toEqual({ abandoned: 0 })
    expect(await state()).toBe('completed')
    expect(clock.pendingTimers).toBe(0)
  })

  it('close waits for a claim that was in progress when it was called', async () => {
    const { engine, run, clock, store } = engineFixture()
    store.next('claim', { lateMs: 1_000 })
    const running = run(() => bytes('x'))
    await clock.advanceAsync(0)
    const closing = engine.close()
    await clock.advanceAsync(1_000)
    expect(await running).toMatchObject({ kind: 'ran' })
    expect(await closing).toEqual({ abandoned: 0 })
  })

  it('close reports the work that remains when the grace period is over', async () => {
    const { engine, run, clock } = engineFixture()
    const { work, end } = heldWork()
    const running = [run(work), run(work, { key: 'b' })]
    await clock.advanceAsync(0)
    const closing = engine.close({ graceMs: 2_000 })
    await clock.advanceAsync(1_999)
    expect(await standing(closing)).toBe('pending')
    await clock.advanceAsync(1)
    expect(await closing).toEqual({ abandoned: 2 })
    // Work that ends later is still recorded if the store answers.
    end()
    for (const outcome of await Promise.all(running)) expect(outcome.kind).toBe('ran')
    expect(clock.pendingTimers).toBe(0)
  })

  it('close waits for work that has outlived its caller, and counts it', async () => {
    const { engine, run, clock } = engineFixture({ runTimeoutMs: 1_000 })
    const { work, end } = heldWork()
    const running = run(work)
    await clock.advanceAsync(1_000)
    expect(await running).toMatchObject({ kind: 'unknown' })
    expect(await engine.close({ graceMs: 0 })).toEqual({ abandoned: 1 })
    const closing = engine.close()
    end()
    await clock.advanceAsync(1_000)
    expect(await closing).toEqual({ abandoned: 0 })
  })

  it('close waits for the doubt of work that timed out and then ended', async () => {
    const { engine, run, clock, store } = engineFixture({ runTimeoutMs: 1_000 })
    const { work, end } = heldWork()
    store.next('settle', { lateMs: 500 })
    const running = run(work)
    await clock.advanceAsync(1_000)
    end()
    expect(await running).toMatchObject({ kind: 'ran' })
    expect(await engine.close({ graceMs: 0 })).toEqual({ abandoned: 1 })
    const closing = engine.close()
    await clock.advanceAsync(499)
    expect(await standing(closing)).toBe('pending')
    await clock.advanceAsync(26)
    expect(await closing).toEqual({ abandoned: 0 })
  })

  it('close does not wait without a grace period', async () => {
    const { engine, run, clock } = engineFixture()
    void run(heldWork().work)
    await clock.advanceAsync(0)
    expect(await engine.close({ graceMs: 0 })).toEqual({ abandoned: 1 })
  })

  it('close waits for results that are recorded in the background', async () => {
    const { engine, run, clock, store, state } = engineFixture()
    store.always('settle', 'fail')
    const running = run(() => bytes('paid')).catch((error: unknown) => error)
    await clock.advanceAsync(5_000)
    expect(await running).toMatchObject({ code: 'OUTCOME_NOT_RECORDED' })
    const closing = engine.close()
    await clock.advanceAsync(2_000)
    expect(await standing(closing)).toBe('pending')
    store.always('settle', 'ok')
    await clock.advanceAsync(6_000)
    expect(await closing).toEqual({ abandoned: 0 })
    expect(await state()).toBe('completed')
  })

  it('close abandons unrecorded results after the grace period, and reports them', async () => {
    const { engine, run, clock, store, kinds } = engineFixture()
    store.always('settle', 'fail')
    const running = run(() => bytes('paid')).catch((error: unknown) => error)
    await clock.advanceAsync(5_000)
    await running
    const closing = engine.close({ graceMs: 1_000 })
    await clock.advanceAsync(1_000)
    expect(await closing).toEqual({ abandoned: 1 })
    await clock.advanceAsync(1)
    expect(kinds().at(-1)).toBe('settle_abandoned')
    expect(clock.pendingTimers).toBe(0)
  })

  it('close gives a result that comes after the grace period one try', async () => {
    const { engine, run, clock, store, kinds } = engineFixture()
    const { work, end } = heldWork()
    const running = run(work).catch((error: unknown) => error)
    await clock.advanceAsync(0)
    await engine.close({ graceMs: 0 })
    store.always('settle', 'fail')
    end()
    await clock.advanceAsync(0)
    expect(await running).toMatchObject({ code: 'OUTCOME_NOT_RECORDED' })
    expect(store.asked('settle')).toHaveLength(1)
    expect(kinds().slice(-1)).toEqual(['settle_abandoned'])
    expect(kinds()).not.toContain('settle_late')
    expect(clock.pendingTimers).toBe(0)
  })

  it('close releases lost claims again, and waits for that', async () => {
    const { engine, run, clock, store, state } = engineFixture()
    store.next('claim', { swallowAfterMs: 5_800 })
    const running = run(() => bytes('x')).catch((error: unknown) => error)
    await clock.advanceAsync(5_850)
    expect(await running).toMatchObject({ code: 'STORE_FAILED' })
    expect(await state()).toBe('in_progress')
    store.next('settle', { lateMs: 1_000 })
    const closing = engine.close()
    await clock.advanceAsync(999)
    expect(await standing(closing)).toBe('pending')
    await clock.advanceAsync(26)
    expect(await closing).toEqual({ abandoned: 0 })
    expect(await state()).toBe('failed_retryable')
    expect(clock.pendingTimers).toBe(0)
  })

  it('close does not look indefinitely for a claim that never took effect', async () => {
    const { engine, run, clock, store } = engineFixture()
    store.next('claim', 'hang')
    const running = run(() => bytes('x')).catch((error: unknown) => error)
    await clock.advanceAsync(5_000)
    await running
    const closing = engine.close()
    await clock.advanceAsync(25)
    expect(await closing).toEqual({ abandoned: 0 })
    expect(clock.pendingTimers).toBe(0)
  })

  it('close may be called twice, at once or later', async () => {
    const { engine, run, clock } = engineFixture()
    const { work, end } = heldWork()
    const running = run(work)
    await clock.advanceAsync(0)
    const both = [engine.close(), engine.close()]
    await clock.advanceAsync(100)
    end()
    await running
    await clock.advanceAsync(25)
    expect(await Promise.all(both)).toEqual([{ abandoned: 0 }, { abandoned: 0 }])
    expect(await engine.close()).toEqual({ abandoned: 0 })
    expect(clock.pendingTimers).toBe(0)
  })

  it('reading and verdicts work after close', async () => {
    const { engine, run } = engineFixture()
    const { recordId } = await run((context) => {
      context.outcomeUnknown()
      return bytes('perhaps')
    })
    await engine.close()
    expect(await engine.list({ state: 'unknown' })).toHaveLength(1)
    const resolved = await engine.resolve({ recordId }, { kind: 'failed_retryable' })
    expect(resolved.kind).toBe('resolved')
  })
})
