import type { Item } from './client.ts'
import { partKey, type Kept, type Parts } from './items.ts'
import type { RecordTable } from './record-table.ts'

/**
 * A result up to `inlineBytesMax` lies in the item of its record. A larger one gets items of its
 * own, because the service charges every write to a record by the whole item, and every refused
 * one: a replay is a claim that is refused.
 */
export const INLINE_BYTES = 1024
export const INLINE_BYTES_MAX = 32 * 1024

/** An item of the service has at most 400 KiB, with its names. */
const PART_BYTES = 384 * 1024

/** What the parts of one result may add up to: some of them are written at the same time. */
export const RESULT_BYTES_MAX = 16 * 1024 * 1024

/** Parts of one result that are under way at once. */
const PARTS_AT_ONCE = 4

/**
 * Results that are too large for the item of their record. Parts are written before the record
 * that refers to them, and removed after it let go of them: who finds a record finds its result,
 * and a crash in between leaves parts that nobody refers to, never the other way round.
 */
export class Results {
  readonly #table: RecordTable
  readonly #inlineBytesMax: number

  constructor(table: RecordTable, inlineBytesMax: number) {
    this.#table = table
    this.#inlineBytesMax = inlineBytesMax
  }

  /** The record as it can be written: with its result, or with its parts in the table already. */
  async store(next: Kept): Promise<Kept> {
    const { result, identity } = next.record
    if (result === undefined || result.byteLength <= this.#inlineBytesMax) return next
    const parts: Parts = {
      id: next.version,
      count: Math.ceil(result.byteLength / PART_BYTES),
      bytes: result.byteLength,
    }
    await forEachPart(parts, async (number) => {
      const bytes = result.subarray(number * PART_BYTES, (number + 1) * PART_BYTES)
      await this.#table.putItem(part(partKey(identity, parts.id, number), bytes, next.ttlS))
    })
    return { ...next, record: { ...next.record, result: undefined }, parts }
  }

  /** The result of a record; `undefined` where it has none, `'gone'` where a part is missing. */
  async load({ record, parts }: Kept): Promise<Uint8Array | undefined | 'gone'> {
    if (parts === undefined) return record.result
    const found = Array.from<Uint8Array | undefined>({ length: parts.count })
    await forEachPart(parts, async (number) => {
      const key = partKey(record.identity, parts.id, number)
      // A part never changes, so an answer that is behind lacks it, or is right: half the price.
      const item = (await this.#table.getItem(key, 'eventual')) ?? (await this.#table.getItem(key))
      found[number] = item?.['bytes']?.B
    })
    const result = new Uint8Array(parts.bytes)
    let at = 0
    for (const bytes of found) {
      if (bytes === undefined || at + bytes.byteLength > parts.bytes) return 'gone'
      result.set(bytes, at)
      at += bytes.byteLength
    }
    return at === parts.bytes ? result : 'gone'
  }

  /** Takes from the parts of a record the time at which the service would remove them. */
  async keep({ record, parts, ttlS }: Kept): Promise<void> {
    if (parts === undefined || ttlS === undefined) return
    await forEachPart(parts, async (number) => {
      const key = partKey(record.identity, parts.id, number)
      const bytes = (await this.#table.getItem(key))?.['bytes']?.B
      if (bytes !== undefined) await this.#table.putItem(part(key, bytes, undefined))
    })
  }

  /**
   * Removes the parts that nobody refers to any more. What fails is left where it is: the move it
   * follows is made, and to report that as failed because of some garbage would be worse.
   */
  async discard({ record, parts }: Kept): Promise<void> {
    if (parts === undefined) return
    await forEachPart(parts, (number) =>
      this.#table.deleteItem(partKey(record.identity, parts.id, number)).catch(() => undefined),
    )
  }
}

async function forEachPart(
  { count }: Parts,
  visit: (number: number) => Promise<void>,
): Promise<void> {
  for (let at = 0; at < count; at += PARTS_AT_ONCE) {
    const length = Math.min(PARTS_AT_ONCE, count - at)
    await Promise.all(Array.from({ length }, (_, n) => visit(at + n)))
  }
}

function part(key: Item, bytes: Uint8Array, ttlS: number | undefined): Item {
  const item: Item = { ...key, bytes: { B: bytes } }
  if (ttlS !== undefined) item['ttl'] = { N: String(ttlS) }
  return item
}
