/** The answers of a guard that do not come from a handler or a record. */
import type { Engine } from '../../core/engine/engine-contract.ts'
import type { ProblemName } from '../../protocol/problems.ts'
import type { Exceeded } from '../limits/limits.ts'
import {
  retryAfterInProgress,
  retryAfterLimit,
  retryAfterStore,
  retryAfterUnknown,
  unknownDetail,
  type Answers,
  type ProblemOptions,
} from './answers.ts'
import type { Answer } from './exchange.ts'
import { FIRST_SENT_HEADER } from './request-age.ts'

export interface GuardAnswersOptions {
  readonly engine: Engine
  readonly answers: Answers
  readonly statusUrl: ((recordId: string) => string) | undefined
  readonly keyFrom: unknown
  readonly keyField: string | undefined
  readonly keyHeaderName: string
  readonly requestBytesMax: number
  readonly requestAge: { readonly requestTime: unknown } | undefined
}

/** How long a client should wait if no better time is known. */
export const RETRY_SOON_MS = 1_000

const EXAMPLE_DATE = 'Tue, 17 Nov 2026 08:00:00 GMT'

export class GuardAnswers {
  readonly #options: GuardAnswersOptions

  constructor(options: GuardAnswersOptions) {
    this.#options = options
  }

  problem(name: ProblemName, options: ProblemOptions = {}): Answer {
    return { kind: 'reply', reply: this.#options.answers.problem(name, options) }
  }

  /** For problems after which the client retries at once. */
  retrySoon(name: ProblemName): Answer {
    return this.problem(name, { retryAfterSeconds: retryAfterInProgress(RETRY_SOON_MS) })
  }

  storeUnavailable(retryAfterMs = RETRY_SOON_MS): Answer {
    const retryAfterSeconds = retryAfterStore(retryAfterMs)
    return this.problem('store_unavailable', { retryAfterSeconds })
  }

  inProgress(leftMs: number): Answer {
    return this.problem('key_in_progress', { retryAfterSeconds: retryAfterInProgress(leftMs) })
  }

  accepted(recordId: string, leftMs: number): Answer {
    const location = this.#options.statusUrl?.(recordId)
    const retryAfterSeconds = retryAfterInProgress(leftMs)
    return this.problem('accepted', { location, retryAfterSeconds })
  }

  unknown(leftMs: number): Answer {
    const retryAfterSeconds = retryAfterUnknown(leftMs)
    const detail = unknownDetail(this.#options.engine)
    return this.problem('outcome_unknown', { retryAfterSeconds, detail })
  }

  limited({ retryAfterMs, headers }: Exceeded): Answer {
    const retryAfterSeconds = retryAfterLimit(retryAfterMs)
    return this.problem('rate_limited', { retryAfterSeconds, headers })
  }

  keyMissing(): Answer {
    const { keyFrom, keyField, keyHeaderName } = this.#options
    // `keyFrom` may look anywhere, so the detail cannot name the place.
    if (keyFrom !== undefined) return this.problem('key_missing')
    const place =
      keyField === undefined ? `the header ${keyHeaderName}` : `the field ${keyField} of the body`
    const detail =
      `This request has no idempotency key. Send a unique value, such as a UUID, in ${place}, ` +
      'and the same value again when you retry this request.'
    return this.problem('key_missing', { detail })
  }

  timeMissing(): Answer {
    // `requestTime` may look anywhere, so the detail cannot name the place.
    if (this.#options.requestAge?.requestTime !== undefined) {
      return this.problem('request_time_missing')
    }
    const detail =
      'The request was not executed. Send the time of its first attempt in the header ' +
      `${FIRST_SENT_HEADER}, as an HTTP date such as ${EXAMPLE_DATE}, and the same time with ` +
      'every retry.'
    return this.problem('request_time_missing', { detail })
  }

  tooLarge(): Answer {
    const { requestBytesMax } = this.#options
    const detail =
      `The request was not executed. Its body exceeds ${requestBytesMax} bytes, the limit of ` +
      'this route (option requestBytesMax). Send a smaller body; the key may be used again.'
    return this.problem('request_too_large', { detail })
  }
}
