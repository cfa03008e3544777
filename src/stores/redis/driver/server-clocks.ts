import { systemClock } from '../../../core/time/clock.ts'

/** A slower answer does not show exactly enough when the server read its clock. */
const ROUND_TRIP_MS_MAX = 1_000

/** The script reached the server too late, and did nothing. */
const LATE = /^LATE (\d+)/

interface Reading {
  /** By the clock of the server. */
  readonly serverMs: number
  /** By the monotonic clock of this process, at most one round trip before or after `serverMs`. */
  readonly localMs: number
}

/**
 * Estimates the clocks of the servers from their answers.
 *
 * A client may queue a claim while its server is unavailable, and send it minutes after the claim
 * has failed for its caller. The engine releases a claim that may have succeeded, but only for a
 * limited time. So every claim has a deadline by the clock of its server, after which it does
 * nothing.
 */
export class ServerClocks {
  readonly #readings = new Map<string, Reading>()

  /** `place`: the same name for all keys of a server, or for all keys of a bucket of a cluster. */
  knows(place: string): boolean {
    return this.#readings.has(place)
  }

  learn(place: string, serverMs: number, localMs: number): void {
    const tookMs = systemClock.monotonicMs() - localMs
    if (tookMs > ROUND_TRIP_MS_MAX && this.#readings.has(place)) return
    this.#readings.set(place, { serverMs, localMs })
  }

  /** The time of the server at `ms` after `localMs`. The place must have a reading. */
  deadline(place: string, localMs: number, ms: number): string {
    const reading = this.#readings.get(place)!
    return `${Math.ceil(reading.serverMs + localMs - reading.localMs + ms)}`
  }

  /**
   * Learns the time of the server from the error of a late script. `true` if the script was in time
   * by the clock of this process: the clock of the server was changed, or another server has taken
   * over. The script can then be sent again.
   */
  isCorrected(place: string, error: unknown, { startedMs, withinMs }: Deadline): boolean {
    const found = error instanceof Error ? LATE.exec(error.message) : null
    if (found === null) return false
    const nowMs = systemClock.monotonicMs()
    this.#readings.set(place, { serverMs: Number(found[1]), localMs: nowMs })
    return nowMs - startedMs < withinMs
  }
}

interface Deadline {
  readonly startedMs: number
  readonly withinMs: number
}
