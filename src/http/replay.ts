import { retryAfterUnknown, toReplay, type Answers } from './answers.ts'
import type { HttpReply } from './exchange.ts'
import { openReply, type ReplyDecode, type SealHook } from './reply-codec.ts'

/** How recorded replies are read. */
export interface ReplayOptions {
  readonly answers: Answers
  readonly open: SealHook | undefined
  readonly replyVersion: number
  readonly upgradeReply: ((reply: HttpReply, fromVersion: number) => HttpReply) | undefined
}

/** The recorded reply, marked as a replay; or why it cannot be shown. At once, if it can be. */
export function replayOf(
  result: Uint8Array,
  expiresAt: Date,
  options: ReplayOptions,
): HttpReply | Promise<HttpReply> {
  const opened = openReply(result, options.open)
  if (!(opened instanceof Promise)) return shown(opened, expiresAt, options)
  return opened.then((decoded) => shown(decoded, expiresAt, options))
}

function shown(
  decoded: ReplyDecode,
  expiresAt: Date,
  { answers, replyVersion, upgradeReply }: ReplayOptions,
): HttpReply {
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
