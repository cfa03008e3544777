/** Determines which reply of a handler counts, and what it means for the record. */
import { NO_BYTES } from '../../core/bytes.ts'
import { hasCode } from '../../core/errors.ts'
import { describe } from '../../core/options.ts'
import { warnOnce } from '../../core/warn.ts'
import type { CapturedHandler, HttpReply, Produced } from './exchange.ts'
import type { GuardedContext } from './handler-context.ts'

/** Statuses that reject a request before any work was done; the key is released. */
const RELEASED_STATUS: ReadonlySet<number> = new Set([401, 403, 408, 425, 429])

/** Resolves with the reply that a transaction has returned, or that the handler has sent. */
export async function replyOf(
  context: GuardedContext,
  handler: CapturedHandler,
): Promise<Produced> {
  const sent = await context.unlessReturned(wholeReply(context, handler))
  if (context.returned !== undefined) return { kind: 'reply', reply: context.returned }
  return sent!
}

/** Waits for the reply that counts: a rollback discards the reply of its transaction. */
async function wholeReply(context: GuardedContext, handler: CapturedHandler): Promise<Produced> {
  for (;;) {
    await handler.whole()
    const ended = context.transactionEnded
    if (ended !== undefined) await ended
    // Read after the wait: if its transaction failed, the handler may have sent another reply or
    // begun another transaction.
    const produced = handler.produced()
    if (produced !== undefined && context.transactionEnded === ended) return produced
  }
}

/** Returns `true` if the reply releases the key instead of being recorded. */
export type ReleaseOn = (reply: HttpReply) => boolean

/** Facts about a reply that the reply itself does not contain. */
export interface ReplyFacts {
  readonly error: unknown
  readonly isNotExecuted: boolean
  /** The option of the route. */
  readonly releaseOn?: ReleaseOn | undefined
  /** The reply was sent before the handler function was entered. */
  readonly isRefused?: boolean
}

/**
 * Decides what a reply means for the record. A success is recorded unless the outcome was reported
 * as unknown, because its client must never cause a second run. For other replies, the class of a
 * reported error takes precedence over the status.
 */
export function meaningOf(produced: Produced, facts: ReplyFacts): 'complete' | 'release' | 'fail' {
  const { error, isNotExecuted, releaseOn, isRefused = false } = facts
  const status = statusOf(produced)
  if (hasCode(error, 'OUTCOME_UNKNOWN')) return 'fail'
  if (status < 400) return 'complete'
  if (hasCode(error, 'NOT_EXECUTED') || isNotExecuted) return 'fail'
  if (isRefused || (releaseOn !== undefined && isReleased(produced, releaseOn))) return 'release'
  if (status >= 500) return 'fail'
  return RELEASED_STATUS.has(status) ? 'release' : 'complete'
}

/** An invalid result of `releaseOn` releases nothing, because it must not cause a second run. */
function isReleased(produced: Produced, releaseOn: ReleaseOn): boolean {
  const { kind } = produced
  const reply = kind === 'reply' ? produced.reply : { ...produced, body: NO_BYTES }
  const { status, headers, body } = reply
  try {
    const answer: unknown = releaseOn({ status, headers, body })
    if (typeof answer === 'boolean') return answer
    warnOnce(`releaseOn must return true or false, got ${describe(answer)}`, 'releaseOn')
  } catch (error) {
    const why = error instanceof Error ? error.message : describe(error)
    warnOnce(`releaseOn threw, so it is ignored for this reply: ${why}`, 'releaseOn')
  }
  return false
}

/** Whether the handler has replied as if the transaction that it began had committed. */
export function standsForCommit(
  produced: Produced | undefined,
  { joined }: { readonly joined: { readonly status: number } | undefined },
): boolean {
  if (produced === undefined || joined === undefined) return false
  const status = statusOf(produced)
  return status === joined.status || (status < 400 && joined.status < 400)
}

export function statusOf(produced: Produced): number {
  return produced.kind === 'reply' ? produced.reply.status : produced.status
}
