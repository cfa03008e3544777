import type { Clock } from './clock.ts'
import { LeaseLostError } from './errors.ts'
import type { ExecutionParts, ExecutionRequest } from './execution-parts.ts'
import type { Policy } from './policy.ts'
import type { Lease } from './store.ts'

/** Hears what becomes of a lease. */
export interface LeaseListener {
  leaseLost(): void
  /** The work has run too long. */
  leaseOverrun(): void
}

/** A lease is renewed after this part of it, so that two renewals may fail before it is gone. */
const RENEWALS_PER_LEASE = 3
/** After a failed renewal the next one comes sooner. */
const RETRIES_PER_LEASE = 10
/** Nobody waits for a renewal: the work itself keeps the process alive. */
const BACKGROUND = { background: true } as const

/**
 * A lease as its holder sees it: counted by the holder's own monotonic clock, never longer than
 * the store counts it, and renewed until the work ends or has run too long.
 */
export class HeldLease {
  readonly lease: Lease
  readonly #parts: ExecutionParts
  readonly #request: ExecutionRequest
  readonly #listener: LeaseListener
  #heldUntilMs: number
  #ended: 'no' | 'stopped' | 'lost' | 'overrun' = 'no'
  /** A renewal was sent, and none has succeeded since. */
  #unconfirmed = false
  #isAlone = false
  #abort: AbortController | undefined
  #cancelTimer: () => void = nothing

  constructor(parts: ExecutionParts, request: ExecutionRequest, listener: LeaseListener) {
    this.#parts = parts
    this.#request = request
    this.#listener = listener
    this.lease = request.claimed.lease
    const { leaseMs } = request.policy
    this.#heldUntilMs = request.claimSentMs + leaseMs
    this.#wakeAt(request.claimSentMs + leaseMs / RENEWALS_PER_LEASE)
  }

  get #clock(): Clock {
    return this.#parts.clock
  }

  get #policy(): Policy {
    return this.#request.policy
  }

  get #startedMs(): number {
    return this.#request.claimSentMs
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
    return this.#clock.monotonicMs() < this.#heldUntilMs
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
    const clock = this.#clock
    this.#cancelTimer()
    const dueMs = Math.min(atMs, this.#startedMs + this.#policy.maxRunMs)
    const tick = () => this.#tick()
    this.#cancelTimer = clock.after(dueMs - clock.monotonicMs(), tick, BACKGROUND)
  }

  #tick(): void {
    const nowMs = this.#clock.monotonicMs()
    if (nowMs - this.#startedMs >= this.#policy.maxRunMs) return this.#end('overrun')
    if (this.#unconfirmed && nowMs >= this.#heldUntilMs) return this.#end('lost')
    // Never rejects: `#renew` answers for every failure.
    void this.#renew()
  }

  async #renew(): Promise<void> {
    const { clock, port } = this.#parts
    const { policy, scope } = this.#request
    const sentMs = clock.monotonicMs()
    // While no answer comes, the lease ends when this clock says so. Where it has ended already
    // (the process stood still), only the store knows whether somebody else has the key by now.
    this.#unconfirmed = true
    this.#wakeAt(sentMs < this.#heldUntilMs ? this.#heldUntilMs : Number.POSITIVE_INFINITY)
    let renewed: boolean | 'failed'
    try {
      const renewal = { ...this.lease, leaseMs: policy.leaseMs }
      renewed = await (this.#isAlone ? port.renewAlone(renewal) : port.renew(renewal, scope.tenant))
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
    if (how === 'overrun') return this.#listener.leaseOverrun()
    // Nothing to renew, but work that never ends must still be answered for.
    this.#wakeAt(Number.POSITIVE_INFINITY)
    this.#listener.leaseLost()
  }

  #reason(): LeaseLostError {
    return new LeaseLostError(this.#request.claimed.recordId)
  }
}

function nothing(): void {}
