import { describe, expect, it } from 'vitest'
import type { RunContext, WorkResult } from '../../../src/core/attempt/run-context.ts'
import { DAY_MS } from '../../../src/core/time/durations.ts'
import { bytes, engineFixture, gate, heldWork } from './engine-fixture.ts'

/** Work that returns its downstream key and its deterministic id as its result. */
const ids = (context: RunContext): Uint8Array =>
  bytes(`${context.downstreamKey('charge')} ${context.deterministicId('order')}`)

const text = (outcome: object): string =>
  new TextDecoder().decode((outcome as { result: Uint8Array }).result)

describe('the ids of a late retry', () => {
  it('are those of the first request after the expiry and after the removal', async () => {
    const { run, clock, engine, kinds } = engineFixture()
    const first = await run(ids)
    await clock.advanceAsync(DAY_MS)
    const second = await run(ids)
    expect(second.kind).toBe('ran')
    expect(text(second)).toBe(text(first))
    expect(kinds()).toEqual(['reserve_created', 'reserve_reused'])
    await clock.advanceAsync(DAY_MS)
    await engine.reap()
    expect(text(await run(ids))).toBe(text(first))
  })

  it('do not depend on the fingerprint', async () => {
    const { run, clock } = engineFixture()
    const first = await run(ids)
    await clock.advanceAsync(DAY_MS)
    expect(text(await run(ids, { fingerprint: 'another' }))).toBe(text(first))
  })

  it('differ for another key, tenant, operation or principal', async () => {
    const { run } = engineFixture()
    const scope = { tenant: 't', operation: 'o' }
    const outcomes = [
      await run(ids, { scope, key: 'a' }),
      await run(ids, { scope, key: 'b' }),
      await run(ids, { scope: { ...scope, tenant: 'u' }, key: 'a' }),
      await run(ids, { scope: { ...scope, operation: 'p' }, key: 'a' }),
      await run(ids, { scope: { ...scope, principal: 'ada' }, key: 'a' }),
    ]
    expect(new Set(outcomes.map(text)).size).toBe(outcomes.length)
  })

  it('are new with idsFrom record, and the same on each attempt of one record', async () => {
    const { run, clock } = engineFixture({ idsFrom: 'record' })
    let released = ''
    await run((context) => {
      released = new TextDecoder().decode(ids(context))
      context.notExecuted()
      return bytes('x')
    })
    const first = await run(ids)
    expect(text(first)).toBe(released)
    await clock.advanceAsync(DAY_MS)
    expect(text(await run(ids))).not.toBe(text(first))
  })

  it('stay with a record when the policy changes', async () => {
    const { run, engine } = engineFixture()
    let released = ''
    await run((context) => {
      released = new TextDecoder().decode(ids(context))
      context.notExecuted()
      return bytes('x')
    })
    const policy = engine.policy({ idsFrom: 'record' })
    expect(text(await run(ids, { policy }))).toBe(released)
  })
})

describe('afterExpiry: { refuseForMs }', () => {
  it('refuses a late retry for that time, also after a reap, and then runs', async () => {
    const { run, clock, engine } = engineFixture({ afterExpiry: { refuseForMs: DAY_MS } })
    const { recordId } = await run(ids)
    await clock.advanceAsync(DAY_MS)
    expect(await run(ids)).toEqual({ kind: 'expired', recordId })
    await engine.reap()
    await clock.advanceAsync(DAY_MS - 1)
    expect(await run(ids)).toEqual({ kind: 'expired', recordId })
    await clock.advanceAsync(1)
    expect((await run(ids)).kind).toBe('ran')
  })
})

describe('a look-up', () => {
  it('replays a result, and runs nothing for a free key', async () => {
    const { run, engine, kinds } = engineFixture()
    let runs = 0
    const work = () => {
      runs++
      return bytes('x')
    }
    expect(await run(work, { findOnly: true })).toMatchObject({ kind: 'free' })
    expect(await engine.list({ state: 'in_progress' })).toEqual([])
    expect([runs, kinds()]).toEqual([0, []])
    const first = await run(work)
    expect(await run(work, { findOnly: true })).toEqual({ ...first, kind: 'replayed' })
    expect(runs).toBe(1)
  })

  it('waits for a result as other duplicates do, and does not take over the work', async () => {
    const { run, clock } = engineFixture({ whileInProgress: { waitMs: 5_000 } })
    const held = heldWork()
    const first = run(held.work)
    await clock.advanceAsync(0)
    const found = run(() => bytes('never'), { findOnly: true })
    await clock.advanceAsync(10)
    held.end('first')
    await first
    await clock.advanceAsync(5_000)
    expect(await found).toMatchObject({ kind: 'replayed' })
  })

  it('does not share a wait with a duplicate that may run', async () => {
    const { run, clock } = engineFixture({ whileInProgress: { waitMs: 5_000 } })
    const released = gate<WorkResult>()
    const first = run(() => released.opened)
    await clock.advanceAsync(0)
    const found = run(() => bytes('never'), { findOnly: true })
    const retry = run(() => bytes('second'))
    await clock.advanceAsync(0)
    released.open({ kind: 'release', result: bytes('x') })
    await first
    await clock.advanceAsync(5_000)
    expect(await retry).toMatchObject({ kind: 'ran' })
    expect((await found).kind).not.toBe('ran')
  })

  it('releases no lost claim, because it has claimed nothing', async () => {
    const { run, store, clock } = engineFixture()
    store.next('claim', 'fail')
    await expect(run(() => bytes('x'), { findOnly: true })).rejects.toThrow(/failed/)
    await clock.advanceAsync(60_000)
    expect(store.asked('settle')).toEqual([])
  })
})
