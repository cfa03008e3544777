import type { Engine } from '../core/engine-contract.ts'
import { isReconciled } from '../core/reconciled.ts'
import {
  RETRY_AFTER_IN_PROGRESS_SECONDS_MAX,
  RETRY_AFTER_SECONDS_MIN,
  RETRY_AFTER_STORE_SECONDS_MAX,
  RETRY_AFTER_UNKNOWN_SECONDS_MAX,
} from '../protocol/limits.ts'
import { OUTCOME_LOOKED_INTO, PROBLEMS, type ProblemName } from '../protocol/problems.ts'
import type { HttpReply } from './exchange.ts'
import type { StoredReply } from './reply-codec.ts'
import type { HeaderPair } from './stored-headers.ts'

export type Profile = 'ietf' | 'stripe'

/** Describes the rules where the API has not published a page of its own. */
const DRAFT_URL =
  'https://datatracker.ietf.org/doc/html/draft-ietf-httpapi-idempotency-key-header-07'

export interface ProblemOptions {
  /** More precise than the problem's own sentence. */
  readonly detail?: string | undefined
  readonly retryAfterSeconds?: number | undefined
  /** Where the state of the request can be asked for. */
  readonly location?: string | undefined
}

/** Says "no" (or "not yet") in the words of one profile. */
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
    return { status, headers, body: Buffer.from(JSON.stringify(body)) }
  }

  /** The same in both profiles: it is no error. */
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

/** What is told of a request whose reply is still to come. */
export interface Progress {
  /** `pending`: it waits for somebody to take it, or to go on with it. */
  readonly status: 'pending' | 'in_progress'
  readonly recordId: string
  readonly createdAt: Date
  readonly retryAfterSeconds: number
  readonly location: string | undefined
}

/** Rounded up, so that a client which waits that long does not come too early. */
export function retryAfterInProgress(leftMs: number): number {
  return clampSeconds(leftMs, RETRY_AFTER_IN_PROGRESS_SECONDS_MAX)
}

/** By then a store that fails has been asked once more whether it is back. */
export function retryAfterStore(leftMs: number): number {
  return clampSeconds(leftMs, RETRY_AFTER_STORE_SECONDS_MAX)
}

/** A reconciliation that is due and has brought nothing yet is in nobody's hands but a person's. */
export function retryAfterUnknown(leftMs: number): number {
  const isDue = leftMs <= 0
  return isDue
    ? RETRY_AFTER_UNKNOWN_SECONDS_MAX
    : clampSeconds(leftMs, RETRY_AFTER_UNKNOWN_SECONDS_MAX)
}

/** Says that an outcome is looked into only where a reconciler was made for the engine. */
export function unknownDetail(engine: Engine): string | undefined {
  return isReconciled(engine) ? OUTCOME_LOOKED_INTO : undefined
}

function clampSeconds(ms: number, secondsMax: number): number {
  return Math.min(Math.max(Math.ceil(ms / 1000), RETRY_AFTER_SECONDS_MIN), secondsMax)
}

/** Only for replies that are recorded and for their replays: no other reply is kept until then. */
export function expiresHeader(expiresAt: Date): HeaderPair {
  return ['Idempotency-Expires', expiresAt.toUTCString()]
}

/** The stored reply of the work that has just run. */
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
  // What described the body describes nothing any more.
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
