import { systemClock } from '../../core/clock.ts'

/** What a turn is taken for, the most urgent first. */
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
 * One turn at a time, in rounds: in a round every operation that somebody waits for gets one turn,
 * the most urgent of those left first. So a renewal waits for the turn under way and not for the
 * transactions queued behind it, which may take long; and none of the others waits for ever,
 * because a round ends.
 *
 * Between two turns the event loop goes round. A turn is often synchronous from its beginning to
 * its commit, and a thousand of them without a pause would let no timer fire, no lease be renewed
 * and no request be read until the last one is through.
 */
export class Turns {
  readonly #queues = new Map<Operation, Turn[]>(OPERATIONS.map((operation) => [operation, []]))
  /** The operations that had their turn in this round. */
  readonly #served = new Set<Operation>()
  #waiting = 0
  #underWay: Promise<void> | undefined

  /** Calls that have not ended, the one under way among them. */
  get waiting(): number {
    return this.#waiting
  }

  /** Waits for its turn; nobody else has one until `turn` settles. */
  take<Result>(operation: Operation, turn: () => Promise<Result>): Promise<Result> {
    this.#waiting++
    const result = new Promise<Result>((resolve, reject) => {
      this.#queues.get(operation)!.push(() => turn().then(resolve, reject))
    })
    // Not at once: a turn may itself ask for another one.
    this.#underWay ??= Promise.resolve().then(() => this.#serve())
    return result
  }

  /** Resolves when everything that was queued has ended. */
  async drain(): Promise<void> {
    await this.#underWay
  }

  async #serve(): Promise<void> {
    for (let turn = this.#next(); turn !== undefined; turn = this.#next()) {
      await turn()
      this.#waiting--
      // Also after the last: whoever has waited for it may come with the next one at once. The
      // system's clock, because a test's clock would not let the event loop go round.
      await new Promise<void>((resolve) => systemClock.soon(resolve))
    }
    this.#underWay = undefined
  }

  #next(): Turn | undefined {
    const left = this.#nextOfRound()
    if (left !== undefined) return left
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
