import type { Item } from './client.ts'
import { partKey, type StoredItem, type ResultParts } from './items.ts'
import type { Calls } from './calls.ts'

/**
 * Default and limit of `inlineBytesMax`. A larger result gets separate items, because the service
 * charges every write by the size of the whole item, also a refused one. The first replay in
 * another process is a refused write: a claim of a key that exists.
 */
export const INLINE_BYTES = 1024
export const INLINE_BYTES_MAX = 32 * 1024

/** The service allows items of at most 400 KB, including the names of the attributes. */
const PART_BYTES = 384 * 1024

/** The largest result, all parts together. Some parts are written at the same time. */
export const RESULT_BYTES_MAX = 16 * 1024 * 1024

/** Tries to read a result whose parts are missing because its record is being replaced. */
export const RESULT_TRIES = 3

export const PARTS_MISSING = 'parts of a result are missing from the table'

/** Parts of one result that are read or written at once. */
const PARTS_AT_ONCE = 4

/**
 * Stores results that are too large for the item of their record, in parts. Parts are written
 * before the record that refers to them, and removed after it. So a record that exists has its
 * result, and a crash in between leaves only parts without a record.
 */
export class Results {
  readonly #calls: Calls
  readonly #inlineBytesMax: number

  constructor(calls: Calls, inlineBytesMax: number) {
    this.#calls = calls
    this.#inlineBytesMax = inlineBytesMax
  }

  /** Returns the record to write: with its result, or with references to parts it has written. */
  async store(next: StoredItem): Promise<StoredItem> {
    const { result, identity } = next.record
    if (result === undefined || result.byteLength <= this.#inlineBytesMax) return next
    const parts: ResultParts = {
      id: next.version,
      count: Math.ceil(result.byteLength / PART_BYTES),
      bytes: result.byteLength,
    }
    await forEachPart(parts, async (number) => {
      const bytes = result.subarray(number * PART_BYTES, (number + 1) * PART_BYTES)
      await this.#calls.putItem(part(partKey(identity, parts.id, number), bytes, next.ttlS))
    })
    return { ...next, record: { ...next.record, result: undefined }, parts }
  }

  /** The result of a record; `undefined` if it has none, `'gone'` if a part is missing. */
  async load({ record, parts }: StoredItem): Promise<Uint8Array | undefined | 'gone'> {
    if (parts === undefined) return record.result
    const found = Array.from<Uint8Array | undefined>({ length: parts.count })
    await forEachPart(parts, async (number) => {
      const key = partKey(record.identity, parts.id, number)
      // An eventually consistent read costs half. A part never changes, so such a read returns the
      // right part, or none if it lags behind.
      const item = (await this.#calls.getItem(key, 'eventual')) ?? (await this.#calls.getItem(key))
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

  /** Removes the TTL from the parts of a record. */
  async keep({ record, parts, ttlS }: StoredItem): Promise<void> {
    if (parts === undefined || ttlS === undefined) return
    await forEachPart(parts, async (number) => {
      const key = partKey(record.identity, parts.id, number)
      const bytes = (await this.#calls.getItem(key))?.['bytes']?.B
      if (bytes !== undefined) await this.#calls.putItem(part(key, bytes, undefined))
    })
  }

  /**
   * Removes parts that no record refers to. Ignores failures: the move before it has succeeded, and
   * reporting it as failed would be worse than leftover parts.
   */
  async discard({ record, parts }: StoredItem): Promise<void> {
    if (parts === undefined) return
    await forEachPart(parts, (number) =>
      this.#calls.deleteItem(partKey(record.identity, parts.id, number)).catch(() => undefined),
    )
  }
}

async function forEachPart(
  { count }: ResultParts,
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
