/** The stored form of encrypted values and payloads. Tests: test/durable/record-values.test.ts. */
import type {
  Encryption,
  EncryptionContext,
  EncryptionPurpose,
  EncryptionRule,
  HookBytes,
} from '../core/encryption.ts'
import { InvalidOptionsError } from '../core/errors.ts'
import { describe } from '../core/options.ts'
import { bindingOf } from '../core/record/identity.ts'
import { isThenable } from '../core/thenable.ts'
import { SEALED_MARK } from './values.ts'

// Layout: u8 mark, u8 format, and up to the end the result of `encrypt` on the binding (8 bytes,
// from the associated data) and the encoded value.
const FORMAT = 1
const PREFIX_BYTES = 2

/** A stored value that cannot be read. Its phase, or the work behind it, must not run again. */
export class UnreadableValueError extends Error {
  readonly code = 'value_unreadable'
  /** Without the name of the value. */
  readonly reason: string

  constructor(what: string, reason: string, options?: ErrorOptions) {
    super(`${what} cannot be read: ${reason}`, options)
    this.reason = reason
  }
}

/** The owner of the bytes. `parts`: the texts that distinguish it from every other owner. */
export type SealedSubject = Pick<
  EncryptionContext,
  'identity' | 'tenant' | 'operation' | 'recordId'
> & { readonly parts: readonly string[] }

/** Length prefixes, so that no other parts give the same bytes: some come from a database row. */
export function contextOf(
  purpose: EncryptionPurpose,
  { parts, ...subject }: SealedSubject,
): EncryptionContext {
  const text = parts.map((part) => `:${part.length}:${part}`).join('')
  const associatedData = Buffer.from(`oncekey:${purpose}:${FORMAT}${text}`)
  return { ...subject, purpose, associatedData }
}

/** Synchronous unless `encrypt` returns a promise. Errors of `encrypt` are passed on. */
export function sealBytes(
  plain: Uint8Array,
  context: EncryptionContext,
  encryption: Encryption,
): HookBytes {
  const binding = bindingOf(context.associatedData)
  const bound = new Uint8Array(binding.length + plain.length)
  bound.set(binding)
  bound.set(plain, binding.length)
  const payload = encryption.encrypt(bound, context)
  return isThenable(payload) ? Promise.resolve(payload).then(toSealed) : toSealed(payload)
}

/**
 * Returns the bytes that were sealed, or `stored` if it is not sealed. Synchronous unless `decrypt`
 * returns a promise. Throws or rejects with an `UnreadableValueError`. `what` names the value.
 */
export function openBytes(
  what: string,
  stored: Uint8Array,
  toContext: () => EncryptionContext,
  { encryption, requireEncryption }: EncryptionRule,
): HookBytes {
  if (stored[0] !== SEALED_MARK) {
    if (requireEncryption) throw new UnreadableValueError(what, PLAIN)
    return stored
  }
  if (stored[1] !== FORMAT) {
    const format = stored[1] === undefined ? 'no format' : `format ${stored[1]}`
    throw new UnreadableValueError(what, `it has ${format}; this release reads ${FORMAT}`)
  }
  if (encryption === undefined) throw new UnreadableValueError(what, NO_ENCRYPTION)
  const context = toContext()
  const unbind = (bound: unknown) => unbound(what, bound, context)
  const failed = (cause: unknown): never => {
    const why = cause instanceof Error ? `: ${cause.message}` : ''
    throw new UnreadableValueError(what, `encryption.decrypt could not decrypt it${why}`, { cause })
  }
  let bound: HookBytes
  try {
    // A copy, because the hook may write to it, and the store may use the bytes.
    bound = encryption.decrypt(Uint8Array.from(stored.subarray(PREFIX_BYTES)), context)
  } catch (error) {
    return failed(error)
  }
  return isThenable(bound) ? Promise.resolve(bound).then(unbind, failed) : unbind(bound)
}

const PLAIN = 'it is not encrypted, but requireEncryption is set'
const NO_ENCRYPTION = 'it is encrypted, and neither its operation nor its engine has encryption'

/**
 * Even a cipher that ignores the associated data, or does not authenticate, never returns the bytes
 * of another record, phase or message.
 */
function unbound(what: string, bound: unknown, { associatedData }: EncryptionContext): Uint8Array {
  if (!(bound instanceof Uint8Array)) {
    const got = describe(bound)
    throw new UnreadableValueError(what, `encryption.decrypt must return a Uint8Array, got ${got}`)
  }
  const binding = bindingOf(associatedData)
  if (Buffer.compare(bound.subarray(0, binding.length), binding) === 0) {
    // Not the type of the hook, often a Buffer: a value that is bytes is the same on each attempt.
    const { buffer, byteOffset, byteLength } = bound
    return new Uint8Array(buffer, byteOffset + binding.length, byteLength - binding.length)
  }
  throw new UnreadableValueError(what, 'it belongs to another record, phase or message')
}

function toSealed(payload: unknown): Uint8Array {
  if (!(payload instanceof Uint8Array)) {
    throw new InvalidOptionsError(
      `encryption.encrypt must return a Uint8Array, got ${describe(payload)}`,
    )
  }
  const sealed = new Uint8Array(PREFIX_BYTES + payload.length)
  sealed[0] = SEALED_MARK
  sealed[1] = FORMAT
  sealed.set(payload, PREFIX_BYTES)
  return sealed
}
