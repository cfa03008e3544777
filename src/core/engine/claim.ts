import type { Policy } from './policy.ts'
import type { RunRequest } from './engine-contract.ts'
import type { ClaimMode, ClaimOutcome } from '../store/store.ts'

/** The answer to a claim, with the facts that the engine needs to act on it. */
export interface Claim {
  readonly outcome: ClaimOutcome
  readonly identity: string
  readonly mode: ClaimMode
  /** The clock of the engine before the claim was sent: the store starts the lease after it. */
  readonly sentMs: number
}

/** Claims a key for a request. */
export type MakeClaim = (request: RunRequest, policy: Policy) => Promise<Claim>

/** The key has a holder, or its work waits for a worker: a result may come soon. */
export function isBusy({ kind }: ClaimOutcome): boolean {
  return kind === 'in_progress' || kind === 'pending'
}

/** The same request, which only looks its key up. */
export function toLookUp(request: RunRequest): RunRequest {
  const { scope, key, fingerprint, policy } = request
  return {
    scope,
    key,
    fingerprint,
    recompute: (stored) => request.recompute?.(stored),
    findOnly: true,
    ...(policy && { policy }),
  }
}
