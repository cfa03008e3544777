/**
 * Decides what a claim, settlement, renewal, sweep, reap or verdict makes of a record.
 *
 * The functions are pure: they get a record, a request and a time, and return an outcome and the
 * record to write. Memory and SQLite call them under a lock. MySQL and DynamoDB call them and write
 * on condition that the record has not changed. PostgreSQL and Redis restate them in SQL and Lua.
 * The cases of `oncekey/testing` check that all stores decide alike.
 */
import {
  claimedOutcome,
  completedOutcome,
  inProgressOutcome,
  mismatchOutcome,
  pendingOutcome,
  unknownOutcome,
} from './claim-outcomes.ts'
import { decideFind } from './decide-find.ts'
import { isExpired, isRefused, isTombstoneOver, NO_TOKEN, toTombstone } from './expiry.ts'
import { nextState, type MoveName, type RecordState, type StoredRecord } from './record.ts'
import { decideShorten } from './shorten-lease.ts'
import type {
  ClaimedFrom,
  ClaimMode,
  ClaimOutcome,
  ClaimRequest,
  Lease,
  ReapReport,
  ReapRequest,
  RecordView,
  Renewal,
  ResolveOutcome,
  SettleOutcome,
  Settlement,
  SweptRecord,
  Verdict,
} from '../store/store.ts'

export interface Decision<Outcome> {
  readonly outcome: Outcome
  /** The record to write; absent if nothing changes. */
  readonly write?: StoredRecord
}

/** Error code of a record whose lease lapsed. */
export const LAPSED = 'lease_lapsed'

export function decideClaim(
  record: StoredRecord | undefined,
  request: ClaimRequest,
  nowMs: number,
): Decision<ClaimOutcome> {
  if (request.mode === 'find') return { outcome: decideFind(record, request, nowMs) }
  if (record === undefined) return claimFree(request, 'new', nowMs)

  // Expiry is checked first: an expired record counts as absent, and its fingerprint must not
  // refuse a new request.
  if (isExpired(record, nowMs)) {
    if (isRefused(record, request, nowMs)) {
      return { outcome: { kind: 'expired', recordId: record.recordId } }
    }
    return claimFree(request, 'expired', nowMs)
  }
  // This claim is a repeat: it won the first time, and its answer was lost.
  if (record.state === 'in_progress' && record.token === request.token) {
    return { outcome: claimedOutcome(record, record.attempt === 1 ? 'new' : 'retry') }
  }
  // Checked before the state, so that a different request learns nothing and changes nothing.
  if (record.fingerprint !== request.fingerprint) return { outcome: mismatchOutcome(record) }
  return claimExisting(record, request, nowMs)
}

function claimFree(
  request: ClaimRequest,
  from: 'new' | 'expired',
  nowMs: number,
): Decision<ClaimOutcome> {
  switch (request.mode) {
    case 'hold':
      return claimed(newRecord(request, nowMs), from)
    case 'accept':
      return accepted(newPendingRecord(request, nowMs))
    case 'take':
      return { outcome: { kind: 'expired', recordId: request.recordId } }
    case 'find':
      // Unreachable: `decideClaim` handles this mode.
      return { outcome: decideFind(undefined, request, nowMs) }
  }
}

function claimExisting(
  record: StoredRecord,
  request: ClaimRequest,
  nowMs: number,
): Decision<ClaimOutcome> {
  const { recordId } = record
  switch (record.state) {
    case 'completed':
      return { outcome: completedOutcome(record) }
    case 'in_progress':
      return record.leaseUntilMs > nowMs
        ? claimHeld(record, nowMs)
        : claimLapsed(record, request, nowMs)
    case 'failed_retryable':
      // This claim won, its answer was lost, and its token was released. A delayed copy of it must
      // not hold the key, because no work will run under it.
      if (record.token === request.token) {
        return { outcome: inProgressOutcome(record, 0) }
      }
      return claimAgain(record, request, { nowMs, lapses: record.lapses, from: 'retry' })
    case 'unknown':
      return { outcome: unknownOutcome(record, nowMs, false) }
    case 'pending':
      return claimPending(record, request, nowMs)
    case 'expired':
      // Unreachable: `decideClaim` handles expired records.
      return { outcome: { kind: 'expired', recordId } }
  }
}

function claimHeld(record: StoredRecord, nowMs: number): Decision<ClaimOutcome> {
  const write = decideShorten(record, nowMs)
  if (write === undefined)
    return { outcome: inProgressOutcome(record, record.leaseUntilMs - nowMs) }
  return { outcome: inProgressOutcome(write, write.leaseUntilMs - nowMs), write }
}

function claimLapsed(
  record: StoredRecord,
  request: ClaimRequest,
  nowMs: number,
): Decision<ClaimOutcome> {
  if (record.onLapse === 'unknown') {
    const write = lapse(record, nowMs)
    return { outcome: unknownOutcome(write, nowMs, true), write }
  }
  return claimAgain(record, request, { nowMs, lapses: record.lapses + 1, from: 'lapsed' })
}

/** Only a worker takes an accepted record: past its expiry only if its operation has run before. */
function claimPending(
  record: StoredRecord,
  request: ClaimRequest,
  nowMs: number,
): Decision<ClaimOutcome> {
  if (request.mode !== 'take')
    return { outcome: pendingOutcome(record, record.token === request.token) }
  if (record.expiresAtMs <= nowMs && !isBegun(record)) {
    return { outcome: { kind: 'expired', recordId: record.recordId } }
  }
  return claimAgain(record, request, { nowMs, lapses: record.lapses, from: 'accepted' })
}

export function decideSettle(
  record: StoredRecord | undefined,
  settlement: Settlement,
  nowMs: number,
): Decision<SettleOutcome> {
  if (record === undefined) return { outcome: { kind: 'fenced', own: false, state: 'absent' } }
  if (!carriesLeaseOf(record, settlement)) {
    return { outcome: { kind: 'fenced', own: false, state: record.state } }
  }
  const state = SETTLED_STATE[settlement.kind]
  if (record.state === state) return settled(record)

  // A holder may report its outcome for as long as the record carries its token, even after the
  // record became `unknown`. Without proof it may not: a `doubt` or a `declared` release leaves an
  // `unknown` record as it is.
  const mayMove =
    nextState(record.state, settlement.kind) === state &&
    (record.state === 'in_progress' || settlement.kind === 'complete' || isProven(settlement))
  if (!mayMove) return { outcome: { kind: 'fenced', own: true, state: record.state } }

  const write = applySettlement(record, settlement, nowMs)
  return { ...settled(write), write }
}

const SETTLED_STATE = {
  complete: 'completed',
  release: 'failed_retryable',
  doubt: 'unknown',
} as const satisfies Record<Settlement['kind'], RecordState>

function applySettlement(
  record: StoredRecord,
  settlement: Settlement,
  nowMs: number,
): StoredRecord {
  switch (settlement.kind) {
    case 'complete':
      return completedWith(record, settlement.result, {
        nowMs,
        retentionMs: settlement.retentionMs,
      })
    case 'release':
      return {
        ...record,
        state: 'failed_retryable',
        proof: settlement.proof,
        errorCode: settlement.errorCode,
        reconcileAtMs: resumeAt(record, nowMs + (settlement.resumeAfterMs ?? 0)),
        expiresAtMs: Math.max(record.expiresAtMs, nowMs + settlement.retentionMs),
      }
    case 'doubt':
      return {
        ...record,
        state: 'unknown',
        errorCode: settlement.errorCode,
        reconcileAtMs: nowMs + settlement.reconcileAfterMs,
        tries: 0,
      }
  }
}

/** The record with the renewed lease, or `undefined` if this lease no longer holds it. */
export function decideRenew(
  record: StoredRecord | undefined,
  renewal: Renewal,
  nowMs: number,
): StoredRecord | undefined {
  if (record === undefined || !holds(record, renewal) || record.state !== 'in_progress') {
    return undefined
  }
  const { leaseMs } = renewal
  return { ...record, leaseUntilMs: nowMs + leaseMs, leaseMs }
}

export function decideResolve(
  record: StoredRecord | undefined,
  { verdict, attempt, retentionMs }: Verdict,
  nowMs: number,
): Decision<ResolveOutcome> {
  if (record === undefined) return { outcome: { kind: 'not_found' } }
  if (record.state !== 'unknown') return { outcome: { kind: 'not_unknown', state: record.state } }
  if (attempt !== undefined && attempt !== record.attempt) {
    return { outcome: { kind: 'other_attempt', attempt: record.attempt } }
  }

  const write: StoredRecord =
    verdict.kind === 'completed'
      ? // Without a token, so that a late settlement of the holder is fenced: the verdict stands.
        { ...completedWith(record, verdict.result, { nowMs, retentionMs }), token: NO_TOKEN }
      : // With its token: if the verdict was wrong and the holder is still running, its `complete`
        // is accepted until the key is claimed again.
        {
          ...record,
          state: 'failed_retryable',
          proof: 'proven',
          reconcileAtMs: resumeAt(record, nowMs),
          expiresAtMs: Math.max(record.expiresAtMs, nowMs + retentionMs),
        }
  return { outcome: { kind: 'resolved', record: toView(write) }, write }
}

/** The record after its lapse, or `undefined` if it has no lease that has ended. */
export function decideSweep(record: StoredRecord, nowMs: number): StoredRecord | undefined {
  if (record.state !== 'in_progress' || record.leaseUntilMs > nowMs) return undefined
  return lapse(record, nowMs)
}

export function toSwept(record: StoredRecord): SweptRecord {
  const { identity, recordId, tenant, operation, attempt } = record
  const to = record.state === 'unknown' ? 'unknown' : 'failed_retryable'
  return { identity, recordId, tenant, operation, attempt, to }
}

/** Without `write`, the record is removed and its key is free again. */
export type ReapDecision = { readonly kind: keyof ReapReport; readonly write?: StoredRecord }

/** Returns `undefined` if the record stays as it is. */
export function decideReap(
  record: StoredRecord,
  { abandoned }: ReapRequest,
  nowMs: number,
): ReapDecision | undefined {
  if (record.state === 'pending') {
    if (abandoned === undefined || record.expiresAtMs > nowMs || isBegun(record)) return undefined
    const { result, retentionMs } = abandoned
    const write = completedWith(record, result, { nowMs, retentionMs })
    return { kind: 'abandoned', write: { ...write, token: NO_TOKEN } }
  }
  if (record.state === 'expired') {
    return isTombstoneOver(record, nowMs) ? { kind: 'removed' } : undefined
  }
  if (!isExpired(record, nowMs)) return undefined
  if (record.afterExpiry === 'new') return { kind: 'removed' }
  return { kind: 'expired', write: toTombstone(record) }
}

/** The entry in the history for a record that expires: all its fields, and its result. */
export function toHistory(record: StoredRecord): StoredRecord {
  return { ...record, state: 'expired', token: NO_TOKEN }
}

export function toView(record: StoredRecord): RecordView {
  const { token: _token, leaseUntilMs, reconcileAtMs, createdAtMs, lastRunAtMs, ...rest } = record
  const { leaseMs: _leaseMs, completedAtMs, expiresAtMs, ...view } = rest
  return {
    ...view,
    leaseUntil: new Date(leaseUntilMs),
    reconcileAt: reconcileAtMs === undefined ? undefined : new Date(reconcileAtMs),
    createdAt: new Date(createdAtMs),
    lastRunAt: new Date(lastRunAtMs),
    completedAt: completedAtMs === undefined ? undefined : new Date(completedAtMs),
    expiresAt: new Date(expiresAtMs),
  }
}

/**
 * Whether the operation of the record has run before. It may have had an effect, so it is run to
 * its end, however late, and `reap` never completes it as abandoned.
 */
function isBegun({ recoveryPoint, attempt }: StoredRecord): boolean {
  return recoveryPoint !== undefined && attempt > 0
}

/** When a worker may resume a released record. Only records with an operation are resumed. */
export function resumeAt({ recoveryPoint }: StoredRecord, atMs: number): number | undefined {
  return recoveryPoint === undefined ? undefined : atMs
}

export function holds(record: StoredRecord, lease: Lease): boolean {
  return record.token === lease.token && record.attempt === lease.attempt
}

/** A release with attempt 0 matches any attempt of its token: the answer to its claim was lost. */
function carriesLeaseOf(record: StoredRecord, settlement: Settlement): boolean {
  const { lease } = settlement
  if (settlement.kind === 'release' && lease.attempt === 0) return record.token === lease.token
  return holds(record, lease)
}

function isProven(settlement: Settlement): boolean {
  return settlement.kind === 'release' && settlement.proof === 'proven'
}

function settled(record: StoredRecord): Decision<SettleOutcome> {
  return { outcome: { kind: 'settled', expiresAt: new Date(record.expiresAtMs) } }
}

function claimed(record: StoredRecord, from: ClaimedFrom): Decision<ClaimOutcome> {
  return { outcome: claimedOutcome(record, from), write: record }
}

function accepted(record: StoredRecord): Decision<ClaimOutcome> {
  return { outcome: pendingOutcome(record, true), write: record }
}

function newRecord(request: ClaimRequest, nowMs: number): StoredRecord {
  return {
    identity: request.identity,
    recordId: request.recordId,
    idSeed: request.idSeed,
    tenant: request.tenant,
    operation: request.operation,
    key: request.key,
    fingerprint: request.fingerprint,
    state: 'in_progress',
    attempt: 1,
    lapses: 0,
    token: request.token,
    leaseUntilMs: nowMs + request.leaseMs,
    leaseMs: request.leaseMs,
    onLapse: lapsePolicy(request, 0),
    afterExpiry: request.afterExpiry,
    refuseForMs: request.refuseForMs,
    proof: undefined,
    recoveryPoint: undefined,
    result: undefined,
    errorCode: undefined,
    reconcileAtMs: undefined,
    tries: 0,
    createdAtMs: nowMs,
    lastRunAtMs: nowMs,
    completedAtMs: undefined,
    expiresAtMs: nowMs + request.retentionMs,
  }
}

/** A record without a holder: it has no attempt, and its lease has ended. */
function newPendingRecord(request: ClaimRequest, nowMs: number): StoredRecord {
  const record = newRecord(request, nowMs)
  return { ...record, state: 'pending', attempt: 0, leaseUntilMs: nowMs, leaseMs: undefined }
}

interface NextAttempt {
  readonly nowMs: number
  readonly lapses: number
  readonly from: 'retry' | 'lapsed' | 'accepted'
}

type TakingMode = Exclude<ClaimMode, 'find'>

/** The move of a claim on an existing record, by the reason of the claim and its mode. */
const NEXT_ATTEMPT_MOVES = {
  retry: { hold: 'claim', take: 'claim', accept: 'accept' },
  lapsed: { hold: 'take_over', take: 'take_over', accept: 'accept_lapsed' },
  accepted: { hold: 'claim', take: 'claim', accept: 'claim' },
} as const satisfies Record<NextAttempt['from'], Record<TakingMode, MoveName>>

function claimAgain(
  record: StoredRecord,
  request: ClaimRequest,
  { nowMs, lapses, from }: NextAttempt,
): Decision<ClaimOutcome> {
  const isAccept = request.mode === 'accept'
  const move = NEXT_ATTEMPT_MOVES[from][request.mode as TakingMode]
  if (nextState(record.state, move) !== (isAccept ? 'pending' : 'in_progress')) {
    throw new Error(`illegal move: ${record.state} cannot ${move}`)
  }
  const write: StoredRecord = {
    ...record,
    state: isAccept ? 'pending' : 'in_progress',
    attempt: isAccept ? record.attempt : record.attempt + 1,
    lapses,
    token: request.token,
    leaseUntilMs: isAccept ? nowMs : nowMs + request.leaseMs,
    leaseMs: isAccept ? undefined : request.leaseMs,
    onLapse: lapsePolicy(request, lapses),
    afterExpiry: request.afterExpiry,
    refuseForMs: request.refuseForMs,
    proof: undefined,
    errorCode: undefined,
    // An operation that has begun and is accepted again is due at once: no retry will run it.
    reconcileAtMs: isAccept ? resumeAt(record, nowMs) : undefined,
    lastRunAtMs: nowMs,
    expiresAtMs: Math.max(record.expiresAtMs, nowMs + request.retentionMs),
  }
  return isAccept ? accepted(write) : claimed(write, from)
}

/** Decided when the attempt starts, so that a sweep does not need the options of the route. */
function lapsePolicy(request: ClaimRequest, lapses: number): StoredRecord['onLapse'] {
  return lapses + 1 >= request.maxLapses ? 'unknown' : request.onLapse
}

function lapse(record: StoredRecord, nowMs: number): StoredRecord {
  if (record.onLapse === 'unknown') {
    return { ...record, state: 'unknown', errorCode: LAPSED, reconcileAtMs: nowMs, tries: 0 }
  }
  // Kept from now for the whole retention of the attempt: a lease that lapses late must not leave
  // a record that has already expired.
  const retentionMs = record.expiresAtMs - record.lastRunAtMs
  return {
    ...record,
    state: 'failed_retryable',
    lapses: record.lapses + 1,
    proof: 'proven',
    errorCode: LAPSED,
    reconcileAtMs: resumeAt(record, nowMs),
    expiresAtMs: Math.max(record.expiresAtMs, nowMs + retentionMs),
  }
}

export function completedWith(
  record: StoredRecord,
  result: Uint8Array,
  { nowMs, retentionMs }: { nowMs: number; retentionMs: number },
): StoredRecord {
  return {
    ...record,
    state: 'completed',
    result,
    proof: undefined,
    errorCode: undefined,
    reconcileAtMs: undefined,
    completedAtMs: nowMs,
    expiresAtMs: Math.max(record.expiresAtMs, nowMs + retentionMs),
  }
}
