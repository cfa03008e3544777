import { systemClock } from '../../core/clock.ts'

/** An answer that took longer than this says too little about when it was given. */
const ROUND_TRIP_MS_MAX = 1_000

/** The script came too late, and did nothing. */
const LATE = /^LATE (\d+)/

interface Reading {
  /** By the server's clock. */
  readonly atMs: number
  /** By our monotonic clock, before the question was sent. */
  readonly askedMs: number
}

/**
 * What the clocks of the servers say, as far as their answers tell.
 *
 * A client may keep a claim for as long as its server is away, and send it minutes after its caller
 * was told that it failed. The engine releases what may have taken hold, but not for ever. So a
 * claim says until when it is meant, by the server's own clock, and does nothing after that.
 */
export class ServerClocks {
  readonly #readings = new Map<string, Reading>()

  /** `place`: what all keys with the same server have in common. */
  knows(place: string): boolean {
    return this.#readings.has(place)
  }

  learn(place: string, atMs: number, askedMs: number): void {
    const tookMs = systemClock.monotonicMs() - askedMs
    if (tookMs > ROUND_TRIP_MS_MAX && this.#readings.has(place)) return
    this.#readings.set(place, { atMs, askedMs })
  }

  /** The server's time when ours is `askedMs` and `ms` more. It must be known. */
  deadline(place: string, askedMs: number, ms: number): string {
    const reading = this.#readings.get(place)!
    return `${Math.ceil(reading.atMs + askedMs - reading.askedMs + ms)}`
  }

  /**
   * After a failure: was the script refused as late, although by our own clock it was not? Then the
   * server's clock has changed, or is another server's, and is now known.
   */
  isCorrected(place: string, error: unknown, { askedMs, withinMs }: Asked): boolean {
    const found = error instanceof Error ? LATE.exec(error.message) : null
    if (found === null) return false
    const nowMs = systemClock.monotonicMs()
    this.#readings.set(place, { atMs: Number(found[1]), askedMs: nowMs })
    return nowMs - askedMs < withinMs
  }
}

interface Asked {
  readonly askedMs: number
  readonly withinMs: number
}
