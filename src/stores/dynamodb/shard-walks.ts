/** How far the passes over the index of a state have come in each of its shards. Pure. */
import type { FoundItem } from './client.ts'

export interface Walk {
  readonly name: string
  /** Where the next page begins. */
  readonly last: FoundItem | undefined
  /** Entries since the walk began at the start of the shard, some of them in earlier passes. */
  readonly count: number
  /** Entries of the whole shard, as the last walk found it; `Infinity` where it was not read. */
  readonly size: number
  readonly isAtEnd: boolean
}

export function startOf(name: string, size: number = Infinity): Walk {
  return { name, last: undefined, count: 0, size, isAtEnd: false }
}

/** So many entries more were read, and `last` says where the next page begins, if there is one. */
export function goneOn(walk: Walk, entries: number, last: FoundItem | undefined): Walk {
  const count = walk.count + entries
  if (last === undefined) return { ...walk, last, count, size: count, isAtEnd: true }
  const size = count < walk.size ? walk.size : Infinity
  return { ...walk, last, count, size }
}

/** Where the next pass begins: at the start, if this walk has seen all that it may. */
export function nextStart(walk: Walk, shardMax: number): Walk {
  if (walk.isAtEnd) return startOf(walk.name, walk.size)
  return walk.count >= shardMax ? startOf(walk.name) : walk
}

/**
 * How many entries of each shard may be looked at, so that there are at most `max` of all: shards
 * that have fewer leave theirs to the others.
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
