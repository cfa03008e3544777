import { answerWithin } from '../../core/answer-within.ts'
import { systemClock, type Clock } from '../../core/clock.ts'
import { StoreFailedError } from '../../core/errors.ts'
import { SHARDS_MIN } from './items.ts'
import type { RecordTable } from './record-table.ts'

/** Below the engine's own limit for a call, so that the writes that wait for it may try again. */
const ANNOUNCE_MS = 3_000

/** Then the table is looked at again: it may have been made anew. */
const ANNOUNCED_MS_MAX = 60_000

/**
 * How many shards the index of states has. A store writes to as many as its option says, and reads
 * as many as any store of this version has ever written to: the table remembers the highest number.
 * So the option may be raised and lowered, and differ between the nodes of a deploy, without a
 * record that no sweep finds.
 */
export class ShardCount {
  readonly #table: RecordTable
  readonly #own: number
  readonly #clock: Clock
  #announcing: Promise<void> | undefined
  #announcedMs: number | undefined

  constructor(table: RecordTable, own: number, clock: Clock) {
    this.#table = table
    this.#own = own
    this.#clock = clock
  }

  /** How many to read. */
  async toRead(): Promise<number> {
    const known = await this.#table.getShards()
    return Math.max(SHARDS_MIN, this.#own, known ?? 0)
  }

  /**
   * Before the first write: the others learn where to look before there is something to find.
   * `undefined` where a write need not wait for that.
   */
  announce(): Promise<void> | undefined {
    if (this.#own <= SHARDS_MIN || this.#isAnnounced()) return undefined
    this.#announcing ??= this.#announce().finally(() => {
      this.#announcing = undefined
    })
    if (this.#announcedMs === undefined) return this.#announcing
    // The next write tries again.
    this.#announcing.catch(() => undefined)
    return undefined
  }

  #isAnnounced(): boolean {
    if (this.#announcedMs === undefined) return false
    return this.#clock.monotonicMs() - this.#announcedMs < ANNOUNCED_MS_MAX
  }

  /** Within a limit of its own: writes that wait for it are given up at other times. */
  async #announce(): Promise<void> {
    const limit = { store: 'dynamodb', call: 'announce its shards', timeoutMs: ANNOUNCE_MS }
    const raise = async () => {
      const known = (await this.#table.getShards()) ?? SHARDS_MIN
      if (known < this.#own) await this.#table.raiseShards(this.#own)
    }
    try {
      await answerWithin(systemClock, limit, (signal) => this.#table.until(signal, raise))
    } catch (error) {
      throw error instanceof StoreFailedError ? error.cause : error
    }
    this.#announcedMs = this.#clock.monotonicMs()
  }
}
