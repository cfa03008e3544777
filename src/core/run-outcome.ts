import type { Proof } from './record.ts'

/** How a run ended. Thrown instead: the work's own error, and broken promises of the store. */
export type RunOutcome =
  /** The work ran and its result is recorded. */
  | {
      readonly kind: 'ran'
      readonly identity: string
      readonly recordId: string
      readonly result: Uint8Array
      readonly expiresAt: Date
    }
  /** An earlier run's result. */
  | {
      readonly kind: 'replayed'
      readonly identity: string
      readonly recordId: string
      readonly result: Uint8Array
      readonly expiresAt: Date
    }
  /** The work ran, had no effect (as proven or declared), and may be run again. */
  | {
      readonly kind: 'released'
      readonly recordId: string
      readonly result: Uint8Array
      readonly proof: Proof
      /** Absent where the release could not be recorded in time. */
      readonly expiresAt: Date | undefined
    }
  /** The work ran, and nobody can know whether it had an effect. */
  | {
      readonly kind: 'doubted'
      readonly recordId: string
      readonly result: Uint8Array
      /** `false` where the doubt could not be recorded in time. */
      readonly isRecorded: boolean
    }
  /** Another request holds the key. */
  | {
      readonly kind: 'in_progress'
      readonly recordId: string
      readonly retryAfterMs: number
      readonly expiresAt: Date
    }
  /** Accepted, and not yet taken by a worker. */
  | { readonly kind: 'pending'; readonly recordId: string }
  /** An earlier run may have had an effect; only a verdict can tell. */
  | { readonly kind: 'unknown'; readonly recordId: string; readonly retryAfterMs: number }
  /** The key was used for another request. */
  | { readonly kind: 'mismatch'; readonly recordId: string }
  /** The key's record has expired, and the policy refuses to use it again. */
  | { readonly kind: 'expired'; readonly recordId: string }
  /** The work ran, but the record had moved on meanwhile and has no result to show. */
  | { readonly kind: 'lease_lost'; readonly recordId: string }
