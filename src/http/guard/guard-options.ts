import type { Encryption } from '../../core/encryption.ts'
import type { Engine } from '../../core/engine/engine-contract.ts'
import type { PolicyOptions } from '../../core/engine/policy.ts'
import type { Store } from '../../core/store/store.ts'
import type { FingerprintSecret } from '../fingerprint/fingerprint.ts'
import type { LimitOptions } from '../limits/limit-options.ts'
import type { Profile } from './answers.ts'
import type { DurableRoute } from './durable-route.ts'
import type { HttpReply } from './exchange.ts'
import type { ReleaseOn } from './handler-reply.ts'

/** Options of every adapter, besides the policy. `Request` is the request of the framework. */
export interface GuardOptions<Request> extends PolicyOptions {
  /**
   * Keeps the records. All routes on one store share one engine with default options. Set either
   * `store` or `engine`. @default none
   */
  store?: Store
  /**
   * An engine from `createEngine`, to get its events or to change its defaults and intervals. The
   * guard's `close()` leaves it open. @default an engine on `store`
   */
  engine?: Engine

  /**
   * Required. The tenant of the key, from what the server knows about the caller, never from the
   * body. An API without tenants uses `singleTenant`. Fails closed: an error, an empty value, more
   * than 255 characters, or the text `undefined` or `null` runs nothing.
   */
  tenant: (request: Request) => string | Promise<string>
  /**
   * The user within the tenant, as part of the fingerprint: a user who guesses another user's key
   * gets 422, not the reply. A retry after a change of user gets 422, too. With `scopeBy:
   * 'tenant+principal+operation'` each user has separate keys instead. @default none
   */
  principal?: (request: Request) => string | undefined | Promise<string | undefined>

  /**
   * The stable name of the route's work. Without it, renaming a path makes all its keys new at the
   * deploy. Not with `scopeBy: 'tenant'`.
   * @default method and route template, or the name of the `durable` operation
   */
  operation?: string | ((request: Request) => string)
  /**
   * `tenant+operation`: a key may be used once on each route. `tenant+principal+operation`: by each
   * user, so that no user can occupy the key of another; needs `principal`, which then must return
   * a string. `tenant`: a key is unique over all routes of the tenant; its use on a second route
   * gets 422 (400 in `stripe`). Every change makes all keys and their downstream keys new.
   * @default 'tenant+operation' ('tenant' in the `stripe` profile)
   */
  scopeBy?: ScopeBy
  /**
   * Error format: `ietf` (RFC 9457 problems) or `stripe` (statuses and bodies of Stripe). `stripe`
   * also sets `scopeBy: 'tenant'` and `onError: 'store'`. @default 'ietf'
   */
  profile?: Profile
  /**
   * The protected methods, in capitals. Other methods pass the guard unchanged. Add PUT and DELETE
   * if yours are not safe to repeat. GET, HEAD and OPTIONS are never protected.
   * @default ['POST', 'PATCH']
   */
  methods?: readonly string[]

  /**
   * Whether a request without a key gets 400. `false` lets it run unprotected, to introduce keys to
   * an API that already has clients. @default true
   */
  keyRequired?: boolean
  /** The header of the key. Not with `keyField` or `keyFrom`. @default 'Idempotency-Key' */
  keyHeader?: string
  /**
   * Takes the key from a field of a JSON object or a form, with dots for nesting: `request_id`,
   * `meta.requestId`. Needs no parser. Not with `keyHeader`, `keyFrom` or `keySyntax`.
   * @default none: from `keyHeader`
   */
  keyField?: string
  /**
   * Takes the key from anywhere else in the request. Not with `keyHeader`, `keyField` or
   * `keySyntax`. @default none: from `keyHeader`
   */
  keyFrom?: (request: Request) => string | undefined | Promise<string | undefined>
  /**
   * `lenient` accepts a quoted string and a bare value, as the same key. `strict` accepts only the
   * quoted string of the IETF draft, which few SDKs send. Not with `keyField` or `keyFrom`.
   * @default 'lenient'
   */
  keySyntax?: 'lenient' | 'strict'
  /** The fewest characters of a key, without quotes: 1 to 1024. Others get 400. @default 1 */
  keyLengthMin?: number
  /** The most characters of a key, without quotes: 1 to 1024. Others get 400. @default 255 */
  keyLengthMax?: number
  /**
   * The pattern that a key must match; other keys get 400. Anchor it with `^` and `$`. The flags
   * `g` and `y` are refused. @default none
   */
  keyPattern?: RegExp
  /**
   * Refuses keys with an e-mail address, a phone number or a US social security number. Prevents
   * common mistakes, and is not a complete detector. @default false
   */
  refusePersonalKeys?: boolean

  /**
   * Compares only these fields of a JSON object, with dots for nesting: for bodies with a timestamp
   * or a trace id. Other fields may differ unnoticed. @default the whole body
   */
  fingerprintFields?: readonly string[]
  /**
   * Makes fingerprints HMACs, so that a reader of the store cannot find a body by trying likely
   * ones. The first secret that is not `acceptOnly` is used for new records; requests are compared
   * with records of all secrets. Change secrets only in the order that `docs/reference/options.md`
   * gives, or nodes refuse correct retries. @default none: plain SHA-256
   */
  fingerprintSecrets?: readonly FingerprintSecret[]

  /**
   * Refuses requests that were first sent longer ago than this, up to ten years, or that lie in the
   * future: 412. A request whose reply is on record still gets it. Stops a captured request from
   * running after its record has expired, so together with `requestSkewMs` it must not exceed the
   * time for which a key is remembered. A request without a time gets 400. The authentication of
   * the request (a signature, a signed claim) must cover the method, the path, the key, the body
   * and the time: an attacker can change everything else. @default none: requests of any age run
   */
  maxRequestAgeMs?: number
  /**
   * When the client first sent the request; every retry says the same time. `undefined`: the
   * request does not say. @default the header `Repeatability-First-Sent`, an HTTP date
   */
  requestTime?: (request: Request) => Date | undefined | Promise<Date | undefined>
  /**
   * How far the clock of a client may be ahead, up to ten years. A larger value accepts worse
   * clocks, and lets a captured request run for that much longer. @default 300_000 (5 minutes)
   */
  requestSkewMs?: number
  /** Limits of new keys, look-ups and requests in flight. @default none */
  limits?: LimitOptions<Request>

  /**
   * The largest request body in bytes, up to 512 MiB, also after decoding. The body is read into
   * memory and hashed as a whole. Larger ones get 413. @default 1_048_576 (1 MiB)
   */
  requestBytesMax?: number
  /**
   * The largest reply body to keep, in bytes, up to 512 MiB. Larger replies are sent but not kept,
   * and their replay says so. @default 1_048_576 (1 MiB)
   */
  replyBytesMax?: number
  /**
   * Returns `true` for a 4xx or 5xx that releases the key instead of being recorded: the same
   * request then runs again under its key. Never called for 2xx and 3xx, and perhaps twice for one
   * reply. After an outside effect has begun, the outcome is `unknown` in any case.
   * @default none: 401, 403, 408, 425, 429, and errors sent before the handler starts, release it
   */
  releaseOn?: ReleaseOn
  /**
   * Further headers that a replay repeats. Cookies and connection headers are refused.
   * @default none: only headers that describe the reply, such as `Content-Type` and `Location`
   */
  storeHeaders?: readonly string[]

  /**
   * The version of the route's replies, 0 to 65535, stored with each. Raise it when they change.
   * @default 1, or that of the `durable` operation
   */
  replyVersion?: number
  /**
   * Turns a reply that was recorded under another version into a new one when it is replayed.
   * @default none: replies of every version are replayed unchanged
   */
  upgradeReply?: (reply: HttpReply, fromVersion: number) => HttpReply
  /**
   * Encrypts each reply for its own record before it is stored. A reply that does not decrypt gets
   * 409, and the work does not run again. If `prepare` fails, a new key gets 503.
   * @default that of the `durable` operation, or of the engine, if they have one
   */
  encryption?: Encryption
  /**
   * Refuses recorded replies that are not encrypted, with 409: only code with the encryption key
   * can then make a reply. Needs `encryption`. Switch it on one retention after that, because
   * earlier replies are plain. @default that of the `durable` operation, or of the engine
   */
  requireEncryption?: boolean

  /**
   * How a request is treated when the store cannot answer. `closed`: 503, nothing runs. `open`: the
   * handler runs unprotected, and a retry may run it again; for handlers where an outage is worse
   * than a duplicate. @default 'closed'
   */
  onStoreFailure?: 'closed' | 'open'
  /** From `defineOperation(…).route`: the handler runs this durable operation. @default none */
  durable?: DurableRoute
  /** Makes the `Location` of a 202: the URL of `idempotencyStatus`. @default none: no `Location` */
  statusUrl?: (recordId: string) => string
  /** Your page about these rules, for the `Link` of problems. @default the IETF draft */
  docsUrl?: string
}

/** The parts of the scope of a key. */
export type ScopeBy = 'tenant+operation' | 'tenant+principal+operation' | 'tenant'

/** The `tenant` of an API without tenants: all callers share one set of keys. */
export function singleTenant(): string {
  return 'single'
}
