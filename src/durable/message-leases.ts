import type { Clock } from '../core/clock.ts'
import type { MessageRun } from './message-run.ts'
import type { OutboxPort } from './outbox-port.ts'

export interface MessageLeasesOptions {
  readonly clock: Clock
  readonly port: OutboxPort
  readonly leaseMs: number
}

/** After a failed renewal the next one comes sooner. */
const RETRIES_PER_LEASE = 10
/** Leases in one call of the store. */
const ROWS_MAX = 500

/**
 * The leases of all messages that a relay has, under one timer: renews those that need it
 * together, and tells each run when its lease or its time is over. By the monotonic clock, never
 * longer than the store counts; so a relay that stood still knows at once what it has lost.
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

  /** Something about a run is due earlier than before. */
  watch({ heldUntilMs, renewAtMs, timeoutAtMs }: MessageRun): void {
    this.#wakeBy(Math.min(heldUntilMs, renewAtMs, timeoutAtMs))
  }

  /** No more renewals: what is held now lapses by itself. */
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
      // Never rejects: a failed renewal is tried again while there is time.
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
      // Reported by the port.
    }
    const againMs = clock.monotonicMs() + leaseMs / RETRIES_PER_LEASE
    for (const [index, run] of runs.entries()) {
      // Ended, or lost by the clock: then the signal has aborted, and no answer takes that back.
      if (!this.#held.has(run)) continue
      if (answers === undefined) run.renewAtMs = againMs
      else if (answers[index] === true) run.renewed(sentMs)
      // Settled in between, perhaps by this very relay: its settlement will say.
      else if (!run.isSettling) {
        this.#held.delete(run)
        run.lose()
        continue
      }
      this.watch(run)
    }
  }
}
