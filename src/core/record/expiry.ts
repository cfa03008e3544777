/** When a record counts as expired, and what is kept of it while its key stays refused. */
import { nextState, type StoredRecord } from './record.ts'
import type { ClaimRequest } from '../store/store.ts'

/** Matches no lease: every token of a claim has 32 characters. */
export const NO_TOKEN = ''

/** Whether a claim treats the record as expired, even if `reap` has not ended it yet. */
export function isExpired(
  record: Pick<StoredRecord, 'state' | 'recoveryPoint' | 'expiresAtMs'>,
  nowMs: number,
): boolean {
  if (record.state === 'expired') return true
  // An operation that has begun never expires: it may have had an effect.
  if (record.state === 'failed_retryable' && record.recoveryPoint !== undefined) return false
  const mayExpire = nextState(record.state, 'expire') !== undefined
  return mayExpire && record.expiresAtMs <= nowMs
}

/**
 * Whether a claim of an expired key is refused. The policy of the request decides. A tombstone is
 * refused before its expiry in any case: the clock was set back, and its result is gone.
 */
export function isRefused(
  { state, expiresAtMs }: Pick<StoredRecord, 'state' | 'expiresAtMs'>,
  { afterExpiry, refuseForMs }: Pick<ClaimRequest, 'afterExpiry' | 'refuseForMs'>,
  nowMs: number,
): boolean {
  if (state === 'expired' && nowMs < expiresAtMs) return true
  if (afterExpiry === 'new') return false
  return refuseForMs === undefined || nowMs < expiresAtMs + refuseForMs
}

/**
 * The rest of an expired record while its key stays refused. The name of the key, the fingerprint
 * and the result are removed: no claim needs them, and they may be large or personal.
 */
export function toTombstone(record: StoredRecord): StoredRecord {
  const { expiresAtMs, refuseForMs } = record
  return {
    ...record,
    state: 'expired',
    key: '',
    fingerprint: '',
    token: NO_TOKEN,
    proof: undefined,
    recoveryPoint: undefined,
    result: undefined,
    errorCode: undefined,
    reconcileAtMs: refuseForMs === undefined ? undefined : expiresAtMs + refuseForMs,
  }
}

/** Whether `reap` may remove this tombstone. */
export function isTombstoneOver(
  { state, reconcileAtMs }: Pick<StoredRecord, 'state' | 'reconcileAtMs'>,
  nowMs: number,
): boolean {
  return state === 'expired' && reconcileAtMs !== undefined && reconcileAtMs <= nowMs
}
