import { callStore } from '../../core/store/store-call.ts'
import { Coalescer } from '../../core/store/coalescer.ts'
import type {
  HeldMessage,
  MessageClaim,
  MessageLease,
  MessageSettlement,
  MessageView,
  OutboxStore,
} from '../../core/store/durable-store.ts'
import type { Engine } from '../../core/engine/engine-contract.ts'

/** Settlements in one call: enough to be worth a commit, few enough not to block the event loop. */
const ROWS_MAX = 64
const FLUSHES_MAX = 4
const BATCH_BYTES_MAX = 8 * 1024 * 1024
const WAITING_MAX = 20_000
/** A call that takes longer fails, and the caller repeats it. */
const TIMEOUT_MS = 5_000
/** Estimated bytes of a settlement without its error text, to limit the size of a batch. */
const ROW_BYTES = 256

/**
 * The outbox of a store with batching and time limits: settlements of messages that end together
 * share a call, and every failure is emitted as `store_error`.
 */
export class OutboxPort {
  readonly #engine: Engine
  readonly #outbox: OutboxStore
  readonly #settlements: Coalescer<MessageSettlement, boolean>

  constructor(engine: Engine, outbox: OutboxStore) {
    this.#engine = engine
    this.#outbox = outbox
    const { clock, store } = engine
    this.#settlements = new Coalescer({
      clock,
      store: store.name,
      call: 'settle messages',
      flush: (settlements, signal) => outbox.settle(settlements, signal),
      bytesOf: (settlement) => ROW_BYTES + ('error' in settlement ? settlement.error.length : 0),
      limits: {
        rowsMax: store.batching?.rowsMax ?? ROWS_MAX,
        flushesMax: store.batching?.flushesMax ?? FLUSHES_MAX,
        bytesMax: BATCH_BYTES_MAX,
        waitingMax: WAITING_MAX,
        timeoutMs: TIMEOUT_MS,
      },
      onFailure: (error) => this.#report('settle messages', error),
    })
  }

  claim(claim: MessageClaim): Promise<HeldMessage[]> {
    return this.#ask('claim messages', (signal) => this.#outbox.claim(claim, signal))
  }

  settle(settlement: MessageSettlement): Promise<boolean> {
    // One lane for all: a relay claims few messages, so no tenant can fill the batches.
    return this.#settlements.add(settlement, '')
  }

  renew(leases: readonly MessageLease[], leaseMs: number): Promise<boolean[]> {
    return this.#ask('renew messages', (signal) => this.#outbox.renew(leases, leaseMs, signal))
  }

  read(id: string): Promise<MessageView | undefined> {
    return this.#ask('read a message', (signal) => this.#outbox.read(id, signal))
  }

  async #ask<Answer>(call: string, ask: (signal: AbortSignal) => Promise<Answer>): Promise<Answer> {
    const { clock, store } = this.#engine
    try {
      const details = { store: store.name, call, timeoutMs: TIMEOUT_MS }
      return await callStore(clock, details, ask)
    } catch (error) {
      this.#report(call, error)
      throw error
    }
  }

  #report(call: string, error: unknown): void {
    this.#engine.emit({ kind: 'store_error', store: this.#engine.store.name, call, error })
  }
}
