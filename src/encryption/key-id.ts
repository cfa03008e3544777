import { InvalidOptionsError } from '../core/errors.ts'
import { isThenable } from '../core/thenable.ts'

/** Each stored value has its key id in front, so ids are short. */
const KEY_ID_LENGTH_MAX = 64
// A stored id reaches `unwrap` before anything is authenticated, and may become a part of a path at
// the key service, so `..` is not an id.
const KEY_ID = new RegExp(`^[A-Za-z0-9][A-Za-z0-9._-]{0,${KEY_ID_LENGTH_MAX - 1}}$`)

export function isKeyId(value: unknown): value is string {
  return typeof value === 'string' && KEY_ID.test(value)
}

export function checkKeyId(where: string, value: unknown): string {
  if (isKeyId(value)) return value
  throw new InvalidOptionsError(
    `${where} must be a key id of 1 to ${KEY_ID_LENGTH_MAX} letters, digits, dots, hyphens and ` +
      `underscores, beginning with a letter or digit, got ${withoutContent(value)}`,
  )
}

/** Describes a value without its content: where an id or a function is expected, a key may be. */
export function withoutContent(value: unknown): string {
  if (typeof value === 'string') return `a string of ${value.length} characters`
  if (value instanceof Uint8Array) return `${value.byteLength} bytes`
  if (value === null || value === undefined) return String(value)
  if (isThenable(value)) return 'a promise'
  return typeof value === 'object' ? 'an object' : `a ${typeof value}`
}
