import { Breaker, type BreakerState } from './breaker.ts'
import type { ResolvedBreakerOptions } from './breaker-options.ts'
import type { Clock } from '../time/clock.ts'
import { backoffMs, jittered } from '../time/retry.ts'
import { StoreFailedError } from '../errors.ts'
import type { ProbeEnd } from './store-probe.ts'

export interface ClaimBreakerOptions {
  readonly clock: Clock
  /** The store's name. */
  readonly store: string
  /** `undefined`: claims are never refused. */
  readonly settings: ResolvedBreakerOptions | undefined
  /** Names the store, or its part, in error messages. */
  readonly subject: string
  readonly probe: () => Promise<ProbeEnd>
  /** Called after each probe, with its error if it failed. */
  readonly onProbed: (error?: unknown) => void
  readonly onChange: (change: BreakerChange) => void
}

export interface BreakerChange {
  readonly from: BreakerState
  readonly to: BreakerState
  /** The failure that opened the breaker; `undefined` for other changes. */
  readonly error: unknown
}

/** The first probe has no pause, the second has this one. Later pauses double up to the maximum. */
const PAUSE_MS_FIRST = 1_000

/**
 * Refuses claims at once while the store fails, so that they do not each wait for a timeout. Other
 * calls are always sent. A timer starts the probes: a process that a load balancer has taken out of
 * rotation gets no claims that could show that the store is back.
 *
 * The first probe has no pause: after a few accidental failures, claims are refused for only one
 * round trip.
 */
export class ClaimBreaker {
  readonly #options: ClaimBreakerOptions
  readonly #breaker: Breaker | undefined
  readonly #waiting = new Set<() => void>()
  #error: unknown
  #isStopped = false
  #cancel: () => void = () => undefined

  constructor(options: ClaimBreakerOptions) {
    this.#options = options
    const { clock, settings } = options
    if (settings === undefined) return
    this.#breaker = new Breaker(clock, {
      failuresMax: settings.failures,
      breakMs: (number) => pauseMs(number, settings.pauseMsMax),
      onChange: (from, to) => this.#onChange(from, to),
    })
  }

  get state(): BreakerState | 'off' {
    return this.#breaker?.state ?? 'off'
  }

  /** Claim calls that have failed since the last success. */
  get failures(): number {
    return this.#breaker?.failures ?? 0
  }

  get isRefusing(): boolean {
    return this.#breaker !== undefined && this.#breaker.state !== 'closed'
  }

  /** The error for a claim that is refused. */
  refusal(): StoreFailedError {
    const { subject } = this.#options
    const message = `${subject} has failed, and claims are refused until a probe succeeds`
    const cause = new Error(message, { cause: this.#error })
    return new StoreFailedError({
      store: this.#options.store,
      operation: 'claim',
      failure: 'refused',
      cause,
      retryAfterMs: this.#breaker?.leftMs ?? 0,
    })
  }

  /** Call this when a claim call has succeeded. */
  succeeded(): void {
    this.#breaker?.succeeded()
  }

  /** Call this when a claim call was `unavailable`. */
  failed(error: unknown): void {
    this.#error = error
    this.#breaker?.failed()
  }

  /** Opens the breaker now, for a failure that is not counted here. */
  trip(error: unknown): void {
    this.#error = error
    this.#breaker?.trip()
  }

  /** Resolves when claims may be sent, `signal` aborts or the breaker is stopped. Never rejects. */
  untilClosed(signal?: AbortSignal): Promise<void> {
    const isOver = this.#isStopped || signal?.aborted === true
    if (isOver || !this.isRefusing) return Promise.resolve()
    return new Promise((resolve) => {
      const wake = () => {
        this.#waiting.delete(wake)
        signal?.removeEventListener('abort', wake)
        resolve()
      }
      this.#waiting.add(wake)
      signal?.addEventListener('abort', wake)
    })
  }

  /** Ends the probes, and the waits for them, because the engine is closed. */
  stop(): void {
    this.#isStopped = true
    this.#cancel()
    this.#wakeAll()
  }

  #onChange(from: BreakerState, to: BreakerState): void {
    this.#options.onChange({ from, to, error: to === 'open' ? this.#error : undefined })
    if (to === 'open') this.#probeLater()
    if (to !== 'closed') return
    this.#cancel()
    this.#wakeAll()
  }

  #probeLater(): void {
    if (this.#isStopped) return
    this.#cancel()
    const { clock } = this.#options
    const run = () => void this.#probe()
    this.#cancel = clock.after(this.#breaker!.leftMs, run, { background: true })
  }

  async #probe(): Promise<void> {
    // A timer may fire slightly early.
    if (!this.#breaker!.mayTry()) return this.#probeLater()
    const end = await this.#options.probe()
    if (this.#isStopped) return
    this.#options.onProbed(end.kind === 'failed' ? end.error : undefined)
    // A claim that ignores the breaker may have closed it during the probe.
    if (this.#breaker!.state !== 'half_open') return
    if (end.kind === 'answered') return this.#breaker!.recovered()
    this.#error = end.error
    this.#breaker!.failed()
  }

  #wakeAll(): void {
    for (const wake of this.#waiting) wake()
  }
}

/** Half of a pause is random, so that the processes of a service do not probe at the same time. */
function pauseMs(number: number, maxMs: number): number {
  if (number <= 1) return 0
  return Math.ceil(jittered(backoffMs({ firstMs: PAUSE_MS_FIRST, maxMs }, number - 1), 1 / 2))
}
