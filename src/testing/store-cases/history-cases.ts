import assert from 'node:assert/strict'
import type { RecordRef, RecordView, Store } from '../../core/store/store.ts'
import {
  assertBytes,
  bytes,
  claim,
  claimRequest,
  doubtOf,
  finish,
  hold,
  ofKind,
  releaseOf,
  RETENTION_MS,
  settle,
  viewOf,
  type StoreCase,
} from './store-case.ts'

export const historyCases: readonly StoreCase[] = [
  {
    name: 'keeps every field of a reaped record in the history, as expired',
    needs: 'history',
    async run({ store, clock }) {
      const before = await viewOf(store, await finish(store, {}, bytes('kept')))
      assert.deepEqual(await historyOf(store, { recordId: before.recordId }), [])
      clock.advance(RETENTION_MS)
      const report = await store.reap({ limit: 10 })
      assert.deepEqual(report, { removed: 1, expired: 0, abandoned: 0 })
      assert.equal(await store.read({ identity: before.identity }), undefined)

      const [after, ...more] = await historyOf(store, { identity: before.identity })
      assert.equal(more.length, 0)
      assertBytes(after?.result, bytes('kept'))
      const rest = { state: 'expired', result: undefined } as const
      assert.deepEqual({ ...after, ...rest }, { ...before, ...rest })
      assert.equal(after?.state, 'expired')
      const byId = await historyOf(store, { recordId: before.recordId })
      assert.equal(byId.length, 1)
    },
  },
  {
    name: 'keeps a replaced record in the history, newest first',
    needs: 'history',
    async run({ store, clock }) {
      const { identity } = claimRequest()
      for (const text of ['one', 'two', 'three']) {
        await finish(store, {}, bytes(text))
        clock.advance(RETENTION_MS)
      }
      ofKind(await claim(store, { mode: 'accept' }), 'pending')
      const texts = (await historyOf(store, { identity })).map((view) => text(view))
      assert.deepEqual(texts, ['three', 'two', 'one'])
      const newest = await store.history!({ ref: { identity }, limit: 2 })
      assert.deepEqual(
        newest.map((view) => text(view)),
        ['three', 'two'],
      )
    },
  },
  {
    name: 'keeps released records in the history, but no unknown record',
    needs: 'history',
    async run({ store, clock }) {
      const released = await hold(store, { key: 'released' })
      await settle(store, releaseOf(released))
      const doubtful = await hold(store, { key: 'doubtful' })
      await settle(store, doubtOf(doubtful))
      clock.advance(RETENTION_MS)
      assert.equal((await store.reap({ limit: 10 })).removed, 1)
      const [kept] = await historyOf(store, { identity: released.identity })
      assert.deepEqual([kept?.proof, kept?.errorCode], ['proven', 'refused'])
      assert.deepEqual(await historyOf(store, { identity: doubtful.identity }), [])
    },
  },
  {
    name: 'keeps a refused key once in the history, with the result that the record loses',
    needs: 'history',
    async run({ store, clock }) {
      const { identity } = await finish(store, { afterExpiry: 'refuse' }, bytes('kept'))
      clock.advance(RETENTION_MS)
      assert.equal((await store.reap({ limit: 10 })).expired, 1)
      ofKind(await claim(store, { afterExpiry: 'refuse' }), 'expired')
      const kept = await historyOf(store, { identity })
      assert.deepEqual(
        kept.map((view) => text(view)),
        ['kept'],
      )
      // The new record replaces the expired one, which the history already contains.
      ofKind(await claim(store, { afterExpiry: 'new' }), 'claimed')
      assert.deepEqual(await historyOf(store, { identity }), kept)
    },
  },
]

function historyOf(store: Store, ref: RecordRef): Promise<RecordView[]> {
  assert.ok(store.history !== undefined, 'expected a store with a history')
  return store.history({ ref, limit: 10 })
}

function text({ result }: RecordView): string {
  return new TextDecoder().decode(result)
}
