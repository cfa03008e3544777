/** The reply for accepted work that no worker has started before it expires. */
import { encodeReply } from './reply-codec.ts'

const TIMED_OUT = {
  type: 'urn:oncekey:problem:operation-timed-out',
  title: 'The request was accepted, but not worked on in time',
  status: 408,
  detail:
    'The request was accepted, but it was not finished by the time its key expired, and it will ' +
    'not be worked on any more. Check whether it took effect before you send it with a new key.',
  code: 'operation_timed_out',
} as const

/**
 * The default reply with which maintenance completes abandoned records. Never change these bytes: a
 * route with `requireEncryption` recognises them, and accepts no other reply that is not encrypted.
 * A new text would have to be recognised in addition to this one.
 */
export function timedOutReply(): Uint8Array {
  timedOut ??= encodeReply(
    {
      status: TIMED_OUT.status,
      headers: [['content-type', 'application/problem+json; charset=utf-8']],
      body: Buffer.from(JSON.stringify(TIMED_OUT)),
      elided: false,
      schemaVersion: 1,
    },
    undefined,
  )
  return timedOut
}

export function isTimedOutReply(stored: Uint8Array): boolean {
  return Buffer.compare(stored, timedOutReply()) === 0
}

/** Made on first use, because importing a module must do no work. */
let timedOut: Uint8Array | undefined
