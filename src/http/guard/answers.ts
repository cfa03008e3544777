import type { Engine } from '../../core/engine/engine-contract.ts'
import { isReconciled } from '../../core/engine/engine-registry.ts'
import {
  RETRY_AFTER_IN_PROGRESS_SECONDS_MAX,
  RETRY_AFTER_LIMIT_SECONDS_MAX,
  RETRY_AFTER_SECONDS_MIN,
  RETRY_AFTER_STORE_SECONDS_MAX,
  RETRY_AFTER_UNKNOWN_SECONDS_MAX,
} from '../../protocol/limits.ts'
import { OUTCOME_BEING_RECONCILED, PROBLEMS, type ProblemName } from '../../protocol/problems.ts'
import type { HttpReply } from './exchange.ts'
import type { StoredReply } from '../reply/reply-codec.ts'
import type { HeaderPair } from '../reply/stored-headers.ts'

export type Profile = 'ietf' | 'stripe'

/** The page that `Link` names if the API has not set `docsUrl`. */
const DRAFT_URL =
  'https://datatracker.ietf.org/doc/html/draft-ietf-httpapi-idempotency-key-header-07'

export interface ProblemOptions {
  /** Replaces the default detail of the problem. */
  readonly detail?: string | undefined
  readonly retryAfterSeconds?: number | undefined
  /** The URL of the request's status. */
  readonly location?: string | undefined
  /** Further headers. */
  readonly headers?: readonly HeaderPair[] | undefined
}

/** Builds the problems and progress answers of one profile. */
export class Answers {
  readonly #profile: Profile
  readonly #link: string

  constructor(profile: Profile, docsUrl: string | undefined) {
    this.#profile = profile
    this.#link = `<${docsUrl ?? DRAFT_URL}>; rel="describedby"`
  }

  problem(name: ProblemName, options: ProblemOptions = {}): HttpReply {
    const problem = PROBLEMS[name]
    const isStripe = this.#profile === 'stripe'
    const status = isStripe ? problem.stripeStatus : problem.status
    const isError = status >= 400
    const detail = options.detail ?? problem.detail
    const { code, title, type } = problem
    const body =
      isStripe && isError
        ? { error: { type: problem.stripeType, code, message: `${title}. ${detail}` } }
        : { type, title, status, detail, code }
    const mediaType = isError && !isStripe ? 'application/problem+json' : 'application/json'
    const headers: HeaderPair[] = [
      ['Content-Type', `${mediaType}; charset=utf-8`],
      ['Cache-Control', 'no-store'],
      ['Link', this.#link],
    ]
    if (options.retryAfterSeconds !== undefined) {
      headers.push(['Retry-After', String(options.retryAfterSeconds)])
    }
    if (options.location !== undefined) headers.push(['Location', options.location])
    if (options.headers !== undefined) headers.push(...options.headers)
    return { status, headers, body: Buffer.from(JSON.stringify(body)) }
  }

  /** The same in both profiles, because it is not an error. */
  progress({ status, recordId, createdAt, retryAfterSeconds, location }: Progress): HttpReply {
    const body = { status, recordId, createdAt, code: PROBLEMS.accepted.code }
    const headers: HeaderPair[] = [
      ['Content-Type', 'application/json; charset=utf-8'],
      ['Cache-Control', 'no-store'],
      ['Link', this.#link],
      ['Retry-After', String(retryAfterSeconds)],
    ]
    if (location !== undefined) headers.push(['Location', location])
    return { status: PROBLEMS.accepted.status, headers, body: Buffer.from(JSON.stringify(body)) }
  }
}

/** The state of a request that has no reply yet. */
export interface Progress {
  /** `pending`: the request waits for a worker to start it, or to resume it. */
  readonly status: 'pending' | 'in_progress'
  readonly recordId: string
  readonly createdAt: Date
  readonly retryAfterSeconds: number
  readonly location: string | undefined
}

/** Rounds up, so that a client that waits this long does not ask too early. */
export function retryAfterInProgress(leftMs: number): number {
  return clampSeconds(leftMs, RETRY_AFTER_IN_PROGRESS_SECONDS_MAX)
}

/** After this time, the breaker has probed a failing store again. */
export function retryAfterStore(leftMs: number): number {
  return clampSeconds(leftMs, RETRY_AFTER_STORE_SECONDS_MAX)
}

/** A limiter knows when its window ends, which may be long. */
export function retryAfterLimit(leftMs: number): number {
  return clampSeconds(leftMs, RETRY_AFTER_LIMIT_SECONDS_MAX)
}

/** If a reconciliation is due and has no verdict yet, only an operator may be able to give one. */
export function retryAfterUnknown(leftMs: number): number {
  const isDue = leftMs <= 0
  return isDue
    ? RETRY_AFTER_UNKNOWN_SECONDS_MAX
    : clampSeconds(leftMs, RETRY_AFTER_UNKNOWN_SECONDS_MAX)
}

/** Announces a reconciliation only if a reconciler was created for the engine. */
export function unknownDetail(engine: Engine): string | undefined {
  return isReconciled(engine) ? OUTCOME_BEING_RECONCILED : undefined
}

function clampSeconds(ms: number, secondsMax: number): number {
  return Math.min(Math.max(Math.ceil(ms / 1000), RETRY_AFTER_SECONDS_MIN), secondsMax)
}

/** Only for recorded replies and their replays: no other reply is kept until then. */
export function expiresHeader(expiresAt: Date): HeaderPair {
  return ['Idempotency-Expires', expiresAt.toUTCString()]
}

/** The stored reply of work that has just run. */
export function toRecorded(stored: StoredReply, expiresAt: Date): HttpReply {
  const { status, headers, body } = stored
  return { status, headers: [...headers, expiresHeader(expiresAt)], body }
}

/** The stored reply, marked as a replay. */
export function toReplay(stored: StoredReply, expiresAt: Date): HttpReply {
  const marks: HeaderPair[] = [['Idempotent-Replayed', 'true'], expiresHeader(expiresAt)]
  if (!stored.elided) {
    return { status: stored.status, headers: [...stored.headers, ...marks], body: stored.body }
  }
  // Headers that described the body do not describe the note that replaces it.
  const rest = stored.headers.filter(([name]) => !name.startsWith('content-') && name !== 'etag')
  return {
    status: stored.status,
    headers: [
      ...rest,
      ['Content-Type', 'application/json; charset=utf-8'],
      ['Idempotent-Body-Elided', 'true'],
      ...marks,
    ],
    body: Buffer.from(JSON.stringify(ELIDED)),
  }
}

const ELIDED = {
  code: 'idempotency_body_elided',
  title: 'The body of this reply was too large to be kept',
  detail:
    'The request was executed once; its status and headers are repeated here. Its body was sent ' +
    'with the first reply only.',
} as const
