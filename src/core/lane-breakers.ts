import type { BreakerState } from './breaker.ts'
import type { ResolvedBreakerOptions } from './breaker-options.ts'
import { ClaimBreaker, type BreakerChange } from './claim-breaker.ts'
import type { Clock } from './clock.ts'
import type { StoreFailedError } from './errors.ts'
import type { EventListener } from './events.ts'
import type { StoreProbe } from './store-probe.ts'

export interface LaneBreakersOptions {
  readonly clock: Clock
  /** The store's name. */
  readonly store: string
  /** `undefined`: claims are never refused. */
  readonly settings: ResolvedBreakerOptions | undefined
  /** How long a claim call may take. */
  readonly storeTimeoutMs: number
  readonly probe: StoreProbe
  /** Hears how a probe of the whole store ended. */
  readonly onProbed: (error?: unknown) => void
  readonly emit: EventListener
}

interface FailingLane {
  readonly breaker: ClaimBreaker
  /** Its last failure, without those while it was refused. */
  failedMs: number
}

/**
 * The breaker of the whole store, and one for each lane that fails.
 *
 * A lane is opened after so many failures in a row, its own and those of other lanes within the
 * last `storeTimeoutMs`: where a server falls silent under load, all its lanes are opened after one
 * timeout. A lane that was opened before that has no say: it fails as long as its server is gone,
 * and one accident would open any other lane. One success in a lane says that the lane works, and
 * nothing about the others.
 *
 * Each time a lane is opened, the whole store is probed in other lanes. Only where none of them
 * answers, claims for all lanes are refused: so a store that is gone is noticed as soon as a store
 * without lanes, and one lane never closes the others.
 */
export class LaneBreakers {
  readonly #options: LaneBreakersOptions
  readonly #whole: ClaimBreaker
  /** Those that have failed since their last success. */
  readonly #lanes = new Map<number, FailingLane>()
  /** Claim calls that have succeeded. */
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

  /** Of the whole store. */
  get state(): BreakerState | 'off' {
    return this.#whole.state
  }

  /** Claim calls outside of lanes that have failed since the last that succeeded. */
  get failures(): number {
    return this.#whole.failures
  }

  /** Claims for all lanes are refused. */
  get isRefusing(): boolean {
    return this.#whole.isRefusing
  }

  /** Claims for some lane are refused, or for all. */
  get isRefusingSome(): boolean {
    if (this.#whole.isRefusing) return true
    for (const { breaker } of this.#lanes.values()) if (breaker.isRefusing) return true
    return false
  }

  isRefusingIn(lane: number): boolean {
    return this.#lanes.get(lane)?.breaker.isRefusing === true
  }

  /** Why a claim for this lane is not sent; `undefined` where it is. */
  refusal(lane: number | undefined): StoreFailedError | undefined {
    if (this.#whole.isRefusing) return this.#whole.refusal()
    if (lane === undefined || !this.isRefusingIn(lane)) return undefined
    return this.#lanes.get(lane)?.breaker.refusal()
  }

  /** A claim call has succeeded. */
  succeeded(lane: number | undefined): void {
    this.#successes++
    this.#whole.succeeded()
    if (lane === undefined || this.#lanes.size === 0) return
    this.#lanes.get(lane)?.breaker.succeeded()
    this.#forget(lane)
  }

  /** A claim call was `unavailable`. */
  failed(error: unknown, lane: number | undefined): void {
    if (lane === undefined) return this.#whole.failed(error)
    const { settings } = this.#options
    // While the whole store is refused, a lane has nothing to add.
    if (settings === undefined || this.#isStopped || this.#whole.isRefusing) return
    const failing = this.#failing(lane)
    if (!failing.breaker.isRefusing) failing.failedMs = this.#options.clock.monotonicMs()
    failing.breaker.failed(error)
    const recent = this.#recent()
    const failures = recent.reduce((sum, breaker) => sum + breaker.failures, this.failures)
    if (failures < settings.failures) return
    for (const breaker of recent) {
      if (breaker.failures > 0 && !breaker.isRefusing) breaker.trip(error)
    }
  }

  /** The breakers of lanes that have failed, or were opened, within the time of one call. */
  #recent(): ClaimBreaker[] {
    const sinceMs = this.#options.clock.monotonicMs() - this.#options.storeTimeoutMs
    return [...this.#lanes.values()].flatMap(({ breaker, failedMs }) =>
      failedMs >= sinceMs ? [breaker] : [],
    )
  }

  /** Resolves at once while the store as a whole is asked; see `ClaimBreaker.untilClosed`. */
  untilClosed(signal?: AbortSignal): Promise<void> {
    return this.#whole.untilClosed(signal)
  }

  /** No more probes: the engine is closed. */
  stop(): void {
    this.#isStopped = true
    this.#whole.stop()
    this.#forgetAll()
  }

  #failing(lane: number): FailingLane {
    const known = this.#lanes.get(lane)
    if (known !== undefined) return known
    const { probe } = this.#options
    const breaker = this.#newBreaker('this part of the store', {
      probe: () => probe.runIn(lane),
      onProbed: () => undefined,
      onChange: ({ from, to, error }) => {
        if (from === 'closed' && to === 'open') void this.#suspect(error)
      },
    })
    const failing = { breaker, failedMs: Number.NEGATIVE_INFINITY }
    this.#lanes.set(lane, failing)
    return failing
  }

  /** Is it only this lane? */
  async #suspect(error: unknown): Promise<void> {
    const { probe, onProbed } = this.#options
    const before = this.#successes
    const end = await probe.run()
    if (this.#isStopped || this.#whole.isRefusing) return
    if (end.kind === 'answered') return onProbed()
    // A store that has answered a claim meanwhile is not gone.
    if (this.#successes > before) return
    onProbed(end.error)
    this.#whole.trip(error)
  }

  #onWholeChange(change: BreakerChange): void {
    const { emit, store } = this.#options
    emit({ kind: 'breaker_changed', store, ...change })
    // The probe of the whole store speaks for them; afterwards they are asked anew.
    if (change.to === 'open') this.#forgetAll()
  }

  #newBreaker(
    what: string,
    more: Pick<ConstructorParameters<typeof ClaimBreaker>[0], 'probe' | 'onProbed' | 'onChange'>,
  ): ClaimBreaker {
    const { clock, store, settings } = this.#options
    return new ClaimBreaker({ clock, store, settings, what, ...more })
  }

  #forget(lane: number): void {
    this.#lanes.get(lane)?.breaker.stop()
    this.#lanes.delete(lane)
  }

  #forgetAll(): void {
    for (const lane of this.#lanes.keys()) this.#forget(lane)
  }
}
