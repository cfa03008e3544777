import { SHARDS_MIN } from './items.ts'
import type { RecordTable } from './record-table.ts'

/**
 * How many shards the index of states has. A store writes to as many as its option says, and reads
 * as many as any store of this version has ever written to: the table remembers the highest number.
 * So the option may be raised and lowered, and differ between the nodes of a deploy, without a
 * record that no sweep finds.
 */
export class ShardCount {
  readonly #table: RecordTable
  readonly #own: number
  #announced: Promise<void> | undefined

  constructor(table: RecordTable, own: number) {
    this.#table = table
    this.#own = own
  }

  /** How many to read. */
  async toRead(): Promise<number> {
    const known = await this.#table.getShards()
    return Math.max(SHARDS_MIN, this.#own, known ?? 0)
  }

  /** Before the first write: the others learn where to look before there is something to find. */
  announce(): Promise<void> | undefined {
    if (this.#own <= SHARDS_MIN) return undefined
    this.#announced ??= this.#announce().catch((error: unknown) => {
      // The next write tries again.
      this.#announced = undefined
      throw error
    })
    return this.#announced
  }

  async #announce(): Promise<void> {
    const known = (await this.#table.getShards()) ?? SHARDS_MIN
    if (known < this.#own) await this.#table.raiseShards(this.#own)
  }
}
