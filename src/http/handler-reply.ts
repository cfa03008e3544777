/** Which reply of a handler stands, and what it says about the work. */
import { hasCode } from '../core/errors.ts'
import { describe } from '../core/options.ts'
import { warnOnce } from '../core/warn.ts'
import type { HeldHandler, HttpReply, Produced } from './exchange.ts'
import type { GuardedContext } from './handler-context.ts'

/** Statuses that reject a request before any work was done; the key is released. */
const RELEASED_STATUS: ReadonlySet<number> = new Set([401, 403, 408, 425, 429])

/** What a transaction has returned, or whatever the handler sends. */
export async function replyOf(context: GuardedContext, handler: HeldHandler): Promise<Produced> {
  const sent = await context.unlessReturned(wholeReply(context, handler))
  if (context.returned !== undefined) return { kind: 'reply', reply: context.returned }
  return sent!
}

/** Waits for the reply that stands: one whose transaction was rolled back was taken back. */
async function wholeReply(context: GuardedContext, handler: HeldHandler): Promise<Produced> {
  for (;;) {
    await handler.whole()
    const ended = context.transactionEnded
    if (ended !== undefined) await ended
    // Asked only now: the handler may have answered the failure of its transaction with another
    // reply, or with another transaction.
    const produced = handler.produced()
    if (produced !== undefined && context.transactionEnded === ended) return produced
  }
}

/** Whether the key is released instead of this reply being recorded. */
export type ReleaseOn = (reply: HttpReply) => boolean

/** What is known of a reply besides itself. */
export interface Said {
  readonly error: unknown
  readonly isNotExecuted: boolean
  /** The route's own word. */
  readonly releaseOn?: ReleaseOn | undefined
  /** The reply was made before the function that handles the request was entered. */
  readonly isRefused?: boolean
}

/**
 * What a reply says about the work. A success is recorded whatever else was said: its client must
 * never cause a second run. Otherwise the class of a reported error comes before the status.
 */
export function meaningOf(produced: Produced, said: Said): 'complete' | 'release' | 'fail' {
  const { error, isNotExecuted, releaseOn, isRefused = false } = said
  const status = statusOf(produced)
  if (hasCode(error, 'OUTCOME_UNKNOWN')) return 'fail'
  if (status < 400) return 'complete'
  if (hasCode(error, 'NOT_EXECUTED') || isNotExecuted) return 'fail'
  if (isRefused || (releaseOn !== undefined && isReleased(produced, releaseOn))) return 'release'
  if (status >= 500) return 'fail'
  return RELEASED_STATUS.has(status) ? 'release' : 'complete'
}

/** A function that answers nonsense has decided nothing, and may not cause a second run. */
function isReleased(produced: Produced, releaseOn: ReleaseOn): boolean {
  const { kind } = produced
  const reply = kind === 'reply' ? produced.reply : { ...produced, body: NO_BODY }
  const { status, headers, body } = reply
  try {
    const answer: unknown = releaseOn({ status, headers, body })
    if (typeof answer === 'boolean') return answer
    warnOnce(`releaseOn must return true or false, got ${describe(answer)}`, 'releaseOn')
  } catch (error) {
    const why = error instanceof Error ? error.message : describe(error)
    warnOnce(`releaseOn threw, so the reply counts as if it was not given: ${why}`, 'releaseOn')
  }
  return false
}

const NO_BODY = new Uint8Array(0)

/** Whether the handler has replied as if its own transaction had committed. */
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
