import type { Encryption, EncryptionContext, HookBytes } from '../core/encryption.ts'
import { InvalidOptionsError } from '../core/errors.ts'
import type { EventSubject } from '../core/events.ts'
import { describe } from '../core/options.ts'
import { isTimedOutReply } from './abandoned-reply.ts'
import {
  decodeFrame,
  decodeVersion1Content,
  encodeEncrypted,
  encodeReply,
  unreadable,
  VERSION_1,
  type FrameDecode,
  type ReplyDecode,
  type StoredReply,
} from './reply-codec.ts'

/** How stored replies are decrypted, and whether plain ones are refused. */
export interface ReplyReading {
  readonly encryption: Encryption | undefined
  readonly requireEncryption: boolean
}

/** Checks both options. `where` begins the message. */
export function resolveEncryption(
  where: string,
  given: { readonly encryption?: unknown; readonly requireEncryption?: unknown },
): ReplyReading {
  const { encryption, requireEncryption = false } = given
  if (typeof requireEncryption !== 'boolean') {
    throw new InvalidOptionsError(
      `${where}: requireEncryption must be true or false, got ${describe(requireEncryption)}`,
    )
  }
  if (encryption === undefined && requireEncryption) {
    throw new InvalidOptionsError(
      `${where}: requireEncryption needs encryption: without it no reply could be read`,
    )
  }
  if (encryption !== undefined && !isEncryption(encryption)) {
    throw new InvalidOptionsError(
      `${where}: encryption must be { encrypt, decrypt }, two functions, got ` +
        describe(encryption),
    )
  }
  return { encryption, requireEncryption }
}

/**
 * The bytes of a reply as they are stored. At once, unless `encrypt` returns a promise. An error
 * of the hook passes through.
 */
export function storedForm(
  reply: StoredReply,
  record: EventSubject,
  encryption: Encryption | undefined,
): HookBytes {
  const plain = encodeReply(reply, record)
  if (encryption === undefined) return plain
  const payload = encryption.encrypt(plain, contextOf(record, associatedDataOf(record)))
  return isThenable(payload)
    ? Promise.resolve(payload).then((bytes) => encodeEncrypted(checkPayload(bytes), record))
    : encodeEncrypted(checkPayload(payload), record)
}

/**
 * Undoes `storedForm`. At once, unless the reply is encrypted and `decrypt` returns a promise.
 * Never throws and never rejects.
 */
export function openReply(
  stored: Uint8Array,
  record: EventSubject,
  { encryption, requireEncryption }: ReplyReading,
): ReplyDecode | Promise<ReplyDecode> {
  const frame = decodeFrame(stored, record)
  switch (frame.kind) {
    case 'unreadable':
      return frame
    case 'reply':
      if (requireEncryption && !isTimedOutReply(stored)) return unreadable(PLAIN)
      return { kind: 'reply', reply: frame.reply }
    case 'encrypted':
      if (encryption === undefined) return unreadable(NO_ENCRYPTION)
      // A reply that was encrypted for no record in particular decrypts in every row it is put in.
      if (requireEncryption && frame.version === VERSION_1) return unreadable(UNBOUND)
      return decrypted(frame, record, encryption)
  }
}

const PLAIN =
  'the recorded reply is not encrypted, and this route requires that (requireEncryption)'
const UNBOUND =
  'the recorded reply was encrypted without the identity of its record, and this route requires ' +
  'that (requireEncryption)'
const NO_ENCRYPTION = 'the recorded reply is encrypted, and this route has no encryption option'

type EncryptedFrame = Extract<FrameDecode, { readonly kind: 'encrypted' }>

function decrypted(
  frame: EncryptedFrame,
  record: EventSubject,
  encryption: Encryption,
): ReplyDecode | Promise<ReplyDecode> {
  const isBound = frame.version !== VERSION_1
  const context = contextOf(record, isBound ? associatedDataOf(record) : NO_DATA)
  const decode = (plain: unknown): ReplyDecode => {
    if (!(plain instanceof Uint8Array)) {
      return unreadable(`encryption.decrypt must return a Uint8Array, got ${describe(plain)}`)
    }
    return isBound ? decodeInner(plain, record) : decodeVersion1Content(frame.flags, plain)
  }
  try {
    // A copy: the bytes may be the store's own, or shared with another request.
    const plain = encryption.decrypt(Uint8Array.from(frame.payload), context)
    return isThenable(plain) ? Promise.resolve(plain).then(decode, undecrypted) : decode(plain)
  } catch (error) {
    return undecrypted(error)
  }
}

/**
 * What was encrypted is a whole frame, bound to its record like a plain one. So a cipher that
 * ignores the associated data, or does not authenticate, still gives no reply of another record.
 */
function decodeInner(plain: Uint8Array, record: EventSubject): ReplyDecode {
  const frame = decodeFrame(plain, record)
  if (frame.kind === 'reply' && !frame.unbound) return { kind: 'reply', reply: frame.reply }
  const why = frame.kind === 'unreadable' ? frame.detail : 'it holds no reply of this record'
  return unreadable(`the decrypted bytes cannot be read: ${why}`)
}

/**
 * The identity is 32 hexadecimal characters and comes from the request, so the record id, which
 * comes from the row, cannot be mistaken for another part.
 */
function associatedDataOf({ identity, recordId }: EventSubject): Uint8Array {
  return Buffer.from(`oncekey:reply:2:${identity}:${recordId}`)
}

const NO_DATA = new Uint8Array(0)

function contextOf(
  { identity, tenant, operation, recordId }: EventSubject,
  associatedData: Uint8Array,
): EncryptionContext {
  return { purpose: 'reply', identity, tenant, operation, recordId, associatedData }
}

function checkPayload(payload: unknown): Uint8Array {
  if (payload instanceof Uint8Array) return payload
  throw new InvalidOptionsError(
    `encryption.encrypt must return a Uint8Array, got ${describe(payload)}`,
  )
}

function undecrypted(error: unknown): ReplyDecode {
  const why = error instanceof Error ? `: ${error.message}` : ''
  return unreadable(`encryption.decrypt could not decrypt the recorded reply${why}`)
}

function isEncryption(given: unknown): given is Encryption {
  const { encrypt, decrypt } = (given ?? {}) as Partial<Encryption>
  return typeof encrypt === 'function' && typeof decrypt === 'function'
}

/** Not `instanceof Promise`: a key service's client may have promises of its own making. */
const isThenable = <Value>(value: Value | Promise<Value>): value is Promise<Value> =>
  typeof (value as Promise<Value> | undefined)?.then === 'function'
