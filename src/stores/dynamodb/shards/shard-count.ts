import { callStore } from '../../../core/store/store-call.ts'
import { systemClock, type Clock } from '../../../core/time/clock.ts'
import { StoreFailedError } from '../../../core/errors.ts'
import { SHARDS_MIN } from '../items.ts'
import type { Calls } from '../calls.ts'

/** Below the engine's default `storeTimeoutMs`, so that writes that wait for it can try again. */
const ANNOUNCE_MS = 3_000

/** After this time the table is checked again, because it may have been created anew. */
const ANNOUNCED_MS_MAX = 60_000

/**
 * The number of shards of the index of states. A store writes to as many as its option sets, and
 * reads as many as any store of this version has ever written to: the table keeps the highest
 * number. So the option may be raised and lowered, and may differ between the nodes of a
 * deployment, and a sweep still finds every record.
 */
export class ShardCount {
  readonly #calls: Calls
  readonly #own: number
  readonly #clock: Clock
  #announcing: Promise<void> | undefined
  #announcedMs: number | undefined

  constructor(calls: Calls, own: number, clock: Clock) {
    this.#calls = calls
    this.#own = own
    this.#clock = clock
  }

  /** How many shards to read. */
  async toRead(): Promise<number> {
    const known = await this.#calls.getShards()
    return Math.max(SHARDS_MIN, this.#own, known ?? 0)
  }

  /**
   * Puts the number into the table before the first write, so that other nodes read the new shards
   * before these have records. Returns `undefined` if the write need not wait for that.
   */
  announce(): Promise<void> | undefined {
    if (this.#own <= SHARDS_MIN || this.#isAnnounced()) return undefined
    this.#announcing ??= this.#announce().finally(() => {
      this.#announcing = undefined
    })
    if (this.#announcedMs === undefined) return this.#announcing
    // A failure is ignored: the next write tries again.
    this.#announcing.catch(() => undefined)
    return undefined
  }

  #isAnnounced(): boolean {
    if (this.#announcedMs === undefined) return false
    return this.#clock.monotonicMs() - this.#announcedMs < ANNOUNCED_MS_MAX
  }

  /** Has a separate timeout, because the writes that wait for it time out at different times. */
  async #announce(): Promise<void> {
    const limit = { store: 'dynamodb', call: 'announce its shards', timeoutMs: ANNOUNCE_MS }
    const raise = async () => {
      const known = (await this.#calls.getShards()) ?? SHARDS_MIN
      if (known < this.#own) await this.#calls.raiseShards(this.#own)
    }
    try {
      await callStore(systemClock, limit, (signal) => this.#calls.until(signal, raise))
    } catch (error) {
      throw error instanceof StoreFailedError ? error.cause : error
    }
    this.#announcedMs = this.#clock.monotonicMs()
  }
}
