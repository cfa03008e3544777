/** The one reply that many records are completed with: accepted work that was never taken. */
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
 * What `reap` completes abandoned records with unless the application has its own reply. The bytes
 * are the same for ever: a route with `requireEncryption` knows them, and takes no other reply that
 * is not encrypted. A changed text would need the old bytes beside the new ones.
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

/** Made when it is first needed: no module works while it is imported. */
let timedOut: Uint8Array | undefined
