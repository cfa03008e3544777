/** Answers that clients got, and what they may conclude from them. Pure. */

/**
 * `request`: the story's own request. `altered`: another request under its key. `status`: the
 * Location of a 202. `read`: the created resource. `foreign_read`: the same, read by the other
 * tenant. `foreign_refund`: a refund of it, requested by the other tenant.
 */
export type Asked = 'request' | 'altered' | 'status' | 'read' | 'foreign_read' | 'foreign_refund'

export interface Seen {
  readonly asked: Asked
  readonly node: string
  /** Milliseconds since the start of the run: when it was sent, and when it was answered. */
  readonly sentMs: number
  readonly endedMs: number
  readonly outcome: Outcome
}

export type Outcome =
  | Answer
  /** Cut, refused, timed out, or the client disconnected. */
  | { readonly kind: 'no_answer'; readonly why: string }

export interface Answer {
  readonly kind: 'answer'
  readonly status: number
  readonly body: string
  readonly replayed: boolean
  readonly location: string | undefined
  readonly retryAfterMs: number | undefined
}

export interface SeenAnswer extends Seen {
  readonly outcome: Answer
}

/** Temporary refusals, which are not recorded: the next answer may differ. */
const PASSING: readonly number[] = [401, 403, 408, 425, 429]

export function isAnswered(seen: Seen): seen is SeenAnswer {
  return seen.outcome.kind === 'answer'
}

/** Whether the client treats the answer as final: every retry must get the same. */
export function isFinal({ status, body, replayed }: Answer): boolean {
  if (replayed) return true
  if (status >= 200 && status < 300) return status !== 202
  if (status < 400 || status >= 500 || PASSING.includes(status)) return false
  return codeOf(body)?.startsWith('idempotency_') !== true
}

/** Whether the story's own request is on record, so that any other request must be refused. */
export function showsRecord(answer: Answer): boolean {
  if (answer.status === 202 || isFinal(answer)) return true
  const code = codeOf(answer.body)
  return code === 'idempotency_key_in_progress' || code === 'idempotency_outcome_unknown'
}

export function isMismatch({ status, body }: Answer): boolean {
  return status === 422 && codeOf(body) === 'idempotency_key_reused_with_different_payload'
}

export function codeOf(body: string): string | undefined {
  const code = toObject(body)?.['code']
  return typeof code === 'string' ? code : undefined
}

export function toObject(body: string): Readonly<Record<string, unknown>> | undefined {
  try {
    const value: unknown = JSON.parse(body)
    return typeof value === 'object' && value !== null
      ? (value as Readonly<Record<string, unknown>>)
      : undefined
  } catch {
    // An answer that is not JSON is valid: the judge compares its bytes.
    return undefined
  }
}

/** A short summary, for counting. */
export function summaryOf({ asked, outcome }: Seen): string {
  if (outcome.kind === 'no_answer') return `${asked}: no answer`
  const { status, body, replayed } = outcome
  const code = status >= 400 || status === 202 ? codeOf(body) : undefined
  return [`${asked}: ${status}`, code, replayed ? 'replayed' : undefined]
    .filter((part) => part !== undefined)
    .join(' ')
}
