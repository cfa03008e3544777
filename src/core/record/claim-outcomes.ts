/** The outcomes of claims, made from the record that a claim has found or written. */
import { NO_BYTES } from '../bytes.ts'
import type { StoredRecord } from './record.ts'
import type { ClaimedFrom, ClaimOutcome, Lease } from '../store/store.ts'

export function claimedOutcome(record: StoredRecord, from: ClaimedFrom): ClaimOutcome {
  const { identity, token, attempt, recordId, idSeed, recoveryPoint } = record
  const lease: Lease = { identity, token, attempt }
  const expiresAt = new Date(record.expiresAtMs)
  return { kind: 'claimed', lease, recordId, idSeed, from, recoveryPoint, expiresAt }
}

export function completedOutcome(record: StoredRecord): ClaimOutcome {
  const { recordId, result = NO_BYTES, expiresAtMs } = record
  return { kind: 'completed', recordId, result, expiresAt: new Date(expiresAtMs) }
}

export function pendingOutcome(record: StoredRecord, accepted: boolean): ClaimOutcome {
  const { recordId, expiresAtMs } = record
  return { kind: 'pending', recordId, accepted, expiresAt: new Date(expiresAtMs) }
}

export function inProgressOutcome(record: StoredRecord, leaseLeftMs: number): ClaimOutcome {
  const { recordId, expiresAtMs } = record
  return { kind: 'in_progress', recordId, leaseLeftMs, expiresAt: new Date(expiresAtMs) }
}

export function unknownOutcome(record: StoredRecord, nowMs: number, lapsed: boolean): ClaimOutcome {
  const reconcileInMs = Math.max(0, (record.reconcileAtMs ?? nowMs) - nowMs)
  const { recordId, attempt } = record
  return { kind: 'unknown', recordId, attempt, reconcileInMs, lapsed }
}

export function mismatchOutcome({ recordId, fingerprint }: StoredRecord): ClaimOutcome {
  return { kind: 'mismatch', recordId, fingerprint }
}
