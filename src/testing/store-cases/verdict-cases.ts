import assert from 'node:assert/strict'
import { newRecordId } from '../../core/record/identity.ts'
import type { ClaimOutcome, Store, Verdict } from '../../core/store/store.ts'
import {
  assertBytes,
  bytes,
  claim,
  claimRequest,
  completeOf,
  doubtOf,
  hold,
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

type ClaimedOutcome = Extract<ClaimOutcome, { kind: 'claimed' }>

async function unknownKey(store: Store, key = 'key-1'): Promise<ClaimedOutcome> {
  const claimed = ofKind(await claim(store, { key }), 'claimed')
  await settle(store, doubtOf(claimed.lease))
  return claimed
}

function verdict(ref: Verdict['ref'], result?: Uint8Array): Verdict {
  return {
    ref,
    verdict: result ? { kind: 'completed', result } : { kind: 'failed_retryable' },
    retentionMs: RETENTION_MS,
  }
}

export const verdictCases: readonly StoreCase[] = [
  {
    name: 'applies a verdict on one attempt to that attempt only',
    async run({ store }) {
      const { recordId, lease } = await unknownKey(store)
      const other = only(await store.resolve([{ ...verdict({ recordId }), attempt: 2 }]))
      assert.deepEqual(other, { kind: 'other_attempt', attempt: 1 })
      assert.equal((await viewOf(store, lease))?.state, 'unknown')
      const right = only(await store.resolve([{ ...verdict({ recordId }), attempt: 1 }]))
      ofKind(right, 'resolved')
    },
  },
  {
    name: 'completes an unknown key by verdict, and replays the result of the verdict',
    async run({ store, clock }) {
      const { recordId, lease } = await unknownKey(store)
      clock.advance(1000)
      const outcome = only(await store.resolve([verdict({ recordId }, bytes('found'))]))
      const { record } = ofKind(outcome, 'resolved')
      assert.deepEqual(record, await viewOf(store, lease))
      assert.deepEqual([record.state, record.reconcileAt], ['completed', undefined])
      assert.deepEqual(record.completedAt, new Date(clock.nowMs()))
      const replay = ofKind(await claim(store), 'completed')
      assertBytes(replay.result, bytes('found'))
      assert.deepEqual(replay.expiresAt, new Date(clock.nowMs() + RETENTION_MS))
    },
  },
  {
    name: 'refuses the late complete of the holder after a verdict completed its key',
    async run({ store }) {
      const { recordId, lease } = await unknownKey(store)
      await store.resolve([verdict({ recordId }, bytes('found'))])
      const fenced = { kind: 'fenced', own: false, state: 'completed' }
      assert.deepEqual(await settle(store, completeOf(lease)), fenced)
      assert.deepEqual(await settle(store, releaseOf(lease)), fenced)
      assertBytes(ofKind(await claim(store), 'completed').result, bytes('found'))
    },
  },
  {
    name: 'releases an unknown key by verdict',
    async run({ store }) {
      const { lease, recordId } = await unknownKey(store)
      const outcome = only(await store.resolve([verdict({ identity: lease.identity })]))
      const { record } = ofKind(outcome, 'resolved')
      assert.deepEqual([record.state, record.proof], ['failed_retryable', 'proven'])
      const retry = ofKind(await claim(store), 'claimed')
      assert.deepEqual([retry.from, retry.recordId, retry.lease.attempt], ['retry', recordId, 2])
    },
  },
  {
    name: 'accepts a late complete of the holder after a verdict released its key',
    async run({ store }) {
      const { recordId, lease } = await unknownKey(store)
      await store.resolve([verdict({ recordId })])
      ofKind(await settle(store, completeOf(lease, bytes('it had'))), 'settled')
      assertBytes(ofKind(await claim(store), 'completed').result, bytes('it had'))
    },
  },
  {
    name: 'refuses the late complete of the holder once the released key is claimed again',
    async run({ store }) {
      const { recordId, lease } = await unknownKey(store)
      await store.resolve([verdict({ recordId })])
      await hold(store)
      const outcome = await settle(store, completeOf(lease))
      assert.deepEqual(outcome, { kind: 'fenced', own: false, state: 'in_progress' })
    },
  },
  {
    name: 'applies no verdict to a record that is absent or not unknown, and answers in order',
    async run({ store }) {
      const held = await hold(store, { key: 'held' })
      const { recordId } = await unknownKey(store, 'doubtful')
      const { identity } = claimRequest({ key: 'never claimed' })
      const outcomes = await store.resolve([
        verdict({ identity: held.identity }, bytes('x')),
        verdict({ recordId: newRecordId(0) }),
        verdict({ recordId }, bytes('found')),
        verdict({ recordId }),
        verdict({ identity }),
      ])
      assert.deepEqual(outcomes[0], { kind: 'not_unknown', state: 'in_progress' })
      assert.deepEqual(outcomes[1], { kind: 'not_found' })
      assert.equal(outcomes[2]?.kind, 'resolved')
      assert.deepEqual(outcomes[3], { kind: 'not_unknown', state: 'completed' })
      assert.deepEqual(outcomes[4], { kind: 'not_found' })
      assert.equal((await viewOf(store, held)).state, 'in_progress')
    },
  },
  {
    name: 'applies the first verdict of a batch on each record, by id or by identity',
    async run({ store }) {
      const records = []
      for (const key of ['a', 'b', 'c', 'd', 'e', 'f']) records.push(await unknownKey(store, key))
      const verdicts = records.flatMap(({ recordId, lease: { identity } }, n) => {
        const refs = n % 2 === 0 ? [{ recordId }, { identity }] : [{ identity }, { recordId }]
        return refs.map((ref, at) => verdict(ref, bytes(`${at}`)))
      })
      const outcomes = await store.resolve(verdicts)
      const expected = records.flatMap(() => ['resolved', 'not_unknown'])
      assert.deepEqual(
        outcomes.map(({ kind }) => kind),
        expected,
      )
      for (const { lease } of records) assertBytes((await viewOf(store, lease)).result, bytes('0'))
    },
  },
  {
    name: 'applies exactly one of many concurrent verdicts',
    async run({ store }) {
      const { recordId } = await unknownKey(store)
      const outcomes = await race(8, () => store.resolve([verdict({ recordId }, bytes('v'))]))
      assert.deepEqual(tally(outcomes.flat()), { resolved: 1, not_unknown: 7 })
    },
  },
]
