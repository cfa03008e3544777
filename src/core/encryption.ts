import type { EventSubject } from './events.ts'

/** The bytes that a hook returns, directly or as a promise. */
export type HookBytes = Uint8Array | Promise<Uint8Array>

/**
 * Encrypts replies before they are stored, and decrypts them. Use an authenticated cipher, such as
 * AES-256-GCM, and pass `context.associatedData` to it. Without it, bytes that were copied from one
 * record to another still decrypt.
 */
export interface Encryption {
  /**
   * Returns the bytes to store instead of `plain`. If it throws, the outcome of the work is
   * unknown: the work has run, and its result cannot be recorded.
   */
  encrypt(plain: Uint8Array, context: EncryptionContext): HookBytes

  /**
   * Returns the bytes that were passed to `encrypt`. Throws if `encrypted` was made with another
   * key, belongs to another record, or was changed. `encrypted` is a copy, so the hook may write to
   * it.
   */
  decrypt(encrypted: Uint8Array, context: EncryptionContext): HookBytes
}

/** The purpose of the bytes and the record that they belong to, without the client's key. */
export interface EncryptionContext extends EventSubject {
  /** The kind of the bytes. Later releases may encrypt other kinds, each with a new name. */
  readonly purpose: 'reply'

  /**
   * Purpose, format, identity and record id as one byte string. `encrypt` and `decrypt` get the
   * same one. Empty for a reply that an earlier release encrypted without associated data.
   */
  readonly associatedData: Uint8Array
}
