/**
 * Remembers which versions of records this process has seen and since when, and which keys it has
 * seen completed.
 *
 * Tests: test/stores/dynamodb/leases.server.test.ts.
 */
import type { Clock } from '../../core/time/clock.ts'

interface Sighting {
  readonly version: string
  readonly sinceMs: number
}

/** Each takes about 300 bytes. A dropped one is counted anew, so its lapse is noticed later. */
const SIGHTINGS_MAX = 50_000

/**
 * Since when this process has seen the versions of records. Leases are judged by this, because
 * conditions of the service have no clock.
 *
 * Every write, also a renewal, gives a record a new random version. A process that sees a version
 * knows that it was written before that moment. If the version is still there a whole lease later,
 * by the monotonic clock, the holder has not renewed for longer than the lease. The count starts
 * when the answer with the version *arrives*, never when it was requested: the holder may have
 * written the version in between. The move that follows is conditional on that version.
 */
export class Sightings {
  readonly #clock: Clock
  /** The last two versions of each: answers may arrive out of order, and an index lags behind. */
  readonly #byIdentity = new Map<string, readonly Sighting[]>()
  readonly countMax: number

  constructor(clock: Clock, countMax: number = SIGHTINGS_MAX) {
    this.#clock = clock
    this.countMax = countMax
  }

  has(identity: string): boolean {
    return this.#byIdentity.has(identity)
  }

  /** How long this version has been known. Call it with a version just read or written. */
  ageMs(identity: string, version: string): number {
    const nowMs = this.#clock.monotonicMs()
    const known = this.#byIdentity.get(identity) ?? []
    const sighting = known.find((one) => one.version === version) ?? { version, sinceMs: nowMs }
    const others = known.filter((one) => one !== sighting).slice(0, 1)
    // Moves it to the end: the one that was seen longest ago is dropped first.
    this.#byIdentity.delete(identity)
    this.#byIdentity.set(identity, [sighting, ...others])
    if (this.#byIdentity.size > this.countMax) {
      const [oldest] = this.#byIdentity.keys()
      this.#byIdentity.delete(oldest!)
    }
    return nowMs - sighting.sinceMs
  }

  forget(identity: string): void {
    this.#byIdentity.delete(identity)
  }
}

/** Each takes about 100 bytes. */
const KEYS_MAX = 20_000

/** Keys that were seen completed: a claim on one of them starts with a read instead of a write. */
export class RecentKeys {
  readonly #keys = new Set<string>()

  has(identity: string): boolean {
    return this.#keys.has(identity)
  }

  add(identity: string): void {
    // Moves it to the end: the one that was seen longest ago is dropped first.
    this.#keys.delete(identity)
    this.#keys.add(identity)
    if (this.#keys.size <= KEYS_MAX) return
    const [oldest] = this.#keys
    this.#keys.delete(oldest!)
  }

  forget(identity: string): void {
    this.#keys.delete(identity)
  }
}
