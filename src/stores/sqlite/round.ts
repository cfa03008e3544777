export interface RoundOptions<Place> {
  /** The key of the place to begin behind; `undefined`: begin with the first. */
  readonly start: string | undefined
  /** The place behind the one with this key, or the first of all. */
  readonly next: (behind: string | undefined) => Place | undefined
  readonly keyOf: (place: Place) => string
  /** Called before each leap: bounds them. */
  readonly mayLeap: () => boolean
}

/** The places of an index, from one to the next, once around: to the last, then from the first. */
export class Round<Place> {
  readonly #options: RoundOptions<Place>
  /** Every place was reached. */
  isWhole = false

  constructor(options: RoundOptions<Place>) {
    this.#options = options
  }

  *places(): Generator<Place, void> {
    const { start, next, keyOf, mayLeap } = this.#options
    const reached = new Set<string>()
    let behind = start
    let isFromFirst = start === undefined
    while (mayLeap()) {
      const place = next(behind)
      if (place === undefined && !isFromFirst) {
        isFromFirst = true
        behind = undefined
        continue
      }
      // Where the place at which it began is gone, it is around when it meets one again.
      this.isWhole = place === undefined || reached.has(keyOf(place))
      if (place === undefined || this.isWhole) return
      behind = keyOf(place)
      reached.add(behind)
      yield place
      this.isWhole = behind === start
      if (this.isWhole) return
    }
  }
}
