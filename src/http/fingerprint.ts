import { createHash, createHmac, createSecretKey, hash, type KeyObject } from 'node:crypto'
import { InvalidOptionsError } from '../core/errors.ts'
import { describe, rejectUnknownOptions } from '../core/options.ts'
import {
  hashedBody,
  mediaTypeOf,
  part,
  type FingerprintBody,
  type HashedBody,
} from './fingerprint-body.ts'

export type { FingerprintBody } from './fingerprint-body.ts'

/** What makes two requests the same request. */
export interface FingerprintInput {
  readonly method: string
  /** The concrete path, not the route's template. */
  readonly path: string
  /** Without the question mark; `''` where there is none. */
  readonly query: string
  /** The `Content-Type` as sent, or `''`. Its parameters count only to find a boundary. */
  readonly mediaType: string
  readonly body: FingerprintBody
  /** Who asks, within the tenant. Absent and `''` are different. */
  readonly principal?: string | undefined
  /**
   * Names of members, with dots for nesting (`'amount'`, `'customer.id'`). Only these enter the
   * hash, in any order, if the body is a JSON object; the whole body if it is anything else.
   */
  readonly fields?: readonly string[] | undefined
}

/** A secret for keyed fingerprints. The id is stored with each fingerprint; the secret is not. */
export interface FingerprintSecret {
  readonly id: string
  /** Random: at least 16 bytes, or a text of at least 32 characters, such as 16 bytes in hex. */
  readonly secret: string | Uint8Array
  /**
   * Compares requests with records that this secret made, but makes no new ones with it. A secret
   * that some nodes do not know yet must be like this, or those nodes refuse correct retries.
   *
   * @default false
   */
  readonly acceptOnly?: boolean
}

export interface FingerprinterOptions {
  /**
   * With secrets, fingerprints are HMACs: someone who reads the store cannot find out a body by
   * trying likely ones. The first that is not `acceptOnly` is used for new records; without one,
   * new records get a plain SHA-256. Keep old secrets until the records made with them have
   * expired, or their retries will be refused.
   * @default none: plain SHA-256
   */
  readonly secrets?: readonly FingerprintSecret[] | undefined
}

export interface Fingerprinter {
  /** `undefined` when the parsed body has no JSON form: cyclic, too deep, or opaque. */
  current(input: FingerprintInput): string | undefined
  /**
   * The fingerprint of `input`, made the way `stored` was: the same version and secret. The
   * request is the same if the two are equal. `undefined` when that way is not known here, or
   * the body has no JSON form.
   */
  recompute(stored: string, input: FingerprintInput): string | undefined
}

const SECRET_ID = /^[A-Za-z0-9_-]{1,32}$/
const STORED = /^v1(?:\.([A-Za-z0-9_-]{1,32}))?:/

/** How one kind of fingerprint starts, and what hashes it. */
interface Way {
  readonly prefix: string
  readonly key: KeyObject | undefined
  readonly isAcceptOnly: boolean
}

const PLAIN: Way = { prefix: 'v1:', key: undefined, isAcceptOnly: false }

/**
 * 128 bits: fewer can be searched. A text counts half, because its characters are seldom all of
 * what a byte can be: those of hex carry four bits.
 */
const SECRET_BYTES_MIN = 16
const SECRET_CHARACTERS_MIN = 2 * SECRET_BYTES_MIN

/** Fingerprints are versioned: `v1:<SHA-256>`, or `v1.<secret id>:<HMAC-SHA-256>`. */
export function createFingerprinter(options: FingerprinterOptions = {}): Fingerprinter {
  rejectUnknownOptions('createFingerprinter', options, ['secrets'])
  const ways = resolveWays(options.secrets ?? [])
  const current = [...ways.values()].find(({ isAcceptOnly }) => !isAcceptOnly) ?? PLAIN
  return {
    current: (input) => compute(current, input),
    recompute(stored, input) {
      const match = STORED.exec(stored)
      if (match === null) return undefined
      const way = match[1] === undefined ? PLAIN : ways.get(match[1])
      return way === undefined ? undefined : compute(way, input)
    },
  }
}

function compute(way: Way, input: FingerprintInput): string | undefined {
  const body = hashedBody(input)
  if (body === undefined) return undefined
  const head =
    part(input.method.toUpperCase()) +
    part(input.path) +
    part(input.query) +
    part(mediaTypeOf(input.mediaType)) +
    (input.principal === undefined ? '-' : part(input.principal))
  return way.prefix + digestOf(way.key, head, body)
}

function digestOf(key: KeyObject | undefined, head: string, { text, bytes }: HashedBody): string {
  // In one go where there is only text: that takes a third of the time.
  if (key === undefined && bytes === undefined) return hash('sha256', head + text, 'base64url')
  const digest = key === undefined ? createHash('sha256') : createHmac('sha256', key)
  digest.update(head + text)
  if (bytes !== undefined) digest.update(bytes)
  return digest.digest('base64url')
}

function resolveWays(secrets: readonly FingerprintSecret[]): ReadonlyMap<string, Way> {
  if (!Array.isArray(secrets)) {
    throw new InvalidOptionsError(`fingerprint secrets must be an array, got ${describe(secrets)}`)
  }
  const ways = new Map<string, Way>()
  for (const given of secrets as readonly FingerprintSecret[]) {
    rejectUnknownOptions('a fingerprint secret', given, ['id', 'secret', 'acceptOnly'])
    const { id, secret, acceptOnly = false } = given
    if (typeof id !== 'string' || !SECRET_ID.test(id)) {
      throw new InvalidOptionsError(
        `fingerprint secret id ${describe(id)} must be 1 to 32 letters, digits, "_" or "-"`,
      )
    }
    if (ways.has(id)) throw new InvalidOptionsError(`fingerprint secret id "${id}" is used twice`)
    if (typeof acceptOnly !== 'boolean') {
      throw new InvalidOptionsError(
        `acceptOnly of fingerprint secret "${id}" must be true or false, got ` +
          describe(acceptOnly),
      )
    }
    ways.set(id, { prefix: `v1.${id}:`, key: toKey(id, secret), isAcceptOnly: acceptOnly })
  }
  return ways
}

function toKey(id: string, secret: unknown): KeyObject {
  const isBytes = secret instanceof Uint8Array
  // The value is not named: it may be a secret all the same.
  if (typeof secret !== 'string' && !isBytes) {
    throw new InvalidOptionsError(`fingerprint secret "${id}" must be a string or a Uint8Array`)
  }
  if (secret.length < (isBytes ? SECRET_BYTES_MIN : SECRET_CHARACTERS_MIN)) {
    throw new InvalidOptionsError(
      `fingerprint secret "${id}" is too short to keep a body from being guessed: give at least ` +
        `${SECRET_BYTES_MIN} random bytes, or a text of at least ${SECRET_CHARACTERS_MIN} ` +
        'characters, as by crypto.randomBytes(32).toString("hex")',
    )
  }
  return createSecretKey(isBytes ? secret : Buffer.from(secret, 'utf8'))
}
