/** The lease of a running attempt: renewed until the work ends or has run too long. */
import type { Clock } from '../time/clock.ts'
import { LeaseLostError } from '../errors.ts'
import type { ExecutionParts, ExecutionRequest } from './execution-parts.ts'
import type { Policy } from '../engine/policy.ts'
import type { Lease } from '../store/store.ts'

export interface LeaseListener {
  leaseLost(): void
  /** The work has run for `runTimeoutMs`. */
  leaseOverrun(): void
}

/** A lease is renewed after a third of it, so that two renewals may fail before it ends. */
const RENEWALS_PER_LEASE = 3
/** A failed renewal is repeated after a tenth of the lease. */
const RETRIES_PER_LEASE = 10
/** The renewal timer does not keep the process alive: the work does. */
const BACKGROUND = { background: true } as const

/**
 * A lease as its holder counts it: by the monotonic clock of this process, and never longer than
 * the store counts it.
 */
export class HeldLease {
  readonly lease: Lease
  readonly #parts: ExecutionParts
  readonly #request: ExecutionRequest
  readonly #listener: LeaseListener
  #heldUntilMs: number
  #state: 'held' | 'stopped' | 'lost' | 'overrun' = 'held'
  /** A renewal was sent, and no renewal has succeeded since. */
  #isUnconfirmed = false
  #renewsAlone = false
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

  /** Aborts when the lease is lost or the work has run too long. Created on the first read. */
  get signal(): AbortSignal {
    if (this.#abort === undefined) {
      this.#abort = new AbortController()
      if (this.#state === 'lost' || this.#state === 'overrun') this.#abort.abort(this.#reason())
    }
    return this.#abort.signal
  }

  isHeld(): boolean {
    if (this.#state === 'lost' || this.#state === 'overrun') return false
    return this.#clock.monotonicMs() < this.#heldUntilMs
  }

  assertHeld(): void {
    if (!this.isHeld()) throw this.#reason()
  }

  /** A transaction may lock the record from now on: no other lease is renewed in its batch. */
  renewAlone(): void {
    this.#renewsAlone = true
  }

  /** Ends the renewals: the result is recorded, or recording was given up. */
  stop(): void {
    if (this.#state === 'held') this.#state = 'stopped'
    this.#cancelTimer()
  }

  /** Sets the only timer: to `atMs`, or to the end of `runTimeoutMs` if that is earlier. */
  #wakeAt(atMs: number): void {
    const clock = this.#clock
    this.#cancelTimer()
    const dueMs = Math.min(atMs, this.#startedMs + this.#policy.runTimeoutMs)
    const tick = () => this.#tick()
    this.#cancelTimer = clock.after(dueMs - clock.monotonicMs(), tick, BACKGROUND)
  }

  #tick(): void {
    const nowMs = this.#clock.monotonicMs()
    if (nowMs - this.#startedMs >= this.#policy.runTimeoutMs) return this.#end('overrun')
    if (this.#isUnconfirmed && nowMs >= this.#heldUntilMs) return this.#end('lost')
    // `#renew` catches every failure, so the promise never rejects.
    void this.#renew()
  }

  async #renew(): Promise<void> {
    const { clock, port } = this.#parts
    const { policy, scope } = this.#request
    const sentMs = clock.monotonicMs()
    // Until the answer arrives, this clock decides when the lease is lost. If the lease has ended
    // already (the process was suspended), only the store knows whether another request holds the
    // key, so the answer is awaited.
    this.#isUnconfirmed = true
    this.#wakeAt(sentMs < this.#heldUntilMs ? this.#heldUntilMs : Number.POSITIVE_INFINITY)
    let renewed: boolean | 'failed'
    try {
      const renewal = { ...this.lease, leaseMs: policy.leaseMs }
      renewed = await (this.#renewsAlone
        ? port.renewAlone(renewal)
        : port.renew(renewal, scope.tenant))
    } catch {
      // The port has reported the store error. The renewal is repeated while the lease lasts.
      renewed = 'failed'
    }
    if (this.#state !== 'held') return
    const nowMs = clock.monotonicMs()
    if (renewed === true) {
      this.#isUnconfirmed = false
      this.#heldUntilMs = sentMs + policy.leaseMs
      return this.#wakeAt(sentMs + policy.leaseMs / RENEWALS_PER_LEASE)
    }
    if (renewed === false || nowMs >= this.#heldUntilMs) return this.#end('lost')
    this.#wakeAt(Math.min(nowMs + policy.leaseMs / RETRIES_PER_LEASE, this.#heldUntilMs))
  }

  #end(how: 'lost' | 'overrun'): void {
    this.#state = how
    this.#abort?.abort(this.#reason())
    if (how === 'overrun') return this.#listener.leaseOverrun()
    // A lost lease is not renewed, but the caller must still be answered after `runTimeoutMs`.
    this.#wakeAt(Number.POSITIVE_INFINITY)
    this.#listener.leaseLost()
  }

  #reason(): LeaseLostError {
    return new LeaseLostError(this.#request.claimed.recordId)
  }
}

function nothing(): void {}
