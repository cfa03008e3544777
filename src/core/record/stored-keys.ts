/** Keys as records keep them: plain, or as an HMAC by which their user is still recognised. */
import { InvalidOptionsError } from '../errors.ts'
import { rejectUnknownOptions } from '../options.ts'
import type { StoredRecord } from './record.ts'
import { hmacOf, identityOf, isSameHash, type Scope } from './identity.ts'

export type KeySecret = string | Uint8Array

export interface HashKeysOptions {
  /** A random value: at least 16 bytes, or at least 32 characters, such as 16 bytes in hex. */
  readonly secret: KeySecret

  /**
   * Earlier values of `secret`. Keep a value until the records that were made with it have expired:
   * without it, status handlers with `principal` answer 404 for these records. Nothing else needs
   * the secret.
   *
   * @default none
   */
  readonly oldSecrets?: readonly KeySecret[] | undefined
}

type OwnedRecord = Pick<StoredRecord, 'tenant' | 'operation' | 'key' | 'identity'>

/** For people who read a record. A client may send the same text, so it proves nothing. */
const FORMAT = 'hmac1'

/** 128 bits, because fewer can be found by search; a character of hex carries 4. */
const SECRET_BYTES_MIN = 16
const SECRET_CHARACTERS_MIN = 2 * SECRET_BYTES_MIN

export class StoredKeys {
  /** The first one makes new texts. Empty: keys are stored as they are. */
  readonly #secrets: readonly KeySecret[]

  constructor(secrets: readonly KeySecret[]) {
    this.#secrets = secrets
  }

  /** The text that a record keeps instead of its key. */
  textOf({ tenant, principal }: Scope, key: string, identity: string): string {
    const [secret] = this.#secrets
    if (secret === undefined) return key
    // With the tenant, so that a reader of the store cannot see that two tenants use one key.
    const keyHash = hmacOf(secret, `key:${tenant.length}:${tenant}${key}`)
    return `${FORMAT}.${keyHash}.${ownerTag(secret, identity, principal)}`
  }

  /**
   * Whether the scope of the record has this principal. The principal is not stored. With a plain
   * key the identity is computed again; a hashed key has a tag of identity and principal.
   */
  isOwnedBy({ tenant, operation, key, identity }: OwnedRecord, principal: string): boolean {
    if (isSameHash(identityOf({ tenant, operation, principal }, key), identity)) return true
    const [, , tag = ''] = key.split('.')
    return this.#secrets.some((secret) => isSameHash(ownerTag(secret, identity, principal), tag))
  }
}

function ownerTag(secret: KeySecret, identity: string, principal: string | undefined): string {
  return hmacOf(secret, `owner:${identity}${principal === undefined ? '' : `:${principal}`}`)
}

/** The messages omit the values, which are secrets. */
export function resolveHashKeys(where: string, given: HashKeysOptions | undefined): StoredKeys {
  if (given === undefined) return new StoredKeys([])
  rejectUnknownOptions(where, given, ['secret', 'oldSecrets'])
  const { secret, oldSecrets = [] } = given
  if (!Array.isArray(oldSecrets)) {
    throw new InvalidOptionsError(`${where}.oldSecrets must be an array of secrets`)
  }
  const old = oldSecrets as readonly unknown[]
  return new StoredKeys([
    checkSecret(`${where}.secret`, secret),
    ...old.map((one, index) => checkSecret(`${where}.oldSecrets[${index}]`, one)),
  ])
}

function checkSecret(where: string, secret: unknown): KeySecret {
  const isBytes = secret instanceof Uint8Array
  if (!isBytes && typeof secret !== 'string') {
    throw new InvalidOptionsError(`${where} must be a string or a Uint8Array`)
  }
  if (secret.length >= (isBytes ? SECRET_BYTES_MIN : SECRET_CHARACTERS_MIN)) {
    // A copy, because the caller may clear its own bytes.
    return isBytes ? Uint8Array.from(secret) : secret
  }
  throw new InvalidOptionsError(
    `${where} is too short to protect keys from guessing: use at least ${SECRET_BYTES_MIN} ` +
      `random bytes, or a string of at least ${SECRET_CHARACTERS_MIN} characters, such as ` +
      'crypto.randomBytes(32).toString("hex")',
  )
}
