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
  readonly probe: StoreProbe
  /** Hears how a probe of the whole store ended. */
  readonly onProbed: (error?: unknown) => void
  readonly emit: EventListener
}

/**
 * The breaker of the whole store, and one for each lane that fails.
 *
 * A lane is opened after so many failures in a row, its own and those of other lanes that fail
 * now: where a server falls silent under load, all its lanes are opened after one timeout. One
 * success in a lane says that the lane works, and nothing about the others.
 *
 * Each time a lane is opened, the whole store is probed in other lanes. Only where none of them
 * answers, claims for all lanes are refused: so a store that is gone is noticed as soon as a store
 * without lanes, and one lane never closes the others.
 */
export class LaneBreakers {
  readonly #options: LaneBreakersOptions
  readonly #whole: ClaimBreaker
  /** Those that have failed since their last success. */
  readonly #lanes = new Map<number, ClaimBreaker>()
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

  /** Claim calls that have failed since the last that succeeded, or the last of their lane. */
  get failures(): number {
    let failures = this.#whole.failures
    for (const breaker of this.#lanes.values()) failures += breaker.failures
    return failures
  }

  /** Claims for all lanes are refused. */
  get isRefusing(): boolean {
    return this.#whole.isRefusing
  }

  /** Claims for some lane are refused, or for all. */
  get isRefusingSome(): boolean {
    if (this.#whole.isRefusing) return true
    for (const breaker of this.#lanes.values()) if (breaker.isRefusing) return true
    return false
  }

  isRefusingIn(lane: number): boolean {
    return this.#lanes.get(lane)?.isRefusing === true
  }

  /** Why a claim for this lane is not sent; `undefined` where it is. */
  refusal(lane: number | undefined): StoreFailedError | undefined {
    if (this.#whole.isRefusing) return this.#whole.refusal()
    const breaker = lane === undefined ? undefined : this.#lanes.get(lane)
    return breaker?.isRefusing === true ? breaker.refusal() : undefined
  }

  /** A claim call has succeeded. */
  succeeded(lane: number | undefined): void {
    this.#whole.succeeded()
    if (lane === undefined || this.#lanes.size === 0) return
    this.#lanes.get(lane)?.succeeded()
    this.#forget(lane)
  }

  /** A claim call was `unavailable`. */
  failed(error: unknown, lane: number | undefined): void {
    if (lane === undefined) return this.#whole.failed(error)
    const { settings } = this.#options
    // While the whole store is refused, a lane has nothing to add.
    if (settings === undefined || this.#isStopped || this.#whole.isRefusing) return
    this.#laneBreaker(lane).failed(error)
    if (this.failures < settings.failures) return
    for (const breaker of this.#lanes.values()) {
      if (breaker.failures > 0 && !breaker.isRefusing) breaker.trip(error)
    }
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

  #laneBreaker(lane: number): ClaimBreaker {
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
    this.#lanes.set(lane, breaker)
    return breaker
  }

  /** Is it only this lane? */
  async #suspect(error: unknown): Promise<void> {
    const end = await this.#options.probe.run()
    if (this.#isStopped || this.#whole.isRefusing) return
    this.#options.onProbed(end.kind === 'failed' ? end.error : undefined)
    if (end.kind === 'failed') this.#whole.trip(error)
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
    this.#lanes.get(lane)?.stop()
    this.#lanes.delete(lane)
  }

  #forgetAll(): void {
    for (const lane of this.#lanes.keys()) this.#forget(lane)
  }
}
