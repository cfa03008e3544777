import { systemClock, type Clock } from '../../../core/time/clock.ts'

/** The operations that take a turn, the most urgent first. */
const OPERATIONS = [
  'renew',
  'renew messages',
  'settle',
  'record a step',
  'settle messages',
  'claim',
  'claim messages',
  'resolve',
  'act',
  'take unknown records',
  'postpone a record',
  'sweep',
  'reap',
  'prune messages',
  'begin a transaction',
] as const

export type Operation = (typeof OPERATIONS)[number]

type Turn = () => Promise<void>

/**
 * Runs one turn at a time, in rounds: in a round every waiting operation gets one turn, the most
 * urgent first. So a renewal waits for the running turn, but not for the queued transactions, which
 * may take long. Every operation gets its turn, because a round ends.
 *
 * The event loop turns between two turns. A turn is often synchronous from BEGIN to COMMIT, and a
 * thousand of them without a pause would let no timer fire, no lease be renewed and no request be
 * read until the last turn has ended.
 */
export class WriteTurns {
  readonly #clock: Clock
  readonly #queues = new Map<Operation, Turn[]>(OPERATIONS.map((operation) => [operation, []]))
  /** The operations that have had their turn in this round. */
  readonly #served = new Set<Operation>()
  #waiting = 0
  #running: Promise<void> | undefined

  constructor(clock: Clock = systemClock) {
    this.#clock = clock
  }

  /** Calls that have not ended, including the running one. */
  get waiting(): number {
    return this.#waiting
  }

  /** Waits for its turn. No other turn runs until `turn` settles. */
  take<Result>(operation: Operation, turn: () => Promise<Result>): Promise<Result> {
    this.#waiting++
    const result = new Promise<Result>((resolve, reject) => {
      this.#queues.get(operation)!.push(() => turn().then(resolve, reject))
    })
    // Deferred, because a turn may itself queue another turn.
    this.#running ??= Promise.resolve().then(() => this.#serve())
    return result
  }

  /** Resolves when all queued turns have ended. */
  async drain(): Promise<void> {
    await this.#running
  }

  async #serve(): Promise<void> {
    for (let turn = this.#next(); turn !== undefined; turn = this.#next()) {
      await turn()
      this.#waiting--
      // After the last turn too: its caller may queue the next one immediately.
      await new Promise<void>((resolve) => this.#clock.soon(resolve))
    }
    this.#running = undefined
  }

  #next(): Turn | undefined {
    const next = this.#nextOfRound()
    if (next !== undefined) return next
    this.#served.clear()
    return this.#nextOfRound()
  }

  #nextOfRound(): Turn | undefined {
    for (const [operation, queue] of this.#queues) {
      if (this.#served.has(operation) || queue.length === 0) continue
      this.#served.add(operation)
      return queue.shift()
    }
    return undefined
  }
}
