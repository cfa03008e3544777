import type { ClaimedFrom } from '../store/store.ts'
import type { Proof } from '../record/record.ts'

/** How a run ended. Instead of an outcome, the error of the work or of the store may be thrown. */
export type RunOutcome =
  /** The work ran and its result is recorded. */
  | {
      readonly kind: 'ran'
      readonly identity: string
      readonly recordId: string
      readonly result: Uint8Array
      /** When the record expires. */
      readonly expiresAt: Date
    }
  /** The recorded result of an earlier run. */
  | {
      readonly kind: 'replayed'
      readonly identity: string
      readonly recordId: string
      readonly result: Uint8Array
      /** When the record expires. */
      readonly expiresAt: Date
    }
  /** The work ran without an effect (see `proof`): a retry runs it again. */
  | {
      readonly kind: 'released'
      readonly recordId: string
      readonly result: Uint8Array
      readonly proof: Proof
      /** When the record expires; `undefined` if the release could not be recorded in time. */
      readonly expiresAt: Date | undefined
    }
  /** The work ran, and it is unknown whether it had an effect. */
  | {
      readonly kind: 'doubted'
      readonly recordId: string
      readonly result: Uint8Array
      /** `false` if the record could not be marked `unknown` in time. */
      readonly isRecorded: boolean
    }
  /** Another request holds the key. */
  | {
      readonly kind: 'in_progress'
      readonly recordId: string
      readonly retryAfterMs: number
      /** When the record expires. */
      readonly expiresAt: Date
    }
  /** The operation is accepted, and no worker has claimed it yet. */
  | { readonly kind: 'pending'; readonly recordId: string }
  /** An earlier run may have had an effect: the key waits for a verdict. */
  | { readonly kind: 'unknown'; readonly recordId: string; readonly retryAfterMs: number }
  /** The key was used for another request. */
  | { readonly kind: 'mismatch'; readonly recordId: string }
  /** The record of the key has expired, and the policy refuses to use the key again. */
  | { readonly kind: 'expired'; readonly recordId: string }
  /** The work would run, and did not: with `findOnly`, or if its encryption is not prepared. */
  | { readonly kind: 'free'; readonly recordId: string; readonly from: ClaimedFrom }
  /** The work ran, but its record was changed by another party and has no result to return. */
  | { readonly kind: 'lease_lost'; readonly recordId: string }
