import type { Clock } from '../../core/time/clock.ts'
import type { MessageRun } from './message-run.ts'
import type { OutboxPort } from './outbox-port.ts'

export interface MessageLeasesOptions {
  readonly clock: Clock
  readonly port: OutboxPort
  readonly leaseMs: number
}

/** After a failed renewal, the next one comes after this part of the lease. */
const RETRIES_PER_LEASE = 10
/** Leases in one store call. */
const ROWS_MAX = 500

/**
 * Keeps the leases of all messages of a relay with one timer: renews them in batches, and ends a
 * run when its lease or its time limit is over. A lease is counted by the monotonic clock from
 * before the store call, so it ends here no later than in the store. A relay whose process was
 * suspended therefore knows at once which leases it has lost.
 */
export class MessageLeases {
  readonly #options: MessageLeasesOptions
  readonly #held = new Set<MessageRun>()
  #wakeAtMs = Number.POSITIVE_INFINITY
  #cancel: () => void = () => undefined

  constructor(options: MessageLeasesOptions) {
    this.#options = options
  }

  add(run: MessageRun): void {
    this.#held.add(run)
    this.watch(run)
  }

  remove(run: MessageRun): void {
    this.#held.delete(run)
    if (this.#held.size === 0) this.stop()
  }

  /** Sets the timer for the next event of a run, if that is earlier. */
  watch({ heldUntilMs, renewAtMs, timeoutAtMs }: MessageRun): void {
    this.#wakeBy(Math.min(heldUntilMs, renewAtMs, timeoutAtMs))
  }

  /** Stops all renewals: the current leases lapse. */
  stop(): void {
    this.#held.clear()
    this.#wakeAtMs = Number.POSITIVE_INFINITY
    this.#cancel()
  }

  #wakeBy(atMs: number): void {
    if (atMs >= this.#wakeAtMs) return
    const { clock } = this.#options
    this.#cancel()
    this.#wakeAtMs = atMs
    const tick = () => this.#tick()
    this.#cancel = clock.after(atMs - clock.monotonicMs(), tick, { background: true })
  }

  #tick(): void {
    const nowMs = this.#options.clock.monotonicMs()
    this.#wakeAtMs = Number.POSITIVE_INFINITY
    const due: MessageRun[] = []
    for (const run of [...this.#held]) {
      if (nowMs >= run.heldUntilMs) {
        this.#held.delete(run)
        run.lose()
        continue
      }
      if (nowMs >= run.timeoutAtMs) run.timeOut()
      if (nowMs >= run.renewAtMs) due.push(run)
    }
    for (let from = 0; from < due.length; from += ROWS_MAX) {
      // Never rejects: a failed renewal is tried again while the lease lasts.
      void this.#renew(due.slice(from, from + ROWS_MAX), nowMs)
    }
    for (const run of this.#held) this.watch(run)
  }

  async #renew(runs: readonly MessageRun[], sentMs: number): Promise<void> {
    const { clock, leaseMs, port } = this.#options
    for (const run of runs) run.renewAtMs = Number.POSITIVE_INFINITY
    let answers: readonly boolean[] | undefined
    try {
      answers = await port.renew(
        runs.map(({ message: { id, token } }) => ({ id, token })),
        leaseMs,
      )
    } catch {
      // The port has emitted the failure.
    }
    const againMs = clock.monotonicMs() + leaseMs / RETRIES_PER_LEASE
    for (const [index, run] of runs.entries()) {
      // The run has ended or has lost its lease: its signal has aborted, which cannot be undone.
      if (!this.#held.has(run)) continue
      if (answers === undefined) run.renewAtMs = againMs
      else if (answers[index] === true) run.renewed(sentMs)
      // If this relay settles the message, the answer to the settlement decides.
      else if (!run.isSettling) {
        this.#held.delete(run)
        run.lose()
        continue
      }
      this.watch(run)
    }
  }
}
