import type { EventSubject } from './events.ts'

/** Bytes of a hook, at once or later. */
export type HookBytes = Uint8Array | Promise<Uint8Array>

/**
 * Encrypts what is stored, and decrypts it. Use an authenticated cipher, such as AES-256-GCM, and
 * give it `context.associatedData`: without that, bytes copied from one record to another decrypt.
 */
export interface Encryption {
  /**
   * Returns what is stored instead of `plain`. An error leaves the outcome of the work unknown:
   * the work has run, and its result cannot be recorded.
   */
  encrypt(plain: Uint8Array, context: EncryptionContext): HookBytes

  /**
   * Returns what `encrypt` was given. Throws where the bytes were made with another key, for
   * another record, or were changed. `encrypted` is a copy that the hook may write to.
   */
  decrypt(encrypted: Uint8Array, context: EncryptionContext): HookBytes
}

/** What is encrypted, and the record that it belongs to. The client's key is never part of it. */
export interface EncryptionContext extends EventSubject {
  /** What the bytes are. Later releases encrypt more than replies, each under its own name. */
  readonly purpose: 'reply'

  /**
   * Purpose, format, identity and record id as one byte string, the same for `encrypt` and
   * `decrypt`. Empty for a reply that an earlier release encrypted without associated data.
   */
  readonly associatedData: Uint8Array
}
