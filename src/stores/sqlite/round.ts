export interface RoundOptions<Place> {
  /** The key of the place to begin behind; `undefined`: begin with the first. */
  readonly start: string | undefined
  /** The place behind the one with this key, or the first of all. */
  readonly next: (behind: string | undefined) => Place | undefined
  readonly keyOf: (place: Place) => string
  /** Called before each leap: bounds them. */
  readonly mayLeap: () => boolean
}

/**
 * The places of an index, from one to the next, once around: to the last, then from the first.
 * Where the leaps have run out, `places` may be asked for again, and goes on.
 */
export class Round<Place> {
  readonly #options: RoundOptions<Place>
  readonly #reached = new Set<string>()
  #behind: string | undefined
  #isFromFirst: boolean
  /** Every place was reached. */
  isWhole = false

  constructor(options: RoundOptions<Place>) {
    this.#options = options
    this.#behind = options.start
    this.#isFromFirst = options.start === undefined
  }

  *places(): Generator<Place, void> {
    const { start, next, keyOf, mayLeap } = this.#options
    while (!this.isWhole && mayLeap()) {
      const place = next(this.#behind)
      if (place === undefined && !this.#isFromFirst) {
        this.#isFromFirst = true
        this.#behind = undefined
        continue
      }
      // Where the place at which it began is gone, it is around when it meets one again.
      this.isWhole = place === undefined || this.#reached.has(keyOf(place))
      if (place === undefined || this.isWhole) return
      const key = keyOf(place)
      this.#behind = key
      this.#reached.add(key)
      this.isWhole = key === start
      yield place
    }
  }
}
