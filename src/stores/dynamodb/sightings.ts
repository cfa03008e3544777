import type { Clock } from '../../core/clock.ts'

interface Sighting {
  readonly version: string
  readonly sinceMs: number
}

/** Each costs some 300 bytes. One that is given up is counted anew: later, never too early. */
const SIGHTINGS_MAX = 50_000

/**
 * Since when this process has known records to be what they are: how a lease is judged that no
 * clock of the service can judge.
 *
 * Every write gives a record a new random version, a renewal too. Whoever has a version before its
 * eyes knows that it was written before that moment; if it is still there a whole lease later, its
 * holder has not renewed for longer than the lease, by any clock that only counts. So the count
 * starts when a version has been *read back*, never when it was asked for: a holder may have
 * written it in between. And the move that follows is made on condition of that very version.
 */
export class Sightings {
  readonly #clock: Clock
  /** The last two versions of each: answers overtake each other, and an index is behind. */
  readonly #byIdentity = new Map<string, readonly Sighting[]>()
  readonly countMax: number

  constructor(clock: Clock, countMax: number = SIGHTINGS_MAX) {
    this.#clock = clock
    this.countMax = countMax
  }

  has(identity: string): boolean {
    return this.#byIdentity.has(identity)
  }

  /** For how long this version has been known. Call it with what has just been read or written. */
  ageMs(identity: string, version: string): number {
    const nowMs = this.#clock.monotonicMs()
    const known = this.#byIdentity.get(identity) ?? []
    const sighting = known.find((one) => one.version === version) ?? { version, sinceMs: nowMs }
    const others = known.filter((one) => one !== sighting).slice(0, 1)
    // Put last: what was seen longest ago is given up first.
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
