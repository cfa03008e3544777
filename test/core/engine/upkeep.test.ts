import { describe, expect, it } from 'vitest'
import type { SweptRecord } from '../../../src/core/store/store.ts'
import { KEY, SCOPE, bytes, engineFixture, heldWork } from './engine-fixture.ts'

const HOUR_MS = 3_600_000
const DAY_MS = 24 * HOUR_MS

describe('the sweep', () => {
  it('the sweep runs every minute, and moves lapsed records on', async () => {
    const { run, clock, store, events, state } = engineFixture({ sweepEveryMs: 60_000 })
    store.always('renew', 'hang')
    void run(heldWork().work)
    await clock.advanceAsync(59_999)
    expect(store.asked('sweep')).toHaveLength(0)
    await clock.advanceAsync(1)
    expect(store.asked('sweep')).toEqual([{ limit: 1_000 }])
    expect(await state()).toBe('unknown')
    const about = { tenant: 'acme', operation: 'pay' }
    const swept = events.filter(
      ({ kind }) => kind === 'zombie_key' || kind === 'reconcile_scheduled',
    )
    expect(swept).toMatchObject([
      { kind: 'zombie_key', ...about, attempt: 1, to: 'unknown' },
      { kind: 'reconcile_scheduled', ...about, errorCode: 'lease_lapsed' },
    ])
    await clock.advanceAsync(60_000)
    expect(store.asked('sweep')).toHaveLength(2)
  })

  it('the sweep schedules no reconciliation for a record that may run again', async () => {
    const { run, clock, store, engine, kinds } = engineFixture({ onLapse: 'rerun' })
    store.always('renew', 'hang')
    void run(heldWork().work)
    await clock.advanceAsync(60_000)
    expect(await engine.sweep()).toBe(1)
    expect(kinds()).not.toContain('reconcile_scheduled')
    expect(await engine.sweep()).toBe(0)
  })

  it('the sweep continues while batches are full, up to a limit', async () => {
    const { engine, store } = engineFixture()
    const swept: SweptRecord = { identity: 'i', recordId: 'r', ...SCOPE, attempt: 1, to: 'unknown' }
    let calls = 0
    const batches = (full: number) => {
      calls = 0
      store.sweep = async () => Array.from({ length: ++calls <= full ? 1_000 : 3 }, () => swept)
    }
    batches(2)
    expect(await engine.sweep()).toBe(2_003)
    expect(calls).toBe(3)
    batches(1_000_000)
    expect(await engine.sweep()).toBe(100_000)
    expect(calls).toBe(100)
  })

  it('a failed sweep is an event, and the next one runs', async () => {
    const { clock, store, events } = engineFixture({ sweepEveryMs: 60_000 })
    store.next('sweep', 'fail')
    await clock.advanceAsync(60_000)
    expect(events).toMatchObject([{ kind: 'store_error', store: 'faulty', call: 'sweep' }])
    await clock.advanceAsync(60_000)
    expect(store.asked('sweep')).toHaveLength(2)
    expect(events).toHaveLength(1)
  })

  it('a sweep that is never answered does not prevent the next one', async () => {
    const { clock, store, kinds } = engineFixture({ sweepEveryMs: 60_000 })
    store.next('sweep', 'hang')
    await clock.advanceAsync(60_000 + 60_000)
    expect(kinds()).toEqual(['store_error'])
    await clock.advanceAsync(60_000)
    expect(store.asked('sweep')).toHaveLength(2)
  })

  it('a requested sweep passes its failure to the caller', async () => {
    const { engine, store } = engineFixture()
    store.next('sweep', 'fail')
    await expect(engine.sweep()).rejects.toMatchObject({ code: 'STORE_FAILED', operation: 'sweep' })
    store.next('reap', 'fail')
    await expect(engine.reap()).rejects.toMatchObject({ code: 'STORE_FAILED', operation: 'reap' })
  })
})

describe('the reap', () => {
  it('the reap runs every hour, and removes expired records', async () => {
    const { run, clock, store, events, state } = engineFixture({ reapEveryMs: HOUR_MS })
    await run(() => bytes('x'))
    await clock.advanceAsync(DAY_MS - 1)
    expect(store.asked('reap')).toHaveLength(23)
    expect(events.map(({ kind }) => kind)).toEqual(['reserve_created'])
    await clock.advanceAsync(1)
    expect(store.asked('reap').at(-1)).toMatchObject({ limit: 100 })
    expect(events.at(-1)).toEqual({ kind: 'ttl_pruned', count: 1 })
    expect(await state()).toBeUndefined()
  })

  it('the reap continues while batches are full, up to a limit', async () => {
    const { engine, store, events, clock } = engineFixture()
    let calls = 0
    store.reap = async () => {
      calls++
      return { removed: 40, expired: 60, abandoned: 0 }
    }
    const pass = engine.reap()
    // No time passes within a call here, so the pauses have zero length.
    for (let n = 0; n < 1_000; n++) await clock.advanceAsync(0)
    expect(await pass).toBe(100_000)
    expect(calls).toBe(1_000)
    expect(events).toEqual([{ kind: 'ttl_pruned', count: 100_000 }])
  })

  it('the reap pauses after a full batch, nine times as long as the batch took', async () => {
    const { engine, store, clock } = engineFixture()
    let calls = 0
    store.reap = async () => {
      clock.advance(10)
      return { removed: calls++ === 0 ? 100 : 0, expired: 0, abandoned: 0 }
    }
    const pass = engine.reap()
    await clock.advanceAsync(89)
    expect(calls).toBe(1)
    await clock.advanceAsync(1)
    expect(await pass).toBe(100)
    expect(calls).toBe(2)
  })

  it('the reap never changes an unknown record', async () => {
    const { run, clock, engine, state } = engineFixture()
    await run((context) => {
      context.outcomeUnknown()
      return bytes('x')
    })
    await clock.advanceAsync(1_000 * DAY_MS)
    expect(await engine.reap()).toBe(0)
    expect(await state()).toBe('unknown')
  })
})

describe('upkeep', () => {
  it('upkeep ends with the engine, even in the middle of a pass', async () => {
    const { engine, clock, store } = engineFixture({ sweepEveryMs: 60_000, reapEveryMs: HOUR_MS })
    store.next('sweep', { lateMs: 1_000 })
    await clock.advanceAsync(60_000)
    await engine.close()
    await clock.advanceAsync(2 * HOUR_MS)
    expect(store.asked('sweep')).toHaveLength(1)
    expect(store.asked('reap')).toHaveLength(0)
    expect(clock.pendingTimers).toBe(0)
  })

  it('upkeep starts no further batch once the engine is closed', async () => {
    const { engine, clock, store } = engineFixture({ sweepEveryMs: 60_000, reapEveryMs: 60_000 })
    const swept: SweptRecord = { identity: 'i', recordId: 'r', ...SCOPE, attempt: 1, to: 'unknown' }
    const calls: string[] = []
    store.sweep = async () => {
      calls.push('sweep')
      await engine.close()
      return Array.from({ length: 1_000 }, () => swept)
    }
    store.reap = async () => {
      calls.push('reap')
      return { removed: 1_000, expired: 0, abandoned: 0 }
    }
    const reap = engine.reap()
    await clock.advanceAsync(60_000)
    await reap
    expect(calls.filter((call) => call === 'sweep')).toHaveLength(1)
    calls.length = 0
    await engine.reap()
    expect(calls).toEqual(['reap'])
  })
})

describe('a verdict', () => {
  const doubted = async (options = {}) => {
    const fixture = engineFixture(options)
    const { recordId } = await fixture.run((context) => {
      context.outcomeUnknown()
      return bytes('perhaps')
    })
    return { ...fixture, recordId }
  }

  it('a verdict of completion is what retries get from then on', async () => {
    const { engine, run, recordId, clock, events } = await doubted()
    const verdict = { kind: 'completed', result: bytes('it went through') } as const
    const resolved = await engine.resolve({ recordId }, verdict)
    const expiresAt = new Date(clock.nowMs() + DAY_MS)
    expect(resolved).toMatchObject({ kind: 'resolved', record: { state: 'completed', expiresAt } })
    expect(await run(() => bytes('x'))).toMatchObject({
      kind: 'replayed',
      recordId,
      result: bytes('it went through'),
      expiresAt,
    })
    expect(events.at(-2)).toMatchObject({ kind: 'reconcile_resolved', recordId, to: 'completed' })
  })

  it('a verdict of no effect lets the next request run', async () => {
    const { engine, run } = await doubted()
    const target = { scope: SCOPE, key: KEY }
    const resolved = await engine.resolve(target, { kind: 'failed_retryable' })
    expect(resolved).toMatchObject({ kind: 'resolved', record: { proof: 'proven' } })
    expect(await run(() => bytes('again'))).toMatchObject({ kind: 'ran' })
  })

  it('a verdict on any other record changes nothing, and is reported', async () => {
    const { engine, run, events } = engineFixture()
    const verdict = { kind: 'failed_retryable' } as const
    expect(await engine.resolve({ recordId: 'absent' }, verdict)).toEqual({ kind: 'not_found' })
    const { recordId } = await run(() => bytes('x'))
    expect(await engine.resolve({ recordId }, verdict)).toEqual({
      kind: 'not_unknown',
      state: 'completed',
    })
    expect(events.filter(({ kind }) => kind === 'reconcile_failed')).toEqual([
      { kind: 'reconcile_failed', reason: 'not_found' },
      { kind: 'reconcile_failed', reason: 'not_unknown' },
    ])
  })

  it('a verdict that the store does not answer times out', async () => {
    const { engine, recordId, store, clock, state } = await doubted()
    for (const fate of ['fail', 'hang'] as const) {
      store.next('resolve', fate)
      const verdict = engine.resolve({ recordId }, { kind: 'failed_retryable' })
      const failed = verdict.catch((error: unknown) => error)
      await clock.advanceAsync(5_000)
      expect(await failed).toMatchObject({ code: 'STORE_FAILED', operation: 'resolve' })
    }
    store.resolve = async () => []
    await expect(engine.resolve({ recordId }, { kind: 'failed_retryable' })).rejects.toThrow(
      'the store returned no answer',
    )
    expect(await state()).toBe('unknown')
  })
})

describe('reading', () => {
  it('a record is found by its id, or by its scope and key', async () => {
    const { engine, run } = engineFixture()
    const { recordId } = await run(() => bytes('x'))
    const view = await engine.read({ recordId })
    expect(view).toMatchObject({ recordId, state: 'completed', key: KEY })
    expect(await engine.read({ scope: SCOPE, key: KEY })).toEqual(view)
    expect(await engine.read({ scope: SCOPE, key: 'another' })).toBeUndefined()
  })

  it('list returns at most a hundred records of a state by default', async () => {
    const { engine, run, store } = engineFixture()
    await run(() => bytes('x'))
    expect(await engine.list({ state: 'completed' })).toHaveLength(1)
    await engine.list({ state: 'unknown', limit: 10_000 })
    expect(store.asked('list')).toEqual([
      { state: 'completed', limit: 100 },
      { state: 'unknown', limit: 10_000 },
    ])
  })

  it('reading times out when the store is silent', async () => {
    const { engine, store, clock } = engineFixture()
    store.always('read', 'hang')
    store.always('list', 'hang')
    const calls = [engine.read({ recordId: 'r' }), engine.list({ state: 'unknown' })]
    const failed = calls.map((call) => call.catch((error: unknown) => error))
    await clock.advanceAsync(5_000)
    for (const error of await Promise.all(failed)) {
      expect(error).toMatchObject({ code: 'STORE_FAILED' })
    }
  })
})
