/** Which claims may share one row of a store call, and what each of them gets from its outcome. */
import type { Sharing } from './coalescer.ts'
import type { ClaimOutcome, ClaimRequest } from './store.ts'

export const CLAIM_SHARING: Sharing<ClaimRequest, ClaimOutcome> = {
  subjectOf: ({ identity }) => identity,
  questionOf,
  answerFor: (sent, outcome) => sharedOutcome(outcome, sent.leaseMs),
}

/**
 * Claims with the same question get the same answer, so any of them may be sent for all. A `take`
 * of a worker never shares: its token makes its question unique.
 */
function questionOf(request: ClaimRequest): string {
  const { mode, fingerprint, afterExpiry, refuseForMs, token } = request
  const refusal = afterExpiry === 'refuse' ? (refuseForMs ?? 'for ever') : afterExpiry
  return `${mode} ${refusal} ${mode === 'take' ? token : ''} ${fingerprint}`
}

/**
 * The outcome for a claim that shared the row of another claim. A lease has one owner: if the sent
 * claim won, the others get `in_progress`. Bytes are copied, because a caller may write to its
 * result.
 */
export function sharedOutcome(outcome: ClaimOutcome, leaseMs: number): ClaimOutcome {
  switch (outcome.kind) {
    case 'claimed': {
      const { recordId, expiresAt } = outcome
      return { kind: 'in_progress', recordId, leaseLeftMs: leaseMs, expiresAt }
    }
    case 'completed':
      // `slice` of a Buffer would be a view of the same bytes.
      return { ...outcome, result: new Uint8Array(outcome.result) }
    case 'pending':
      return { ...outcome, accepted: false }
    case 'unknown':
      return { ...outcome, lapsed: false }
    case 'in_progress':
    case 'mismatch':
    case 'expired':
    case 'free':
      return outcome
  }
}
