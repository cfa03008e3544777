import { createHash, createHmac, createSecretKey, hash, type KeyObject } from 'node:crypto'
import { InvalidOptionsError } from '../../core/errors.ts'
import { describe, rejectUnknownOptions } from '../../core/options.ts'
import {
  hashedBody,
  mediaTypeOf,
  part,
  type FingerprintBody,
  type HashedBody,
} from './fingerprint-body.ts'

/** The parts of a request that are hashed. Two requests are the same if these are equal. */
export interface FingerprintInput {
  readonly method: string
  /** The concrete path, not the route's template. */
  readonly path: string
  /** Without the question mark. `''` if there is no query. */
  readonly query: string
  /** The `Content-Type` as sent, or `''`. Of its parameters, only the boundary is used. */
  readonly mediaType: string
  readonly body: FingerprintBody
  /** The user within the tenant who sends the request. Absent and `''` are different. */
  readonly principal?: string | undefined
  /**
   * Names of members, with dots for nesting (`'amount'`, `'customer.id'`). If the body is a JSON
   * object, only these members are hashed; their order here does not matter. Any other body is
   * hashed as a whole.
   */
  readonly fields?: readonly string[] | undefined
}

/** A secret for keyed fingerprints. */
export interface FingerprintSecret {
  /**
   * Identifies the secret: 1 to 32 letters, digits, `_` or `-`, unique in the list. The id is
   * stored with each fingerprint; the secret is not.
   */
  readonly id: string
  /** A random value: at least 16 bytes, or at least 32 characters, such as 16 bytes in hex. */
  readonly secret: string | Uint8Array
  /**
   * Uses this secret only to compare requests with existing records, not for new records. Set this
   * until every node has the secret; otherwise nodes without it refuse correct retries.
   *
   * @default false
   */
  readonly acceptOnly?: boolean
}

export interface FingerprinterOptions {
  /**
   * Makes fingerprints HMACs, so that a reader of the store cannot find out a body by hashing
   * likely ones. The first secret that is not `acceptOnly` is used for new records; if all are
   * `acceptOnly`, new records get a plain SHA-256. Keep old secrets until the records made with
   * them have expired, or their retries are refused.
   *
   * @default none: plain SHA-256
   */
  readonly secrets?: readonly FingerprintSecret[] | undefined
}

export interface Fingerprinter {
  /**
   * The fingerprint for a new record. Returns `undefined` if the parsed body has no JSON form: it
   * is cyclic, too deep, or opaque.
   */
  current(input: FingerprintInput): string | undefined
  /**
   * The fingerprint of `input`, made with the version and the secret of `stored`. The request is
   * the same if the two are equal. Returns `undefined` if this node lacks that version or secret,
   * or if the body has no JSON form.
   */
  recompute(stored: string, input: FingerprintInput): string | undefined
}

const SECRET_ID = /^[A-Za-z0-9_-]{1,32}$/
const STORED = /^v1(?:\.([A-Za-z0-9_-]{1,32}))?:/

/** One kind of fingerprint: its prefix, and the key that hashes it. */
interface Scheme {
  readonly prefix: string
  readonly key: KeyObject | undefined
  readonly isAcceptOnly: boolean
}

const PLAIN: Scheme = { prefix: 'v1:', key: undefined, isAcceptOnly: false }

/**
 * 128 bits, because fewer can be found by search. A string must be twice as long, because a
 * character rarely carries 8 bits: one of hex carries 4.
 */
const SECRET_BYTES_MIN = 16
const SECRET_CHARACTERS_MIN = 2 * SECRET_BYTES_MIN

/** Fingerprints are versioned: `v1:<SHA-256>`, or `v1.<secret id>:<HMAC-SHA-256>`. */
export function createFingerprinter(options: FingerprinterOptions = {}): Fingerprinter {
  rejectUnknownOptions('createFingerprinter', options, ['secrets'])
  const schemes = resolveSchemes(options.secrets ?? [])
  const current = [...schemes.values()].find(({ isAcceptOnly }) => !isAcceptOnly) ?? PLAIN
  return {
    current: (input) => compute(current, input),
    recompute(stored, input) {
      const match = STORED.exec(stored)
      if (match === null) return undefined
      const scheme = match[1] === undefined ? PLAIN : schemes.get(match[1])
      return scheme === undefined ? undefined : compute(scheme, input)
    },
  }
}

function compute(scheme: Scheme, input: FingerprintInput): string | undefined {
  const body = hashedBody(input)
  if (body === undefined) return undefined
  const head =
    part(input.method.toUpperCase()) +
    part(input.path) +
    part(input.query) +
    part(mediaTypeOf(input.mediaType)) +
    (input.principal === undefined ? '-' : part(input.principal))
  return scheme.prefix + digestOf(scheme.key, head, body)
}

function digestOf(key: KeyObject | undefined, head: string, { text, bytes }: HashedBody): string {
  // With text only, one call of `hash` takes a third of the time.
  if (key === undefined && bytes === undefined) return hash('sha256', head + text, 'base64url')
  const digest = key === undefined ? createHash('sha256') : createHmac('sha256', key)
  digest.update(head + text)
  if (bytes !== undefined) digest.update(bytes)
  return digest.digest('base64url')
}

function resolveSchemes(secrets: readonly FingerprintSecret[]): ReadonlyMap<string, Scheme> {
  if (!Array.isArray(secrets)) {
    throw new InvalidOptionsError(`fingerprint secrets must be an array, got ${describe(secrets)}`)
  }
  const schemes = new Map<string, Scheme>()
  for (const given of secrets as readonly FingerprintSecret[]) {
    rejectUnknownOptions('a fingerprint secret', given, ['id', 'secret', 'acceptOnly'])
    const { id, secret, acceptOnly = false } = given
    if (typeof id !== 'string' || !SECRET_ID.test(id)) {
      throw new InvalidOptionsError(
        `fingerprint secret id ${describe(id)} must be 1 to 32 letters, digits, "_" or "-"`,
      )
    }
    if (schemes.has(id)) {
      throw new InvalidOptionsError(
        `fingerprint secret id "${id}" is used twice: give each secret its own id`,
      )
    }
    if (typeof acceptOnly !== 'boolean') {
      throw new InvalidOptionsError(
        `acceptOnly of fingerprint secret "${id}" must be true or false, got ` +
          describe(acceptOnly),
      )
    }
    schemes.set(id, { prefix: `v1.${id}:`, key: toKey(id, secret), isAcceptOnly: acceptOnly })
  }
  return schemes
}

function toKey(id: string, secret: unknown): KeyObject {
  const isBytes = secret instanceof Uint8Array
  // The message omits the value, because it may be a secret of another type.
  if (typeof secret !== 'string' && !isBytes) {
    throw new InvalidOptionsError(`fingerprint secret "${id}" must be a string or a Uint8Array`)
  }
  if (secret.length < (isBytes ? SECRET_BYTES_MIN : SECRET_CHARACTERS_MIN)) {
    throw new InvalidOptionsError(
      `fingerprint secret "${id}" is too short to protect bodies from guessing: use at least ` +
        `${SECRET_BYTES_MIN} random bytes, or a string of at least ${SECRET_CHARACTERS_MIN} ` +
        'characters, such as crypto.randomBytes(32).toString("hex")',
    )
  }
  return createSecretKey(isBytes ? secret : Buffer.from(secret, 'utf8'))
}
