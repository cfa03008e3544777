/**
 * Rejects values that the table cannot hold or would change silently. Runs before anything is sent,
 * so that no row of a rejected batch is written.
 */
import { ValueFault } from '../kit/value-fault.ts'
import type {
  ClaimRequest,
  Discard,
  Lease,
  RecordRef,
  Renewal,
  Settlement,
  Verdict,
} from '../../core/store/store.ts'
import { RESULT_BYTES_MAX } from './results.ts'

const DIGITS = /^[0-9a-f]{32}$/

export function checkClaim(request: ClaimRequest): void {
  checkDigits('identity', request.identity)
  if (request.idSeed !== undefined) checkDigits('idSeed', request.idSeed)
  for (const name of ['tenant', 'operation', 'key', 'fingerprint', 'recordId', 'token'] as const) {
    checkText(name, request[name])
  }
  for (const name of ['leaseMs', 'retentionMs', 'maxLapses'] as const) {
    checkNumber(name, request[name])
  }
  checkWord('onLapse', request.onLapse, ['unknown', 'rerun', 'resume'])
  checkWord('afterExpiry', request.afterExpiry, ['new', 'refuse'])
  if (request.refuseForMs !== undefined) checkNumber('refuseForMs', request.refuseForMs)
  checkWord('mode', request.mode, ['hold', 'accept', 'take', 'find'])
}

export function checkSettlement(settlement: Settlement): void {
  checkLease(settlement.lease)
  if (settlement.kind === 'complete') checkResult(settlement.result)
  else if (settlement.errorCode !== undefined) checkText('errorCode', settlement.errorCode)
  if (settlement.kind === 'doubt') checkNumber('reconcileAfterMs', settlement.reconcileAfterMs)
  else checkNumber('retentionMs', settlement.retentionMs)
  if (settlement.kind === 'release') checkWord('proof', settlement.proof, ['proven', 'declared'])
}

export function checkRenewal(renewal: Renewal): void {
  checkLease(renewal)
  checkNumber('leaseMs', renewal.leaseMs)
}

export function checkVerdict({ ref, verdict, retentionMs }: Verdict): void {
  checkRef(ref)
  checkNumber('retentionMs', retentionMs)
  if (verdict.kind === 'completed') checkResult(verdict.result)
}

export function checkDiscard({ ref, attempt, idSeed }: Discard): void {
  checkRef(ref)
  checkNumber('attempt', attempt)
  if (idSeed !== undefined) checkDigits('idSeed', idSeed)
}

export function checkResult(result: Uint8Array): void {
  if (!(result instanceof Uint8Array)) throw new ValueFault('result must be bytes')
  if (result.byteLength > RESULT_BYTES_MAX) {
    throw new ValueFault(
      `the result has ${result.byteLength} bytes, but the limit is ${RESULT_BYTES_MAX}: ` +
        'lower replyBytesMax, so that larger replies are sent but not stored',
    )
  }
}

function checkLease({ identity, token }: Lease): void {
  checkDigits('identity', identity)
  checkText('token', token)
}

function checkRef(ref: RecordRef): void {
  if (ref.identity === undefined) checkText('recordId', ref.recordId)
  else checkDigits('identity', ref.identity)
}

function checkDigits(name: string, value: string): void {
  if (typeof value !== 'string' || !DIGITS.test(value)) {
    throw new ValueFault(`${name} must be 32 hexadecimal characters`)
  }
}

/** Half of a surrogate pair would be sent as another character. */
function checkText(name: string, value: string): void {
  if (typeof value !== 'string') throw new ValueFault(`${name} must be a string`)
  if (value.includes('\0') || !value.isWellFormed()) {
    throw new ValueFault(`${name} contains a NUL or half of a surrogate pair: it cannot be stored`)
  }
}

function checkNumber(name: string, value: number): void {
  if (!Number.isFinite(value)) throw new ValueFault(`${name} must be a number`)
}

function checkWord(name: string, value: string, words: readonly string[]): void {
  if (!words.includes(value)) throw new ValueFault(`${name} must be one of ${words.join(', ')}`)
}
