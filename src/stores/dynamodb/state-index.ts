import type { RecordState } from '../../core/record.ts'
import type { FoundItem, Item, QueryInput } from './client.ts'
import { SHARDS, stateShard } from './items.ts'
import type { RecordTable } from './record-table.ts'
import { BY_STATE } from './table-definition.ts'

export interface IndexEntry {
  readonly identity: string
  readonly version: string
  readonly leaseMs: number
  readonly expiresAtMs: number
  readonly listedAtMs: number
}

/** Entries of one shard that a pass looks through at the most. The next pass goes on there. */
const PASS_MAX = 1250
const PAGE_MAX = 500

const START = { last: undefined, count: 0 } as const

/**
 * Which records are in a state. The index is behind the table by a moment, so what it says is
 * where to look, never what to do: everything found here is read again before it is touched.
 */
export class StateIndex {
  readonly #table: RecordTable
  readonly #stoppedAt = new Map<string, { readonly last: FoundItem; readonly count: number }>()

  constructor(table: RecordTable) {
    this.#table = table
  }

  /** The oldest of a state, `completed` by expiry, others by last run; up to `untilMs`. */
  async oldest(
    state: RecordState,
    { limit, untilMs }: { limit: number; untilMs?: number },
  ): Promise<IndexEntry[]> {
    const shards = await this.#eachShard((shard) =>
      this.#collect(stateShard(state, shard), { limit, untilMs }),
    )
    return byAge(shards.flatMap(({ entries }) => entries)).slice(0, limit)
  }

  /**
   * All of a state, or as much as one pass may look through; then the next pass has the rest. Of
   * more than `max`, passes look through the oldest only.
   */
  async nextPass(state: RecordState, max: number = Infinity): Promise<IndexEntry[]> {
    const shardMax = Math.max(1, Math.floor(max / SHARDS))
    const shards = await this.#eachShard(async (shard) => {
      const name = stateShard(state, shard)
      const { last: after, count: before } = this.#stoppedAt.get(name) ?? START
      const limit = Math.min(PASS_MAX, shardMax - before)
      const { entries, last } = await this.#collect(name, { limit, after })
      const count = before + entries.length
      if (last === undefined || count >= shardMax) this.#stoppedAt.delete(name)
      else this.#stoppedAt.set(name, { last, count })
      return { entries }
    })
    return byAge(shards.flatMap(({ entries }) => entries))
  }

  #eachShard<Found>(visit: (shard: number) => Promise<Found>): Promise<Found[]> {
    return Promise.all(Array.from({ length: SHARDS }, (_, shard) => visit(shard)))
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
