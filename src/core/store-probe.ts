import { answerWithin } from './answer-within.ts'
import type { Clock } from './clock.ts'
import type { EventListener } from './events.ts'
import type { Renewal, Store } from './store.ts'

/** A lease without a record: identities are hashes, and no hash is all zeros. */
export const ABSENT_LEASE: Renewal = {
  identity: '0'.repeat(32),
  token: '0'.repeat(32),
  attempt: 1,
  leaseMs: 1,
}

export type ProbeEnd = { readonly kind: 'answered' } | { readonly kind: 'failed'; error: unknown }

export interface StoreProbeOptions {
  readonly store: Store
  readonly clock: Clock
  /** How long a probe may take. */
  readonly limitMs: number
  readonly emit: EventListener
}

/** Asks a store whether it takes writes. One probe at a time; who asks meanwhile shares it. */
export class StoreProbe {
  readonly #options: StoreProbeOptions
  #underWay: Promise<ProbeEnd> | undefined

  constructor(options: StoreProbeOptions) {
    this.#options = options
  }

  /** Never rejects. */
  run(): Promise<ProbeEnd> {
    this.#underWay ??= this.#ask().finally(() => {
      this.#underWay = undefined
    })
    return this.#underWay
  }

  async #ask(): Promise<ProbeEnd> {
    const { store, clock, limitMs, emit } = this.#options
    const details = { store: store.name, call: 'probe', timeoutMs: limitMs }
    try {
      await answerWithin(clock, details, (signal) => probe(store, signal))
      return { kind: 'answered' }
    } catch (error) {
      emit({ kind: 'store_error', store: store.name, call: 'probe', error })
      return { kind: 'failed', error }
    }
  }
}

/**
 * A write that changes nothing: a read would call a standby healthy that takes no writes. Where
 * renewing reads first, the store has a probe of its own.
 */
function probe(store: Store, signal: AbortSignal): Promise<unknown> {
  return store.probe === undefined ? store.renew([ABSENT_LEASE], signal) : store.probe(signal)
}
