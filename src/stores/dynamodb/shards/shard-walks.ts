/**
 * How far the passes over the index of a state have read each of its shards. Pure.
 *
 * Tests: test/stores/dynamodb/shard-walks.server.test.ts.
 */
import type { FoundItem } from '../client.ts'

export interface Walk {
  readonly name: string
  /** Where the next page starts. */
  readonly last: FoundItem | undefined
  /** Entries read since the start of the shard, including those of earlier passes. */
  readonly count: number
  /** Entries in the whole shard at the last complete walk; `Infinity` if there was none. */
  readonly size: number
  readonly isAtEnd: boolean
}

export function startOf(name: string, size: number = Infinity): Walk {
  return { name, last: undefined, count: 0, size, isAtEnd: false }
}

/** The walk after it has read more entries. `last`: where the next page starts, if there is one. */
export function advanceWalk(walk: Walk, entries: number, last: FoundItem | undefined): Walk {
  const count = walk.count + entries
  if (last === undefined) return { ...walk, last, count, size: count, isAtEnd: true }
  const size = count < walk.size ? walk.size : Infinity
  return { ...walk, last, count, size }
}

/** Where the next pass starts: at the start of the shard, if this walk has read all it may. */
export function nextStart(walk: Walk, shardMax: number): Walk {
  if (walk.isAtEnd) return startOf(walk.name, walk.size)
  return walk.count >= shardMax ? startOf(walk.name) : walk
}

/**
 * How many entries of each shard may be read, so that all shards together have at most `max`.
 * Shards with fewer entries leave the rest of their share to the others.
 */
export function shareOf(max: number, walks: readonly Walk[]): number {
  if (max === Infinity) return max
  const sizes = walks.map(({ size }) => size).toSorted((one, other) => one - other)
  let left = max
  for (const [n, size] of sizes.entries()) {
    const share = left / (sizes.length - n)
    if (size > share) return Math.max(1, Math.floor(share))
    left -= size
  }
  return Infinity
}
