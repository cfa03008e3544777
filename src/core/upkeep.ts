import { answerWithin } from './answer-within.ts'
import type { Clock } from './clock.ts'
import type { EventListener } from './events.ts'
import type { Completion, Store } from './store.ts'

export interface UpkeepOptions {
  readonly store: Store
  readonly clock: Clock
  readonly emit: EventListener
  /** 0: only when asked. */
  readonly sweepEveryMs: number
  /** 0: only when asked. */
  readonly reapEveryMs: number
}

/** Records in one store call: enough to be worth a commit, few enough to let others in. */
const BATCH = 1_000
/** Batches in one pass. What is left waits for the next, so that a pass always ends. */
const BATCHES_MAX = 100
/** One batch, given up after this: a pass that never ends would be this process's last. */
const BATCH_TIMEOUT_MS = 60_000

/**
 * Moves silent holders on and removes expired records, in bounded batches. Safe on every node at
 * once: each record is moved by whoever comes first.
 */
export class Upkeep {
  readonly #options: UpkeepOptions
  readonly #cancels = new Set<() => void>()
  #stopped = false

  constructor(options: UpkeepOptions) {
    this.#options = options
    this.#every(options.sweepEveryMs, () => this.sweepOnce(), 'sweep')
    this.#every(options.reapEveryMs, () => this.reapOnce(), 'reap')
  }

  stop(): void {
    this.#stopped = true
    for (const cancel of this.#cancels) cancel()
    this.#cancels.clear()
  }

  async sweepOnce(): Promise<number> {
    const { store, emit } = this.#options
    let count = 0
    for (let batch = 0; batch < BATCHES_MAX; batch++) {
      const swept = await this.#within('sweep', () => store.sweep({ limit: BATCH }))
      for (const { to, attempt, ...subject } of swept) {
        emit({ kind: 'zombie_key', ...subject, attempt, to })
        if (to === 'unknown') {
          emit({ kind: 'reconcile_scheduled', ...subject, errorCode: 'lease_lapsed' })
        }
      }
      count += swept.length
      if (swept.length < BATCH || this.#stopped) break
    }
    return count
  }

  async reapOnce(abandoned?: Completion): Promise<number> {
    const { store, emit } = this.#options
    let count = 0
    for (let batch = 0; batch < BATCHES_MAX; batch++) {
      const report = await this.#within('reap', () => store.reap({ limit: BATCH, abandoned }))
      const reaped = report.removed + report.expired + report.abandoned
      count += reaped
      if (reaped < BATCH || this.#stopped) break
    }
    if (count > 0) emit({ kind: 'ttl_pruned', count })
    return count
  }

  #within<Answer>(call: string, ask: () => Promise<Answer>): Promise<Answer> {
    const { clock, store } = this.#options
    return answerWithin(clock, { store: store.name, call, timeoutMs: BATCH_TIMEOUT_MS }, ask)
  }

  #every(ms: number, pass: () => Promise<number>, call: string): void {
    if (ms === 0 || this.#stopped) return
    const { clock, store, emit } = this.#options
    const cancel = clock.after(
      ms,
      () => {
        this.#cancels.delete(cancel)
        pass()
          .catch((error: unknown) => emit({ kind: 'store_error', store: store.name, call, error }))
          .finally(() => this.#every(ms, pass, call))
      },
      { background: true },
    )
    this.#cancels.add(cancel)
  }
}
