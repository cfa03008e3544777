import { describe, expect, it } from 'vitest'
import { EngineClosedError, InvalidRequestError } from '../../../src/core/errors.ts'
import type { RunContext } from '../../../src/core/attempt/run-context.ts'
import { SCOPE, bytes, engineFixture, heldWork, text } from './engine-fixture.ts'

const DAY_MS = 86_400_000

describe('a first request', () => {
  it('a first request runs the work and records its result before it is answered', async () => {
    const { run, clock, record, kinds } = engineFixture()
    const outcome = await run(() => bytes('paid'))
    const expiresAt = new Date(clock.nowMs() + DAY_MS)
    const recordId = expect.any(String)
    expect(outcome).toMatchObject({ kind: 'ran', recordId, result: bytes('paid'), expiresAt })
    expect(await record()).toMatchObject({ state: 'completed', result: bytes('paid'), expiresAt })
    expect(kinds()).toEqual(['reserve_created'])
    expect(clock.pendingTimers).toBe(0)
  })

  it('work may return a completion without bytes', async () => {
    const { run } = engineFixture()
    const empty = new Uint8Array(0)
    const ran = await run(async () => ({ kind: 'complete', result: empty }))
    expect(ran).toMatchObject({ kind: 'ran', result: empty })
    expect(await run(() => bytes('never'))).toMatchObject({ kind: 'replayed', result: empty })
  })

  it('a request does not run when its identity cannot be stored', async () => {
    const { run, store } = engineFixture()
    const { work, entered } = heldWork()
    await expect(run(work, { key: '' })).rejects.toThrow(InvalidRequestError)
    await expect(run(work, { scope: { tenant: 'null', operation: 'o' } })).rejects.toThrow(
      InvalidRequestError,
    )
    expect(entered()).toBe(0)
    expect(store.asked('claim')).toEqual([])
  })
})

describe('a retry', () => {
  it('a retry gets the first result until it expires, and then runs', async () => {
    const { run, clock, kinds } = engineFixture()
    const first = await run(() => bytes('first'))
    await clock.advanceAsync(DAY_MS - 1)
    expect(await run(() => bytes('second'))).toEqual({ ...first, kind: 'replayed' })
    await clock.advanceAsync(1)
    expect(await run(() => bytes('second'))).toMatchObject({ kind: 'ran', result: bytes('second') })
    expect(kinds()).toEqual(['reserve_created', 'reserve_replay', 'reserve_reused'])
  })

  it('a retry is refused after the expiry when the policy is refuse', async () => {
    const { run, clock, engine, kinds } = engineFixture({ afterExpiry: 'refuse' })
    const { recordId } = await run(() => bytes('first'))
    await clock.advanceAsync(DAY_MS)
    const refused = { kind: 'expired', recordId }
    expect(await run(() => bytes('second'))).toEqual(refused)
    expect(await engine.reap()).toBe(1)
    expect(await run(() => bytes('third'))).toEqual(refused)
    expect(kinds().filter((kind) => kind === 'reserve_expired')).toHaveLength(2)
  })

  it('a retry during the run gets the remaining lease of the holder', async () => {
    const { run, clock, kinds } = engineFixture()
    const { work, end, entered } = heldWork()
    const first = run(work)
    await clock.advanceAsync(10_000)
    const second = await run(work)
    expect(second).toMatchObject({ kind: 'in_progress', retryAfterMs: 50_000 })
    end()
    expect(await first).toMatchObject({ kind: 'ran', recordId: second.recordId })
    expect(entered()).toBe(1)
    expect(kinds()).toEqual(['reserve_created', 'reserve_in_progress'])
  })

  it('a retry with another request is a mismatch, before and after the first ends', async () => {
    const { run, clock, kinds } = engineFixture()
    const { work, end } = heldWork()
    const first = run(work)
    await clock.advanceAsync(0)
    const other = await run(() => bytes('other'), { fingerprint: 'g' })
    end()
    const { recordId } = await first
    expect(other).toEqual({ kind: 'mismatch', recordId })
    expect(await run(() => bytes('other'), { fingerprint: 'g' })).toEqual(other)
    expect(kinds().filter((kind) => kind === 'reserve_key_misuse')).toHaveLength(2)
  })

  it('a request under another key, operation or tenant is a first request', async () => {
    const { run } = engineFixture()
    await run(() => bytes('first'))
    const others = [
      { key: 'another' },
      { scope: { ...SCOPE, operation: 'refund' } },
      { scope: { ...SCOPE, tenant: 'umbrella' } },
    ]
    for (const other of others) {
      expect(await run(() => bytes('second'), other)).toMatchObject({ kind: 'ran' })
    }
  })
})

describe('an older fingerprint', () => {
  it('an older fingerprint is recomputed, and the request is the same', async () => {
    const { run } = engineFixture()
    await run(() => bytes('first'), { fingerprint: 'v1:a' })
    const asked: string[] = []
    const recompute = (stored: string) => {
      asked.push(stored)
      return 'v1:a'
    }
    const outcome = await run(() => bytes('second'), { fingerprint: 'v2:a', recompute })
    expect(outcome).toMatchObject({ kind: 'replayed', result: bytes('first') })
    expect(asked).toEqual(['v1:a'])
  })

  it('an older fingerprint that differs or cannot be recomputed is a mismatch', async () => {
    const { run } = engineFixture()
    await run(() => bytes('first'), { fingerprint: 'v1:a' })
    for (const recomputed of ['v1:b', undefined]) {
      const changes = { fingerprint: 'v2:b', recompute: () => recomputed }
      expect(await run(() => bytes('second'), changes)).toMatchObject({ kind: 'mismatch' })
    }
  })

  it('an older fingerprint is not recomputed when the new one matches', async () => {
    const { run } = engineFixture()
    await run(() => bytes('first'))
    const recompute = () => expect.fail('must not recompute')
    expect(await run(() => bytes('x'), { recompute })).toMatchObject({ kind: 'replayed' })
  })
})

describe('a lapsed lease', () => {
  // The first node dies while its work runs; a retry comes after the lease.
  it('a lapsed lease makes the outcome unknown by default', async () => {
    const { run, node, clock, records, kinds, events } = engineFixture()
    const dead = heldWork()
    void node({ store: dyingStore(records) })(dead.work)
    await clock.advanceAsync(60_000)
    const outcome = await run(() => bytes('second'))
    expect(outcome).toMatchObject({ kind: 'unknown', retryAfterMs: 0 })
    expect(kinds()).toEqual(['zombie_key', 'reconcile_scheduled', 'reserve_unknown'])
    expect(events[0]).toMatchObject({ to: 'unknown', recordId: outcome.recordId })
    expect(await run(() => bytes('third'))).toMatchObject({ kind: 'unknown' })
    expect(kinds().slice(3)).toEqual(['reserve_unknown'])
  })

  it('a lapsed key runs again when the route allows it, up to maxLapses', async () => {
    const { run, node, clock, records, events } = engineFixture({
      onLapse: 'rerun',
      maxLapses: 2,
    })
    const rerun = { onLapse: 'rerun', maxLapses: 2, store: dyingStore(records) } as const
    void node(rerun)(heldWork().work)
    await clock.advanceAsync(60_000)
    void node(rerun)(heldWork().work)
    await clock.advanceAsync(60_000)
    expect(await run(() => bytes('third'))).toMatchObject({ kind: 'unknown' })
    expect(events[0]).toMatchObject({ kind: 'zombie_key', to: 'unknown' })
  })

  it('the takeover of a lapsed key is reported as the lapse of the earlier attempt', async () => {
    const { run, node, clock, records, events } = engineFixture({ onLapse: 'rerun' })
    void node({ onLapse: 'rerun', store: dyingStore(records) })(heldWork().work)
    await clock.advanceAsync(60_000)
    let attempt = 0
    const outcome = await run((context) => {
      attempt = context.attempt
      return bytes('again')
    })
    expect(outcome).toMatchObject({ kind: 'ran', result: bytes('again') })
    expect(attempt).toBe(2)
    expect(events[0]).toMatchObject({ kind: 'zombie_key', attempt: 1, to: 'in_progress' })
  })
})

/** The store of a node that dies after its claim. */
function dyingStore(records: ReturnType<typeof engineFixture>['records']) {
  const silent = () => new Promise<never>(() => undefined)
  return {
    name: 'dying',
    claim: records.claim.bind(records),
    settle: silent,
    renew: silent,
    resolve: silent,
    sweep: silent,
    reap: silent,
    read: silent,
    list: silent,
  }
}

describe('the context', () => {
  it('the context has the same ids on every attempt', async () => {
    const { run } = engineFixture()
    const seen: unknown[] = []
    const look = (context: RunContext) => {
      const { key, scope, recordId } = context
      const ids = [context.deterministicId('a'), context.deterministicId('b')]
      const keys = [context.downstreamKey(), context.downstreamKey('refund')]
      seen.push({ key, scope, recordId, ids, keys })
      expect(new Set([...ids, ...keys]).size).toBe(4)
      context.notExecuted()
      return bytes('not yet')
    }
    const first = await run(look)
    await run(look)
    expect(first).toMatchObject({ kind: 'released', proof: 'proven' })
    expect(seen).toHaveLength(2)
    expect(seen[1]).toEqual(seen[0])
    expect(seen[0]).toMatchObject({ key: 'the-raw-key', scope: SCOPE, recordId: first.recordId })
  })

  it('the context counts the attempts', async () => {
    const { run } = engineFixture()
    const attempts: number[] = []
    const fail = ({ attempt }: RunContext): never => {
      attempts.push(attempt)
      throw new Error('card declined')
    }
    for (let n = 0; n < 3; n++) await expect(run(fail)).rejects.toThrow('card declined')
    expect(attempts).toEqual([1, 2, 3])
  })

  it('the context extends the retention, and never shortens it', async () => {
    const { run, clock } = engineFixture()
    const outcome = await run((context) => {
      context.extendRetention(3 * DAY_MS)
      context.extendRetention(1)
      expect(() => context.extendRetention(0)).toThrow('extendRetention')
      expect(() => context.extendRetention(Number.NaN)).toThrow('got NaN')
      return bytes('kept')
    })
    expect(outcome).toMatchObject({ expiresAt: new Date(clock.nowMs() + 3 * DAY_MS) })
  })

  it('the context can declare the outcome unknown, regardless of the result', async () => {
    const { run, state, kinds } = engineFixture()
    const outcome = await run((context) => {
      context.outcomeUnknown()
      return bytes('perhaps')
    })
    expect(outcome).toMatchObject({ kind: 'doubted', result: bytes('perhaps') })
    expect(await state()).toBe('unknown')
    expect(kinds()).toEqual(['reserve_created', 'reconcile_scheduled'])
  })

  it('transaction() throws on a store without transactions', async () => {
    const { records, node } = engineFixture()
    expect(records.transaction).toBeUndefined()
    const work = (context: RunContext) => context.transaction(() => bytes('x'))
    await expect(node()(work)).rejects.toThrow('the memory store has no transactions')
  })
})

describe('the policy of a single run', () => {
  it('the policy of a single run overrides that of the engine', async () => {
    const { run, engine, clock } = engineFixture({ onError: 'unknown' })
    const policy = engine.policy({ onError: 'retry', retentionMs: 2 * DAY_MS })
    const failing = () => Promise.reject(new Error('declined'))
    await expect(run(failing, { policy })).rejects.toThrow('declined')
    const outcome = await run(() => bytes('ok'), { policy })
    expect(outcome).toMatchObject({ expiresAt: new Date(clock.nowMs() + 2 * DAY_MS) })
  })
})

describe('two nodes', () => {
  // Both claim at once; one wins, the other gets a conflict, and later the result.
  it('two nodes run the work of one key once', async () => {
    const { run, node, clock } = engineFixture()
    const { work, end, entered } = heldWork()
    const both = [run(work), node()(work)]
    await clock.advanceAsync(0)
    end()
    const kinds = (await Promise.all(both)).map(({ kind }) => kind)
    expect(kinds.toSorted()).toEqual(['in_progress', 'ran'])
    expect(entered()).toBe(1)
    const retries = await Promise.all([run(work), node()(work)])
    for (const retry of retries) {
      expect(retry.kind === 'replayed' && text(retry.result)).toBe('done')
    }
  })
})

describe('a closed engine', () => {
  it('a closed engine refuses new work', async () => {
    const { run, engine, store } = engineFixture()
    await engine.close()
    await expect(run(() => bytes('x'))).rejects.toThrow(EngineClosedError)
    expect(store.asked('claim')).toEqual([])
  })
})
