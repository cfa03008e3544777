import { HOOK_MS_MAX, type EncryptionRule } from '../../core/encryption.ts'
import type { Engine } from '../../core/engine/engine-contract.ts'
import type { EventSubject } from '../../core/events.ts'
import { withTimeLimit } from '../../core/time/time-limit.ts'
import { retryAfterUnknown, toReplay, type Answers } from '../guard/answers.ts'
import type { HttpReply } from '../guard/exchange.ts'
import { unreadable, type ReplyDecode } from './reply-codec.ts'
import { openReply } from './reply-encryption.ts'

/** Options for reading recorded replies. */
export interface ReplayOptions extends EncryptionRule {
  readonly engine: Engine
  readonly answers: Answers
  readonly replyVersion: number
  readonly upgradeReply: ((reply: HttpReply, fromVersion: number) => HttpReply) | undefined
}

export interface RecordedResult {
  readonly result: Uint8Array
  readonly expiresAt: Date
}

/**
 * The recorded reply, marked as a replay, or a problem if it cannot be read. Synchronous unless
 * `decrypt` returns a promise.
 */
export function replayOf(
  { result, expiresAt }: RecordedResult,
  record: EventSubject,
  options: ReplayOptions,
): HttpReply | Promise<HttpReply> {
  const read = readReply(result, record, options)
  if (!(read instanceof Promise)) return toHttpReply(read, expiresAt, options)
  return read.then((decoded) => toHttpReply(decoded, expiresAt, options))
}

/** Decodes a recorded reply. Emits an event if that fails. Never throws and never rejects. */
export function readReply(
  result: Uint8Array,
  record: EventSubject,
  options: ReplayOptions,
): ReplyDecode | Promise<ReplyDecode> {
  const opened = openReply(result, record, options)
  if (!(opened instanceof Promise)) return reportUnreadable(opened, record, options)
  return limitDecryption(opened, options).then((decoded) =>
    reportUnreadable(decoded, record, options),
  )
}

function reportUnreadable(
  decoded: ReplyDecode,
  { identity, tenant, operation, recordId }: EventSubject,
  { engine }: ReplayOptions,
): ReplyDecode {
  if (decoded.kind === 'reply') return decoded
  const subject = { identity, tenant, operation, recordId }
  engine.emit({ kind: 'reply_unreadable', ...subject, reason: decoded.detail })
  return decoded
}

function limitDecryption(
  opened: Promise<ReplyDecode>,
  { engine }: ReplayOptions,
): Promise<ReplyDecode> {
  const { clock } = engine
  const onLimit = () => {
    return unreadable(`encryption.decrypt has not answered within ${HOOK_MS_MAX} ms`)
  }
  return withTimeLimit({ clock, limitMs: HOOK_MS_MAX, onLimit }, () => opened)
}

function toHttpReply(
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

/** The work was done and must not run again, although its reply cannot be read. */
export function unreadableReply(answers: Answers): HttpReply {
  const retryAfterSeconds = retryAfterUnknown(Number.POSITIVE_INFINITY)
  return answers.problem('reply_unreadable', { retryAfterSeconds })
}
