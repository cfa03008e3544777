import { toView, type Decision } from './decide.ts'
import { NO_TOKEN } from './expiry.ts'
import type { StoredRecord } from './record.ts'
import type { Discard, DiscardOutcome } from '../store/store.ts'

/** Error code of a record whose result an operator has discarded. */
export const DISCARDED = 'reply_discarded'

/**
 * Takes the result from a record. Without a recovery point, the next attempt starts its operation
 * from the beginning; without a token, the holder that made the result can record nothing more.
 */
export function decideDiscard(
  record: StoredRecord | undefined,
  { attempt, idSeed }: Discard,
): Decision<DiscardOutcome> {
  if (record === undefined) return { outcome: { kind: 'not_found' } }
  const { recordId, state } = record
  if (attempt !== record.attempt) {
    return { outcome: { kind: 'other_attempt', recordId, attempt: record.attempt } }
  }
  if (state === 'failed_retryable' && record.errorCode === DISCARDED) {
    return { outcome: { kind: 'discarded', record: toView(record), repeated: true } }
  }
  if (state !== 'completed') return { outcome: { kind: 'not_completed', recordId, state } }
  const write: StoredRecord = {
    ...record,
    idSeed: idSeed ?? record.idSeed,
    state: 'failed_retryable',
    token: NO_TOKEN,
    proof: 'declared',
    recoveryPoint: undefined,
    result: undefined,
    errorCode: DISCARDED,
    reconcileAtMs: undefined,
    completedAtMs: undefined,
  }
  return { outcome: { kind: 'discarded', record: toView(write), repeated: false }, write }
}
