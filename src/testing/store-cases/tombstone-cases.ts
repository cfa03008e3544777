import assert from 'node:assert/strict'
import {
  claim,
  claimRequests,
  completeOf,
  finish,
  hold,
  ofKind,
  race,
  releaseOf,
  RETENTION_MS,
  settle,
  viewOf,
  type StoreCase,
} from './store-case.ts'

const REFUSE_MS = 5000
const refuse = { afterExpiry: 'refuse', refuseForMs: REFUSE_MS } as const
const SEED = '0123456789abcdef0123456789abcdef'

export const tombstoneCases: readonly StoreCase[] = [
  {
    name: 'refuses an expired key for the time that the request asks for, and then allows it',
    async run({ store, clock }) {
      const { recordId } = await viewOf(store, await finish(store, refuse))
      clock.advance(RETENTION_MS)
      assert.deepEqual(await claim(store, refuse), { kind: 'expired', recordId })
      assert.deepEqual(await store.reap({ limit: 10 }), { removed: 0, expired: 1, abandoned: 0 })
      clock.advance(REFUSE_MS - 1)
      assert.deepEqual(await claim(store, refuse), { kind: 'expired', recordId })
      clock.advance(1)
      assert.equal(ofKind(await claim(store, refuse), 'claimed').from, 'expired')
    },
  },
  {
    name: 'keeps of a refused key only its identity, scope, ids and times',
    async run({ store, clock }) {
      const lease = await finish(store, { ...refuse, key: 'a name', idSeed: SEED })
      const before = await viewOf(store, lease)
      clock.advance(RETENTION_MS)
      await store.reap({ limit: 10 })
      const after = await viewOf(store, lease)
      const gone = { key: '', fingerprint: '', result: undefined }
      const reconcileAt = new Date(before.expiresAt.getTime() + REFUSE_MS)
      assert.deepEqual(after, { ...before, ...gone, state: 'expired', reconcileAt })
      assert.deepEqual([after.idSeed, after.tenant], [SEED, 'tenant-1'])
    },
  },
  {
    name: 'removes a refused key when its time is over, and no earlier',
    async run({ store, clock }) {
      const lease = await finish(store, refuse)
      const forEver = await finish(store, { key: 'for ever', afterExpiry: 'refuse' })
      clock.advance(RETENTION_MS)
      assert.equal((await store.reap({ limit: 10 })).expired, 2)
      clock.advance(REFUSE_MS - 1)
      assert.deepEqual(await store.reap({ limit: 10 }), { removed: 0, expired: 0, abandoned: 0 })
      clock.advance(1)
      assert.deepEqual(await store.reap({ limit: 10 }), { removed: 1, expired: 0, abandoned: 0 })
      assert.equal(await store.read({ identity: lease.identity }), undefined)
      clock.advance(1000 * RETENTION_MS)
      assert.deepEqual(await store.reap({ limit: 10 }), { removed: 0, expired: 0, abandoned: 0 })
      await viewOf(store, forEver)
    },
  },
  {
    name: 'refuses a released key in the same way after its expiry',
    async run({ store, clock }) {
      await settle(store, releaseOf(await hold(store, refuse)))
      clock.advance(RETENTION_MS)
      ofKind(await claim(store, refuse), 'expired')
      assert.equal((await store.reap({ limit: 10 })).expired, 1)
      ofKind(await claim(store, refuse), 'expired')
    },
  },
  {
    name: 'keeps the time of the refusal that the last claim asked for',
    async run({ store, clock }) {
      await settle(store, releaseOf(await hold(store, { afterExpiry: 'refuse' })))
      const again = await hold(store, refuse)
      await settle(store, completeOf(again))
      assert.equal((await viewOf(store, again)).refuseForMs, REFUSE_MS)
      clock.advance(RETENTION_MS)
      await store.reap({ limit: 10 })
      clock.advance(REFUSE_MS)
      assert.equal((await store.reap({ limit: 10 })).removed, 1)
    },
  },
  {
    name: 'removes at most `limit` refused keys per call, each once',
    async run({ store, clock }) {
      const leases = (await store.claim(claimRequests(7, refuse))).map(
        (outcome) => ofKind(outcome, 'claimed').lease,
      )
      await store.settle(leases.map((lease) => completeOf(lease)))
      clock.advance(RETENTION_MS)
      assert.equal((await store.reap({ limit: 10 })).expired, 7)
      clock.advance(REFUSE_MS)
      assert.equal((await store.reap({ limit: 3 })).removed, 3)
      const reports = await race(4, () => store.reap({ limit: 10 }))
      // Concurrent reaps skip each other's locked rows: one more call takes what they all skipped.
      reports.push(await store.reap({ limit: 10 }))
      assert.equal(
        reports.reduce((sum, { removed }) => sum + removed, 0),
        4,
      )
    },
  },
]
