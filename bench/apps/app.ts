/** Shared parts of the servers under load: the same route and the same reply. */

/** Counts the runs of the handler, and can hold its requests. */
export class Gate {
  runs = 0
  #held: PromiseWithResolvers<void> | undefined

  /** Returns `undefined` if the handler may answer at once. */
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
  /** Removes all keys, if they are kept in memory. */
  readonly reset?: () => Promise<void>
  readonly close: () => Promise<void>
}
