/** Lost claims on a store of which a part is silent. */
import { expect, it } from 'vitest'
import { createEngine } from '../../../src/core/engine/engine.ts'
import { identityOf } from '../../../src/core/record/identity.ts'
import type { StoreBatching } from '../../../src/core/store/batching.ts'
import type { Store } from '../../../src/core/store/store.ts'
import { memoryStore } from '../../../src/stores/memory/store.ts'
import { FakeClock } from '../../../src/testing/fake-clock.ts'
import { wrapStore } from '../../adapters/run-express.ts'
import { SCOPE, bytes } from './engine-fixture.ts'

const LANES = 64
const LEASE_MS = 60_000
const laneOf = (identity: string) => Number.parseInt(identity.slice(0, 2), 16) % LANES

/** A separate queue for each lane, as on a Redis Cluster. */
const OWN_CALLS: StoreBatching = {
  rowsMax: 32,
  lanes: { count: LANES, flushesMax: 1, of: laneOf },
}
/** One queue for all lanes, as on DynamoDB. */
const SHARED_CALLS: StoreBatching = {
  rowsMax: 1,
  flushesMax: 64,
  lanes: { count: LANES, of: laneOf },
}

/** An engine on a store whose first lanes answer no release. */
function setup(silentLanes: number, batching = OWN_CALLS) {
  const clock = new FakeClock()
  const records = memoryStore({ clock })
  let claiming: 'ok' | 'lose' | 'hang' = 'lose'
  const released: string[] = []
  const store: Store = wrapStore(records, {
    batching,
    claim: async (requests) => {
      if (claiming === 'hang') return new Promise<never>(() => undefined)
      const outcomes = await records.claim(requests)
      if (claiming === 'lose') throw new Error('the answer was lost')
      return outcomes
    },
    settle: (settlements) => {
      const { identity } = settlements[0]!.lease
      released.push(identity)
      if (laneOf(identity) < silentLanes) return new Promise<never>(() => undefined)
      return records.settle(settlements)
    },
  })
  const engine = createEngine({
    store,
    clock,
    breaker: false,
    storeTimeoutMs: 5_000,
    sweepEveryMs: 0,
    reapEveryMs: 0,
    onEvent: () => undefined,
  })
  const run = (key: string, tenant = SCOPE.tenant) =>
    engine
      .run({ scope: { ...SCOPE, tenant }, key, fingerprint: 'f' }, () => bytes('x'))
      .catch(() => undefined)
  return {
    clock,
    records,
    engine,
    run,
    released,
    claims: (fate: typeof claiming) => (claiming = fate),
  }
}

it.each([
  ['one lane is', 1, OWN_CALLS],
  ['four lanes are', 4, OWN_CALLS],
  ['a third of the lanes is', 21, OWN_CALLS],
  ['a third of the lanes, which share their calls, is', 21, SHARED_CALLS],
])(
  'releases the lost claims of all other lanes in time while %s silent',
  async (_, silent, batching) => {
    const { clock, records, run, claims } = setup(silent, batching)
    await Promise.all(Array.from({ length: 2_000 }, (_key, n) => run(`k${n}`, `t${n % 10}`)))
    claims('ok')
    await clock.advanceAsync(LEASE_MS - 1)
    const held = await records.list({ state: 'in_progress', limit: 10_000 })
    expect(held.filter(({ identity }) => laneOf(identity) >= silent)).toEqual([])
    expect(held.length).toBeGreaterThan(0)
  },
)

it('sends a silent lane one release at a time, with growing pauses', async () => {
  const { clock, released, run } = setup(1)
  await Promise.all(Array.from({ length: 2_000 }, (_, n) => run(`k${n}`)))
  await clock.advanceAsync(5_000)
  released.length = 0
  await clock.advanceAsync(LEASE_MS - 5_000)
  // Each release hangs for 5 s, and is followed by a pause of 0.1, 0.2, 0.4 ... 5 s.
  expect(released.filter((identity) => laneOf(identity) === 0).length).toBeLessThanOrEqual(9)
})

it('releases the lost claims of a lane while requests wait for another lane', async () => {
  const { clock, records, run, claims, released } = setup(1)
  claims('hang')
  const keys = Array.from({ length: 1_000 }, (_, n) => `k${n}`)
  const inLane = (lane: number) => keys.filter((key) => laneOf(identityOf(SCOPE, key)) === lane)
  const [lost] = inLane(1)
  void run(lost!)
  await clock.advanceAsync(5_000)
  const silent = inLane(0)
  void run(silent[0]!)
  for (let second = 0; second < 20; second++) {
    await clock.advanceAsync(1_000)
    void run(silent[second % silent.length]!)
  }
  expect(await records.list({ state: 'in_progress', limit: 10 })).toEqual([])
  // At once, and after 1, 3 and 9 s: no request of the same lane waits.
  const identity = identityOf(SCOPE, lost!)
  expect(released.filter((one) => one === identity)).toHaveLength(4)
})
