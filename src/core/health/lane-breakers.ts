import type { BreakerState } from './breaker.ts'
import type { ResolvedBreakerOptions } from './breaker-options.ts'
import { ClaimBreaker, type BreakerChange } from './claim-breaker.ts'
import type { Clock } from '../time/clock.ts'
import type { StoreFailedError } from '../errors.ts'
import type { EventListener } from '../events.ts'
import type { StoreProbe } from './store-probe.ts'

export interface LaneBreakersOptions {
  readonly clock: Clock
  /** The store's name. */
  readonly store: string
  /** `undefined`: claims are never refused. */
  readonly settings: ResolvedBreakerOptions | undefined
  /** The time limit of a claim call. */
  readonly storeTimeoutMs: number
  readonly probe: StoreProbe
  /** Called after each probe of the whole store, with its error if it failed. */
  readonly onProbed: (error?: unknown) => void
  readonly emit: EventListener
}

interface FailingLane {
  readonly breaker: ClaimBreaker
  /** Time of the last failure that happened while claims for the lane were sent. */
  lastFailureMs: number
}

/**
 * The breaker of the whole store, and one for each lane that fails.
 *
 * The breaker of a lane opens after `failures` failures in a row. Failures of other lanes within
 * the last `storeTimeoutMs` count too, so when a server stops answering under load, all its lanes
 * open after one timeout. A lane that opened earlier does not count: it fails for as long as its
 * server is down, and a single failure would then open any other lane. A success in a lane resets
 * that lane only.
 *
 * When a lane opens, the store is probed in other lanes. If none of them answers, claims for all
 * lanes are refused. A store that is down is therefore noticed as soon as a store without lanes,
 * and the failure of one lane never blocks the others.
 */
export class LaneBreakers {
  readonly #options: LaneBreakersOptions
  readonly #whole: ClaimBreaker
  /** Lanes that have failed since their last success. */
  readonly #lanes = new Map<number, FailingLane>()
  /** Number of claim calls that have succeeded. */
  #successes = 0
  #isStopped = false

  constructor(options: LaneBreakersOptions) {
    this.#options = options
    const { probe, onProbed } = options
    this.#whole = this.#newBreaker('the store', {
      probe: () => probe.run(),
      onProbed,
      onChange: (change) => this.#onWholeChange(change),
    })
  }

  /** The state of the breaker of the whole store. */
  get state(): BreakerState | 'off' {
    return this.#whole.state
  }

  /** Claim calls without a lane that have failed since the last success. */
  get failures(): number {
    return this.#whole.failures
  }

  /** Whether claims for all lanes are refused. */
  get isRefusing(): boolean {
    return this.#whole.isRefusing
  }

  /** Whether claims for at least one lane are refused. */
  get isRefusingSome(): boolean {
    if (this.#whole.isRefusing) return true
    for (const { breaker } of this.#lanes.values()) if (breaker.isRefusing) return true
    return false
  }

  isRefusingIn(lane: number): boolean {
    return this.#lanes.get(lane)?.breaker.isRefusing === true
  }

  /** The error for a claim for this lane; `undefined` if the claim may be sent. */
  refusal(lane: number | undefined): StoreFailedError | undefined {
    if (this.#whole.isRefusing) return this.#whole.refusal()
    if (lane === undefined || !this.isRefusingIn(lane)) return undefined
    return this.#lanes.get(lane)?.breaker.refusal()
  }

  /** Call this when a claim call has succeeded. */
  succeeded(lane: number | undefined): void {
    this.#successes++
    this.#whole.succeeded()
    if (lane === undefined || this.#lanes.size === 0) return
    this.#lanes.get(lane)?.breaker.succeeded()
    this.#forget(lane)
  }

  /** Call this when a claim call was `unavailable`. */
  failed(error: unknown, lane: number | undefined): void {
    if (lane === undefined) return this.#whole.failed(error)
    const { settings } = this.#options
    // While the breaker of the whole store is open, lanes are not counted.
    if (settings === undefined || this.#isStopped || this.#whole.isRefusing) return
    const failing = this.#failingLane(lane)
    if (!failing.breaker.isRefusing) failing.lastFailureMs = this.#options.clock.monotonicMs()
    failing.breaker.failed(error)
    const recent = this.#recentlyFailed()
    const failures = recent.reduce((sum, breaker) => sum + breaker.failures, this.failures)
    if (failures < settings.failures) return
    for (const breaker of recent) {
      if (breaker.failures > 0 && !breaker.isRefusing) breaker.trip(error)
    }
  }

  /** The breakers of lanes that have failed within the last `storeTimeoutMs`. */
  #recentlyFailed(): ClaimBreaker[] {
    const sinceMs = this.#options.clock.monotonicMs() - this.#options.storeTimeoutMs
    return [...this.#lanes.values()].flatMap(({ breaker, lastFailureMs }) =>
      lastFailureMs >= sinceMs ? [breaker] : [],
    )
  }

  /** Waits for the breaker of the whole store; see `ClaimBreaker.untilClosed`. */
  untilClosed(signal?: AbortSignal): Promise<void> {
    return this.#whole.untilClosed(signal)
  }

  /** Ends the probes, and the waits for them, because the engine is closed. */
  stop(): void {
    this.#isStopped = true
    this.#whole.stop()
    this.#forgetAll()
  }

  #failingLane(lane: number): FailingLane {
    const known = this.#lanes.get(lane)
    if (known !== undefined) return known
    const { probe } = this.#options
    const breaker = this.#newBreaker('this part of the store', {
      probe: () => probe.runIn(lane),
      onProbed: () => undefined,
      onChange: ({ from, to, error }) => {
        if (from === 'closed' && to === 'open') void this.#probeWholeStore(error)
      },
    })
    const failing = { breaker, lastFailureMs: Number.NEGATIVE_INFINITY }
    this.#lanes.set(lane, failing)
    return failing
  }

  /** Finds out whether only this lane fails. If no lane answers, opens the breaker of the store. */
  async #probeWholeStore(error: unknown): Promise<void> {
    const { probe, onProbed } = this.#options
    const before = this.#successes
    const end = await probe.run()
    if (this.#isStopped || this.#whole.isRefusing) return
    if (end.kind === 'answered') return onProbed()
    // The store answered a claim during the probe, so it is not down.
    if (this.#successes > before) return
    onProbed(end.error)
    this.#whole.trip(error)
  }

  #onWholeChange(change: BreakerChange): void {
    const { emit, store } = this.#options
    emit({ kind: 'breaker_changed', store, ...change })
    // Only the whole store is probed now. Afterwards each lane starts without failures.
    if (change.to === 'open') this.#forgetAll()
  }

  #newBreaker(
    subject: string,
    more: Pick<ConstructorParameters<typeof ClaimBreaker>[0], 'probe' | 'onProbed' | 'onChange'>,
  ): ClaimBreaker {
    const { clock, store, settings } = this.#options
    return new ClaimBreaker({ clock, store, settings, subject, ...more })
  }

  #forget(lane: number): void {
    this.#lanes.get(lane)?.breaker.stop()
    this.#lanes.delete(lane)
  }

  #forgetAll(): void {
    for (const lane of this.#lanes.keys()) this.#forget(lane)
  }
}
