/** Packs requests for the scripts: one string for a whole batch. */
import { NO_BYTES } from '../../../core/bytes.ts'
import type {
  ClaimRequest,
  Discard,
  Renewal,
  Settlement,
  Verdict,
} from '../../../core/store/store.ts'
import { ValueFault } from '../../kit/value-fault.ts'
import type { Packer } from './packer.ts'
import {
  EXPIRY_CODES,
  LAPSE_CODES,
  MODE_CODES,
  NAME_END,
  PROOF_CODES,
  SETTLEMENT_CODES,
} from './prelude.ts'

/** How one request is packed. `bucket` is the number of its bucket among those in KEYS. */
export interface Packing<Request> {
  /** The expected size of a request in bytes. */
  readonly bytesOf: (request: Request) => number
  readonly pack: (packer: Packer, request: Request, bucket: number) => void
}

/** More than the fixed parts of any request take. */
const ROW_BYTES = 128

export const CLAIM_PACKING: Packing<ClaimRequest> = {
  bytesOf: ({ tenant, operation, key, fingerprint }) =>
    2 * ROW_BYTES + 3 * (tenant.length + operation.length + key.length + fingerprint.length),
  pack: (packer, request, bucket) => {
    checkRecordId(request.recordId)
    packer.byte(bucket)
    packer.code(MODE_CODES, request.mode)
    packer.code(LAPSE_CODES, request.onLapse)
    packer.code(EXPIRY_CODES, request.afterExpiry)
    packer.number(request.leaseMs)
    packer.number(request.retentionMs)
    packer.number(request.maxLapses)
    packer.nested(() => {
      packer.text(request.recordId)
      packer.text(request.token)
      packer.text(NO_ERROR_CODE)
      packer.text(NO_RECOVERY_POINT)
      packer.text(request.fingerprint)
      packer.text(request.tenant)
      packer.text(request.operation)
      packer.text(request.key, moreOf(request))
    })
  },
}

export const SETTLE_PACKING: Packing<Settlement> = {
  bytesOf: (settlement) =>
    ROW_BYTES + (settlement.kind === 'complete' ? settlement.result.byteLength : 0),
  pack: (packer, settlement, bucket) => {
    const { kind, lease } = settlement
    packer.byte(bucket)
    packer.code(SETTLEMENT_CODES, kind)
    packer.code(PROOF_CODES, kind === 'release' ? settlement.proof : undefined)
    packer.count(lease.attempt)
    packer.number(kind === 'doubt' ? settlement.reconcileAfterMs : settlement.retentionMs)
    packer.text(lease.token)
    packer.text(kind === 'complete' ? '' : (settlement.errorCode ?? ''))
    packer.bytes(kind === 'complete' ? settlement.result : NO_BYTES)
  },
}

export const RENEW_PACKING: Packing<Renewal> = {
  bytesOf: () => ROW_BYTES,
  pack: (packer, { attempt, leaseMs, token }, bucket) => {
    packer.byte(bucket)
    packer.count(attempt)
    packer.number(leaseMs)
    packer.text(token)
  },
}

/** A verdict and the identity of its record. The script checks the record id of the verdict. */
export interface RecordVerdict {
  readonly identity: string
  readonly verdict: Verdict
}

export const RESOLVE_PACKING: Packing<RecordVerdict> = {
  bytesOf: ({ verdict: { verdict } }) =>
    ROW_BYTES + (verdict.kind === 'completed' ? verdict.result.byteLength : 0),
  pack: (packer, { verdict: { ref, attempt, verdict, retentionMs } }, bucket) => {
    packer.byte(bucket)
    packer.byte(verdict.kind === 'completed' ? 1 : 0)
    packer.number(attempt ?? -1)
    packer.number(retentionMs)
    packer.text(ref.recordId ?? '')
    packer.bytes(verdict.kind === 'completed' ? verdict.result : NO_BYTES)
  },
}

/** A discard and the identity of its record. The script checks the record id of the discard. */
export interface RecordDiscard {
  readonly identity: string
  readonly discard: Discard
}

export const DISCARD_PACKING: Packing<RecordDiscard> = {
  bytesOf: () => ROW_BYTES,
  pack: (packer, { discard: { ref, attempt, idSeed } }, bucket) => {
    packer.byte(bucket)
    packer.number(attempt)
    packer.text(ref.recordId ?? '')
    packer.bytes(idSeed === undefined ? NO_BYTES : seedBytes(idSeed))
  },
}

/** A record as an index entry describes it. */
export interface Candidate {
  readonly recordId: string
  readonly identity: string
  readonly atMs: number
}

export const CANDIDATE_PACKING: Packing<Candidate> = {
  bytesOf: () => ROW_BYTES,
  pack: (packer, { recordId }, bucket) => {
    packer.byte(bucket)
    packer.text(recordId)
  },
}

/** An identity is part of the name of a key, so it may contain nothing but its digits. */
export function checkIdentity(identity: string): void {
  if (/^[0-9a-f]{32}$/.test(identity)) return
  throw new ValueFault('an identity must be 32 hexadecimal digits')
}

/** The first character distinguishes the two kinds of index entries: no UUID begins with `@`. */
function checkRecordId(recordId: string): void {
  if (/^[0-9a-f-]{36}$/i.test(recordId)) return
  throw new ValueFault('a record id must be a UUID')
}

/** Returns what follows the key in its text: see the layout in `prelude.ts`. */
function moreOf({ idSeed, refuseForMs }: ClaimRequest): Uint8Array {
  if (idSeed === undefined && refuseForMs === undefined) return NO_BYTES
  const more = Buffer.allocUnsafe(idSeed === undefined ? MORE_BYTES : MORE_BYTES + SEED_BYTES)
  more[0] = NAME_END
  more.writeDoubleLE(checkRefuseFor(refuseForMs), 1)
  if (idSeed !== undefined) more.set(seedBytes(idSeed), MORE_BYTES)
  return more
}

/** The end of the name, and `refuseForMs`. */
const MORE_BYTES = 9
const SEED_BYTES = 16

/** Stored times are below this: the scores of the indexes represent no later ones. */
const REFUSE_MS_MAX = 2 ** 48

function checkRefuseFor(ms: number | undefined): number {
  if (ms === undefined) return -1
  if (ms >= 0 && ms < REFUSE_MS_MAX) return ms
  throw new ValueFault(`a key can be refused for 0 to ${REFUSE_MS_MAX} ms, and not for ${ms}`)
}

function seedBytes(idSeed: string): Uint8Array {
  if (/^[0-9a-f]{32}$/.test(idSeed)) return Buffer.from(idSeed, 'hex')
  throw new ValueFault('an id seed must be 32 hexadecimal digits')
}

const NO_ERROR_CODE = ''
const NO_RECOVERY_POINT = ''
