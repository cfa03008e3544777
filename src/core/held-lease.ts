import type { Clock } from './clock.ts'
import { LeaseLostError } from './errors.ts'
import type { Policy } from './policy.ts'
import type { StorePort } from './store-port.ts'
import type { Lease } from './store.ts'

export interface HeldLeaseOptions {
  readonly lease: Lease
  readonly tenant: string
  readonly recordId: string
  readonly policy: Policy
  readonly clock: Clock
  readonly port: StorePort
  /** The holder's clock before its claim was sent: the store's count starts no earlier. */
  readonly claimSentMs: number
  readonly onLost: () => void
  readonly onOverrun: () => void
}

/** A lease is renewed after this part of it, so that two renewals may fail before it is gone. */
const RENEWALS_PER_LEASE = 3
/** After a failed renewal the next one comes sooner. */
const RETRIES_PER_LEASE = 10

/**
 * A lease as its holder sees it: counted by the holder's own monotonic clock, never longer than
 * the store counts it, and renewed until the work ends or has run too long.
 */
export class HeldLease {
  readonly lease: Lease
  readonly #options: HeldLeaseOptions
  readonly #startedMs: number
  #heldUntilMs: number
  #ended: 'no' | 'stopped' | 'lost' | 'overrun' = 'no'
  /** A renewal was sent, and none has succeeded since. */
  #unconfirmed = false
  #isAlone = false
  #abort: AbortController | undefined
  #cancelTimer: () => void = () => undefined

  constructor(options: HeldLeaseOptions) {
    this.#options = options
    this.lease = options.lease
    this.#startedMs = options.claimSentMs
    this.#heldUntilMs = options.claimSentMs + options.policy.leaseMs
    this.#wakeAt(options.claimSentMs + options.policy.leaseMs / RENEWALS_PER_LEASE)
  }

  /** Aborts when the lease is lost or the work has run too long. Made only if somebody asks. */
  get signal(): AbortSignal {
    if (this.#abort === undefined) {
      this.#abort = new AbortController()
      if (this.#ended === 'lost' || this.#ended === 'overrun') this.#abort.abort(this.#reason())
    }
    return this.#abort.signal
  }

  isHeld(): boolean {
    if (this.#ended === 'lost' || this.#ended === 'overrun') return false
    return this.#options.clock.monotonicMs() < this.#heldUntilMs
  }

  assertHeld(): void {
    if (!this.isHeld()) throw this.#reason()
  }

  /** The record may be locked from now on: other leases must not be renewed together with it. */
  renewAlone(): void {
    this.#isAlone = true
  }

  /** The work is over and its result recorded (or given up): no more renewals. */
  stop(): void {
    if (this.#ended === 'no') this.#ended = 'stopped'
    this.#cancelTimer()
  }

  /** Sets the one timer: for `atMs`, or for the end of `maxRunMs` where that comes first. */
  #wakeAt(atMs: number): void {
    const { clock, policy } = this.#options
    this.#cancelTimer()
    const dueMs = Math.min(atMs, this.#startedMs + policy.maxRunMs)
    const tick = () => this.#tick()
    this.#cancelTimer = clock.after(dueMs - clock.monotonicMs(), tick, { background: true })
  }

  #tick(): void {
    const { clock, policy } = this.#options
    if (clock.monotonicMs() - this.#startedMs >= policy.maxRunMs) return this.#end('overrun')
    if (this.#unconfirmed && clock.monotonicMs() >= this.#heldUntilMs) return this.#end('lost')
    // Never rejects: `#renew` answers for every failure.
    void this.#renew()
  }

  async #renew(): Promise<void> {
    const { clock, policy, port, tenant } = this.#options
    const sentMs = clock.monotonicMs()
    // While no answer comes, the lease ends when this clock says so. Where it has ended already
    // (the process stood still), only the store knows whether somebody else has the key by now.
    this.#unconfirmed = true
    this.#wakeAt(sentMs < this.#heldUntilMs ? this.#heldUntilMs : Number.POSITIVE_INFINITY)
    let renewed: boolean | 'failed'
    try {
      const renewal = { ...this.lease, leaseMs: policy.leaseMs }
      renewed = await (this.#isAlone ? port.renewAlone(renewal) : port.renew(renewal, tenant))
    } catch {
      // Reported by the port as a store error; here it only means: try again while there is time.
      renewed = 'failed'
    }
    if (this.#ended !== 'no') return
    const nowMs = clock.monotonicMs()
    if (renewed === true) {
      this.#unconfirmed = false
      this.#heldUntilMs = sentMs + policy.leaseMs
      return this.#wakeAt(sentMs + policy.leaseMs / RENEWALS_PER_LEASE)
    }
    if (renewed === false || nowMs >= this.#heldUntilMs) return this.#end('lost')
    this.#wakeAt(Math.min(nowMs + policy.leaseMs / RETRIES_PER_LEASE, this.#heldUntilMs))
  }

  #end(how: 'lost' | 'overrun'): void {
    this.#ended = how
    this.#abort?.abort(this.#reason())
    if (how === 'overrun') return this.#options.onOverrun()
    // Nothing to renew, but work that never ends must still be answered for.
    this.#wakeAt(Number.POSITIVE_INFINITY)
    this.#options.onLost()
  }

  #reason(): LeaseLostError {
    return new LeaseLostError(this.#options.recordId)
  }
}
