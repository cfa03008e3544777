import assert from 'node:assert/strict'
import { newToken } from '../../core/record/identity.ts'
import {
  assertBytes,
  bytes,
  claim,
  claimRequest,
  claimRequests,
  completeOf,
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

const MIB = 1024 * 1024

export const claimCases: readonly StoreCase[] = [
  {
    name: 'does not hold a key for a delayed claim whose token was already released',
    async run({ store }) {
      const request = claimRequest()
      const { lease } = ofKind(await claim(store, request), 'claimed')
      await settle(store, releaseOf({ ...lease, attempt: 0 }))
      ofKind(await claim(store, request), 'in_progress')
      assert.equal((await viewOf(store, lease))?.state, 'failed_retryable')
      ofKind(await claim(store, claimRequest()), 'claimed')
    },
  },
  {
    name: 'gives a free key to exactly one of many concurrent claims',
    async run({ store }) {
      const outcomes = await race(20, () => claim(store))
      assert.deepEqual(tally(outcomes), { claimed: 1, in_progress: 19 })
      assert.equal(new Set(outcomes.map((outcome) => outcome.recordId)).size, 1)
    },
  },
  {
    name: 'gives a key that occurs twice in one batch to one of the two claims',
    async run({ store }) {
      const outcomes = await store.claim([claimRequest(), claimRequest()])
      assert.deepEqual(tally(outcomes), { claimed: 1, in_progress: 1 })
    },
  },
  {
    name: 'gives each key once to concurrent batches that overlap',
    async run({ store }) {
      // Every second batch is reversed: a store that locks rows in batch order would deadlock.
      const batches = await Promise.all(
        Array.from({ length: 8 }, (_, n) => {
          const requests = claimRequests(25)
          return store.claim(n % 2 === 0 ? requests : requests.toReversed())
        }),
      )
      assert.deepEqual(tally(batches.flat()), { claimed: 25, in_progress: 175 })
    },
  },
  {
    name: 'claims two hundred keys in one batch',
    async run({ store }) {
      const requests = claimRequests(200)
      const outcomes = await store.claim(requests)
      const ids = outcomes.map((outcome) => ofKind(outcome, 'claimed').recordId)
      assert.deepEqual(
        ids,
        requests.map((request) => request.recordId),
      )
    },
  },
  {
    name: 'answers a batch in the order of its requests',
    async run({ store }) {
      await finish(store, { key: 'done' })
      await hold(store, { key: 'held' })
      await settle(store, doubtOf(await hold(store, { key: 'doubtful' })))
      const outcomes = await store.claim([
        claimRequest({ key: 'free-1' }),
        claimRequest({ key: 'done' }),
        claimRequest({ key: 'held' }),
        claimRequest({ key: 'free-2' }),
        claimRequest({ key: 'done', fingerprint: 'other' }),
        claimRequest({ key: 'doubtful' }),
      ])
      assert.deepEqual(
        outcomes.map((outcome) => outcome.kind),
        ['claimed', 'completed', 'in_progress', 'claimed', 'mismatch', 'unknown'],
      )
    },
  },
  {
    name: 'answers an empty batch with an empty list',
    async run({ store }) {
      assert.deepEqual(await store.claim([]), [])
      assert.deepEqual(await store.settle([]), [])
      assert.deepEqual(await store.renew([]), [])
      assert.deepEqual(await store.resolve([]), [])
    },
  },
  {
    name: 'returns the lease, the record id and the expiry to the winning claim',
    async run({ store, clock }) {
      const request = claimRequest()
      const [outcome] = await store.claim([request])
      assert.deepEqual(outcome, {
        kind: 'claimed',
        lease: { identity: request.identity, token: request.token, attempt: 1 },
        recordId: request.recordId,
        idSeed: undefined,
        from: 'new',
        recoveryPoint: undefined,
        expiresAt: new Date(clock.nowMs() + RETENTION_MS),
      })
    },
  },
  {
    name: 'returns the remaining lease time to a duplicate claim',
    async run({ store, clock }) {
      await hold(store)
      clock.advance(3000)
      assert.equal(ofKind(await claim(store), 'in_progress').leaseLeftMs, LEASE_MS - 3000)
    },
  },
  {
    name: 'recognises a claim that is repeated with the same token as the winner',
    async run({ store }) {
      const request = claimRequest()
      const first = await store.claim([request])
      assert.deepEqual(await store.claim([request]), first)
      assert.equal((await viewOf(store, request)).attempt, 1)
    },
  },
  {
    name: 'recognises a repeated claim of a later attempt as the winner',
    async run({ store }) {
      await settle(store, releaseOf(await hold(store)))
      const token = newToken()
      const second = ofKind(await claim(store, { token }), 'claimed')
      const repeated = ofKind(await claim(store, { token }), 'claimed')
      assert.deepEqual([second.lease, second.from], [repeated.lease, 'retry'])
      assert.deepEqual([repeated.lease.attempt, repeated.from], [2, 'retry'])
    },
  },
  {
    name: 'gives a released key to one of many concurrent claims as the next attempt of its record',
    async run({ store }) {
      const first = ofKind(await claim(store), 'claimed')
      await settle(store, releaseOf(first.lease))
      const outcomes = await race(10, () => claim(store))
      assert.deepEqual(tally(outcomes), { claimed: 1, in_progress: 9 })
      const second = outcomes.find((outcome) => outcome.kind === 'claimed')!
      assert.deepEqual([second.lease.attempt, second.from], [2, 'retry'])
      assert.equal(second.recordId, first.recordId)
    },
  },
  {
    name: 'clears the last error when a new attempt starts',
    async run({ store }) {
      const lease = await hold(store)
      await settle(store, releaseOf(lease, 'declared'))
      const released = await viewOf(store, lease)
      assert.deepEqual([released.errorCode, released.proof], ['refused', 'declared'])
      await hold(store)
      const retried = await viewOf(store, lease)
      assert.deepEqual([retried.errorCode, retried.proof], [undefined, undefined])
    },
  },
  ...mismatchCases(),
  ...replayCases(),
]

function mismatchCases(): StoreCase[] {
  const mismatch = (name: string, prepare: StoreCase['run']): StoreCase => ({
    name: `refuses a request with another fingerprint ${name}, and changes nothing`,
    async run(fixture) {
      const { store } = fixture
      await prepare(fixture)
      const before = await viewOf(store, claimRequest())
      const { recordId } = before
      assert.deepEqual(await claim(store, { fingerprint: 'other' }), {
        kind: 'mismatch',
        recordId,
        fingerprint: 'fingerprint-1',
      })
      assert.deepEqual(await store.read({ recordId }), before)
    },
  })
  return [
    mismatch('while the key is held', async ({ store }) => {
      await hold(store)
    }),
    mismatch('once the key is completed', async ({ store }) => {
      await finish(store)
    }),
    mismatch('once the key is released', async ({ store }) => {
      await settle(store, releaseOf(await hold(store)))
    }),
    mismatch('while the key is unknown', async ({ store }) => {
      await settle(store, doubtOf(await hold(store)))
    }),
    mismatch('after the lease of the key lapsed', async ({ store, clock }) => {
      await hold(store, { onLapse: 'rerun' })
      clock.advance(LEASE_MS)
    }),
  ]
}

function replayCases(): StoreCase[] {
  const replays = (what: string, result: () => Uint8Array): StoreCase => ({
    name: `replays ${what} byte for byte`,
    async run({ store, clock }) {
      const lease = await finish(store, {}, result())
      const replay = ofKind(await claim(store), 'completed')
      assertBytes(replay.result, result())
      assert.deepEqual(replay.expiresAt, new Date(clock.nowMs() + RETENTION_MS))
      assertBytes((await viewOf(store, lease)).result, result())
    },
  })
  return [
    replays('a text result', () => bytes('{"id":"pay_1","note":"Grüße 🎉"}')),
    replays('a result with every byte value', () => Uint8Array.from({ length: 256 }, (_, n) => n)),
    replays('an empty result', () => new Uint8Array(0)),
    replays('a result of one mebibyte', () => new Uint8Array(MIB).map((_, n) => (n * 31) % 251)),
    {
      name: 'keeps a copy of a result, so that a later change to the buffer does not matter',
      async run({ store }) {
        // Node hands out views into a larger buffer: the bytes around the view must not leak in.
        const buffer = bytes('xx first xx')
        await finish(store, {}, buffer.subarray(3, 8))
        buffer.fill(0)
        assertBytes(ofKind(await claim(store), 'completed').result, bytes('first'))
      },
    },
    {
      name: 'writes nothing during a replay',
      async run({ store, clock }) {
        const lease = await finish(store)
        const before = await viewOf(store, lease)
        clock.advance(1000)
        await claim(store, { leaseMs: 1, retentionMs: 10 * RETENTION_MS, onLapse: 'rerun' })
        assert.deepEqual(await viewOf(store, lease), before)
      },
    },
    {
      name: 'replays the result to the holder when it claims again with the same token',
      async run({ store }) {
        const token = newToken()
        const lease = await hold(store, { token })
        await settle(store, completeOf(lease, bytes('mine')))
        assertBytes(ofKind(await claim(store, { token }), 'completed').result, bytes('mine'))
      },
    },
  ]
}
