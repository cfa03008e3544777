/** Which reply of a handler stands, and what it says about the work. */
import { hasCode } from '../core/errors.ts'
import type { HeldHandler, Produced } from './exchange.ts'
import type { GuardedContext } from './handler-context.ts'

/** The gatekeeper's answers: they say nothing about the work, which was not let in. */
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

/**
 * What a reply says about the work. A success is recorded whatever else was said: its client must
 * never cause a second run. Otherwise the class of a reported error comes before the status.
 */
export function meaningOf(
  produced: Produced,
  { error, isNotExecuted }: { readonly error: unknown; readonly isNotExecuted: boolean },
): 'complete' | 'release' | 'fail' {
  const status = statusOf(produced)
  if (hasCode(error, 'OUTCOME_UNKNOWN')) return 'fail'
  if (status < 400) return 'complete'
  if (hasCode(error, 'NOT_EXECUTED') || isNotExecuted || status >= 500) return 'fail'
  return RELEASED_STATUS.has(status) ? 'release' : 'complete'
}

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
