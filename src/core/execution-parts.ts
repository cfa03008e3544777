import type { Clock } from './clock.ts'
import type { EventListener } from './events.ts'
import type { Scope } from './identity.ts'
import type { Policy } from './policy.ts'
import type { Settler } from './settler.ts'
import type { StorePort } from './store-port.ts'
import type { ClaimOutcome, Store } from './store.ts'

export type Claimed = Extract<ClaimOutcome, { kind: 'claimed' }>

export interface ExecutionParts {
  readonly clock: Clock
  readonly store: Store
  readonly port: StorePort
  readonly settler: Settler
  readonly emit: EventListener
  /** Called whenever a record of ours has left `in_progress`. */
  readonly onSettled: (identity: string) => void
  /** Called when work goes on after its caller was answered, and when it has ended after all. */
  readonly onOutlive: (by: 1 | -1) => void
}

/**
 * A run whose key is claimed. A class, as whatever lives as long as a request does: what is written
 * as a literal may be moved to the old space for good by V8, and drags all it refers to along.
 */
export class ExecutionRequest {
  readonly scope: Scope
  readonly key: string
  readonly policy: Policy
  readonly claimed: Claimed
  /** The engine's clock before the claim was sent: the store's count starts no earlier. */
  readonly claimSentMs: number

  constructor(
    { scope, key }: { readonly scope: Scope; readonly key: string },
    policy: Policy,
    claimed: Claimed,
    claimSentMs: number,
  ) {
    this.scope = scope
    this.key = key
    this.policy = policy
    this.claimed = claimed
    this.claimSentMs = claimSentMs
  }
}
