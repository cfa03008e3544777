import assert from 'node:assert/strict'
import {
  assertBytes,
  bytes,
  claim,
  claimRequest,
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

const ABANDONED = { result: bytes('timed out'), retentionMs: 2 * RETENTION_MS }

export const acceptCases: readonly StoreCase[] = [
  {
    name: 'accepts a free key for a worker without holding it',
    async run({ store, clock }) {
      const accepted = ofKind(await claim(store, { mode: 'accept' }), 'pending')
      assert.equal(accepted.accepted, true)
      assert.deepEqual(accepted.expiresAt, new Date(clock.nowMs() + RETENTION_MS))
      const view = await viewOf(store, claimRequest())
      assert.deepEqual([view.state, view.attempt], ['pending', 0])
      assert.equal(view.recordId, accepted.recordId)
      const listed = await store.list({ state: 'pending', limit: 10 })
      assert.deepEqual(
        listed.map(({ recordId }) => recordId),
        [accepted.recordId],
      )
    },
  },
  {
    name: 'recognises a repeated accept by its token and tells it from another accept',
    async run({ store }) {
      const request = claimRequest({ mode: 'accept' })
      const first = ofKind(only(await store.claim([request])), 'pending')
      assert.deepEqual(only(await store.claim([request])), first)
      const other = ofKind(await claim(store, { mode: 'accept' }), 'pending')
      assert.deepEqual(other, { ...first, accepted: false })
    },
  },
  {
    name: 'accepts a key for one of many concurrent requests',
    async run({ store }) {
      const outcomes = await race(10, () => claim(store, { mode: 'accept' }))
      const accepted = outcomes.filter((outcome) => ofKind(outcome, 'pending').accepted)
      assert.equal(accepted.length, 1)
    },
  },
  {
    name: 'answers pending to a claim on an accepted key, and mismatch to a different request',
    async run({ store }) {
      await claim(store, { mode: 'accept' })
      ofKind(await claim(store), 'pending')
      ofKind(await claim(store, { mode: 'take', fingerprint: 'other' }), 'mismatch')
      ofKind(await claim(store, { fingerprint: 'other' }), 'mismatch')
    },
  },
  {
    name: 'gives an accepted key to exactly one of many workers',
    async run({ store }) {
      const { recordId } = ofKind(await claim(store, { mode: 'accept' }), 'pending')
      const outcomes = await race(10, () => claim(store, { mode: 'take' }))
      assert.deepEqual(tally(outcomes), { claimed: 1, in_progress: 9 })
      const won = ofKind(
        outcomes.find(({ kind }) => kind === 'claimed')!,
        'claimed',
      )
      assert.deepEqual([won.from, won.lease.attempt, won.recordId], ['accepted', 1, recordId])
      ofKind(await settle(store, completeOf(won.lease)), 'settled')
      ofKind(await claim(store, { mode: 'accept' }), 'completed')
    },
  },
  {
    name: 'lets a worker take a released key, but neither an absent nor an expired one',
    async run({ store, clock }) {
      const request = claimRequest({ mode: 'take' })
      const gone = { kind: 'expired', recordId: request.recordId }
      assert.deepEqual(only(await store.claim([request])), gone)
      assert.equal(await store.read({ identity: request.identity }), undefined)
      await settle(store, releaseOf(await hold(store)))
      const again = ofKind(await claim(store, { mode: 'take' }), 'claimed')
      assert.deepEqual([again.from, again.lease.attempt], ['retry', 2])
      await settle(store, completeOf(again.lease))
      clock.advance(RETENTION_MS)
      ofKind(await claim(store, { mode: 'take' }), 'expired')
      assert.equal((await viewOf(store, again.lease)).state, 'completed')
    },
  },
  {
    name: 'accepts a released or lapsed key again without counting another attempt',
    async run({ store, clock }) {
      const first = await hold(store)
      await settle(store, releaseOf(first))
      const again = ofKind(await claim(store, { mode: 'accept' }), 'pending')
      assert.equal(again.accepted, true)
      const view = await viewOf(store, first)
      assert.deepEqual([view.state, view.attempt], ['pending', 1])
      assert.deepEqual([view.errorCode, view.proof], [undefined, undefined])

      const silent = await hold(store, { key: 'key-2', onLapse: 'rerun' })
      clock.advance(LEASE_MS)
      ofKind(await claim(store, { key: 'key-2', mode: 'accept' }), 'pending')
      const lapsed = await viewOf(store, silent)
      assert.deepEqual([lapsed.state, lapsed.attempt, lapsed.lapses], ['pending', 1, 1])
      ofKind(await settle(store, completeOf(silent)), 'fenced')
    },
  },
  {
    name: 'does not accept a key that is held, unknown or completed',
    async run({ store, clock }) {
      await hold(store, { key: 'held' })
      await settle(store, doubtOf(await hold(store, { key: 'doubtful' })))
      await finish(store, { key: 'done' })
      await hold(store, { key: 'silent', leaseMs: 1 })
      clock.advance(1)
      const kinds: string[] = []
      for (const key of ['held', 'doubtful', 'done', 'silent']) {
        kinds.push((await claim(store, { key, mode: 'accept' })).kind)
      }
      assert.deepEqual(kinds, ['in_progress', 'unknown', 'completed', 'unknown'])
    },
  },
  {
    name: 'does not let the token that accepted a key settle or renew it',
    async run({ store }) {
      const request = claimRequest({ mode: 'accept' })
      await store.claim([request])
      const lease = { identity: request.identity, token: request.token, attempt: 0 }
      const fenced = { kind: 'fenced', own: true, state: 'pending' }
      assert.deepEqual(await settle(store, completeOf(lease)), fenced)
      assert.deepEqual(await settle(store, releaseOf(lease)), fenced)
      assert.deepEqual(await settle(store, doubtOf(lease)), fenced)
      assert.deepEqual(await store.renew([{ ...lease, leaseMs: LEASE_MS }]), [false])
    },
  },
  {
    name: 'accepts an expired key as a new record',
    async run({ store, clock }) {
      await finish(store)
      clock.advance(RETENTION_MS)
      const request = claimRequest({ mode: 'accept', fingerprint: 'other' })
      const accepted = ofKind(only(await store.claim([request])), 'pending')
      assert.equal(accepted.recordId, request.recordId)
      const view = await viewOf(store, request)
      assert.deepEqual([view.attempt, view.result], [0, undefined])
    },
  },
]

export const abandonCases: readonly StoreCase[] = [
  {
    name: 'leaves expired accepted records alone unless reap gets a result to complete them with',
    async run({ store, clock }) {
      await claim(store, { mode: 'accept' })
      clock.advance(10 * RETENTION_MS)
      const nothing = { removed: 0, expired: 0, abandoned: 0 }
      assert.deepEqual(await store.reap({ limit: 10 }), nothing)
      ofKind(await claim(store), 'pending')
    },
  },
  {
    name: 'completes abandoned records with the given bytes and keeps them one more retention',
    async run({ store, clock }) {
      await claim(store, { mode: 'accept' })
      clock.advance(RETENTION_MS - 1)
      const early = await store.reap({ limit: 10, abandoned: ABANDONED })
      assert.deepEqual(early, { removed: 0, expired: 0, abandoned: 0 })
      clock.advance(1)
      const report = await store.reap({ limit: 10, abandoned: ABANDONED })
      assert.deepEqual(report, { removed: 0, expired: 0, abandoned: 1 })

      const replay = ofKind(await claim(store), 'completed')
      assertBytes(replay.result, ABANDONED.result)
      assert.deepEqual(replay.expiresAt, new Date(clock.nowMs() + ABANDONED.retentionMs))
      const view = await viewOf(store, claimRequest())
      assert.deepEqual(view.completedAt, new Date(clock.nowMs()))
      clock.advance(ABANDONED.retentionMs)
      assert.equal((await store.reap({ limit: 10, abandoned: ABANDONED })).removed, 1)
    },
  },
  {
    name: 'gives an abandoned record to no worker, before and after it is completed',
    async run({ store, clock }) {
      const request = claimRequest({ mode: 'accept' })
      await store.claim([request])
      clock.advance(RETENTION_MS)
      const gone = { kind: 'expired', recordId: request.recordId }
      assert.deepEqual(await claim(store, { mode: 'take' }), gone)
      await store.reap({ limit: 10, abandoned: ABANDONED })
      ofKind(await claim(store, { mode: 'take' }), 'completed')
      const lease = { identity: request.identity, token: request.token, attempt: 0 }
      const fenced = { kind: 'fenced', own: false, state: 'completed' }
      assert.deepEqual(await settle(store, completeOf(lease)), fenced)
    },
  },
  {
    name: 'completes each abandoned record once, at most `limit` per call',
    async run({ store, clock }) {
      for (let n = 0; n < 6; n++) await claim(store, { key: `key-${n}`, mode: 'accept' })
      await finish(store, { key: 'done' })
      clock.advance(RETENTION_MS)
      const first = await store.reap({ limit: 3, abandoned: ABANDONED })
      assert.equal(first.abandoned + first.removed, 3)
      const reports = await race(4, () => store.reap({ limit: 10, abandoned: ABANDONED }))
      const sum = (pick: 'abandoned' | 'removed') =>
        [first, ...reports].reduce((total, report) => total + report[pick], 0)
      assert.deepEqual([sum('abandoned'), sum('removed')], [6, 1])
    },
  },
]
