import type { Policy } from './policy.ts'
import type { RunRequest } from './engine-contract.ts'
import type { ClaimMode, ClaimOutcome } from './store.ts'

/** The answer to a claim, and what the engine needs to act on it. */
export interface Claim {
  readonly outcome: ClaimOutcome
  readonly identity: string
  readonly mode: ClaimMode
  /** The engine's clock before the claim was sent. */
  readonly sentMs: number
}

/** Claims a key for a request. */
export type MakeClaim = (request: RunRequest, policy: Policy) => Promise<Claim>

/** The key is held, or its work waits for a worker: there may be a result soon. */
export function isBusy({ kind }: ClaimOutcome): boolean {
  return kind === 'in_progress' || kind === 'pending'
}
