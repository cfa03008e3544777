import type { Engine } from '../core/engine.ts'
import type { EventSubject } from '../core/events.ts'
import { retryAfterUnknown, toReplay, type Answers } from './answers.ts'
import type { HttpReply } from './exchange.ts'
import { unreadable, type ReplyDecode } from './reply-codec.ts'
import { openReply, type ReplyReading } from './reply-encryption.ts'

/** How recorded replies are read. */
export interface ReplayOptions extends ReplyReading {
  readonly engine: Engine
  readonly answers: Answers
  readonly replyVersion: number
  readonly upgradeReply: ((reply: HttpReply, fromVersion: number) => HttpReply) | undefined
}

export interface RecordedResult {
  readonly result: Uint8Array
  readonly expiresAt: Date
}

/** As long as a store call may take. A key service that is silent must not hold the request. */
const DECRYPT_MS_MAX = 5_000

/** The recorded reply, marked as a replay; or why it cannot be shown. At once, if it can be. */
export function replayOf(
  { result, expiresAt }: RecordedResult,
  record: EventSubject,
  options: ReplayOptions,
): HttpReply | Promise<HttpReply> {
  const read = readReply(result, record, options)
  if (!(read instanceof Promise)) return shown(read, expiresAt, options)
  return read.then((decoded) => shown(decoded, expiresAt, options))
}

/** Reads what is on record, and reports what cannot be read. Never throws and never rejects. */
export function readReply(
  result: Uint8Array,
  record: EventSubject,
  options: ReplayOptions,
): ReplyDecode | Promise<ReplyDecode> {
  const opened = openReply(result, record, options)
  if (!(opened instanceof Promise)) return reported(opened, record, options)
  return inTime(opened, options).then((decoded) => reported(decoded, record, options))
}

function reported(
  decoded: ReplyDecode,
  { identity, tenant, operation, recordId }: EventSubject,
  { engine }: ReplayOptions,
): ReplyDecode {
  if (decoded.kind === 'reply') return decoded
  const subject = { identity, tenant, operation, recordId }
  engine.emit({ kind: 'reply_unreadable', ...subject, reason: decoded.detail })
  return decoded
}

function inTime(opened: Promise<ReplyDecode>, { engine }: ReplayOptions): Promise<ReplyDecode> {
  return new Promise((resolve, reject) => {
    const cancel = engine.clock.after(DECRYPT_MS_MAX, () => {
      resolve(unreadable(`encryption.decrypt has not answered within ${DECRYPT_MS_MAX} ms`))
    })
    opened.finally(cancel).then(resolve, reject)
  })
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
