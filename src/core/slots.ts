/** At most so many at once; the others wait in the order they came. */
export class Slots {
  #free: number
  readonly #waiting: (() => void)[] = []

  constructor(count: number) {
    this.#free = count
  }

  async use<Result>(run: () => Promise<Result>): Promise<Result> {
    if (this.#free > 0) this.#free--
    else await new Promise<void>((resolve) => this.#waiting.push(resolve))
    try {
      return await run()
    } finally {
      // Handed on directly, so that nobody who comes in between can overtake.
      const next = this.#waiting.shift()
      if (next === undefined) this.#free++
      else next()
    }
  }
}
