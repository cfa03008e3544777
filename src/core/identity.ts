import { createHash, hash, randomFillSync } from 'node:crypto'
import { InvalidRequestError } from './errors.ts'

/** Whose key it is, and for what. Two callers in one scope share its keys. */
export interface Scope {
  readonly tenant: string
  readonly operation: string
}

/** Longer names are refused: every one of them is stored with every record. */
export const TENANT_LENGTH_MAX = 255
export const OPERATION_LENGTH_MAX = 1024
export const KEY_LENGTH_MAX = 1024
export const FINGERPRINT_LENGTH_MAX = 255

/** Stored and compared byte by byte, so what a store would quietly change must not get in. */
export function checkIdentity(scope: Scope, key: string, fingerprint: string): void {
  checkText('tenant', scope.tenant, TENANT_LENGTH_MAX)
  checkText('operation', scope.operation, OPERATION_LENGTH_MAX)
  checkText('key', key, KEY_LENGTH_MAX)
  checkText('fingerprint', fingerprint, FINGERPRINT_LENGTH_MAX)
  if (scope.tenant === 'undefined' || scope.tenant === 'null') {
    throw new InvalidRequestError(
      `tenant is the text "${scope.tenant}": a missing value was turned into a string, and all ` +
        'callers without a tenant would share their keys',
    )
  }
}

function checkText(name: string, value: unknown, lengthMax: number): void {
  if (typeof value !== 'string') {
    throw new InvalidRequestError(`${name} must be a string, got ${typeof value}`)
  }
  if (value === '') throw new InvalidRequestError(`${name} must not be empty`)
  if (value.length > lengthMax) {
    throw new InvalidRequestError(
      `${name} has ${value.length} characters; at most ${lengthMax} are allowed`,
    )
  }
  if (value.includes('\0')) throw new InvalidRequestError(`${name} must not contain NUL`)
  if (!value.isWellFormed()) {
    throw new InvalidRequestError(
      `${name} contains half a surrogate pair; stores would turn it into another character`,
    )
  }
}

/**
 * The primary key of a record: 16 bytes of SHA-256 over the length-prefixed parts, as 32
 * hexadecimal characters. The prefixes keep ("a", "bc") and ("ab", "c") apart; 128 bits make a
 * chance collision impossible in practice, and the hash may be logged where the key may not.
 */
export function identityOf({ tenant, operation }: Scope, key: string): string {
  const parts = `${tenant.length}:${tenant}${operation.length}:${operation}${key.length}:${key}`
  return hash('sha256', parts, 'hex').slice(0, 32)
}

/** Stable over all attempts of one record, and short enough for every provider seen (64). */
export function downstreamKeyOf(recordId: string, name: string): string {
  return `ok_${digestOf('downstream', recordId, name).toString('base64url')}`
}

/** A UUID (version 8: made by hashing) that is the same on every attempt of one record. */
export function deterministicIdOf(recordId: string, name: string): string {
  return toUuid(digestOf('id', recordId, name).toString('hex'), '8')
}

function digestOf(purpose: string, recordId: string, name: string): Buffer {
  return createHash('sha256').update(`${purpose}\0${recordId}\0${name}`).digest()
}

/**
 * A UUID (version 7): random, but beginning with the time, so that ids made together lie together
 * in a store's index and a new one costs no page of its own.
 */
export function newRecordId(nowMs: number): string {
  if (nowMs !== timeOfMs) {
    timeOfMs = nowMs
    time = Math.max(0, Math.floor(nowMs)).toString(16).padStart(12, '0').slice(-12)
  }
  return toUuid(time + newToken().slice(12), '7')
}

/** The time of the last id, and how it is written: many are made in one millisecond. */
let timeOfMs = Number.NaN
let time = ''

/** 32 hexadecimal digits as a UUID: 6 of their 128 bits give way to the version and variant. */
function toUuid(hex: string, version: '7' | '8'): string {
  const variant = '89ab'[Number.parseInt(hex[16]!, 16) & 3]!
  const third = version + hex.slice(13, 16)
  const fourth = variant + hex.slice(17, 20)
  return `${hex.slice(0, 8)}-${hex.slice(8, 12)}-${third}-${fourth}-${hex.slice(20, 32)}`
}

// Random bytes are drawn in bulk: one system call serves 256 tokens.
const pool = Buffer.alloc(4096)
let used = pool.length

/** 128 random bits as 32 hexadecimal characters. */
export function newToken(): string {
  if (used === pool.length) {
    randomFillSync(pool)
    used = 0
  }
  const token = pool.toString('hex', used, used + 16)
  used += 16
  return token
}
