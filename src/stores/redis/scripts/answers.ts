/** Reads the answers of the scripts. The codes are not checked, because only scripts write them. */
import { toView } from '../../../core/record/decide.ts'
import type { StoredRecord } from '../../../core/record/record.ts'
import type {
  ClaimOutcome,
  ClaimRequest,
  ResolveOutcome,
  SettleOutcome,
} from '../../../core/store/store.ts'
import { Unpacker } from './packer.ts'
import {
  CLAIM_CODES,
  EXPIRY_CODES,
  FROM_CODES,
  LAPSE_CODES,
  LAYOUT,
  PROOF_CODES,
  STATE_CODES,
} from './scripts.ts'

export function toClaimOutcome(answer: Buffer, request: ClaimRequest): ClaimOutcome {
  const from = new Unpacker(answer)
  const kind = CLAIM_CODES[from.byte()]!
  const detail = from.byte()
  const attempt = from.count()
  const ms = from.number()
  const expiresAt = new Date(from.number())
  const recordId = from.text() || request.recordId
  const text = from.text()
  switch (kind) {
    case 'claimed': {
      const { identity, token } = request
      return {
        kind,
        lease: { identity, token, attempt },
        recordId,
        from: FROM_CODES[detail]!,
        recoveryPoint: text || undefined,
        expiresAt,
      }
    }
    case 'completed':
      return { kind, recordId, result: from.rest(), expiresAt }
    case 'in_progress':
      return { kind, recordId, leaseLeftMs: ms, expiresAt }
    case 'pending':
      return { kind, recordId, accepted: detail === 1, expiresAt }
    case 'unknown':
      return { kind, recordId, attempt, reconcileInMs: ms, lapsed: detail === 1 }
    case 'mismatch':
      return { kind, recordId, fingerprint: text }
    case 'expired':
      return { kind, recordId }
  }
}

export function toSettleOutcome(answer: Buffer): SettleOutcome {
  const from = new Unpacker(answer)
  const settled = from.byte() === 1
  const own = from.byte() === 1
  const state = STATE_CODES[from.byte()] ?? 'absent'
  if (settled) return { kind: 'settled', expiresAt: new Date(from.number()) }
  return { kind: 'fenced', own, state }
}

export function toResolveOutcome(answer: Buffer, identity: string): ResolveOutcome {
  const rest = answer.subarray(1)
  switch (answer.toString('latin1', 0, 1)) {
    case '1':
      return { kind: 'not_unknown', state: STATE_CODES[rest.readUInt8(0)]! }
    case '2':
      return { kind: 'other_attempt', attempt: rest.readUInt32LE(0) }
    case '3':
      return { kind: 'resolved', record: toView(toRecord(rest, identity)) }
    default:
      return { kind: 'not_found' }
  }
}

export function toRecord(data: Buffer, identity: string): StoredRecord {
  const from = new Unpacker(data)
  const layout = from.byte()
  if (layout !== LAYOUT) {
    throw new Error(`the record has layout ${layout}, which needs a newer version of oncekey`)
  }
  const state = STATE_CODES[from.byte()]!
  const proof = PROOF_CODES[from.byte()]
  const hasResult = from.byte() === 1
  // While a record is held, the field contains the length of its lease.
  const reconcileAtOrLeaseMs = timeOf(from.number())
  const isHeld = state === 'in_progress'
  const completedAtMs = timeOf(from.number())
  const expiresAtMs = from.number()
  const onLapse = LAPSE_CODES[from.byte()]!
  const afterExpiry = EXPIRY_CODES[from.byte()]!
  const attempt = from.count()
  const lapses = from.count()
  const leaseUntilMs = from.number()
  const createdAtMs = from.number()
  const lastRunAtMs = from.number()
  from.length()
  const recordId = from.text()
  const token = from.text()
  const errorCode = from.text() || undefined
  const recoveryPoint = from.text() || undefined
  const fingerprint = from.text()
  const scope = { tenant: from.text(), operation: from.text(), key: from.text() }
  return {
    identity,
    recordId,
    ...scope,
    fingerprint,
    state,
    attempt,
    lapses,
    token,
    leaseUntilMs,
    leaseMs: isHeld ? reconcileAtOrLeaseMs : undefined,
    onLapse,
    afterExpiry,
    proof,
    recoveryPoint,
    result: hasResult ? from.rest() : undefined,
    errorCode,
    reconcileAtMs: isHeld ? undefined : reconcileAtOrLeaseMs,
    tries: 0,
    createdAtMs,
    lastRunAtMs,
    completedAtMs,
    expiresAtMs,
  }
}

function timeOf(ms: number): number | undefined {
  return ms === -1 ? undefined : ms
}
