import assert from 'node:assert/strict'
import { newToken } from '../../core/record/identity.ts'
import {
  bytes,
  claim,
  claimRequests,
  completeOf,
  finish,
  hold,
  LEASE_MS,
  ofKind,
  releaseOf,
  RETENTION_MS,
  settle,
  viewOf,
  type StoreCase,
} from './store-case.ts'

const [SEED, OTHER] = ['0123456789abcdef0123456789abcdef', 'f'.repeat(32)]

export const seedCases: readonly StoreCase[] = [
  {
    name: 'gives every attempt the id seed with which the record was created',
    async run({ store, clock }) {
      const first = ofKind(await claim(store, { idSeed: SEED, onLapse: 'rerun' }), 'claimed')
      assert.equal(first.idSeed, SEED)
      await settle(store, releaseOf(first.lease))
      const retry = ofKind(await claim(store, { idSeed: OTHER, onLapse: 'rerun' }), 'claimed')
      assert.deepEqual([retry.from, retry.idSeed], ['retry', SEED])
      clock.advance(LEASE_MS)
      const lapsed = ofKind(await claim(store, { idSeed: undefined }), 'claimed')
      assert.deepEqual([lapsed.from, lapsed.idSeed], ['lapsed', SEED])
      await settle(store, completeOf(lapsed.lease))
      assert.equal((await viewOf(store, lapsed.lease)).idSeed, SEED)
    },
  },
  {
    name: 'gives a repeated claim and a worker the id seed on record',
    async run({ store }) {
      const token = newToken()
      ofKind(await claim(store, { idSeed: SEED, token }), 'claimed')
      assert.equal(ofKind(await claim(store, { idSeed: OTHER, token }), 'claimed').idSeed, SEED)
      ofKind(await claim(store, { key: 'later', mode: 'accept', idSeed: SEED }), 'pending')
      const taken = ofKind(await claim(store, { key: 'later', mode: 'take' }), 'claimed')
      assert.deepEqual([taken.from, taken.idSeed], ['accepted', SEED])
    },
  },
  {
    name: 'keeps records with and without an id seed apart in one batch',
    async run({ store }) {
      const seeds = [SEED, undefined, OTHER, undefined]
      const requests = claimRequests(4).map((request, n) => ({ ...request, idSeed: seeds[n] }))
      const outcomes = await store.claim(requests)
      assert.deepEqual(
        outcomes.map((outcome) => ofKind(outcome, 'claimed').idSeed),
        seeds,
      )
      for (const [n, { identity }] of requests.entries()) {
        assert.equal((await viewOf(store, { identity })).idSeed, seeds[n])
      }
    },
  },
  {
    name: 'gives the record that replaces an expired one the id seed of the new claim',
    async run({ store, clock }) {
      await finish(store, { idSeed: SEED })
      clock.advance(RETENTION_MS)
      const second = ofKind(await claim(store, { idSeed: OTHER }), 'claimed')
      assert.deepEqual([second.from, second.idSeed], ['expired', OTHER])
      assert.equal((await viewOf(store, second.lease)).idSeed, OTHER)
    },
  },
  {
    name: 'keeps the id seed in the history',
    needs: 'history',
    async run({ store, clock }) {
      const { identity } = await finish(store, { idSeed: SEED })
      clock.advance(RETENTION_MS)
      await store.reap({ limit: 10 })
      const [kept] = await store.history!({ ref: { identity }, limit: 1 })
      assert.equal(kept?.idSeed, SEED)
    },
  },
]

export const discardCases: readonly StoreCase[] = [
  {
    name: 'discards a result: the next request runs the work again, with the same ids',
    needs: 'discard',
    async run({ store }) {
      const lease = await finish(store, { idSeed: SEED }, bytes('first'))
      const { recordId } = await viewOf(store, lease)
      const outcome = await store.discard!({ ref: { recordId }, attempt: 1 })
      const { record, repeated } = ofKind(outcome, 'discarded')
      assert.deepEqual(record, await viewOf(store, lease))
      assert.deepEqual(
        [repeated, record.state, record.proof, record.errorCode, record.completedAt],
        [false, 'failed_retryable', 'declared', 'reply_discarded', undefined],
      )
      assert.equal(record.result, undefined)
      const again = ofKind(await claim(store, { idSeed: OTHER }), 'claimed')
      assert.deepEqual([again.from, again.recordId], ['retry', recordId])
      assert.deepEqual([again.lease.attempt, again.idSeed], [2, SEED])
      ofKind(await settle(store, completeOf(again.lease, bytes('second'))), 'settled')
    },
  },
  {
    name: 'gives later attempts the new id seed of a discard',
    needs: 'discard',
    async run({ store }) {
      const { identity } = await finish(store, { idSeed: SEED })
      await store.discard!({ ref: { identity }, attempt: 1, idSeed: OTHER })
      assert.equal(ofKind(await claim(store), 'claimed').idSeed, OTHER)
    },
  },
  {
    name: 'lets the holder of a discarded result record nothing more',
    needs: 'discard',
    async run({ store }) {
      const lease = await finish(store)
      await store.discard!({ ref: { identity: lease.identity }, attempt: 1 })
      const fenced = { kind: 'fenced', own: false, state: 'failed_retryable' }
      assert.deepEqual(await settle(store, completeOf(lease)), fenced)
    },
  },
  {
    name: 'answers a repeated discard as the first, and writes it once',
    needs: 'discard',
    async run({ store }) {
      const { identity } = await finish(store)
      const discard = { ref: { identity }, attempt: 1 }
      ofKind(await store.discard!(discard), 'discarded')
      const before = await viewOf(store, { identity })
      assert.equal(ofKind(await store.discard!(discard), 'discarded').repeated, true)
      assert.deepEqual(await viewOf(store, { identity }), before)
    },
  },
  {
    name: 'discards no result of another attempt, and no record without a result',
    needs: 'discard',
    async run({ store }) {
      const lease = await finish(store)
      const { recordId, identity } = await viewOf(store, lease)
      const other = await store.discard!({ ref: { identity }, attempt: 2 })
      assert.deepEqual(other, { kind: 'other_attempt', recordId, attempt: 1 })
      ofKind(await claim(store), 'completed')
      const held = await viewOf(store, await hold(store, { key: 'held' }))
      const refused = await store.discard!({ ref: { recordId: held.recordId }, attempt: 1 })
      const { recordId: heldId } = held
      assert.deepEqual(refused, { kind: 'not_completed', recordId: heldId, state: 'in_progress' })
      const absent = { recordId: '018f0000-0000-7000-8000-000000000000' }
      assert.deepEqual(await store.discard!({ ref: absent, attempt: 1 }), { kind: 'not_found' })
    },
  },
]
