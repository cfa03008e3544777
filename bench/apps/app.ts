/** What every server under load has in common: the same route, the same reply. */

/** Where the handler counts its runs, and may be told to keep its requests. */
export class Gate {
  runs = 0
  #held: PromiseWithResolvers<void> | undefined

  /** `undefined` where the handler may answer at once. */
  enter(): Promise<void> | undefined {
    this.runs++
    return this.#held?.promise
  }

  hold(): void {
    this.#held = Promise.withResolvers<void>()
  }

  release(): void {
    this.#held?.resolve()
    this.#held = undefined
  }
}

export interface App {
  readonly port: number
  /** Forgets all keys, where they are kept in memory. */
  readonly reset?: () => Promise<void>
  readonly close: () => Promise<void>
}
