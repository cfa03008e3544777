/**
 * The state of one attempt. `Execution` and `LiveContext` share one `AttemptState` and keep no
 * other flags about how far the attempt is. The state has four parts, because the work, the caller,
 * the key and the record change independently of each other. Each part has one value at a time.
 *
 * `work`: how far the work is.
 *
 *     running -> ended -> settling -> settled
 *
 *     running      The work runs.
 *     ended        The work has returned or thrown. Transactions that it did not await may be open.
 *     settling     Its transactions have ended, too: the outcome is known and sent to the store.
 *     settled      The attempt is over.
 *
 * `caller`: whether the caller is answered before the work has ended.
 *
 *     waiting -> overrun -> answered
 *
 *     waiting      The caller gets the outcome of the work.
 *     overrun      `runTimeoutMs` passed before `settling`: an answer without the work is prepared.
 *     answered     The caller has that answer. The work may still run, and is still recorded.
 *
 * `key`: what this attempt has done that may complete its key.
 *
 *     open -> transaction -> open           the transaction was rolled back
 *                         -> committed      the transaction has committed the result
 *                         -> unanswered     the commit was not answered
 *     unanswered -> committed               the record turned out to have the result
 *     open | joined -> joining -> joined    the statement of `completeIn` was sent
 *                              -> open      the statement had no effect (or back to `joined`)
 *     open -> operation -> committed        the last step of the operation has the result
 *                       -> handed_over      a step has left the rest to a worker
 *
 * `record`: the last settlement of this attempt that the store has accepted.
 *
 *     in_progress -> settled                completed or released
 *     in_progress -> unknown                marked `unknown`, possibly while the work still runs
 *     unknown -> settled                    the work ended later: its outcome is the verdict
 */
import type { LeaseLostError } from '../errors.ts'

type WorkState = 'running' | 'ended' | 'settling' | 'settled'

type CallerState = 'waiting' | 'overrun' | 'answered'

export type KeyState =
  /** No transaction or operation of this attempt may have completed the key. */
  | { readonly kind: 'open' }
  /** A transaction of the store is open. */
  | { readonly kind: 'transaction' }
  /** `completeIn` was sent to a transaction that the work has begun, and is not answered yet. */
  | { readonly kind: 'joining' }
  /** A transaction that the work has begun may have completed the key: only the record can tell. */
  | JoinedKey
  /** The commit of a transaction was not answered: it may still take effect. */
  | { readonly kind: 'unanswered' }
  /** An operation runs under this attempt: only its steps complete the key. */
  | { readonly kind: 'operation' }
  | { readonly kind: 'handed_over' }
  | CommittedKey

interface JoinedKey {
  readonly kind: 'joined'
  /** The error that told the work that an earlier transaction of this attempt had committed. */
  readonly overtaken: LeaseLostError | undefined
}

/** A transaction or a step of this attempt has committed this result. */
interface CommittedKey {
  readonly kind: 'committed'
  readonly result: Uint8Array
  readonly expiresAt: Date
}

// Shared by all attempts: a request allocates nothing for a state without data.
export const OPEN = { kind: 'open' } as const
export const IN_TRANSACTION = { kind: 'transaction' } as const
export const JOINING = { kind: 'joining' } as const
export const JOINED: JoinedKey = { kind: 'joined', overtaken: undefined }
export const UNANSWERED = { kind: 'unanswered' } as const
export const IN_OPERATION = { kind: 'operation' } as const
export const HANDED_OVER = { kind: 'handed_over' } as const

export class AttemptState {
  work: WorkState = 'running'
  caller: CallerState = 'waiting'
  key: KeyState = OPEN
  record: 'in_progress' | 'unknown' | 'settled' = 'in_progress'

  get isJoined(): boolean {
    return this.key.kind === 'joined' || this.key.kind === 'joining'
  }

  /** Whether the record may have a result or another holder because of this attempt. */
  get mayHaveCommitted(): boolean {
    return this.isFinal || this.isJoined
  }

  /** Known, without a read, to have completed the key or to have handed it over. */
  get isFinal(): boolean {
    return this.key.kind === 'committed' || this.key.kind === 'handed_over'
  }
}
