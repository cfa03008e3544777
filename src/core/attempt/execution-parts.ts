/** The inputs of an execution: the services of the engine and the claimed request. */
import type { EncryptionRule } from '../encryption.ts'
import type { Clock } from '../time/clock.ts'
import type { EventListener } from '../events.ts'
import type { Scope } from '../record/identity.ts'
import type { Policy } from '../engine/policy.ts'
import type { Settler } from './settler.ts'
import type { StorePort } from '../store/store-port.ts'
import type { ClaimOutcome, Store } from '../store/store.ts'

export type Claimed = Extract<ClaimOutcome, { kind: 'claimed' }>

export interface ExecutionParts {
  readonly clock: Clock
  readonly store: Store
  readonly port: StorePort
  readonly settler: Settler
  readonly emit: EventListener
  /** The encryption of the engine, for the values of operations. */
  readonly encryption: EncryptionRule
  /** Called when a record that this engine held has left `in_progress`. */
  readonly onSettled: (identity: string) => void
  /** Called with 1 when work outlives the answer to its caller, and with -1 when it has ended. */
  readonly onOutlive: (by: 1 | -1) => void
}

/**
 * A request whose key is claimed. A class, like every object that lives as long as a request: V8
 * may allocate the objects of a literal in the old space, and they then keep all that they refer to
 * alive until a full garbage collection.
 */
export class ExecutionRequest {
  readonly scope: Scope
  readonly key: string
  readonly policy: Policy
  readonly claimed: Claimed
  /** The clock of the engine before the claim was sent: the store starts the lease after it. */
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
