import { createHash, createHmac, hash, randomFillSync, timingSafeEqual } from 'node:crypto'
import { InvalidRequestError } from '../errors.ts'

/** The scope of a key. Requests with the same tenant and operation share their keys. */
export interface Scope {
  /** The customer or account that the key belongs to. At most 255 characters. */
  readonly tenant: string
  /** The stable name of the work, such as `POST /payments`. At most 1024 characters. */
  readonly operation: string
  /**
   * The user within the tenant whose key it is, at most 1024 characters. Another user with the same
   * key has another record. Part of the hash that names the record, and stored nowhere.
   *
   * @default none: the users of a tenant share their keys
   */
  readonly principal?: string | undefined
}

/** Longer names are refused, because each record stores all four. */
export const TENANT_LENGTH_MAX = 255
export const OPERATION_LENGTH_MAX = 1024
export const KEY_LENGTH_MAX = 1024
export const PRINCIPAL_LENGTH_MAX = 1024
export const FINGERPRINT_LENGTH_MAX = 255

/** Refuses text that a store would change: names are stored and compared byte by byte. */
export function checkIdentity(scope: Scope, key: string, fingerprint: string): void {
  checkText('tenant', scope.tenant, TENANT_LENGTH_MAX)
  checkText('operation', scope.operation, OPERATION_LENGTH_MAX)
  checkText('key', key, KEY_LENGTH_MAX)
  checkText('fingerprint', fingerprint, FINGERPRINT_LENGTH_MAX)
  if (scope.principal !== undefined) {
    checkText('principal', scope.principal, PRINCIPAL_LENGTH_MAX)
  }
  if (scope.tenant === 'undefined' || scope.tenant === 'null') {
    throw new InvalidRequestError(
      `tenant is the text "${scope.tenant}", a missing value that was converted to a string: ` +
        'give the real tenant, or all callers without one would share their keys',
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
      `${name} contains half a surrogate pair, which a store would replace by another character`,
    )
  }
}

/**
 * The primary key of a record: 16 bytes of SHA-256 over its length-prefixed parts, as 32
 * hexadecimal characters. The prefixes distinguish ("a", "bc") from ("ab", "c"). With 128 bits, a
 * collision by chance is practically impossible. The hash may be logged; the key may not.
 */
export function identityOf({ tenant, operation, principal }: Scope, key: string): string {
  const parts = `${tenant.length}:${tenant}${operation.length}:${operation}${key.length}:${key}`
  const owner = principal === undefined ? '' : `${principal.length}:${principal}`
  return hash('sha256', parts + owner, 'hex').slice(0, 32)
}

/**
 * The seed of the ids of a record that derive from its identity: 32 hexadecimal characters. The
 * same tenant, operation and key always give the same seed, also after the record was removed.
 */
export function idSeedOf(identity: string): string {
  return hash('sha256', `oncekey:ids:${identity}`, 'hex').slice(0, 32)
}

/** The source of the ids of a record: its seed, or its record id if it has none. */
export function idSourceOf(record: {
  readonly recordId: string
  readonly idSeed: string | undefined
}): string {
  return record.idSeed ?? record.recordId
}

/** The same on every attempt of a record. Its 46 characters fit every known provider (64). */
export function downstreamKeyOf(source: string, name: string): string {
  return `ok_${digestOf('downstream', source, name).toString('base64url')}`
}

/** A UUID (version 8: derived from a hash) that is the same on every attempt of a record. */
export function deterministicIdOf(source: string, name: string): string {
  return toUuid(digestOf('id', source, name).toString('hex'), '8')
}

function digestOf(purpose: string, source: string, name: string): Buffer {
  return createHash('sha256').update(`${purpose}\0${source}\0${name}`).digest()
}

/** HMAC-SHA-256 as 43 characters, for texts that no reader of the store may find by trying. */
export function hmacOf(secret: string | Uint8Array, text: string): string {
  return createHmac('sha256', secret).update(text).digest('base64url')
}

/** Compares hashes in a time that does not show where they differ. */
export function isSameHash(one: string, other: string): boolean {
  const [a, b] = [Buffer.from(one), Buffer.from(other)]
  return a.length === b.length && timingSafeEqual(a, b)
}

/** 8 bytes that bind encrypted bytes to what they belong to. */
export function bindingOf(associatedData: Uint8Array): Uint8Array {
  return hash('sha256', associatedData, 'buffer').subarray(0, 8)
}

/**
 * A UUID (version 7): random after a time prefix, so that ids of the same time share pages in the
 * index of a store.
 */
export function newRecordId(nowMs: number): string {
  if (nowMs !== prefixMs) {
    prefixMs = nowMs
    timePrefix = Math.max(0, Math.floor(nowMs)).toString(16).padStart(12, '0').slice(-12)
  }
  return toUuid(timePrefix + newToken().slice(12), '7')
}

// The time of the last id and its prefix are cached: many ids are made in one millisecond.
let prefixMs = Number.NaN
let timePrefix = ''

/** Formats 32 hexadecimal digits as a UUID. Version and variant replace 6 of the 128 bits. */
function toUuid(hex: string, version: '7' | '8'): string {
  const variant = '89ab'[Number.parseInt(hex[16]!, 16) & 3]!
  const third = version + hex.slice(13, 16)
  const fourth = variant + hex.slice(17, 20)
  return `${hex.slice(0, 8)}-${hex.slice(8, 12)}-${third}-${fourth}-${hex.slice(20, 32)}`
}

// Random bytes are drawn in bulk: one call serves 256 tokens.
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
