import type { BreakerState } from './breaker.ts'
import { probeLimitMs, type ResolvedBreakerOptions } from './breaker-options.ts'
import type { Clock } from '../time/clock.ts'
import { isUnavailable } from '../errors.ts'
import type { EventListener } from '../events.ts'
import { LaneBreakers } from './lane-breakers.ts'
import type { Lanes } from '../store/lane-of.ts'
import { pausedWork, type PausedWork } from '../engine/paused-work.ts'
import { printable } from '../printable.ts'
import { StoreProbe } from './store-probe.ts'
import type { Store } from '../store/store.ts'

/** Whether this process should receive requests, and if not, why. */
export interface EngineHealth {
  /**
   * - `ready`: the store accepts writes.
   * - `degraded`: the store accepts writes, but the last claim call failed, a part of the store
   *   fails (requests for that part get 503), or work is paused.
   * - `unready`: the probe failed or the breaker is open. Protected requests get 503.
   * - `closing`: `engine.close()` was called.
   */
  readonly status: 'ready' | 'degraded' | 'unready' | 'closing'
  /** The breaker of the whole store. `off`: the engine was created with `breaker: false`. */
  readonly breaker: BreakerState | 'off'
  /** The store as this process sees it. */
  readonly store: StoreStatus
  /** Operations and topics that this process does not start at present: their calls hang. */
  readonly paused: readonly PausedWork[]
}

export interface StoreStatus {
  /** The `name` of the store, such as `postgres`. */
  readonly name: string
  /**
   * `never_answered`: no write of this process has succeeded yet. `answering`: the store, or at
   * least one part of it, accepts writes. `failing`: it did, and now no part of it does.
   */
  readonly state: 'never_answered' | 'answering' | 'failing'
  /** Start of this state, by the clock of this process. */
  readonly since: Date
  /** Why the last write failed, if it did. For operators only: it may name hosts and users. */
  readonly error: string | undefined
}

export interface StoreHealthOptions {
  readonly store: Store
  readonly clock: Clock
  readonly storeTimeoutMs: number
  readonly lanes?: Lanes | undefined
  readonly breaker: ResolvedBreakerOptions | undefined
  readonly emit: EventListener
}

/** A probe is not repeated within this time, so that many health checks do not load the store. */
const FRESH_MS = 1_000

/** Derives the health of the store from the results of its calls and probes. */
export class StoreHealth {
  readonly breaker: LaneBreakers
  readonly #store: Store
  readonly #clock: Clock
  readonly #probe: StoreProbe
  #state: StoreStatus['state'] = 'never_answered'
  #sinceMs: number
  #answeredAtMs: number | undefined
  /** The error of the last call, if it failed: by lane, and under `undefined` for the store. */
  readonly #errors = new Map<number | undefined, unknown>()
  /** Lanes that have been called. */
  readonly #lanes = new Set<number>()
  /** End of the last probe. */
  #probedMs = Number.NEGATIVE_INFINITY
  #isProbeFailed = false

  constructor({ store, clock, storeTimeoutMs, lanes, breaker, emit }: StoreHealthOptions) {
    this.#store = store
    this.#clock = clock
    this.#sinceMs = clock.nowMs()
    this.#probe = new StoreProbe({
      store,
      clock,
      limitMs: probeLimitMs(storeTimeoutMs),
      emit,
      lanes,
      isRefusing: (lane) => this.breaker.isRefusingIn(lane),
      failing: () => this.#failingLanes(),
      onLaneProbed: (lane, error) => this.callEnded(error, lane),
    })
    this.breaker = new LaneBreakers({
      clock,
      store: store.name,
      settings: breaker,
      storeTimeoutMs,
      probe: this.#probe,
      emit,
      onProbed: (error) => this.#onProbed(error),
    })
  }

  /** Time of the last answer; `undefined` if the store has never answered. */
  get answeredAt(): Date | undefined {
    return this.#answeredAtMs === undefined ? undefined : new Date(this.#answeredAtMs)
  }

  /** Call this at the end of each claim call. */
  claimEnded(error: unknown, lane?: number): void {
    this.callEnded(error, lane)
    if (error === undefined) this.breaker.succeeded(lane)
    else if (isUnavailable(error)) this.breaker.failed(error, lane)
  }

  /**
   * Call this at the end of each other call that writes. Reads do not count, because a standby
   * answers them. A call that was rejected or never sent says nothing about the store, and one
   * tenant could cause it.
   */
  callEnded(error: unknown, lane?: number): void {
    if (lane !== undefined) this.#lanes.add(lane)
    if (error === undefined) {
      this.#answeredAtMs = this.#clock.nowMs()
      this.#errors.delete(lane)
      this.#errors.delete(undefined)
      this.#setState('answering')
    } else if (isUnavailable(error)) {
      this.#setError(error, lane)
      if (this.#answeredAtMs !== undefined && this.#isAllFailing()) this.#setState('failing')
    }
  }

  /** The store fails only if each of its lanes fails. */
  #isAllFailing(): boolean {
    return this.#errors.has(undefined) || this.#errors.size >= this.#lanes.size
  }

  #setError(error: unknown, lane: number | undefined): void {
    // Deleted first, so that the newest error is the last entry.
    this.#errors.delete(lane)
    this.#errors.set(lane, error)
  }

  /** Never rejects, and takes at most as long as one probe. */
  async report(isClosing: boolean): Promise<EngineHealth> {
    if (!isClosing) await this.#probeUnlessFresh()
    const error = [...this.#errors.values()].at(-1)
    return {
      status: isClosing ? 'closing' : this.#status(),
      breaker: this.breaker.state,
      store: {
        name: this.#store.name,
        state: this.#state,
        since: new Date(this.#sinceMs),
        error: error === undefined ? undefined : printable(error),
      },
      paused: pausedWork(this.#store),
    }
  }

  #status(): 'ready' | 'degraded' | 'unready' {
    const { isRefusing, failures } = this.breaker
    if (isRefusing || this.#isProbeFailed) return 'unready'
    const isPartFailing = this.#failingLanes().length > 0
    const isPaused = pausedWork(this.#store).length > 0
    return failures > 0 || isPartFailing || isPaused ? 'degraded' : 'ready'
  }

  /** Lanes whose last call failed, oldest failure first. */
  #failingLanes(): readonly number[] {
    return [...this.#errors.keys()].filter((lane) => lane !== undefined)
  }

  /** While claims are refused, the breaker runs the probes. */
  async #probeUnlessFresh(): Promise<void> {
    if (this.breaker.isRefusing) return
    if (this.#clock.monotonicMs() - this.#probedMs < FRESH_MS) return
    const end = await this.#probe.run()
    this.#onProbed(end.kind === 'failed' ? end.error : undefined)
  }

  #onProbed(error: unknown): void {
    this.#probedMs = this.#clock.monotonicMs()
    this.#isProbeFailed = error !== undefined
    // `onLaneProbed` has already reported the lanes that answered.
    if (error === undefined && this.#lanes.size > 0) return
    this.callEnded(error)
    if (error !== undefined) this.#setError(error, undefined)
  }

  #setState(state: StoreStatus['state']): void {
    if (this.#state === state) return
    this.#state = state
    this.#sinceMs = this.#clock.nowMs()
  }
}
