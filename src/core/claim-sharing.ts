/** Which claims may share one row of a store call, and what each of them gets from its answer. */
import type { Sharing } from './coalescer.ts'
import type { ClaimOutcome, ClaimRequest } from './store.ts'

export const CLAIM_SHARING: Sharing<ClaimRequest, ClaimOutcome> = {
  subjectOf: ({ identity }) => identity,
  questionOf,
  answerFor: (sent, outcome) => sharedOutcome(outcome, sent.leaseMs),
}

/**
 * Claims with the same question get the same answer, whichever of them is sent. A worker's `take`
 * shares with none: its token makes its question its own.
 */
function questionOf({ mode, fingerprint, afterExpiry, token }: ClaimRequest): string {
  return `${mode} ${afterExpiry} ${mode === 'take' ? token : ''} ${fingerprint}`
}

/**
 * What a claim that was not sent learns from the outcome of one that was. A lease has one owner:
 * where the sent claim won, the others meet a request in progress. Bytes are copied, because a
 * caller may write to the result it is given.
 */
export function sharedOutcome(outcome: ClaimOutcome, leaseMs: number): ClaimOutcome {
  switch (outcome.kind) {
    case 'claimed': {
      const { recordId, expiresAt } = outcome
      return { kind: 'in_progress', recordId, leaseLeftMs: leaseMs, expiresAt }
    }
    case 'completed':
      // Not `slice`: that of a Buffer is a view of the same bytes.
      return { ...outcome, result: new Uint8Array(outcome.result) }
    case 'pending':
      return { ...outcome, accepted: false }
    case 'unknown':
      return { ...outcome, lapsed: false }
    case 'in_progress':
    case 'mismatch':
    case 'expired':
      return outcome
  }
}
