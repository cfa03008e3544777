import type { BreakerState } from './breaker.ts'
import { probeLimitMs, type ResolvedBreakerOptions } from './breaker-options.ts'
import { ClaimBreaker } from './claim-breaker.ts'
import type { Clock } from './clock.ts'
import { isUnavailable } from './errors.ts'
import type { EventListener } from './events.ts'
import { printable } from './printable.ts'
import { StoreProbe } from './store-probe.ts'
import type { Store } from './store.ts'

/** Whether this process should get requests, and why not. */
export interface EngineHealth {
  /**
   * `ready`: the store takes writes. `degraded`: it does, but the last claim call failed.
   * `unready`: protected requests get 503. `closing`: `engine.close()` was called.
   */
  readonly status: 'ready' | 'degraded' | 'unready' | 'closing'
  /** `off`: the engine was made with `breaker: false`. */
  readonly breaker: BreakerState | 'off'
  readonly store: StoreStanding
}

export interface StoreStanding {
  readonly name: string
  /** `never_answered`: no call of this process has succeeded yet. */
  readonly state: 'never_answered' | 'answering' | 'failing'
  /** Since when it is in this state, by the clock of this process. */
  readonly since: Date
  /** Why the last call failed, where it did. For operators; it may name hosts and users. */
  readonly error: string | undefined
}

export interface StoreHealthOptions {
  readonly store: Store
  readonly clock: Clock
  readonly storeTimeoutMs: number
  readonly breaker: ResolvedBreakerOptions | undefined
  readonly emit: EventListener
}

/** A probe that ended less than this ago is not repeated: however many ask, the store has rest. */
const FRESH_MS = 1_000

/** What the store's calls say about it, and what follows from that. */
export class StoreHealth {
  readonly breaker: ClaimBreaker
  readonly #store: string
  readonly #clock: Clock
  readonly #probe: StoreProbe
  #state: StoreStanding['state'] = 'never_answered'
  #sinceMs: number
  #answeredAtMs: number | undefined
  #error: unknown
  /** The last probe. */
  #probedMs = Number.NEGATIVE_INFINITY
  #isProbeFailed = false

  constructor({ store, clock, storeTimeoutMs, breaker, emit }: StoreHealthOptions) {
    this.#store = store.name
    this.#clock = clock
    this.#sinceMs = clock.nowMs()
    const probe = new StoreProbe({ store, clock, limitMs: probeLimitMs(storeTimeoutMs), emit })
    this.#probe = probe
    this.breaker = new ClaimBreaker({
      clock,
      store: store.name,
      settings: breaker,
      probe,
      emit,
      onProbed: (error) => this.#onProbed(error),
    })
  }

  /** When the store answered last; `undefined`: it never has. */
  get answeredAt(): Date | undefined {
    return this.#answeredAtMs === undefined ? undefined : new Date(this.#answeredAtMs)
  }

  /** A claim call ended. */
  claimEnded(error?: unknown): void {
    this.callEnded(error)
    if (error === undefined) this.breaker.succeeded()
    else if (isUnavailable(error)) this.breaker.failed(error)
  }

  /**
   * A call that writes ended. Calls that only read are not told of: a standby answers them. What
   * was rejected or never sent says nothing about the store, and a tenant may be its cause.
   */
  callEnded(error?: unknown): void {
    if (error === undefined) {
      this.#answeredAtMs = this.#clock.nowMs()
      this.#error = undefined
      this.#become('answering')
    } else if (isUnavailable(error)) {
      this.#error = error
      if (this.#answeredAtMs !== undefined) this.#become('failing')
    }
  }

  /** Never rejects, and takes no longer than a probe may. */
  async report(isClosing: boolean): Promise<EngineHealth> {
    if (!isClosing) await this.#probeUnlessFresh()
    return {
      status: isClosing ? 'closing' : this.#status(),
      breaker: this.breaker.state,
      store: {
        name: this.#store,
        state: this.#state,
        since: new Date(this.#sinceMs),
        error: this.#error === undefined ? undefined : printable(this.#error),
      },
    }
  }

  #status(): 'ready' | 'degraded' | 'unready' {
    const { isRefusing, failures } = this.breaker
    if (isRefusing || this.#isProbeFailed) return 'unready'
    return failures > 0 ? 'degraded' : 'ready'
  }

  /** While claims are refused, the breaker probes by itself. */
  async #probeUnlessFresh(): Promise<void> {
    if (this.breaker.isRefusing) return
    if (this.#clock.monotonicMs() - this.#probedMs < FRESH_MS) return
    const end = await this.#probe.run()
    this.#onProbed(end.kind === 'failed' ? end.error : undefined)
  }

  #onProbed(error: unknown): void {
    this.#probedMs = this.#clock.monotonicMs()
    this.#isProbeFailed = error !== undefined
    this.callEnded(error)
    if (error !== undefined) this.#error = error
  }

  #become(state: StoreStanding['state']): void {
    if (this.#state === state) return
    this.#state = state
    this.#sinceMs = this.#clock.nowMs()
  }
}
