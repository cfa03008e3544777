import { MINUTE_MS } from '../time/durations.ts'
import { callStore } from '../store/store-call.ts'
import { sleep, type Clock } from '../time/clock.ts'
import type { EventListener } from '../events.ts'
import type { Completion, Store } from '../store/store.ts'

export interface UpkeepOptions {
  readonly store: Store
  readonly clock: Clock
  readonly emit: EventListener
  /** `true` while the store fails: passes are put off. */
  readonly isPaused: () => boolean
  /** 0: no timer. */
  readonly sweepEveryMs: number
  /** 0: no timer. */
  readonly reapEveryMs: number
}

/** Records in one store call: enough to justify a commit, and few enough not to delay others. */
const SWEEP_BATCH = 1_000
const REAP_BATCH = 100
/** Records in one pass. The rest waits for the next one, so that a pass always ends. */
const RECORDS_MAX = 100_000
/** Removal is never urgent: each batch is followed by a pause of this many times its duration. */
const PAUSE_FACTOR = 9
const PAUSE_MS_MAX = 1_000
/** The time until the next pass, if one was put off or reached its limit. */
const UNFINISHED_MS = 1_000
/** The time limit of one batch. The next pass starts only after the last one has ended. */
const BATCH_TIMEOUT_MS = MINUTE_MS

/**
 * Sweeps lapsed leases and reaps expired records, in limited batches. Safe on every node at once:
 * the first node that comes to a record moves it.
 */
export class Upkeep {
  readonly #options: UpkeepOptions
  readonly #cancels = new Set<() => void>()
  readonly #stopping = new AbortController()

  constructor(options: UpkeepOptions) {
    this.#options = options
    this.#every(options.sweepEveryMs, () => this.sweepOnce(), 'sweep')
    this.#every(options.reapEveryMs, () => this.reapOnce(), 'reap')
  }

  stop(): void {
    this.#stopping.abort()
    for (const cancel of this.#cancels) cancel()
    this.#cancels.clear()
  }

  async sweepOnce(): Promise<number> {
    const { store, emit } = this.#options
    let count = 0
    while (count < RECORDS_MAX) {
      const swept = await this.#within('sweep', (signal) =>
        store.sweep({ limit: SWEEP_BATCH }, signal),
      )
      for (const { to, attempt, ...subject } of swept) {
        emit({ kind: 'zombie_key', ...subject, attempt, to })
        if (to === 'unknown') {
          emit({ kind: 'reconcile_scheduled', ...subject, errorCode: 'lease_lapsed' })
        }
      }
      count += swept.length
      if (swept.length < SWEEP_BATCH || this.#stopping.signal.aborted) break
    }
    return count
  }

  async reapOnce(abandoned?: Completion): Promise<number> {
    const { store, emit, clock } = this.#options
    let count = 0
    let timedOut = 0
    while (count < RECORDS_MAX) {
      const startedMs = clock.monotonicMs()
      const request = { limit: REAP_BATCH, abandoned }
      const report = await this.#within('reap', (signal) => store.reap(request, signal))
      const reaped = report.removed + report.expired + report.abandoned
      count += reaped
      timedOut += report.abandoned
      if (reaped < REAP_BATCH || this.#stopping.signal.aborted) break
      const pauseMs = PAUSE_FACTOR * (clock.monotonicMs() - startedMs)
      await sleep(clock, Math.min(pauseMs, PAUSE_MS_MAX), this.#stopping.signal)
    }
    if (count > timedOut) emit({ kind: 'ttl_pruned', count: count - timedOut })
    if (timedOut > 0) emit({ kind: 'operation_abandoned', count: timedOut })
    return count
  }

  #within<Answer>(call: string, ask: (signal: AbortSignal) => Promise<Answer>): Promise<Answer> {
    const { clock, store } = this.#options
    return callStore(clock, { store: store.name, call, timeoutMs: BATCH_TIMEOUT_MS }, ask)
  }

  #every(ms: number, pass: () => Promise<number>, call: string, inMs = ms): void {
    if (ms === 0 || this.#stopping.signal.aborted) return
    const { clock, store, emit, isPaused } = this.#options
    const cancel = clock.after(
      inMs,
      () => {
        this.#cancels.delete(cancel)
        if (isPaused()) return this.#every(ms, pass, call, Math.min(ms, UNFINISHED_MS))
        let nextMs = ms
        pass()
          .then((count) => {
            if (count >= RECORDS_MAX) nextMs = Math.min(ms, UNFINISHED_MS)
          })
          .catch((error: unknown) => emit({ kind: 'store_error', store: store.name, call, error }))
          .finally(() => this.#every(ms, pass, call, nextMs))
      },
      { background: true },
    )
    this.#cancels.add(cancel)
  }
}
