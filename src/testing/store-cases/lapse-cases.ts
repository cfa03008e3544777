import assert from 'node:assert/strict'
import { newToken } from '../../core/record/identity.ts'
import type { Lease, Store } from '../../core/store/store.ts'
import {
  assertBytes,
  bytes,
  claim,
  claimRequests,
  completeOf,
  doubtOf,
  finish,
  hold,
  LEASE_MS,
  ofKind,
  only,
  race,
  releaseOf,
  RETENTION_MS,
  settle,
  tally,
  viewOf,
  type StoreCase,
} from './store-case.ts'

export const lapseCases: readonly StoreCase[] = [
  {
    name: 'holds a lease until its last millisecond',
    async run({ store, clock }) {
      await hold(store, { onLapse: 'rerun' })
      clock.advance(LEASE_MS - 1)
      assert.equal(ofKind(await claim(store), 'in_progress').leaseLeftMs, 1)
      assert.deepEqual(await store.sweep({ limit: 10 }), [])
      clock.advance(1)
      ofKind(await claim(store), 'claimed')
    },
  },
  {
    name: 'makes a lapsed key unknown at the first claim that finds it',
    async run({ store, clock }) {
      const lease = await hold(store)
      clock.advance(LEASE_MS)
      assert.equal(ofKind(await claim(store), 'unknown').lapsed, true)
      assert.equal(ofKind(await claim(store), 'unknown').lapsed, false)
      const view = await viewOf(store, lease)
      assert.deepEqual([view.state, view.errorCode], ['unknown', 'lease_lapsed'])
      assert.deepEqual(view.reconcileAt, new Date(clock.nowMs()))
    },
  },
  {
    name: 'reports the lapse to exactly one of many concurrent claims',
    async run({ store, clock }) {
      await hold(store)
      clock.advance(LEASE_MS)
      const outcomes = await race(10, () => claim(store))
      const lapses = outcomes.map((outcome) => ofKind(outcome, 'unknown').lapsed)
      assert.equal(lapses.filter(Boolean).length, 1)
    },
  },
  ...(['rerun', 'resume'] as const).map((onLapse): StoreCase => ({
    name: `gives a lapsed key to one of many concurrent claims when its policy is ${onLapse}`,
    async run({ store, clock }) {
      const first = ofKind(await claim(store, { onLapse }), 'claimed')
      clock.advance(LEASE_MS)
      const outcomes = await race(10, () => claim(store, { onLapse }))
      assert.deepEqual(tally(outcomes), { claimed: 1, in_progress: 9 })
      const second = outcomes.find((outcome) => outcome.kind === 'claimed')!
      assert.deepEqual([second.lease.attempt, second.from], [2, 'lapsed'])
      assert.equal(second.recordId, first.recordId)
      assert.equal((await viewOf(store, first.lease)).lapses, 1)
    },
  })),
  {
    name: 'applies the lapse policy of the claim that held the key, not that of the new claim',
    async run({ store, clock }) {
      await hold(store, { key: 'cautious', onLapse: 'unknown' })
      await hold(store, { key: 'repeatable', onLapse: 'rerun' })
      clock.advance(LEASE_MS)
      ofKind(await claim(store, { key: 'cautious', onLapse: 'rerun' }), 'unknown')
      ofKind(await claim(store, { key: 'repeatable', onLapse: 'unknown' }), 'claimed')
    },
  },
  {
    name: 'gives a key to no further claim after maxLapses lapses',
    async run({ store, clock }) {
      const policy = { onLapse: 'rerun', maxLapses: 3 } as const
      for (let attempt = 1; attempt <= 3; attempt++) {
        assert.equal((await hold(store, policy)).attempt, attempt)
        clock.advance(LEASE_MS)
      }
      ofKind(await claim(store, policy), 'unknown')
    },
  },
  {
    name: 'counts the lapses that a sweep found',
    async run({ store, clock }) {
      const policy = { onLapse: 'rerun', maxLapses: 2 } as const
      for (const to of ['failed_retryable', 'unknown']) {
        await hold(store, policy)
        clock.advance(LEASE_MS)
        assert.equal(only(await store.sweep({ limit: 10 })).to, to)
      }
    },
  },
  {
    name: 'does not count the retries of a client as lapses',
    async run({ store, clock }) {
      const policy = { onLapse: 'rerun', maxLapses: 2 } as const
      for (let retry = 0; retry < 5; retry++) {
        await settle(store, releaseOf(await hold(store, policy)))
      }
      const lease = await hold(store, policy)
      assert.equal((await viewOf(store, lease)).lapses, 0)
      clock.advance(LEASE_MS)
      assert.equal(ofKind(await claim(store, policy), 'claimed').from, 'lapsed')
    },
  },
]

/** Returns the lease of a key that became unknown after a lapse. Its holder is still alive. */
async function lapsedHolder(store: Store, clock: { advance(ms: number): void }): Promise<Lease> {
  const lease = await hold(store)
  clock.advance(LEASE_MS)
  ofKind(await claim(store), 'unknown')
  return lease
}

export const lateHolderCases: readonly StoreCase[] = [
  {
    name: 'accepts a late complete from the last holder of an unknown key',
    async run({ store, clock }) {
      const lease = await lapsedHolder(store, clock)
      ofKind(await settle(store, completeOf(lease, bytes('late'))), 'settled')
      assertBytes(ofKind(await claim(store), 'completed').result, bytes('late'))
      const view = await viewOf(store, lease)
      assert.deepEqual([view.errorCode, view.reconcileAt], [undefined, undefined])
    },
  },
  {
    name: 'refuses a late complete on an unknown key with any other token or attempt',
    async run({ store, clock }) {
      const lease = await lapsedHolder(store, clock)
      const fenced = { kind: 'fenced', own: false, state: 'unknown' }
      for (const other of [
        { ...lease, token: newToken() },
        { ...lease, attempt: 2 },
      ]) {
        assert.deepEqual(await settle(store, completeOf(other)), fenced)
      }
    },
  },
  {
    name: 'accepts a late release on an unknown key only when it is proven',
    async run({ store, clock }) {
      const lease = await lapsedHolder(store, clock)
      const declared = await settle(store, releaseOf(lease, 'declared'))
      assert.deepEqual(declared, { kind: 'fenced', own: true, state: 'unknown' })
      ofKind(await settle(store, doubtOf(lease)), 'settled')
      ofKind(await settle(store, releaseOf(lease, 'proven')), 'settled')
      assert.equal(ofKind(await claim(store), 'claimed').from, 'retry')
    },
  },
  {
    name: 'accepts a late complete after the sweep released the key, until it is claimed again',
    async run({ store, clock }) {
      const leases = [
        await hold(store, { key: 'key-1', onLapse: 'rerun' }),
        await hold(store, { key: 'key-2', onLapse: 'rerun' }),
      ]
      clock.advance(LEASE_MS)
      await store.sweep({ limit: 10 })
      await hold(store, { key: 'key-2' })
      const outcomes = await store.settle(leases.map((lease) => completeOf(lease)))
      assert.deepEqual(
        outcomes.map((outcome) => outcome.kind),
        ['settled', 'fenced'],
      )
    },
  },
]

export const sweepCases: readonly StoreCase[] = [
  {
    name: 'sweeps lapsed keys to the state of their policy, and reports each',
    async run({ store, clock }) {
      const doubtful = ofKind(await claim(store, { key: 'doubtful' }), 'claimed')
      const free = ofKind(await claim(store, { key: 'free', onLapse: 'rerun' }), 'claimed')
      const resumable = ofKind(await claim(store, { key: 'res', onLapse: 'resume' }), 'claimed')
      clock.advance(LEASE_MS)
      const swept = await store.sweep({ limit: 10 })

      const expected = [
        { ...doubtful, to: 'unknown' },
        { ...free, to: 'failed_retryable' },
        { ...resumable, to: 'failed_retryable' },
      ].map(({ lease, recordId, to }) => {
        const { identity, attempt } = lease
        const scope = { tenant: 'tenant-1', operation: 'POST /payments' }
        return { identity, recordId, ...scope, attempt, to }
      })
      assert.deepEqual(byId(swept), byId(expected))
      const view = await viewOf(store, free.lease)
      assert.deepEqual([view.state, view.proof], ['failed_retryable', 'proven'])
      assert.deepEqual([view.errorCode, view.lapses], ['lease_lapsed', 1])
      assert.equal(ofKind(await claim(store, { key: 'doubtful' }), 'unknown').lapsed, false)
      assert.equal(ofKind(await claim(store, { key: 'free' }), 'claimed').from, 'retry')
    },
  },
  {
    name: 'sweeps neither live leases nor settled records, and no record twice',
    async run({ store, clock }) {
      await finish(store, { key: 'done' })
      await settle(store, releaseOf(await hold(store, { key: 'released' })))
      await settle(store, doubtOf(await hold(store, { key: 'doubtful' })))
      await hold(store, { key: 'lapsed' })
      clock.advance(LEASE_MS)
      await hold(store, { key: 'alive' })
      assert.equal((await store.sweep({ limit: 10 })).length, 1)
      assert.deepEqual(await store.sweep({ limit: 10 }), [])
    },
  },
  {
    name: 'sweeps at most `limit` records per call, and the rest in the next call',
    async run({ store, clock }) {
      await store.claim(claimRequests(5))
      clock.advance(LEASE_MS)
      const counts: number[] = []
      for (let n = 0; n < 4; n++) counts.push((await store.sweep({ limit: 2 })).length)
      assert.deepEqual(counts, [2, 2, 1, 0])
    },
  },
  {
    name: 'reports each lapsed record once when several sweeps run at the same time',
    async run({ store, clock }) {
      await store.claim(claimRequests(30))
      clock.advance(LEASE_MS)
      const swept = (await race(6, () => store.sweep({ limit: 100 }))).flat()
      assert.deepEqual([swept.length, new Set(swept.map((one) => one.identity)).size], [30, 30])
    },
  },
  {
    name: 'does not renew a lease that was swept',
    async run({ store, clock }) {
      const lease = await hold(store, { onLapse: 'rerun' })
      clock.advance(LEASE_MS)
      await store.sweep({ limit: 10 })
      assert.deepEqual(await store.renew([{ ...lease, leaseMs: LEASE_MS }]), [false])
    },
  },
  {
    name: 'keeps a key that was swept late for its full retention period',
    async run({ store, clock }) {
      const lease = await hold(store, { onLapse: 'rerun' })
      clock.advance(10 * RETENTION_MS)
      await store.sweep({ limit: 10 })
      const { expiresAt } = await viewOf(store, lease)
      assert.deepEqual(expiresAt, new Date(clock.nowMs() + RETENTION_MS))
      ofKind(await claim(store, { fingerprint: 'other' }), 'mismatch')
    },
  },
]

const HOUR_MS = 3_600_000

/** An operator or a failover can set the clock of a store back. */
export const clockSetBackCases: readonly StoreCase[] = [
  {
    name: 'shortens a lease from before the clock was set back at the claim that finds it',
    async run({ store, clock }) {
      await hold(store)
      clock.jumpWallTime(-HOUR_MS)
      assert.equal(ofKind(await claim(store), 'in_progress').leaseLeftMs, LEASE_MS)
      clock.advance(LEASE_MS - 1)
      assert.equal(ofKind(await claim(store), 'in_progress').leaseLeftMs, 1)
      clock.advance(1)
      assert.equal(ofKind(await claim(store), 'unknown').lapsed, true)
    },
  },
  {
    name: 'shortens a lease from before the clock was set back in a sweep, and ends it later',
    async run({ store, clock }) {
      await store.claim(claimRequests(30))
      clock.jumpWallTime(-HOUR_MS)
      assert.deepEqual(await store.sweep({ limit: 100 }), [])
      clock.advance(LEASE_MS - 1)
      assert.deepEqual(await store.sweep({ limit: 100 }), [])
      clock.advance(1)
      assert.equal((await store.sweep({ limit: 100 })).length, 30)
    },
  },
  {
    name: 'answers in_progress to concurrent claims on a lease from before the clock was set back',
    async run({ store, clock }) {
      await hold(store, { onLapse: 'rerun' })
      clock.jumpWallTime(-HOUR_MS)
      const outcomes = await race(10, () => claim(store, { onLapse: 'rerun' }))
      for (const outcome of outcomes) {
        assert.equal(ofKind(outcome, 'in_progress').leaseLeftMs, LEASE_MS)
      }
    },
  },
  {
    name: 'lets the holder of a shortened lease renew it and complete the key',
    async run({ store, clock }) {
      const lease = await hold(store, { onLapse: 'rerun' })
      clock.jumpWallTime(-HOUR_MS)
      ofKind(await claim(store), 'in_progress')
      clock.advance(LEASE_MS / 2)
      assert.deepEqual(await store.renew([{ ...lease, leaseMs: LEASE_MS }]), [true])
      clock.advance(LEASE_MS - 1)
      assert.equal(ofKind(await claim(store), 'in_progress').leaseLeftMs, 1)
      ofKind(await settle(store, completeOf(lease)), 'settled')
      ofKind(await claim(store), 'completed')
    },
  },
  {
    name: "measures a lease by the duration it was given or renewed for, not by a new claim's",
    async run({ store, clock }) {
      const longMs = 6 * LEASE_MS
      const long = { leaseMs: longMs, onLapse: 'rerun' } as const
      const leftMs = async (key: string) =>
        ofKind(await claim(store, { key }), 'in_progress').leaseLeftMs
      await hold(store, { ...long, key: 'given' })
      const renewed = await hold(store, { key: 'renewed' })
      assert.deepEqual(await store.renew([{ ...renewed, leaseMs: longMs }]), [true])
      await settle(store, releaseOf(await hold(store, { key: 'retried' })))
      await hold(store, { ...long, key: 'retried' })
      await store.sweep({ limit: 10 })
      for (const key of ['given', 'renewed', 'retried']) assert.equal(await leftMs(key), longMs)

      clock.jumpWallTime(-HOUR_MS)
      for (const key of ['given', 'renewed', 'retried']) assert.equal(await leftMs(key), longMs)
      clock.advance(longMs - 1)
      assert.deepEqual(await store.sweep({ limit: 10 }), [])
    },
  },
  {
    name: 'does not shorten a lease from before the clock was set back for another fingerprint',
    async run({ store, clock }) {
      const lease = await hold(store)
      const { leaseUntil } = await viewOf(store, lease)
      clock.jumpWallTime(-HOUR_MS)
      ofKind(await claim(store, { fingerprint: 'other' }), 'mismatch')
      assert.deepEqual((await viewOf(store, lease)).leaseUntil, leaseUntil)
    },
  },
]

function byId<Item extends { recordId: string }>(items: readonly Item[]): Item[] {
  return items.toSorted((a, b) => (a.recordId < b.recordId ? -1 : 1))
}
