import { Breaker, type BreakerState } from './breaker.ts'
import type { ResolvedBreakerOptions } from './breaker-options.ts'
import type { Clock } from './clock.ts'
import { StoreFailedError } from './errors.ts'
import type { ProbeEnd } from './store-probe.ts'

export interface ClaimBreakerOptions {
  readonly clock: Clock
  /** The store's name. */
  readonly store: string
  /** `undefined`: claims are never refused. */
  readonly settings: ResolvedBreakerOptions | undefined
  /** For messages: `the store`, or a part of it. */
  readonly what: string
  readonly probe: () => Promise<ProbeEnd>
  readonly onProbed: (error?: unknown) => void
  readonly onChange: (change: BreakerChange) => void
}

export interface BreakerChange {
  readonly from: BreakerState
  readonly to: BreakerState
  /** What opened it. */
  readonly error: unknown
}

/** The second pause; the first probe comes at once, and later pauses double up to the longest. */
const PAUSE_MS_FIRST = 1_000
/** Beyond this the doubling would leave the whole numbers; every longest pause comes before. */
const DOUBLINGS_MAX = 30

/**
 * Stands before claims alone: while it is open they are refused at once, instead of each waiting
 * for a store that does not answer. Whether the store is back is found out by a timer and not by
 * claims, because a process that is out of rotation gets none.
 *
 * The first probe follows at once: where a few calls failed by accident, claims are refused for
 * one round trip.
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

  /** Claim calls that have failed since the last that succeeded. */
  get failures(): number {
    return this.#breaker?.failures ?? 0
  }

  get isRefusing(): boolean {
    return this.#breaker !== undefined && this.#breaker.state !== 'closed'
  }

  /** Why a claim is not sent while it is refusing. */
  refusal(): StoreFailedError {
    const { what } = this.#options
    const cause = new Error(`${what} has failed, and it is being probed`, { cause: this.#error })
    return new StoreFailedError({
      store: this.#options.store,
      operation: 'claim',
      failure: 'refused',
      cause,
      retryAfterMs: this.#breaker?.leftMs ?? 0,
    })
  }

  /** A claim call has succeeded. */
  succeeded(): void {
    this.#breaker?.succeeded()
  }

  /** A claim call was `unavailable`. */
  failed(error: unknown): void {
    this.#error = error
    this.#breaker?.failed()
  }

  /** Opens it now: something else than a claim call has shown that it must be. */
  trip(error: unknown): void {
    this.#error = error
    this.#breaker?.trip()
  }

  /** Resolves at once while claims may be sent; otherwise once they may, or `signal` aborts. */
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

  /** No more probes: the engine is closed. */
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
    // A timer may fire a little early.
    if (!this.#breaker!.mayTry()) return this.#probeLater()
    const end = await this.#options.probe()
    if (this.#isStopped) return
    this.#options.onProbed(end.kind === 'failed' ? end.error : undefined)
    // A claim that was sent all the same may have closed it meanwhile.
    if (this.#breaker!.state !== 'half_open') return
    if (end.kind === 'answered') return this.#breaker!.recovered()
    this.#error = end.error
    this.#breaker!.failed()
  }

  #wakeAll(): void {
    for (const wake of this.#waiting) wake()
  }
}

/** Random between half and whole, so that the processes of a service do not probe together. */
function pauseMs(number: number, pauseMsMax: number): number {
  if (number <= 1) return 0
  const doublings = Math.min(number - 2, DOUBLINGS_MAX)
  const wholeMs = Math.min(pauseMsMax, PAUSE_MS_FIRST * 2 ** doublings)
  return Math.ceil(wholeMs * (0.5 + Math.random() / 2))
}
