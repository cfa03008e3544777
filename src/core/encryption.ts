import { InvalidOptionsError } from './errors.ts'
import { describe } from './options.ts'

/** The bytes that a hook returns, directly or as a promise. */
export type HookBytes = Uint8Array | Promise<Uint8Array>

/**
 * Encrypts what is stored, and decrypts it: `aesKeyring` and `envelopeKeyring` of
 * `oncekey/encryption`, or your own. Use an authenticated cipher, such as AES-256-GCM, and pass
 * `context.associatedData` to it. Without it, bytes that were copied from one record to another
 * still decrypt.
 */
export interface Encryption {
  /**
   * Makes sure that `encrypt` for this tenant needs no key service for the next minutes. Called
   * before a key is claimed. If it throws, rejects or takes too long, nothing runs, and the request
   * gets 503.
   *
   * @default `encrypt` can always encrypt
   */
  prepare?(subject: EncryptionSubject): void | Promise<void>

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

/** The owner of the bytes: a hook may have a key for each tenant. */
export interface EncryptionSubject {
  /** `undefined`: a message without a tenant. */
  readonly tenant: string | undefined
}

/** The purpose of the bytes and what they belong to, without the client's key. */
export interface EncryptionContext extends EncryptionSubject {
  /** The kind of the bytes. Later releases may encrypt other kinds, each with a new name. */
  readonly purpose: EncryptionPurpose

  /** The operation of the record, or the topic of the message. */
  readonly operation: string

  /** The hash that names the record; empty for a message. */
  readonly identity: string

  /** The id of the record, or of the message. */
  readonly recordId: string

  /**
   * Purpose, format and what the bytes belong to, as one byte string. `encrypt` and `decrypt` get
   * the same one. Empty for a reply that an earlier release encrypted without associated data.
   */
  readonly associatedData: Uint8Array
}

export type EncryptionPurpose =
  | 'reply'
  | 'operation_input'
  | 'phase_request'
  | 'phase_result'
  | 'message'

/** How stored data is encrypted and decrypted, and whether plain data is refused. */
export interface EncryptionRule {
  readonly encryption: Encryption | undefined
  readonly requireEncryption: boolean
}

/** The options of one part. What it does not set comes from its engine. */
export interface EncryptionOptions {
  readonly encryption?: unknown
  readonly requireEncryption?: unknown
}

/**
 * How long a hook may take where nothing else limits it: the default of `storeTimeoutMs`. A key
 * service that does not answer must not block a request.
 */
export const HOOK_MS_MAX = 5_000

const NOT_ENCRYPTED: EncryptionRule = { encryption: undefined, requireEncryption: false }

/**
 * Checks both options, and takes missing ones from `engine`. `where` is the name of the caller, for
 * messages.
 */
export function resolveEncryption(
  where: string,
  given: EncryptionOptions,
  engine: EncryptionRule = NOT_ENCRYPTED,
): EncryptionRule {
  const { encryption = engine.encryption, requireEncryption = engine.requireEncryption } = given
  if (typeof requireEncryption !== 'boolean') {
    throw new InvalidOptionsError(
      `${where}: requireEncryption must be true or false, got ${describe(requireEncryption)}`,
    )
  }
  if (encryption === undefined && requireEncryption) {
    throw new InvalidOptionsError(
      `${where}: requireEncryption needs encryption, because without it nothing is readable: ` +
        'give { encryption }, or leave requireEncryption out',
    )
  }
  if (encryption !== undefined && !isEncryption(encryption)) {
    throw new InvalidOptionsError(
      `${where}: encryption must be { encrypt, decrypt } with two functions, and perhaps a ` +
        `function prepare, got ${describe(encryption)}`,
    )
  }
  return { encryption, requireEncryption }
}

/** The options of an operation, checked before, with those of the engine where it has none. */
export function effectiveRule(
  own: { readonly [Name in keyof EncryptionRule]?: EncryptionRule[Name] | undefined } = {},
  engine: EncryptionRule,
): EncryptionRule {
  const { encryption = engine.encryption, requireEncryption = engine.requireEncryption } = own
  return { encryption, requireEncryption }
}

function isEncryption(given: unknown): given is Encryption {
  const { encrypt, decrypt, prepare } = (given ?? {}) as Partial<Encryption>
  const hasPrepare = prepare === undefined || typeof prepare === 'function'
  return typeof encrypt === 'function' && typeof decrypt === 'function' && hasPrepare
}
