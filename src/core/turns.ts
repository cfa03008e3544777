/**
 * Whose turn it is, for the stores that hand out due work in turns. A lane is an operation or a
 * topic. Its candidates are of one tenant each, in the order in which the tenants take turns.
 */
export interface Lane<Candidate> {
  readonly key: string
  /** At most so many of this lane. */
  readonly max: number
  /** May be lazy: no candidate is asked for that is not picked. */
  readonly candidates: Iterable<Candidate>
}

export interface Turn<Candidate> {
  /** The key of its lane. */
  readonly lane: string
  readonly candidate: Candidate
}

/** One candidate of each lane, then the second of each, until `limit` are picked. */
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
      // A lane that this call does not reach stays open: it has given nothing up.
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
 * The same items in the order of their keys, beginning behind `last`. The order does not depend on
 * which items are there, so a key that is left out for a while keeps its place.
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

/** Lanes of which a store object remembers where it stopped. */
const LANES_MAX = 1000

/** Where the turns of one store object stopped: which lane was last, and which tenant in each. */
export class TurnCursors {
  /** The key of the lane with which the last call stopped. */
  lastLane: string | undefined
  readonly #tenants = new Map<string, string>()

  /** The tenant at which the turns of this lane stopped; `undefined`: begin with the first. */
  tenantOf(lane: string): string | undefined {
    return this.#tenants.get(lane)
  }

  /** `undefined`: the turns of this lane have come to the last tenant. */
  stopAt(lane: string, tenant: string | undefined): void {
    // Set anew, so that the lane that was used least recently is forgotten first.
    this.#tenants.delete(lane)
    if (tenant === undefined) return
    this.#tenants.set(lane, tenant)
    if (this.#tenants.size <= LANES_MAX) return
    const [oldest] = this.#tenants.keys()
    if (oldest !== undefined) this.#tenants.delete(oldest)
  }
}
