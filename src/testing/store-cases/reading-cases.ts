import assert from 'node:assert/strict'
import { newRecordId } from '../../core/record/identity.ts'
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
  releaseOf,
  RETENTION_MS,
  settle,
  viewOf,
  type StoreCase,
} from './store-case.ts'

export const readingCases: readonly StoreCase[] = [
  {
    name: 'reads a record by its id and by its identity',
    async run({ store, clock }) {
      const request = claimRequest({ onLapse: 'resume', afterExpiry: 'refuse' })
      const { identity, recordId } = request
      await store.claim([request])
      const { tenant, operation, key, fingerprint } = request
      const view = {
        identity,
        recordId,
        tenant,
        operation,
        key,
        fingerprint,
        state: 'in_progress',
        attempt: 1,
        lapses: 0,
        onLapse: 'resume',
        afterExpiry: 'refuse',
        proof: undefined,
        recoveryPoint: undefined,
        result: undefined,
        errorCode: undefined,
        leaseUntil: new Date(clock.nowMs() + LEASE_MS),
        reconcileAt: undefined,
        createdAt: new Date(clock.nowMs()),
        lastRunAt: new Date(clock.nowMs()),
        completedAt: undefined,
        expiresAt: new Date(clock.nowMs() + RETENTION_MS),
        idSeed: undefined,
        refuseForMs: undefined,
        tries: 0,
      }
      assert.deepEqual(await store.read({ identity }), view)
      assert.deepEqual(await store.read({ recordId }), view)
    },
  },
  {
    name: 'finds no record of an unused key, by id, by identity or in a list',
    async run({ store }) {
      const { identity } = claimRequest()
      assert.equal(await store.read({ identity }), undefined)
      assert.equal(await store.read({ recordId: newRecordId(0) }), undefined)
      assert.deepEqual(await store.list({ state: 'completed', limit: 10 }), [])
    },
  },
  {
    name: 'never shows the token of a record',
    async run({ store }) {
      const request = claimRequest()
      await store.claim([request])
      const views = [
        await store.read({ recordId: request.recordId }),
        ...(await store.list({ state: 'in_progress', limit: 10 })),
      ]
      assert.equal(views.length, 2)
      for (const view of views) assert.ok(!JSON.stringify(view).includes(request.token))
    },
  },
  {
    name: 'lists the records of one state, the oldest run first, at most `limit`',
    async run({ store, clock }) {
      await finish(store, { key: 'done' })
      await settle(store, releaseOf(await hold(store, { key: 'c' })))
      for (const key of ['a', 'b', 'c', 'd']) {
        clock.advance(1)
        await hold(store, { key })
      }
      const keys = async (limit: number) =>
        (await store.list({ state: 'in_progress', limit })).map((view) => view.key)
      assert.deepEqual(await keys(10), ['a', 'b', 'c', 'd'])
      assert.deepEqual(await keys(2), ['a', 'b'])
    },
  },
  {
    name: 'lists records without their results, which read returns',
    async run({ store }) {
      const lease = await finish(store)
      const [listed, ...others] = await store.list({ state: 'completed', limit: 10 })
      const { result, ...view } = await viewOf(store, lease)
      assertBytes(result, bytes('done'))
      assert.deepEqual(listed, { ...view, result: undefined })
      assert.deepEqual(others, [])
    },
  },
  {
    name: 'lists each state separately',
    async run({ store, clock }) {
      await finish(store, { key: 'expired', afterExpiry: 'refuse' })
      clock.advance(RETENTION_MS)
      await store.reap({ limit: 10 })
      await hold(store, { key: 'in_progress' })
      await settle(store, completeOf(await hold(store, { key: 'completed' })))
      await settle(store, releaseOf(await hold(store, { key: 'failed_retryable' })))
      await settle(store, doubtOf(await hold(store, { key: 'unknown' })))
      const states = ['expired', 'in_progress', 'completed', 'failed_retryable', 'unknown'] as const
      for (const state of states) {
        const views = await store.list({ state, limit: 10 })
        assert.deepEqual(
          views.map((view) => view.key),
          // An expired record has no key any more.
          [state === 'expired' ? '' : state],
        )
      }
      assert.deepEqual(await store.list({ state: 'pending', limit: 10 }), [])
    },
  },
]

/** Pairs of different keys that some database compares as equal. */
const LOOKALIKES: readonly (readonly [string, string])[] = [
  ['Key', 'key'],
  ['key', 'key '],
  ['key', ' key'],
  ['straße', 'strasse'],
  ['\u00e9', 'e\u0301'],
  ['\u212b', '\u00c5'],
  ['ﬁ', 'fi'],
  ['👍', '👍🏽'],
  ['1', '01'],
  ['1', '1.0'],
  ['a%', 'ab'],
  ['a_', 'ab'],
  ["'", "''"],
  ['\\', '\\\\'],
]

export const identityCases: readonly StoreCase[] = [
  {
    name: 'compares keys byte by byte',
    async run({ store }) {
      for (const [one, other] of LOOKALIKES) {
        const tenant = `${one}|${other}`
        await hold(store, { tenant, key: one })
        const lease = await hold(store, { tenant, key: other })
        assert.equal((await viewOf(store, lease)).key, other)
        ofKind(await claim(store, { tenant, key: one }), 'in_progress')
      }
    },
  },
  {
    name: 'compares fingerprints byte by byte',
    async run({ store }) {
      await finish(store, { fingerprint: 'Print' })
      for (const fingerprint of ['print', 'Print ', 'Prin\u0074\u0301']) {
        ofKind(await claim(store, { fingerprint }), 'mismatch')
      }
    },
  },
  {
    name: 'keeps the same key of two tenants or two operations apart',
    async run({ store }) {
      await finish(store, { tenant: 'a', operation: 'x' })
      await hold(store, { tenant: 'b', operation: 'x' })
      await hold(store, { tenant: 'a', operation: 'y' })
      await hold(store, { tenant: 'A', operation: 'x' })
      await hold(store, { tenant: 'ax', operation: 'x', key: 'key-1' })
      await hold(store, { tenant: 'a', operation: 'xx', key: 'key-1' })
    },
  },
  {
    name: 'stores names of the longest allowed length, in any script',
    async run({ store }) {
      const names = {
        tenant: '租'.repeat(255),
        operation: '작'.repeat(1024),
        key: '鍵'.repeat(1023),
      }
      const lease = await hold(store, { ...names, fingerprint: 'f'.repeat(255) })
      await hold(store, { ...names, key: `${names.key}2`, fingerprint: 'f'.repeat(255) })
      const { tenant, operation, key } = await viewOf(store, lease)
      assert.deepEqual({ tenant, operation, key }, names)
    },
  },
]
