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

export interface ExecutionRequest {
  readonly scope: Scope
  readonly key: string
  readonly policy: Policy
  readonly claimed: Claimed
  readonly claimSentMs: number
}
