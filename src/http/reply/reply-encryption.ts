import { isThenable } from '../../core/thenable.ts'
import { NO_BYTES } from '../../core/bytes.ts'
import type {
  Encryption,
  EncryptionContext,
  EncryptionRule,
  HookBytes,
} from '../../core/encryption.ts'
import { InvalidOptionsError } from '../../core/errors.ts'
import type { EventSubject } from '../../core/events.ts'
import { describe } from '../../core/options.ts'
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

/**
 * The bytes of a reply as they are stored. Synchronous unless `encrypt` returns a promise. Errors
 * of `encrypt` are passed on.
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
 * Decodes the result of `storedForm`. Synchronous unless `decrypt` returns a promise. Never throws
 * and never rejects.
 */
export function openReply(
  stored: Uint8Array,
  record: EventSubject,
  { encryption, requireEncryption }: EncryptionRule,
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
      // Version 1 is not bound to a record, so a copy of it decrypts in every row.
      if (requireEncryption && frame.version === VERSION_1) return unreadable(UNBOUND)
      return decryptFrame(frame, record, encryption)
  }
}

const PLAIN = 'the recorded reply is not encrypted, but this route has requireEncryption'
const UNBOUND =
  'the recorded reply was encrypted without the identity of its record, but this route has ' +
  'requireEncryption'
const NO_ENCRYPTION = 'the recorded reply is encrypted, but this route has no encryption option'

type EncryptedFrame = Extract<FrameDecode, { readonly kind: 'encrypted' }>

function decryptFrame(
  frame: EncryptedFrame,
  record: EventSubject,
  encryption: Encryption,
): ReplyDecode | Promise<ReplyDecode> {
  const isBound = frame.version !== VERSION_1
  const context = contextOf(record, isBound ? associatedDataOf(record) : NO_BYTES)
  const decode = (plain: unknown): ReplyDecode => {
    if (!(plain instanceof Uint8Array)) {
      return unreadable(`encryption.decrypt must return a Uint8Array, got ${describe(plain)}`)
    }
    return isBound ? decodeInner(plain, record) : decodeVersion1Content(frame.flags, plain)
  }
  try {
    // A copy, because the hook may write to it, and the store or another request may use the bytes.
    const plain = encryption.decrypt(Uint8Array.from(frame.payload), context)
    return isThenable(plain) ? Promise.resolve(plain).then(decode, decryptFailure) : decode(plain)
  } catch (error) {
    return decryptFailure(error)
  }
}

/**
 * The decrypted bytes are a whole frame, bound to its record like an unencrypted one. So even a
 * cipher that ignores the associated data, or does not authenticate, never returns the reply of
 * another record.
 */
function decodeInner(plain: Uint8Array, record: EventSubject): ReplyDecode {
  const frame = decodeFrame(plain, record)
  if (frame.kind === 'reply' && !frame.unbound) return { kind: 'reply', reply: frame.reply }
  const why = frame.kind === 'unreadable' ? frame.detail : 'it holds no reply of this record'
  return unreadable(`the decrypted bytes cannot be read: ${why}`)
}

/**
 * The identity comes from the request and always has 32 hexadecimal characters. So the record id,
 * which comes from the row, cannot be confused with another part.
 */
function associatedDataOf({ identity, recordId }: EventSubject): Uint8Array {
  return Buffer.from(`oncekey:reply:2:${identity}:${recordId}`)
}

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

function decryptFailure(error: unknown): ReplyDecode {
  const why = error instanceof Error ? `: ${error.message}` : ''
  return unreadable(`encryption.decrypt could not decrypt the recorded reply${why}`)
}
