import { callStore } from './store-call.ts'
import type { Clock } from '../time/clock.ts'
import { CLAIM_SHARING } from './claim-sharing.ts'
import { Coalescer, type CoalescerLimits } from './coalescer.ts'
import { hasCode, isUnavailable, type StoreFailedError } from '../errors.ts'
import type { EventListener } from '../events.ts'
import { FairSlots } from './fair-slots.ts'
import { laneOf } from './lane-of.ts'
import type { StoreHealth } from '../health/store-health.ts'
import type { StoreLanes } from './batching.ts'
import type {
  ClaimOutcome,
  ClaimRequest,
  Renewal,
  SettleOutcome,
  Settlement,
  Store,
} from './store.ts'
import { TransactionLimit } from './transaction-limit.ts'
import type { LaneLimits } from './waiting-lanes.ts'

/** Estimated size of a row without its text and result. Precise enough to bound a batch. */
const ROW_BYTES = 256

export interface StoreLimits extends CoalescerLimits {
  /** The limits of the lanes, and the lane of each record. */
  readonly lanes: (LaneLimits & Pick<StoreLanes, 'of'>) | undefined
  /** Transactions, and steps of operations, that run at the same time. `undefined`: no limit. */
  readonly transactionsMax: number | undefined
  readonly stepsMax: number | undefined
}

export interface StorePortOptions {
  readonly clock: Clock
  readonly limits: StoreLimits
  readonly emit: EventListener
  /** Gets the result of each call, and decides whether claims may be sent. */
  readonly health: StoreHealth
}

/**
 * Access to a store for single requests: each request joins the next batch. Renewals have a
 * separate queue, so that they never starve behind claims. Releases of lost claims have one too:
 * thousands of them arrive when the store falters, and they must not crowd out results. In each
 * queue the tenants take turns.
 */
export class StorePort {
  readonly #emit: EventListener
  readonly #backend: Store
  readonly #clock: Clock
  readonly #timeoutMs: number
  readonly #claims: Coalescer<ClaimRequest, ClaimOutcome>
  readonly #settlements: Coalescer<Settlement, SettleOutcome>
  readonly #releases: Coalescer<Settlement, SettleOutcome>
  readonly #renewals: Coalescer<Renewal, boolean>
  readonly #transactions: FairSlots | undefined
  readonly #steps: FairSlots | undefined

  readonly #health: StoreHealth
  readonly #lanes: StoreLimits['lanes']
  /** Claims that are sent even while the breaker is open. */
  readonly #ignoringBreaker = new WeakSet<ClaimRequest>()

  constructor(store: Store, { clock, limits, emit, health }: StorePortOptions) {
    this.#emit = emit
    this.#health = health
    this.#backend = store
    this.#clock = clock
    this.#timeoutMs = limits.timeoutMs
    this.#lanes = limits.lanes
    const shared = { clock, limits, store: store.name }
    const report = (call: string) => (error: unknown) => this.#report(call, error)
    this.#claims = new Coalescer({
      ...shared,
      call: 'claim',
      onFailure: report('claim'),
      sharing: CLAIM_SHARING,
      laneOf: ({ identity }) => this.laneOf(identity),
      onCallEnd: (error, lane) => health.claimEnded(error, lane),
      gate: {
        isRefusingSome: () => health.breaker.isRefusingSome,
        refusal: (request) => this.#refusal(request),
      },
      flush: (requests, signal) => store.claim(requests, signal),
      bytesOf: (request) =>
        ROW_BYTES + request.key.length + request.tenant.length + request.operation.length,
    })
    const settlements = {
      ...shared,
      call: 'settle',
      onFailure: report('settle'),
      laneOf: ({ lease }: Settlement) => this.laneOf(lease.identity),
      onCallEnd: (error: unknown, lane: number | undefined) => health.callEnded(error, lane),
      flush: (batch: readonly Settlement[], signal: AbortSignal) => store.settle(batch, signal),
      bytesOf: (settlement: Settlement) =>
        ROW_BYTES + (settlement.kind === 'complete' ? settlement.result.byteLength : 0),
    }
    this.#settlements = new Coalescer(settlements)
    this.#releases = new Coalescer(settlements)
    this.#renewals = new Coalescer({
      ...shared,
      call: 'renew',
      onFailure: report('renew'),
      laneOf: ({ identity }) => this.laneOf(identity),
      onCallEnd: (error, lane) => health.callEnded(error, lane),
      flush: (renewals, signal) => store.renew(renewals, signal),
      bytesOf: () => ROW_BYTES,
    })
    const slotsFor = (call: string, slots: number | undefined) => {
      if (slots === undefined) return undefined
      const { waitingMax } = limits
      const onRefusal = report(call)
      return new FairSlots({ clock, store: store.name, call, slots, waitingMax, onRefusal })
    }
    this.#transactions = slotsFor('begin a transaction', limits.transactionsMax)
    this.#steps = slotsFor('advance', limits.stepsMax)
  }

  /**
   * Sends a claim. While the breaker of the store, or of the lane of the claim, is open, the claim
   * is refused at once, even if it already waits to be sent.
   */
  claim(request: ClaimRequest, ignoresBreaker = false): Promise<ClaimOutcome> {
    if (ignoresBreaker) this.#ignoringBreaker.add(request)
    const refusal = this.#refusal(request)
    if (refusal !== undefined) return Promise.reject(refusal)
    return this.#claims.add(request, request.tenant)
  }

  #refusal(request: ClaimRequest): StoreFailedError | undefined {
    const { breaker } = this.#health
    if (!breaker.isRefusingSome || this.#ignoringBreaker.has(request)) return undefined
    const refusal = breaker.refusal(this.laneOf(request.identity))
    if (refusal === undefined) return undefined
    const { tenant, operation } = request
    this.#emit({ kind: 'claim_refused', tenant, operation, reason: 'breaker_open' })
    return refusal
  }

  settle(settlement: Settlement, tenant: string): Promise<SettleOutcome> {
    return this.#settlements.add(settlement, tenant)
  }

  /** Releases a claim whose answer was lost. */
  releaseLost(settlement: Settlement, tenant: string): Promise<SettleOutcome> {
    return this.#releases.add(settlement, tenant)
  }

  /** The lane of a record; `undefined` if it has none. */
  laneOf(identity: string): number | undefined {
    return laneOf(this.#lanes, identity)
  }

  /**
   * Number of claims, settlements and renewals that wait in this lane. Releases of lost claims wait
   * until there are none. If lanes share their calls, this counts the requests of all lanes.
   */
  waitingIn(lane: number | undefined): number {
    const claims = this.#claims.waitingIn(lane)
    return claims + this.#settlements.waitingIn(lane) + this.#renewals.waitingIn(lane)
  }

  renew(renewal: Renewal, tenant: string): Promise<boolean> {
    return this.#renewals.add(renewal, tenant)
  }

  /**
   * Settles in a separate call: a transaction of the caller may have locked the row, and the other
   * requests of a batch would wait for it too.
   */
  settleAlone(settlement: Settlement): Promise<SettleOutcome> {
    return this.ask('settle', async (signal) => {
      return only(await this.#backend.settle([settlement], signal))
    })
  }

  /** Renews in a separate call, for the same reason as `settleAlone`. */
  renewAlone(renewal: Renewal): Promise<boolean> {
    return this.ask('renew', async (signal) => {
      return only(await this.#backend.renew([renewal], signal))
    })
  }

  /**
   * Runs a transaction of the store when it is the turn of its tenant. Its begin, commit and
   * rollback are limited by `timeoutMs`; the store limits its work.
   */
  transact<Result>(
    tenant: string,
    run: (limit: TransactionLimit) => Promise<Result>,
  ): Promise<Result> {
    const limited = () => {
      const details = { store: this.#backend.name, timeoutMs: this.#timeoutMs }
      const onTimeout = (error: StoreFailedError) => this.#report(error.operation, error)
      return new TransactionLimit(this.#clock, details, onTimeout).run(run)
    }
    return this.#transactions === undefined ? limited() : this.#transactions.use(tenant, limited)
  }

  /** Records a step of an operation when it is the turn of its tenant. */
  async step<Answer>(
    tenant: string,
    step: (signal: AbortSignal) => Promise<Answer>,
  ): Promise<Answer> {
    const ask = () => this.ask('advance', step)
    if (this.#steps === undefined) return ask()
    return this.#steps.use(tenant, ask, this.#timeoutMs)
  }

  /** Makes a call that is not batched. Its timeout and its `store_error` are as for the others. */
  async ask<Answer>(call: string, ask: (signal: AbortSignal) => Promise<Answer>): Promise<Answer> {
    const details = { store: this.#backend.name, call, timeoutMs: this.#timeoutMs }
    try {
      return await callStore(this.#clock, details, ask)
    } catch (error) {
      this.#report(call, error)
      throw error
    }
  }

  /**
   * Makes a call on a connection of the caller. It has a timeout too, but its error is thrown as it
   * is and not reported: the connection belongs to the caller.
   */
  async askInCallerTransaction<Answer>(call: string, ask: () => Promise<Answer>): Promise<Answer> {
    const details = { store: this.#backend.name, call, timeoutMs: this.#timeoutMs }
    let failure: { readonly error: unknown } | undefined
    try {
      return await callStore(this.#clock, details, async () => {
        try {
          return await ask()
        } catch (error) {
          failure = { error }
          throw error
        }
      })
    } catch (error) {
      throw failure === undefined ? error : failure.error
    }
  }

  #report(call: string, error: unknown): void {
    this.#emit({ kind: 'store_error', store: this.#backend.name, call, error })
  }
}

function only<Answer>(answers: readonly Answer[]): Answer {
  const [answer] = answers
  if (answer === undefined) throw new Error('the store returned no outcome')
  return answer
}

/** Whether a store call that failed may still have changed the store. */
export function mayHaveWritten(error: unknown): boolean {
  const isFailure = hasCode(error, 'STORE_FAILED')
  if (isFailure && 'wroteNothing' in error && error.wroteNothing === true) return false
  return isUnavailable(error)
}
