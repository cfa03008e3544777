import type { RecordState } from '../../core/record.ts'
import { Slots } from '../../core/slots.ts'
import type { FoundItem, Item, QueryInput } from './client.ts'
import { stateShard } from './items.ts'
import type { RecordTable } from './record-table.ts'
import { goneOn, nextStart, shareOf, startOf, type Walk } from './shard-walks.ts'
import { BY_STATE } from './table-definition.ts'

export interface IndexEntry {
  readonly identity: string
  readonly version: string
  readonly leaseMs: number
  readonly expiresAtMs: number
  readonly listedAtMs: number
}

/** Entries of all shards that a pass looks through at the most. The next pass goes on there. */
const PASS_MAX = 10_000
const PAGE_MAX = 500
/** Fewer are hardly cheaper to read. */
const PAGE_MIN = 20

/** Shards that are read at once. */
const SHARDS_AT_ONCE = 16

/**
 * Which records are in a state. The index is behind the table by a moment, so what it says is
 * where to look, never what to do: everything found here is read again before it is touched.
 */
export class StateIndex {
  readonly #table: RecordTable
  /** Where the next pass begins in each shard. */
  readonly #walks = new Map<string, Walk>()

  constructor(table: RecordTable) {
    this.#table = table
  }

  /**
   * The oldest of a state, `completed` by expiry, others by last run; up to `untilMs`. A shard is
   * read on only where its next entries may be among the oldest.
   */
  async oldest(
    state: RecordState,
    { limit, untilMs }: { limit: number; untilMs?: number },
  ): Promise<IndexEntry[]> {
    if (limit <= 0) return []
    const names = await this.#shardsOf(state)
    const pageMax = Math.min(PAGE_MAX, Math.max(PAGE_MIN, Math.ceil(limit / names.length)))
    const lanes = names.map((name): Lane => ({ name, entries: [], at: 0, last: undefined }))
    const oldest: IndexEntry[] = []
    let isRead = false
    while (oldest.length < limit) {
      const spent = lanes.filter((lane) => isSpent(lane) && (!isRead || lane.last !== undefined))
      isRead = true
      await each(spent, async (lane) => {
        const { name, last: after } = lane
        const page = await this.#collect(name, { limit: pageMax, untilMs, after })
        Object.assign(lane, { entries: page.entries, at: 0, last: page.last })
      })
      // A page may be empty although others follow.
      if (spent.some((lane) => isSpent(lane) && lane.last !== undefined)) continue
      if (!takeOldest(lanes, oldest, limit)) break
    }
    return byAge(oldest)
  }

  /**
   * All of a state, or as much as one pass may look through; then the next pass has the rest. Of
   * more than `max`, passes look through the oldest only.
   *
   * Each shard has an equal share of both limits, and shards with more entries have what the others
   * leave: of the shards that were ever announced, most may be empty.
   */
  async nextPass(state: RecordState, max: number = Infinity): Promise<IndexEntry[]> {
    const names = await this.#shardsOf(state)
    let walks = names.map((name) => this.#walks.get(name) ?? startOf(name))
    const found: IndexEntry[] = []
    for (;;) {
      const shardMax = shareOf(max, walks)
      const unread = walks.filter(({ isAtEnd, count }) => !isAtEnd && count < shardMax)
      const passMax = Math.floor((PASS_MAX - found.length) / unread.length)
      if (unread.length === 0 || passMax === 0) {
        // Not before all are read: what a failed pass has seen is looked at again.
        for (const walk of walks) this.#walks.set(walk.name, nextStart(walk, shardMax))
        return byAge(found)
      }
      const read = await each(unread, async (walk): Promise<[string, Walk]> => {
        const limit = Math.min(passMax, shardMax - walk.count)
        const { entries, last } = await this.#collect(walk.name, { limit, after: walk.last })
        found.push(...entries)
        return [walk.name, goneOn(walk, entries.length, last)]
      })
      const byName = new Map(read)
      walks = walks.map((walk) => byName.get(walk.name) ?? walk)
    }
  }

  async #shardsOf(state: RecordState): Promise<string[]> {
    const shards = await this.#table.shards.toRead()
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
      const page = await this.#table.query({
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

/** What was read of one shard, in order, and how much of that is taken. */
interface Lane {
  readonly name: string
  entries: IndexEntry[]
  at: number
  /** Where the next page begins; `undefined`: there is none. */
  last: FoundItem | undefined
}

function isSpent({ entries, at }: Lane): boolean {
  return at === entries.length
}

/** Takes what is oldest until a shard has to be read on; `false` where nothing is left. */
function takeOldest(lanes: readonly Lane[], oldest: IndexEntry[], limit: number): boolean {
  while (oldest.length < limit) {
    let first: Lane | undefined
    for (const lane of lanes) {
      if (isSpent(lane)) continue
      if (first === undefined || headOf(lane) < headOf(first)) first = lane
    }
    if (first === undefined) return false
    oldest.push(first.entries[first.at++]!)
    if (isSpent(first) && first.last !== undefined) return true
  }
  return true
}

function headOf({ entries, at }: Lane): number {
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

/** Each once: a record that was moved while the pages were read may be on two of them. */
function byAge(entries: readonly IndexEntry[]): IndexEntry[] {
  const once = new Map(entries.map((entry) => [entry.identity, entry]))
  return [...once.values()].sort((a, b) => a.listedAtMs - b.listedAtMs)
}
