/** Reads the answers of the scripts. The codes are not checked, because only scripts write them. */
import { toView } from '../../../core/record/decide.ts'
import type { RecordState, StoredRecord } from '../../../core/record/record.ts'
import type {
  ClaimOutcome,
  ClaimRequest,
  DiscardOutcome,
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
  NAME_END,
  PROOF_CODES,
  STATE_CODES,
} from './prelude.ts'

export function toClaimOutcome(answer: Buffer, request: ClaimRequest): ClaimOutcome {
  const from = new Unpacker(answer)
  const kind = CLAIM_CODES[from.byte()]!
  const detail = from.byte()
  const attempt = from.count()
  const ms = from.number()
  const expiresAt = new Date(from.number())
  const foundId = from.text()
  const recordId = foundId || request.recordId
  const text = from.text()
  switch (kind) {
    case 'claimed': {
      const { identity, token } = request
      return {
        kind,
        lease: { identity, token, attempt },
        recordId,
        // This claim has created the record, so its seed is on record.
        idSeed: foundId === '' ? request.idSeed : toSeed(from.rest()),
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
    case 'free':
      return { kind, recordId, from: FROM_CODES[detail]! }
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

export function toDiscardOutcome(answer: Buffer, identity: string): DiscardOutcome {
  const code = answer.toString('latin1', 0, 1)
  const rest = answer.subarray(1)
  switch (code) {
    case '1': {
      const recordId = rest.toString('latin1', 1)
      return { kind: 'not_completed', recordId, state: STATE_CODES[rest.readUInt8(0)]! }
    }
    case '2': {
      const recordId = rest.toString('latin1', 4)
      return { kind: 'other_attempt', recordId, attempt: rest.readUInt32LE(0) }
    }
    case '3':
    case '4': {
      const record = toView(toRecord(rest, identity))
      return { kind: 'discarded', record, repeated: code === '4' }
    }
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
  const reconcileAtOrLeaseMs = timeOf(from.number())
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
  const scope = { tenant: from.text(), operation: from.text() }
  const { key, idSeed, refuseForMs } = readKey(from.textBytes())
  return {
    identity,
    recordId,
    idSeed,
    ...scope,
    key,
    fingerprint,
    state,
    attempt,
    lapses,
    token,
    leaseUntilMs,
    leaseMs: state === 'in_progress' ? reconcileAtOrLeaseMs : undefined,
    onLapse,
    afterExpiry,
    refuseForMs,
    proof,
    recoveryPoint,
    result: hasResult ? from.rest() : undefined,
    errorCode,
    reconcileAtMs: isReconcileAt(state, reconcileAtOrLeaseMs, expiresAtMs)
      ? reconcileAtOrLeaseMs
      : undefined,
    tries: 0,
    createdAtMs,
    lastRunAtMs,
    completedAtMs,
    expiresAtMs,
  }
}

/**
 * The field contains the length of the lease while a record is held, and may still contain it after
 * an older version has ended the lease. That length is less than any expiry.
 */
function isReconcileAt(state: RecordState, ms: number | undefined, expiresAtMs: number): boolean {
  if (state === 'unknown') return true
  return state === 'expired' && ms !== undefined && ms >= expiresAtMs
}

/** Reads the key, and what follows it in its text: see the layout in `prelude.ts`. */
function readKey(text: Buffer): Pick<StoredRecord, 'key' | 'idSeed' | 'refuseForMs'> {
  const nameEnd = text.indexOf(NAME_END)
  if (nameEnd === -1) return { key: text.toString(), idSeed: undefined, refuseForMs: undefined }
  const refuseForMs = timeOf(text.readDoubleLE(nameEnd + 1))
  const idSeed = toSeed(text.subarray(nameEnd + 9))
  return { key: text.toString('utf8', 0, nameEnd), idSeed, refuseForMs }
}

function toSeed(bytes: Uint8Array): string | undefined {
  if (bytes.length === 0) return undefined
  return Buffer.from(bytes.buffer, bytes.byteOffset, bytes.length).toString('hex')
}

function timeOf(ms: number): number | undefined {
  return ms === -1 ? undefined : ms
}
