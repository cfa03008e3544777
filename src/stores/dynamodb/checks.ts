/**
 * What the table cannot hold, or would quietly change, is refused before anything is sent: then it
 * is known that nothing of the batch was written.
 */
import type { ClaimRequest, Lease, Renewal, Settlement, Verdict } from '../../core/store.ts'
import { RowFault } from './failures.ts'
import { RESULT_BYTES_MAX } from './results.ts'

const IDENTITY = /^[0-9a-f]{32}$/

export function checkClaim(request: ClaimRequest): void {
  checkIdentity(request.identity)
  for (const name of ['tenant', 'operation', 'key', 'fingerprint', 'recordId', 'token'] as const) {
    checkText(name, request[name])
  }
  for (const name of ['leaseMs', 'retentionMs', 'maxAttempts'] as const) {
    checkNumber(name, request[name])
  }
  checkWord('onLapse', request.onLapse, ['unknown', 'rerun', 'resume'])
  checkWord('afterExpiry', request.afterExpiry, ['new', 'refuse'])
  checkWord('mode', request.mode, ['hold', 'accept', 'take'])
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
  if (ref.identity === undefined) checkText('recordId', ref.recordId)
  else checkIdentity(ref.identity)
  checkNumber('retentionMs', retentionMs)
  if (verdict.kind === 'completed') checkResult(verdict.result)
}

export function checkResult(result: Uint8Array): void {
  if (!(result instanceof Uint8Array)) throw new RowFault('result must be bytes')
  if (result.byteLength > RESULT_BYTES_MAX) {
    throw new RowFault(
      `the result has ${result.byteLength} bytes; the table keeps at most ${RESULT_BYTES_MAX}: ` +
        'lower replyBytesMax, so that larger replies are sent but not kept',
    )
  }
}

function checkLease({ identity, token }: Lease): void {
  checkIdentity(identity)
  checkText('token', token)
}

function checkIdentity(identity: string): void {
  if (typeof identity !== 'string' || !IDENTITY.test(identity)) {
    throw new RowFault('identity must be 32 hexadecimal characters')
  }
}

/** Half a surrogate pair would become another character on its way. */
function checkText(name: string, value: string): void {
  if (typeof value !== 'string') throw new RowFault(`${name} must be a string`)
  if (value.includes('\0') || !value.isWellFormed()) {
    throw new RowFault(`${name} holds a character that cannot be stored`)
  }
}

function checkNumber(name: string, value: number): void {
  if (!Number.isFinite(value)) throw new RowFault(`${name} must be a number`)
}

function checkWord(name: string, value: string, words: readonly string[]): void {
  if (!words.includes(value)) throw new RowFault(`${name} must be one of ${words.join(', ')}`)
}
