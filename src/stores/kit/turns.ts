/**
 * Decides which lane and tenant is next, for the stores that give out due work in turns. A lane is
 * an operation or a topic. Each of its candidates belongs to one tenant, and they are in the order
 * in which the tenants take turns.
 *
 * Tests: test/stores/kit/turns.test.ts.
 */

export interface Lane<Candidate> {
  readonly key: string
  /** How many candidates of this lane may be picked. */
  readonly max: number
  /** May be lazy: only candidates that are picked are read. */
  readonly candidates: Iterable<Candidate>
}

export interface Turn<Candidate> {
  /** The key of the candidate's lane. */
  readonly lane: string
  readonly candidate: Candidate
}

/** Picks the first candidate of each lane, then the second of each, up to `limit` in all. */
export function pickInTurns<Candidate>(
  lanes: readonly Lane<Candidate>[],
  limit: number,
): Turn<Candidate>[] {
  const picks: Turn<Candidate>[] = []
  let open = lanes.map(({ key, max, candidates }) => {
    return { key, left: max, iterator: candidates[Symbol.iterator]() }
  })
  while (open.length > 0 && picks.length < limit) {
    open = open.filter((lane) => {
      // Lanes that this call does not reach stay open.
      if (picks.length >= limit) return true
      if (lane.left-- < 1) return false
      const next = lane.iterator.next()
      if (next.done === true) return false
      picks.push({ lane: lane.key, candidate: next.value })
      return true
    })
  }
  return picks
}

/**
 * The same items in the order of their keys, starting after `last`. The order does not depend on
 * which items are present, so a key that is absent for a while keeps its place.
 */
export function rotateBehind<Item>(
  items: readonly Item[],
  keyOf: (item: Item) => string,
  last: string | undefined,
): Item[] {
  const sorted = items.toSorted((one, other) => (keyOf(one) < keyOf(other) ? -1 : 1))
  const next = last === undefined ? -1 : sorted.findIndex((item) => keyOf(item) > last)
  return next === -1 ? sorted : [...sorted.slice(next), ...sorted.slice(0, next)]
}

/** Lanes for which a store object remembers the last tenant. */
const LANES_MAX = 1000

/** Where the turns of one store object stopped: the last lane, and the last tenant of each lane. */
export class TurnCursors {
  /** The key of the lane at which the last call stopped. */
  lastLane: string | undefined
  readonly #tenants = new Map<string, string>()

  /** The tenant at which the turns of this lane stopped; `undefined`: start with the first. */
  tenantOf(lane: string): string | undefined {
    return this.#tenants.get(lane)
  }

  /** `undefined`: the turns of this lane have reached the last tenant. */
  stopAt(lane: string, tenant: string | undefined): void {
    // Moves the lane to the end, so that the least recently used lane is dropped first.
    this.#tenants.delete(lane)
    if (tenant === undefined) return
    this.#tenants.set(lane, tenant)
    if (this.#tenants.size <= LANES_MAX) return
    const [oldest] = this.#tenants.keys()
    if (oldest !== undefined) this.#tenants.delete(oldest)
  }
}
