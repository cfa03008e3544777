import type { Clock } from './clock.ts'
import { Coalescer, type CoalescerLimits } from './coalescer.ts'
import { hasCode } from './errors.ts'
import type { EventListener } from './events.ts'
import type {
  ClaimOutcome,
  ClaimRequest,
  Renewal,
  SettleOutcome,
  Settlement,
  Store,
} from './store.ts'

/** What a row costs beside its own text: enough to bound a batch, not to account for it. */
const ROW_BYTES = 256

/**
 * A store, one request at a time: each call joins the batch that is about to leave. Renewals have
 * a queue of their own, so that they never starve behind claims.
 */
export class StorePort {
  readonly #emit: EventListener
  readonly #store: string
  readonly #claims: Coalescer<ClaimRequest, ClaimOutcome>
  readonly #settlements: Coalescer<Settlement, SettleOutcome>
  readonly #renewals: Coalescer<Renewal, boolean>

  constructor(
    store: Store,
    { clock, limits, emit }: { clock: Clock; limits: CoalescerLimits; emit: EventListener },
  ) {
    this.#emit = emit
    this.#store = store.name
    const shared = { clock, limits, store: store.name }
    this.#claims = new Coalescer({
      ...shared,
      call: 'claim',
      flush: (requests) => store.claim(requests),
      bytesOf: (request) =>
        ROW_BYTES + request.key.length + request.tenant.length + request.operation.length,
    })
    this.#settlements = new Coalescer({
      ...shared,
      call: 'settle',
      flush: (settlements) => store.settle(settlements),
      bytesOf: (settlement) =>
        ROW_BYTES + (settlement.kind === 'complete' ? settlement.result.byteLength : 0),
    })
    this.#renewals = new Coalescer({
      ...shared,
      call: 'renew',
      flush: (renewals) => store.renew(renewals),
      bytesOf: () => ROW_BYTES,
    })
  }

  claim(request: ClaimRequest): Promise<ClaimOutcome> {
    return this.#reporting('claim', this.#claims.add(request))
  }

  settle(settlement: Settlement): Promise<SettleOutcome> {
    return this.#reporting('settle', this.#settlements.add(settlement))
  }

  renew(renewal: Renewal): Promise<boolean> {
    return this.#reporting('renew', this.#renewals.add(renewal))
  }

  async #reporting<Outcome>(call: string, answer: Promise<Outcome>): Promise<Outcome> {
    try {
      return await answer
    } catch (error) {
      this.#emit({ kind: 'store_error', store: this.#store, call, error })
      throw error
    }
  }
}

/** Whether a failed store call may have been carried out all the same. */
export function mayHaveTakenHold(error: unknown): boolean {
  if (!hasCode(error, 'STORE_FAILED')) return true
  return !('failure' in error) || error.failure === 'unavailable'
}
