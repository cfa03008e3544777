import type { BreakerState } from './breaker.ts'
import { probeLimitMs, type ResolvedBreakerOptions } from './breaker-options.ts'
import type { Clock } from './clock.ts'
import { isUnavailable } from './errors.ts'
import type { EventListener } from './events.ts'
import { LaneBreakers } from './lane-breakers.ts'
import type { Lanes } from './lane-of.ts'
import { pausedWork, type PausedWork } from './paused-work.ts'
import { printable } from './printable.ts'
import { StoreProbe } from './store-probe.ts'
import type { Store } from './store.ts'

/** Whether this process should get requests, and why not. */
export interface EngineHealth {
  /**
   * `ready`: the store takes writes. `degraded`: it does, but the last claim call failed, or a
   * part of it fails, and the requests for that part get 503, or work is paused. `unready`:
   * protected requests get 503. `closing`: `engine.close()` was called.
   */
  readonly status: 'ready' | 'degraded' | 'unready' | 'closing'
  /** Of the whole store. `off`: the engine was made with `breaker: false`. */
  readonly breaker: BreakerState | 'off'
  readonly store: StoreStanding
  /** Operations and topics of which this process begins no more, because their calls hang. */
  readonly paused: readonly PausedWork[]
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
  readonly lanes?: Lanes | undefined
  readonly breaker: ResolvedBreakerOptions | undefined
  readonly emit: EventListener
}

/** A probe that ended less than this ago is not repeated: however many ask, the store has rest. */
const FRESH_MS = 1_000

/** What the store's calls say about it, and what follows from that. */
export class StoreHealth {
  readonly breaker: LaneBreakers
  readonly #store: Store
  readonly #clock: Clock
  readonly #probe: StoreProbe
  #state: StoreStanding['state'] = 'never_answered'
  #sinceMs: number
  #answeredAtMs: number | undefined
  /** Why the last call failed, of the whole store and of each lane, where it did. */
  readonly #errors = new Map<number | undefined, unknown>()
  /** Lanes that were asked. */
  readonly #lanes = new Set<number>()
  /** The last probe. */
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

  /** When the store answered last; `undefined`: it never has. */
  get answeredAt(): Date | undefined {
    return this.#answeredAtMs === undefined ? undefined : new Date(this.#answeredAtMs)
  }

  /** A claim call ended. */
  claimEnded(error: unknown, lane?: number): void {
    this.callEnded(error, lane)
    if (error === undefined) this.breaker.succeeded(lane)
    else if (isUnavailable(error)) this.breaker.failed(error, lane)
  }

  /**
   * A call that writes ended. Calls that only read are not told of: a standby answers them. What
   * was rejected or never sent says nothing about the store, and a tenant may be its cause.
   */
  callEnded(error: unknown, lane?: number): void {
    if (lane !== undefined) this.#lanes.add(lane)
    if (error === undefined) {
      this.#answeredAtMs = this.#clock.nowMs()
      this.#errors.delete(lane)
      this.#errors.delete(undefined)
      this.#become('answering')
    } else if (isUnavailable(error)) {
      this.#note(error, lane)
      if (this.#answeredAtMs !== undefined && this.#isAllFailing()) this.#become('failing')
    }
  }

  /** Where a lane answers, the store does. */
  #isAllFailing(): boolean {
    return this.#errors.has(undefined) || this.#errors.size >= this.#lanes.size
  }

  #note(error: unknown, lane: number | undefined): void {
    // The newest comes last.
    this.#errors.delete(lane)
    this.#errors.set(lane, error)
  }

  /** Never rejects, and takes no longer than a probe may. */
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

  /** Lanes whose last call has failed, the one that was asked longest ago first. */
  #failingLanes(): readonly number[] {
    return [...this.#errors.keys()].filter((lane) => lane !== undefined)
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
    // Of a probe that has answered, the lanes were told.
    if (error === undefined && this.#lanes.size > 0) return
    this.callEnded(error)
    if (error !== undefined) this.#note(error, undefined)
  }

  #become(state: StoreStanding['state']): void {
    if (this.#state === state) return
    this.#state = state
    this.#sinceMs = this.#clock.nowMs()
  }
}
