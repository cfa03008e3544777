import assert from 'node:assert/strict'
import type { FakeClock } from '../fake-clock.ts'
import {
  bytes,
  claim,
  claimRequests,
  completeOf,
  doubtOf,
  finish,
  hold,
  ofKind,
  race,
  releaseOf,
  RETENTION_MS,
  settle,
  tally,
  viewOf,
  type StoreCase,
} from './store-case.ts'

const dueIn = (clock: FakeClock, ms: number) => new Date(clock.nowMs() + ms)

export const retentionCases: readonly StoreCase[] = [
  {
    name: 'counts retention from completion, and replays until the last millisecond',
    async run({ store, clock }) {
      const lease = await hold(store)
      clock.advance(5000)
      const settled = ofKind(await settle(store, completeOf(lease)), 'settled')
      assert.deepEqual(settled.expiresAt, dueIn(clock, RETENTION_MS))
      clock.advance(RETENTION_MS - 1)
      ofKind(await claim(store), 'completed')
      clock.advance(1)
      ofKind(await claim(store), 'claimed')
    },
  },
  {
    name: 'never moves an expiry that a caller has seen to an earlier time',
    async run({ store, clock }) {
      const published = ofKind(await claim(store), 'claimed')
      const short = { ...completeOf(published.lease), retentionMs: 1 }
      const settled = ofKind(await settle(store, short), 'settled')
      assert.deepEqual(settled.expiresAt, published.expiresAt)

      const other = ofKind(await claim(store, { key: 'key-2' }), 'claimed')
      await settle(store, { ...releaseOf(other.lease), retentionMs: 1 })
      clock.advance(1000)
      const again = ofKind(await claim(store, { key: 'key-2', retentionMs: 1 }), 'claimed')
      assert.deepEqual(again.expiresAt, other.expiresAt)
    },
  },
  {
    name: 'starts a new record under an expired key for any request',
    async run({ store, clock }) {
      const first = ofKind(await claim(store), 'claimed')
      await settle(store, completeOf(first.lease))
      clock.advance(RETENTION_MS)
      const second = ofKind(await claim(store, { fingerprint: 'other' }), 'claimed')
      assert.deepEqual([second.from, second.lease.attempt], ['expired', 1])
      assert.notEqual(second.recordId, first.recordId)
      assert.equal(await store.read({ recordId: first.recordId }), undefined)
      const view = await viewOf(store, second.lease)
      assert.deepEqual([view.recordId, view.fingerprint], [second.recordId, 'other'])
      assert.deepEqual([view.result, view.completedAt], [undefined, undefined])
      assert.deepEqual(view.createdAt, new Date(clock.nowMs()))
    },
  },
  {
    name: 'starts a new record under a released key when it has expired',
    async run({ store, clock }) {
      await settle(store, releaseOf(await hold(store)))
      clock.advance(RETENTION_MS)
      const second = ofKind(await claim(store, { fingerprint: 'other' }), 'claimed')
      assert.deepEqual([second.from, second.lease.attempt], ['expired', 1])
    },
  },
  {
    name: 'gives an expired key to exactly one of many concurrent claims',
    async run({ store, clock }) {
      await finish(store)
      clock.advance(RETENTION_MS)
      const outcomes = await race(10, () => claim(store))
      assert.deepEqual(tally(outcomes), { claimed: 1, in_progress: 9 })
    },
  },
  {
    name: 'refuses a settlement of a record that a new record has replaced',
    async run({ store, clock }) {
      const lease = await finish(store)
      clock.advance(RETENTION_MS)
      await hold(store)
      const outcome = await settle(store, completeOf(lease, bytes('stale')))
      assert.deepEqual(outcome, { kind: 'fenced', own: false, state: 'in_progress' })
    },
  },
  {
    name: 'refuses an expired key when the request asks for it, before and after it is reaped',
    async run({ store, clock }) {
      const afterExpiry = 'refuse'
      const lease = await finish(store, { afterExpiry })
      const { recordId } = await viewOf(store, lease)
      clock.advance(RETENTION_MS)
      const refused = { kind: 'expired', recordId }
      assert.deepEqual(await claim(store, { afterExpiry }), refused)
      assert.deepEqual(await store.reap({ limit: 10 }), { removed: 0, expired: 1, abandoned: 0 })
      assert.deepEqual(await claim(store, { afterExpiry }), refused)
      assert.deepEqual(await claim(store, { afterExpiry, fingerprint: 'other' }), refused)
    },
  },
  {
    name: 'starts a new record under a key that was kept as expired, when the request allows it',
    async run({ store, clock }) {
      await finish(store, { afterExpiry: 'refuse' })
      clock.advance(RETENTION_MS)
      await store.reap({ limit: 10 })
      const second = ofKind(await claim(store, { afterExpiry: 'new' }), 'claimed')
      assert.deepEqual([second.from, second.lease.attempt], ['expired', 1])
    },
  },
]

export const reapCases: readonly StoreCase[] = [
  {
    name: 'reaps expired results and releases, and nothing else',
    async run({ store, clock }) {
      const done = await finish(store, { key: 'done' })
      const released = await hold(store, { key: 'released' })
      await settle(store, releaseOf(released))
      const held = await hold(store, { key: 'held' })
      const doubtful = await hold(store, { key: 'doubtful' })
      await settle(store, doubtOf(doubtful))
      clock.advance(RETENTION_MS)
      const young = await finish(store, { key: 'young' })

      assert.deepEqual(await store.reap({ limit: 10 }), { removed: 2, expired: 0, abandoned: 0 })
      for (const { identity } of [done, released]) {
        assert.equal(await store.read({ identity }), undefined)
      }
      for (const lease of [held, doubtful, young]) await viewOf(store, lease)
      assert.deepEqual(await store.reap({ limit: 10 }), { removed: 0, expired: 0, abandoned: 0 })
    },
  },
  {
    name: 'never reaps or replaces a held or unknown record, however old it is',
    async run({ store, clock }) {
      await hold(store, { key: 'held' })
      await settle(store, doubtOf(await hold(store, { key: 'doubtful' })))
      clock.advance(1000 * RETENTION_MS)
      assert.deepEqual(await store.reap({ limit: 10 }), { removed: 0, expired: 0, abandoned: 0 })
      ofKind(await claim(store, { key: 'held' }), 'unknown')
      ofKind(await claim(store, { key: 'doubtful' }), 'unknown')
    },
  },
  {
    name: 'lets any request claim a reaped key',
    async run({ store, clock }) {
      await finish(store)
      clock.advance(RETENTION_MS)
      await store.reap({ limit: 10 })
      assert.equal(ofKind(await claim(store, { fingerprint: 'other' }), 'claimed').from, 'new')
    },
  },
  {
    name: 'keeps a refused key without its result, and counts it once',
    async run({ store, clock }) {
      const lease = await finish(store, { afterExpiry: 'refuse' })
      clock.advance(RETENTION_MS)
      assert.deepEqual(await store.reap({ limit: 10 }), { removed: 0, expired: 1, abandoned: 0 })
      assert.deepEqual(await store.reap({ limit: 10 }), { removed: 0, expired: 0, abandoned: 0 })
      const view = await viewOf(store, lease)
      assert.deepEqual([view.state, view.result], ['expired', undefined])
      ofKind(await settle(store, completeOf(lease)), 'fenced')
    },
  },
  {
    name: 'reaps at most `limit` records per call, and the rest in the next call',
    async run({ store, clock }) {
      const leases = (await store.claim(claimRequests(5))).map(
        (outcome) => ofKind(outcome, 'claimed').lease,
      )
      await store.settle(leases.map((lease) => completeOf(lease)))
      clock.advance(RETENTION_MS)
      const counts: number[] = []
      for (let n = 0; n < 4; n++) counts.push((await store.reap({ limit: 2 })).removed)
      assert.deepEqual(counts, [2, 2, 1, 0])
    },
  },
  {
    name: 'counts each reaped record once when several reaps run at the same time',
    async run({ store, clock }) {
      for (let n = 0; n < 12; n++) await finish(store, { key: `key-${n}` })
      clock.advance(RETENTION_MS)
      const reports = await race(6, () => store.reap({ limit: 100 }))
      // Concurrent reaps skip each other's locked rows: one more call takes what they all skipped.
      reports.push(await store.reap({ limit: 100 }))
      assert.equal(
        reports.reduce((sum, report) => sum + report.removed, 0),
        12,
      )
    },
  },
]
