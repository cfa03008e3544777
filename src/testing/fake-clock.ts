import type { Clock } from '../core/time/clock.ts'

interface Timer {
  readonly dueMs: number
  readonly order: number
  readonly run: () => void
}

/**
 * A clock whose time changes only when a test moves it. Timers run in the order in which they are
 * due, each at its due time.
 */
export class FakeClock implements Clock {
  #nowMs: number
  #monotonicMs = 0
  #order = 0
  readonly #timers = new Set<Timer>()

  /** Starts at a fixed time, so that stored dates are the same in every run. */
  constructor(startMs: number = Date.UTC(2026, 0, 1)) {
    this.#nowMs = startMs
  }

  nowMs(): number {
    return this.#nowMs
  }

  monotonicMs(): number {
    return this.#monotonicMs
  }

  after(ms: number, run: () => void): () => void {
    const dueMs = this.#monotonicMs + Math.max(0, ms)
    const timer: Timer = { dueMs, order: this.#order++, run }
    this.#timers.add(timer)
    return () => {
      this.#timers.delete(timer)
    }
  }

  soon(run: () => void): void {
    queueMicrotask(run)
  }

  /** Moves time forward by `ms` and runs the timers that become due. Awaits none of their work. */
  advance(ms: number): void {
    const endMs = this.#monotonicMs + ms
    for (let next = this.#next(endMs); next !== undefined; next = this.#next(endMs)) {
      this.#moveTo(next.dueMs)
      this.#timers.delete(next)
      next.run()
    }
    this.#moveTo(endMs)
  }

  /**
   * Moves time forward by `ms`. Lets the promises that a timer resolves settle before the next
   * timer runs. Use it when the code under test awaits between its timers.
   */
  async advanceAsync(ms: number): Promise<void> {
    const endMs = this.#monotonicMs + ms
    await settle()
    for (let next = this.#next(endMs); next !== undefined; next = this.#next(endMs)) {
      this.#moveTo(next.dueMs)
      this.#timers.delete(next)
      next.run()
      await settle()
    }
    this.#moveTo(endMs)
    await settle()
  }

  /** Changes the wall time only, as an administrator or a time server would. Timers do not run. */
  jumpWallTime(ms: number): void {
    this.#nowMs += ms
  }

  /** Number of timers that have neither run nor been cancelled, for leak checks. */
  get pendingTimers(): number {
    return this.#timers.size
  }

  #next(endMs: number): Timer | undefined {
    let next: Timer | undefined
    for (const timer of this.#timers) {
      if (timer.dueMs > endMs) continue
      if (next === undefined || timer.dueMs < next.dueMs) next = timer
    }
    return next
  }

  #moveTo(monotonicMs: number): void {
    const step = Math.max(0, monotonicMs - this.#monotonicMs)
    this.#monotonicMs += step
    this.#nowMs += step
  }
}

/** Lets promise chains run to their end: a macrotask runs after all microtasks. */
function settle(): Promise<void> {
  return new Promise((resolve) => {
    setImmediate(resolve)
  })
}
