/** Many concurrent claims whose answers were lost. */
import { describe, expect, it } from 'vitest'
import { createEngine } from '../../../src/core/engine/engine.ts'
import { StoreFailedError } from '../../../src/core/errors.ts'
import type { Settlement, Store } from '../../../src/core/store/store.ts'
import { memoryStore } from '../../../src/stores/memory/store.ts'
import { FakeClock } from '../../../src/testing/fake-clock.ts'
import { wrapStore } from '../../adapters/run-express.ts'
import { bytes, engineFixture, gate, type EngineFixture } from './engine-fixture.ts'

const LEASE_MS = 60_000

/** An engine without a breaker, so that every claim is sent. */
const setup = () => engineFixture({ breaker: false })

/** Makes `count` claims fail together, each with a different key. */
async function loseClaims({ run }: EngineFixture, count: number, tenant = 'acme'): Promise<void> {
  const scope = { tenant, operation: 'pay' }
  const claims = Array.from({ length: count }, (_, n) =>
    run(() => bytes('x'), { scope, key: `${tenant}-${n}` }).catch(() => undefined),
  )
  await Promise.all(claims)
}

const releases = ({ store }: EngineFixture) => store.asked('settle').flat() as Settlement[]

/** The number of releases in each second. */
async function perSecond(fixture: EngineFixture, seconds: number): Promise<number[]> {
  const counts: number[] = []
  for (let second = 0; second < seconds; second++) {
    const before = releases(fixture).length
    await fixture.clock.advanceAsync(1_000)
    counts.push(releases(fixture).length - before)
  }
  return counts
}

function countsOf(settlements: readonly Settlement[]): number[] {
  const counts = new Map<string, number>()
  for (const { lease } of settlements) {
    counts.set(lease.identity, (counts.get(lease.identity) ?? 0) + 1)
  }
  return [...counts.values()]
}

describe('after many lost claims', () => {
  it('limits the releases per second after many lost claims, with two for each claim', async () => {
    const fixture = setup()
    fixture.store.always('claim', 'fail')
    await loseClaims(fixture, 1_600)
    fixture.store.always('claim', 'ok')
    const counts = await perSecond(fixture, 65)
    // 1.5 releases for each of 1,600 claims within the part of the lease that needs one, the
    // shorter of which is 22.5 s; and 16 at once at the start.
    expect(Math.max(...counts)).toBeLessThanOrEqual(107 + 16)
    const looks = countsOf(releases(fixture))
    expect(looks).toHaveLength(1_600)
    expect(Math.min(...looks)).toBeGreaterThanOrEqual(2)
    expect(Math.max(...looks)).toBeLessThanOrEqual(6)
    await fixture.clock.advanceAsync(60_000)
    expect(fixture.clock.pendingTimers).toBe(0)
  })

  it.each([
    ['is throttled', { failure: 'unavailable', wroteNothing: true }],
    ['was never sent', { failure: 'unavailable', wasSent: false }],
    ['is rejected', { failure: 'rejected' }],
  ] as const)('sends no release for a claim that %s', async (_, details) => {
    const fixture = setup()
    const cause = new Error('slow down')
    const refusal = new StoreFailedError({ store: 's', operation: 'claim', cause, ...details })
    fixture.store.always('claim', refusal)
    await loseClaims(fixture, 200)
    await fixture.clock.advanceAsync(LEASE_MS)
    expect(releases(fixture)).toEqual([])
    expect(fixture.clock.pendingTimers).toBe(0)
  })

  // A claim of many rows may be several statements, of which the first ones are committed.
  it('sends a release when the store could not connect without stating what it wrote', async () => {
    const fixture = setup()
    fixture.store.always('claim', Object.assign(new Error('refused'), { code: 'ECONNREFUSED' }))
    await loseClaims(fixture, 10)
    await fixture.clock.advanceAsync(LEASE_MS)
    expect(new Set(releases(fixture)).size).toBe(10)
  })

  it.each([200, 10_000])('releases all of %i lost claims in time', async (count) => {
    const fixture = setup()
    const { store, records, clock } = fixture
    store.always('claim', 'lose')
    await loseClaims(fixture, count)
    await clock.advanceAsync(LEASE_MS - 1)
    expect(await records.list({ state: 'in_progress', limit: 10 })).toEqual([])
    const released = await records.list({ state: 'failed_retryable', limit: count })
    expect(released).toHaveLength(count)
    // The first release found each claim.
    expect(releases(fixture)).toHaveLength(count)
  })

  // All take effect ten seconds after they timed out: the first releases find nothing.
  it('releases in time lost claims that take effect long after they timed out', async () => {
    const fixture = setup()
    const { store, records, clock } = fixture
    store.always('claim', { swallowAfterMs: 15_000 })
    const storming = loseClaims(fixture, 200)
    await clock.advanceAsync(5_000)
    await storming
    store.always('claim', 'ok')
    await clock.advanceAsync(LEASE_MS - 1)
    expect(await records.list({ state: 'in_progress', limit: 10 })).toEqual([])
    expect(await records.list({ state: 'failed_retryable', limit: 200 })).toHaveLength(200)
  })
})

it('releases 9,000 lost claims in time on a store that takes 200 ms for each answer', async () => {
  const fixture = setup()
  const { store, records, clock } = fixture
  store.always('claim', 'lose')
  await loseClaims(fixture, 9_000)
  store.always('settle', { lateMs: 200 })
  await clock.advanceAsync(LEASE_MS - 1)
  expect(await records.list({ state: 'in_progress', limit: 10 })).toEqual([])
})

describe('while the store fails', () => {
  it('pauses for all lost claims while the store fails, then releases them in time', async () => {
    const fixture = setup()
    const { store, records, clock } = fixture
    store.always('claim', 'lose')
    store.always('settle', 'fail')
    await loseClaims(fixture, 1_000)
    await clock.advanceAsync(20_000)
    // The first 16 together; then one after 0.1, 0.2, 0.4 ... 5 s.
    const failed = store.asked('settle').length
    expect(failed).toBeLessThanOrEqual(12)
    store.always('settle', 'ok')
    await clock.advanceAsync(LEASE_MS - 20_001)
    expect(await records.list({ state: 'in_progress', limit: 10 })).toEqual([])
    expect(await records.list({ state: 'failed_retryable', limit: 1_000 })).toHaveLength(1_000)
  })
})

describe('tenants', () => {
  it.each([
    ['at once', 0],
    ['after the store has failed for a time', 3_000],
  ])('tenants take turns %s: no claim waits behind thousands of another', async (_, failingMs) => {
    const fixture = setup()
    const { store, clock, run } = fixture
    store.always('claim', 'fail')
    if (failingMs > 0) store.always('settle', 'fail')
    await loseClaims(fixture, 5_000)
    const scope = { tenant: 'other', operation: 'pay' }
    await run(() => bytes('x'), { scope }).catch(() => undefined)
    const [own] = store.asked('claim').at(-1) as { identity: string }[]
    await clock.advanceAsync(failingMs)
    const before = releases(fixture).length
    store.always('settle', 'ok')
    await clock.advanceAsync(failingMs + 100)
    const asked = releases(fixture).slice(failingMs === 0 ? 0 : before)
    expect(asked.length).toBeLessThan(2_000)
    expect(asked.map(({ lease }) => lease.identity)).toContain(own!.identity)
  })

  it('the tenant with most lost claims loses one when the list is full', async () => {
    const fixture = setup()
    const { store, clock, records } = fixture
    store.always('claim', 'lose')
    store.always('settle', 'fail')
    await loseClaims(fixture, 10_000)
    await clock.advanceAsync(40_000)
    await loseClaims(fixture, 10, 'other')
    store.always('settle', 'ok')
    await clock.advanceAsync(LEASE_MS - 1)
    const held = await records.list({ state: 'in_progress', limit: 20_000 })
    expect(held.filter(({ tenant }) => tenant === 'other')).toEqual([])
  })

  it('a claim that is lost right after thousands of another tenant is tracked', async () => {
    const fixture = setup()
    const { store, clock, records } = fixture
    store.always('claim', 'lose')
    store.always('settle', 'fail')
    await loseClaims(fixture, 10_000)
    await loseClaims(fixture, 1, 'quiet')
    store.always('settle', 'ok')
    await clock.advanceAsync(LEASE_MS - 1)
    const held = await records.list({ state: 'in_progress', limit: 10 })
    expect(held.map(({ tenant }) => tenant)).toEqual(['acme'])
  })
})

describe('close()', () => {
  // The release finds nothing; the claim takes effect; close(); the release is answered.
  it('close() sends one more release for lost claims', async () => {
    const clock = new FakeClock()
    const records = memoryStore({ clock })
    const answering = gate()
    let releasing = 0
    const store = wrapStore(records, {
      claim: async (requests) => {
        clock.after(6_000, () => void records.claim(requests))
        return new Promise<never>(() => undefined)
      },
      settle: async (settlements) => {
        const outcomes = await records.settle(settlements)
        if (releasing++ === 0) await answering.opened
        return outcomes
      },
    })
    const engine = createEngine({ store, clock, sweepEveryMs: 0, reapEveryMs: 0 })
    const request = { scope: { tenant: 't', operation: 'o' }, key: 'k', fingerprint: 'f' }
    const running = engine.run(request, () => bytes('x')).catch(() => undefined)
    await clock.advanceAsync(6_000)
    await running
    expect((await engine.read(request))?.state).toBe('in_progress')
    const closing = engine.close()
    answering.open()
    await clock.advanceAsync(25)
    await closing
    expect((await engine.read(request))?.state).toBe('failed_retryable')
  })
})

/** A store that answers one call of a kind at a time, when the test allows it. */
function slowStore(clock: FakeClock) {
  const records = memoryStore({ clock })
  let answering = gate()
  let isSlow = false
  let isFailing = false
  const released: string[] = []
  const store: Store = wrapStore(records, {
    batching: { rowsMax: 1, flushesMax: 1 },
    claim: async (requests) => {
      if (isFailing) throw new Error('the answer was lost')
      if (isSlow) await answering.opened
      return records.claim(requests)
    },
    settle: (settlements) => {
      released.push(...settlements.map(({ lease }) => lease.identity))
      return records.settle(settlements)
    },
  })
  return {
    store,
    released,
    fail: (failing: boolean) => (isFailing = failing),
    slow: () => {
      isSlow = true
      answering = gate()
    },
    answer: () => {
      isSlow = false
      answering.open()
    },
  }
}

describe('live traffic', () => {
  it('while requests wait, lost claims get only the releases that they need', async () => {
    const clock = new FakeClock()
    const backend = slowStore(clock)
    const engine = createEngine({
      store: backend.store,
      clock,
      breaker: false,
      storeTimeoutMs: LEASE_MS,
      sweepEveryMs: 0,
      reapEveryMs: 0,
    })
    const scope = { tenant: 'acme', operation: 'pay' }
    const run = (key: string) =>
      engine.run({ scope, key, fingerprint: 'f' }, () => bytes('x')).catch(() => undefined)
    backend.fail(true)
    await Promise.all(Array.from({ length: 300 }, (_, n) => run(`lost-${n}`)))
    backend.fail(false)
    backend.slow()
    const live = [run('live-1'), run('live-2'), run('live-3')]
    await clock.advanceAsync(29_999)
    // Without waiting requests, most claims would have had four releases at this point.
    const first = countsOf(backend.released.map(toRelease))
    expect(Math.max(...first)).toBe(1)
    expect(first.length).toBeGreaterThan(290)
    backend.answer()
    expect((await Promise.all(live)).map((outcome) => outcome?.kind)).toEqual(['ran', 'ran', 'ran'])
    await clock.advanceAsync(35_000)
    const looks = countsOf(backend.released.map(toRelease))
    expect(looks.filter((count) => count >= 2)).toHaveLength(300)
  })

  it('a lost claim gets a release late in its lease, even when requests always wait', async () => {
    const clock = new FakeClock()
    const backend = slowStore(clock)
    const engine = createEngine({
      store: backend.store,
      clock,
      breaker: false,
      storeTimeoutMs: 2 * LEASE_MS,
      sweepEveryMs: 0,
      reapEveryMs: 0,
    })
    const scope = { tenant: 'acme', operation: 'pay' }
    const run = (key: string) =>
      engine.run({ scope, key, fingerprint: 'f' }, () => bytes('x')).catch(() => undefined)
    backend.fail(true)
    await Promise.all(Array.from({ length: 10 }, (_, n) => run(`lost-${n}`)))
    backend.fail(false)
    backend.slow()
    const live = [run('live-1'), run('live-2'), run('live-3')]
    await clock.advanceAsync(LEASE_MS * (7 / 8) - 1)
    expect(countsOf(backend.released.map(toRelease))).toEqual(Array.from({ length: 10 }, () => 2))
    await clock.advanceAsync(LEASE_MS / 8)
    expect(countsOf(backend.released.map(toRelease))).toEqual(Array.from({ length: 10 }, () => 3))
    backend.answer()
    await Promise.all(live)
  })
})

function toRelease(identity: string): Settlement {
  const lease = { identity, token: '', attempt: 0 }
  return { kind: 'release', lease, proof: 'proven', errorCode: undefined, retentionMs: 0 }
}
