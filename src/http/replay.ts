import { retryAfterUnknown, toReplay, type Answers } from './answers.ts'
import type { HttpReply } from './exchange.ts'
import { openReply, type SealHook } from './reply-codec.ts'

/** How recorded replies are read. */
export interface ReplayOptions {
  readonly answers: Answers
  readonly open: SealHook | undefined
  readonly replyVersion: number
  readonly upgradeReply: ((reply: HttpReply, fromVersion: number) => HttpReply) | undefined
}

/** The recorded reply, marked as a replay; or why it cannot be shown. */
export async function replayOf(
  result: Uint8Array,
  expiresAt: Date,
  { answers, open, replyVersion, upgradeReply }: ReplayOptions,
): Promise<HttpReply> {
  const decoded = await openReply(result, open)
  if (decoded.kind === 'unreadable') return unreadableReply(answers)
  const { reply } = decoded
  const replay = toReplay(reply, expiresAt)
  if (upgradeReply === undefined || reply.schemaVersion === replyVersion || reply.elided) {
    return replay
  }
  return upgradeReply(replay, reply.schemaVersion)
}

/** Never a second run: the work was done, only its reply cannot be shown. */
export function unreadableReply(answers: Answers): HttpReply {
  const retryAfterSeconds = retryAfterUnknown(Number.POSITIVE_INFINITY)
  return answers.problem('reply_unreadable', { retryAfterSeconds })
}
