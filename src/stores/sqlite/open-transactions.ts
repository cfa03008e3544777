import { systemClock } from '../../core/clock.ts'

/** A transaction that a store has handed out. */
export interface OpenTransaction {
  /** Throws once it has ended. */
  readonly use: <Result>(run: () => Result) => Result
  hasMessages: boolean
}

/**
 * The transactions that a store has handed out, by the object that the work got, and who wants to
 * know when one with messages has committed.
 */
export class OpenTransactions {
  readonly #handedOut = new WeakMap<object, OpenTransaction>()
  readonly #watchers = new Set<() => void>()

  handOut(tx: object, open: OpenTransaction): void {
    this.#handedOut.set(tx, open)
  }

  find(tx: unknown): OpenTransaction | undefined {
    return typeof tx === 'object' && tx !== null ? this.#handedOut.get(tx) : undefined
  }

  watch(wake: () => void): () => void {
    const watcher = () => wake()
    this.#watchers.add(watcher)
    return () => {
      this.#watchers.delete(watcher)
    }
  }

  /** Not at once: whoever wakes up must not do so in the middle of somebody's commit. */
  wake(): void {
    for (const watcher of this.#watchers) {
      systemClock.soon(() => {
        if (this.#watchers.has(watcher)) watcher()
      })
    }
  }
}
