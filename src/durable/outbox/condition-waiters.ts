import type { Clock } from '../../core/time/clock.ts'

/**
 * Lets several callers wait until a condition holds. The owner reports each change of its state.
 */
export class ConditionWaiters {
  readonly #clock: Clock
  readonly #checks = new Set<() => void>()

  constructor(clock: Clock) {
    this.#clock = clock
  }

  /** Resolves when `test` holds, or after `limitMs`. */
  until(test: () => boolean, limitMs?: number): Promise<void> {
    return new Promise((resolve) => {
      if (test() || limitMs === 0) return resolve()
      let cancel = () => {}
      const end = () => {
        cancel()
        this.#checks.delete(check)
        resolve()
      }
      const check = () => {
        if (test()) end()
      }
      this.#checks.add(check)
      if (limitMs !== undefined) cancel = this.#clock.after(limitMs, end)
    })
  }

  /** Checks all conditions again. */
  changed(): void {
    for (const check of [...this.#checks]) check()
  }
}
