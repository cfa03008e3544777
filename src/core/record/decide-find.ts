import {
  completedOutcome,
  inProgressOutcome,
  mismatchOutcome,
  pendingOutcome,
  unknownOutcome,
} from './claim-outcomes.ts'
import { isExpired, isRefused } from './expiry.ts'
import type { StoredRecord } from './record.ts'
import type { ClaimedFrom, ClaimOutcome, ClaimRequest } from '../store/store.ts'

/**
 * The answer to a claim with the mode `find`. No store writes anything for it, so every store may
 * read the record first and decide with this function. The record may change before the answer
 * arrives, as with any read.
 */
export function decideFind(
  record: StoredRecord | undefined,
  request: ClaimRequest,
  nowMs: number,
): ClaimOutcome {
  if (record === undefined) return { kind: 'free', recordId: request.recordId, from: 'new' }
  if (isExpired(record, nowMs)) {
    if (!isRefused(record, request, nowMs)) return free(record, 'expired')
    return { kind: 'expired', recordId: record.recordId }
  }
  if (record.fingerprint !== request.fingerprint) return mismatchOutcome(record)
  return findExisting(record, nowMs)
}

function findExisting(record: StoredRecord, nowMs: number): ClaimOutcome {
  switch (record.state) {
    case 'completed':
      return completedOutcome(record)
    case 'in_progress': {
      const leftMs = record.leaseUntilMs - nowMs
      if (leftMs > 0) return inProgressOutcome(record, leftMs)
      return record.onLapse === 'unknown'
        ? unknownOutcome(record, nowMs, false)
        : free(record, 'lapsed')
    }
    case 'failed_retryable':
      return free(record, 'retry')
    case 'unknown':
      return unknownOutcome(record, nowMs, false)
    case 'pending':
      return pendingOutcome(record, false)
    case 'expired':
      // Unreachable: `decideFind` handles expired records.
      return { kind: 'expired', recordId: record.recordId }
  }
}

function free({ recordId }: StoredRecord, from: ClaimedFrom): ClaimOutcome {
  return { kind: 'free', recordId, from }
}
