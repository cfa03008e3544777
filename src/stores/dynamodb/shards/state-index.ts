import { Slots } from '../../kit/slots.ts'
import type { FoundItem, Item, QueryInput } from '../client.ts'
import { stateShard, type IndexedState } from '../items.ts'
import type { Calls } from '../calls.ts'
import { advanceWalk, nextStart, shareOf, startOf, type Walk } from './shard-walks.ts'
import { BY_STATE } from '../table-definition.ts'

export interface IndexEntry {
  readonly identity: string
  readonly version: string
  readonly leaseMs: number
  readonly expiresAtMs: number
  readonly listedAtMs: number
}

/** Entries of all shards that one pass reads at most. The next pass continues after them. */
const PASS_MAX = 10_000
const PAGE_MAX = 500
/** A smaller page costs almost the same. */
const PAGE_MIN = 20

/** Shards that are read at once. */
const SHARDS_AT_ONCE = 16

/**
 * Finds the records of a state. The index lags behind the table, so its entries are only
 * candidates: each record is read again from the table before it is changed.
 */
export class StateIndex {
  readonly #calls: Calls
  /** Where the next pass starts in each shard. */
  readonly #walks = new Map<string, Walk>()

  constructor(calls: Calls) {
    this.#calls = calls
  }

  /**
   * The oldest records of a state, up to `untilMs`: `completed` ones by expiry, `refused_until`
   * ones by the end of the refusal, others by last run.
   * Reads the next page of a shard only if its entries may be among the oldest.
   */
  async oldest(
    state: IndexedState,
    { limit, untilMs }: { limit: number; untilMs?: number },
  ): Promise<IndexEntry[]> {
    if (limit <= 0) return []
    const names = await this.#shardsOf(state)
    const pageMax = Math.min(PAGE_MAX, Math.max(PAGE_MIN, Math.ceil(limit / names.length)))
    const readers = names.map((name): ShardReader => ({
      name,
      entries: [],
      at: 0,
      last: undefined,
    }))
    const oldest: IndexEntry[] = []
    let isRead = false
    while (oldest.length < limit) {
      const spent = readers.filter(
        (reader) => isSpent(reader) && (!isRead || reader.last !== undefined),
      )
      isRead = true
      await each(spent, async (reader) => {
        const { name, last: after } = reader
        const page = await this.#collect(name, { limit: pageMax, untilMs, after })
        Object.assign(reader, { entries: page.entries, at: 0, last: page.last })
      })
      // A page may be empty although more pages follow.
      if (spent.some((reader) => isSpent(reader) && reader.last !== undefined)) continue
      if (!takeOldest(readers, oldest, limit)) break
    }
    return byAge(oldest)
  }

  /**
   * All records of a state, or as many as one pass may read; the next pass continues after them. If
   * the state has more than `max` records, passes read only the oldest.
   *
   * Each shard has an equal share of both limits. Shards with more entries also use what the others
   * leave, because most of the shards that were ever announced may be empty.
   */
  async nextPass(state: IndexedState, max: number = Infinity): Promise<IndexEntry[]> {
    const names = await this.#shardsOf(state)
    let walks = names.map((name) => this.#walks.get(name) ?? startOf(name))
    const found: IndexEntry[] = []
    for (;;) {
      const shardMax = shareOf(max, walks)
      const unread = walks.filter(({ isAtEnd, count }) => !isAtEnd && count < shardMax)
      const passMax = Math.floor((PASS_MAX - found.length) / unread.length)
      if (unread.length === 0 || passMax === 0) {
        // Only after all pages are read: the next pass repeats the entries of a failed pass.
        for (const walk of walks) this.#walks.set(walk.name, nextStart(walk, shardMax))
        return byAge(found)
      }
      const read = await each(unread, async (walk): Promise<[string, Walk]> => {
        const limit = Math.min(passMax, shardMax - walk.count)
        const { entries, last } = await this.#collect(walk.name, { limit, after: walk.last })
        found.push(...entries)
        return [walk.name, advanceWalk(walk, entries.length, last)]
      })
      const byName = new Map(read)
      walks = walks.map((walk) => byName.get(walk.name) ?? walk)
    }
  }

  async #shardsOf(state: IndexedState): Promise<string[]> {
    const shards = await this.#calls.shards.toRead()
    return Array.from({ length: shards }, (_, shard) => stateShard(state, shard))
  }

  async #collect(
    name: string,
    {
      limit,
      untilMs,
      after,
    }: { limit: number; untilMs?: number | undefined; after?: FoundItem | undefined },
  ): Promise<{ entries: IndexEntry[]; last: FoundItem | undefined }> {
    const entries: IndexEntry[] = []
    let last = after
    while (entries.length < limit) {
      const page = await this.#calls.query({
        ...inShard(name, untilMs),
        Limit: Math.min(PAGE_MAX, limit - entries.length),
        ...(last === undefined ? {} : { ExclusiveStartKey: last as Item }),
      })
      entries.push(...(page.Items ?? []).map(toEntry))
      last = page.LastEvaluatedKey
      if (last === undefined) break
    }
    return { entries, last }
  }
}

/** The last page that was read of one shard, in order, and how many of its entries are taken. */
interface ShardReader {
  readonly name: string
  entries: IndexEntry[]
  at: number
  /** Where the next page starts; `undefined`: there is none. */
  last: FoundItem | undefined
}

function isSpent({ entries, at }: ShardReader): boolean {
  return at === entries.length
}

/** Takes the oldest entries until a shard needs its next page; `false` if no entry is left. */
function takeOldest(readers: readonly ShardReader[], oldest: IndexEntry[], limit: number): boolean {
  while (oldest.length < limit) {
    let first: ShardReader | undefined
    for (const reader of readers) {
      if (isSpent(reader)) continue
      if (first === undefined || headOf(reader) < headOf(first)) first = reader
    }
    if (first === undefined) return false
    oldest.push(first.entries[first.at++]!)
    if (isSpent(first) && first.last !== undefined) return true
  }
  return true
}

function headOf({ entries, at }: ShardReader): number {
  return entries[at]!.listedAtMs
}

function each<Input, Output>(
  inputs: readonly Input[],
  visit: (input: Input) => Promise<Output>,
): Promise<Output[]> {
  const slots = new Slots(SHARDS_AT_ONCE)
  return Promise.all(inputs.map((input) => slots.use(() => visit(input))))
}

function inShard(name: string, untilMs: number | undefined): Omit<QueryInput, 'TableName'> {
  const isBounded = untilMs !== undefined
  return {
    IndexName: BY_STATE,
    KeyConditionExpression: `#shard = :shard${isBounded ? ' AND #at <= :until' : ''}`,
    ExpressionAttributeNames: {
      '#shard': 'stateShard',
      ...(isBounded ? { '#at': 'listedAtMs' } : {}),
    },
    ExpressionAttributeValues: {
      ':shard': { S: name },
      ...(isBounded ? { ':until': { N: String(untilMs) } } : {}),
    },
  }
}

function toEntry(item: FoundItem): IndexEntry {
  return {
    identity: item['identity']?.S ?? '',
    version: item['version']?.S ?? '',
    leaseMs: Number(item['leaseMs']?.N),
    expiresAtMs: Number(item['expiresAtMs']?.N),
    listedAtMs: Number(item['listedAtMs']?.N),
  }
}

/** Removes duplicates: a record that was moved during the read may be on two pages. */
function byAge(entries: readonly IndexEntry[]): IndexEntry[] {
  const once = new Map(entries.map((entry) => [entry.identity, entry]))
  return [...once.values()].sort((a, b) => a.listedAtMs - b.listedAtMs)
}
