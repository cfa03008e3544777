import assert from 'node:assert/strict'
import type { ClaimOutcome, ClaimRequest, Store } from '../../core/store/store.ts'
import {
  assertBytes,
  bytes,
  claim,
  claimRequest,
  claimRequests,
  doubtOf,
  finish,
  hold,
  LEASE_MS,
  ofKind,
  race,
  releaseOf,
  RETENTION_MS,
  settle,
  tally,
  viewOf,
  type StoreCase,
} from './store-case.ts'

function find(store: Store, overrides: Partial<ClaimRequest> = {}): Promise<ClaimOutcome> {
  return claim(store, { mode: 'find', ...overrides })
}

/** Looks the key up and asserts that its record is the same as before, in every field. */
async function findUnchanged(
  store: Store,
  overrides: Partial<ClaimRequest> = {},
): Promise<ClaimOutcome> {
  const { identity } = claimRequest(overrides)
  const before = await viewOf(store, { identity })
  const outcome = await find(store, overrides)
  assert.deepEqual(await viewOf(store, { identity }), before)
  return outcome
}

export const findCases: readonly StoreCase[] = [
  {
    name: 'finds a key without a record free, and creates no record',
    async run({ store }) {
      const request = claimRequest({ mode: 'find' })
      const [outcome] = await store.claim([request])
      assert.deepEqual(outcome, { kind: 'free', recordId: request.recordId, from: 'new' })
      assert.equal(await store.read({ identity: request.identity }), undefined)
      assert.equal(ofKind(await claim(store), 'claimed').from, 'new')
    },
  },
  {
    name: 'finds the result of a completed record, and a mismatch for another request',
    async run({ store }) {
      const { recordId } = await viewOf(store, await finish(store, {}, bytes('kept')))
      const found = ofKind(await findUnchanged(store), 'completed')
      assertBytes(found.result, bytes('kept'))
      assert.equal(found.recordId, recordId)
      const other = await findUnchanged(store, { fingerprint: 'other' })
      assert.deepEqual(other, { kind: 'mismatch', recordId, fingerprint: 'fingerprint-1' })
    },
  },
  {
    name: 'finds a held key in progress, and neither renews nor takes its lease',
    async run({ store, clock }) {
      const lease = await hold(store)
      clock.advance(1000)
      const found = ofKind(await findUnchanged(store), 'in_progress')
      assert.equal(found.leaseLeftMs, LEASE_MS - 1000)
      assert.deepEqual(await store.renew([{ ...lease, leaseMs: LEASE_MS }]), [true])
    },
  },
  {
    name: 'finds a lapsed lease unknown or free, as its policy says, and moves nothing',
    async run({ store, clock }) {
      await hold(store, { key: 'unknown' })
      await hold(store, { key: 'rerun', onLapse: 'rerun' })
      clock.advance(LEASE_MS)
      const unknown = ofKind(await findUnchanged(store, { key: 'unknown' }), 'unknown')
      assert.deepEqual([unknown.lapsed, unknown.attempt], [false, 1])
      assert.equal(ofKind(await findUnchanged(store, { key: 'rerun' }), 'free').from, 'lapsed')
      assert.equal((await store.sweep({ limit: 10 })).length, 2)
    },
  },
  {
    name: 'finds released, unknown and accepted records, and leaves them as they are',
    async run({ store }) {
      await settle(store, releaseOf(await hold(store, { key: 'released' })))
      await settle(store, doubtOf(await hold(store, { key: 'doubtful' }), 500))
      await claim(store, { mode: 'accept', key: 'accepted' })
      assert.equal(ofKind(await findUnchanged(store, { key: 'released' }), 'free').from, 'retry')
      const doubtful = ofKind(await findUnchanged(store, { key: 'doubtful' }), 'unknown')
      assert.equal(doubtful.reconcileInMs, 500)
      assert.equal(
        ofKind(await findUnchanged(store, { key: 'accepted' }), 'pending').accepted,
        false,
      )
    },
  },
  {
    name: 'finds an expired record free or refused, as the request says, and keeps it',
    async run({ store, clock }) {
      const { recordId } = await viewOf(store, await finish(store))
      clock.advance(RETENTION_MS)
      const free = await findUnchanged(store, { fingerprint: 'other' })
      assert.deepEqual(free, { kind: 'free', recordId, from: 'expired' })
      const refused = await findUnchanged(store, { afterExpiry: 'refuse' })
      assert.deepEqual(refused, { kind: 'expired', recordId })
    },
  },
  {
    name: 'answers look-ups and claims of one batch, each in its place',
    async run({ store }) {
      await finish(store, { key: 'key-1' })
      const requests = claimRequests(6).map((request, n) =>
        n % 2 === 0 ? request : { ...request, mode: 'find' as const },
      )
      const outcomes = await store.claim(requests)
      assert.deepEqual(
        outcomes.map(({ kind }) => kind),
        ['claimed', 'completed', 'claimed', 'free', 'claimed', 'free'],
      )
    },
  },
  {
    name: 'lets one claim win among many concurrent look-ups of its key',
    async run({ store }) {
      const outcomes = await race(20, () => find(store))
      const [claims] = await Promise.all([race(4, () => claim(store)), race(20, () => find(store))])
      assert.deepEqual(tally(outcomes), { free: 20 })
      assert.deepEqual(tally(claims), { claimed: 1, in_progress: 3 })
    },
  },
]
