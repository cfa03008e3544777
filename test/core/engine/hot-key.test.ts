import { describe, expect, it } from 'vitest'
import type { EngineOptions } from '../../../src/core/engine/engine-contract.ts'
import type { ClaimRequest, Settlement } from '../../../src/core/store/store.ts'
import { bytes, engineFixture, heldWork, SCOPE, standing } from './engine-fixture.ts'

const never = () => expect.fail('the work must not run')

function setup(options: Partial<EngineOptions> = {}) {
  const fixture = engineFixture(options)
  const { store } = fixture
  return {
    ...fixture,
    /** The fingerprints of each store call, one for each row. */
    rows: () =>
      (store.asked('claim') as ClaimRequest[][]).map((call) => call.map((row) => row.fingerprint)),
    released: () =>
      (store.asked('settle') as Settlement[][]).flat().map(({ lease }) => lease.token),
    sent: () => (store.asked('claim') as ClaimRequest[][]).flat().map(({ token }) => token),
  }
}

/** The number of outcomes of each kind. */
async function tally(outcomes: readonly Promise<{ kind: string }>[]) {
  const counts: Record<string, number> = {}
  for (const { kind } of await Promise.all(outcomes)) counts[kind] = (counts[kind] ?? 0) + 1
  return counts
}

const times = <Value>(count: number, make: () => Value): Value[] =>
  Array.from({ length: count }, make)

describe('claims of one key that wait for a store call', () => {
  it('waiting claims of one key share one row, and each gets a copy of the reply', async () => {
    const { run, rows, kinds } = setup()
    // A Buffer, because drivers return Buffers, which are copied differently than other byte
    // arrays.
    await run(() => Buffer.from('done'))
    const outcomes = await Promise.all(times(100, () => run(never)))
    expect(rows()).toEqual([['f'], ['f']])
    const results = outcomes.map((outcome) =>
      outcome.kind === 'replayed' ? outcome.result : never(),
    )
    results[0]!.fill(0)
    expect(results.slice(1).every((result) => String(result) === String(bytes('done')))).toBe(true)
    expect(kinds().filter((kind) => kind === 'reserve_replay')).toHaveLength(100)
  })

  it('waiting claims of one key run the work once; the others get in_progress', async () => {
    const { run, rows, clock } = setup()
    const { work, end, entered } = heldWork()
    const outcomes = times(100, () => run(work))
    await clock.advanceAsync(0)
    expect([rows(), entered()]).toEqual([[['f']], 1])
    end()
    expect(await tally(outcomes)).toEqual({ ran: 1, in_progress: 99 })
  })

  it('waiting claims of one key share an unknown outcome, and one reports the lapse', async () => {
    const { run, node, clock, rows, kinds } = setup()
    void node()(heldWork().work)
    await clock.advanceAsync(0)
    clock.jumpWallTime(60_001)
    expect(await tally(times(10, () => run(never)))).toEqual({ unknown: 10 })
    expect(rows()).toEqual([['f']])
    expect(kinds().filter((kind) => kind === 'zombie_key')).toHaveLength(1)
    expect(kinds().filter((kind) => kind === 'reserve_unknown')).toHaveLength(10)
  })

  it('waiting claims of one key with different fingerprints use separate calls', async () => {
    const { run, rows } = setup()
    await run(() => bytes('done'))
    const asked = ['f', 'g', 'f', 'g', 'h'].map((fingerprint) => run(never, { fingerprint }))
    expect(await tally(asked)).toEqual({ replayed: 2, mismatch: 3 })
    expect(rows()).toEqual([['f'], ['f'], ['g'], ['h']])
  })

  it('each call has one row of a hot key, so that other keys have room', async () => {
    const { run, rows } = setup()
    await run(() => bytes('done'))
    const hot = times(50, () => run(never))
    const others = ['a', 'b', 'c'].map((key) =>
      run(() => bytes(key), { key, fingerprint: `of ${key}` }),
    )
    expect(await tally([...hot, ...others])).toEqual({ replayed: 50, ran: 3 })
    expect(rows()).toEqual([['f'], ['f', 'of a', 'of b', 'of c']])
  })

  // The first call is in progress when the second claim arrives: its answer may be older than a
  // reply that the second client has seen.
  it('a claim of one key does not join a call that is in progress', async () => {
    const { run, rows, store, clock } = setup()
    store.next('claim', { lateMs: 100 })
    const first = run(never)
    await clock.advanceAsync(50)
    const { work, end } = heldWork()
    const second = run(work)
    await clock.advanceAsync(0)
    expect(rows()).toEqual([['f'], ['f']])
    await clock.advanceAsync(50)
    expect(await first).toMatchObject({ kind: 'in_progress' })
    end()
    expect(await second).toMatchObject({ kind: 'ran' })
  })

  it('waiting claims of one key fail together, and only the sent token is released', async () => {
    const { run, store, sent, released, clock } = setup()
    store.next('claim', 'lose')
    const failures = times(20, () => run(never).catch((error: unknown) => error))
    for (const failure of await Promise.all(failures)) {
      expect(failure).toMatchObject({ code: 'STORE_FAILED', failure: 'unavailable' })
    }
    await clock.advanceAsync(1_000)
    expect(sent()).toHaveLength(1)
    expect(new Set(released())).toEqual(new Set(sent()))
    expect(await run(() => bytes('ok'))).toMatchObject({ kind: 'ran' })
  })
})

describe('duplicates that wait for the result of one key', () => {
  const WAIT = { whileInProgress: { waitMs: 3_000 } } as const

  it('waiting duplicates of one key share each poll of the store', async () => {
    const { run, node, clock, rows } = setup(WAIT)
    const { work, end } = heldWork()
    const first = node()(work)
    await clock.advanceAsync(0)
    const waiting = times(64, () => run(never))
    await clock.advanceAsync(2_000)
    // One claim for all, and polls after 25, 50, 100, 200, 400 and 800 ms.
    expect(rows()).toHaveLength(7)
    end()
    await first
    await clock.advanceAsync(1_000)
    expect(await tally(waiting)).toEqual({ replayed: 64 })
    expect(clock.pendingTimers).toBe(0)
  })

  it('the waiting duplicate with the longest wait polls, and the others wait for it', async () => {
    const { run, node, engine, clock } = setup(WAIT)
    const first = heldWork()
    const failed = node({ onError: 'retry' })(first.work).catch(() => 'failed')
    await clock.advanceAsync(0)
    const patient = { policy: engine.policy({ whileInProgress: { waitMs: 10_000 } }) }
    const { work, end, entered } = heldWork()
    const short = times(3, () => run(never))
    const long = run(work, patient)
    await clock.advanceAsync(10)
    first.fail(new Error('declined'))
    await failed
    await clock.advanceAsync(100)
    expect(entered()).toBe(1)
    end()
    expect(await tally([...short, long])).toEqual({ replayed: 3, ran: 1 })
  })

  it('waiting duplicates of one key leave one by one when their time is up', async () => {
    const { run, node, engine, clock } = setup(WAIT)
    const { work, end } = heldWork()
    const first = node()(work)
    await clock.advanceAsync(0)
    const short = run(never, { policy: engine.policy({ whileInProgress: { waitMs: 100 } }) })
    const long = run(never)
    await clock.advanceAsync(99)
    expect(await standing(short)).toBe('pending')
    await clock.advanceAsync(1)
    expect(await short).toMatchObject({ kind: 'in_progress' })
    expect(await standing(long)).toBe('pending')
    end()
    await first
    await clock.advanceAsync(1_000)
    expect(await long).toMatchObject({ kind: 'replayed' })
  })

  it('a new waiting duplicate does not get the answer of a poll in progress', async () => {
    const { run, node, clock, store, rows } = setup(WAIT)
    const { work, end } = heldWork()
    const first = node()(work)
    await clock.advanceAsync(0)
    const early = run(never)
    await clock.advanceAsync(0)
    store.next('claim', { lateMs: 500 }, 'ok')
    await clock.advanceAsync(25)
    const joined = run(never)
    await clock.advanceAsync(0)
    end()
    await first
    const before = rows().length
    await clock.advanceAsync(500)
    await clock.advanceAsync(0)
    expect(await tally([early, joined])).toEqual({ replayed: 2 })
    expect(rows().length).toBeGreaterThan(before)
  })

  it('waiting duplicates all fail when the store fails at the poll', async () => {
    const { run, node, clock, store } = setup(WAIT)
    void node()(heldWork().work)
    await clock.advanceAsync(0)
    store.next('claim', 'ok', 'fail')
    const waiting = times(3, () => run(never).catch((error: unknown) => error))
    await clock.advanceAsync(25)
    for (const failure of await Promise.all(waiting)) {
      expect(failure).toMatchObject({ code: 'STORE_FAILED', keyInUse: true })
    }
  })
})

it('a hot key of one tenant does not delay another tenant in the queue', async () => {
  const { run, clock, rows } = setup()
  const hot = times(500, () => run(() => bytes('done')))
  const other = run(() => bytes('other'), {
    scope: { ...SCOPE, tenant: 'umbrella' },
    fingerprint: 'o',
  })
  await clock.advanceAsync(0)
  expect(await other).toMatchObject({ kind: 'ran' })
  expect(rows()[0]).toEqual(['f', 'o'])
  expect(await tally(hot)).toEqual({ ran: 1, in_progress: 499 })
})
