/** The turns of the simulated store, computed over all due work without an index. */
import { pickInTurns, rotateBehind, TurnCursors } from '../../../src/stores/kit/turns.ts'

/** Due work. Its lane is an operation or a topic. */
export interface Waiting<Item> {
  readonly lane: string
  readonly tenant: string
  readonly item: Item
}

interface Places {
  readonly limit: number
  readonly maxOf?: (lane: string) => number
}

export class SimulatedTurns {
  readonly #cursors = new TurnCursors()

  /** One of each lane and tenant in turns, then the longest due. `due` is sorted by due time. */
  take<Item>(due: readonly Waiting<Item>[], { limit, maxOf = () => limit }: Places): Item[] {
    const lanes = [...Map.groupBy(due, ({ lane }) => lane)].map(([key, waiting]) => {
      return { key, max: maxOf(key), candidates: this.#firstOfEach(key, waiting) }
    })
    const ordered = rotateBehind(lanes, ({ key }) => key, this.#cursors.lastLane)
    const picked = pickInTurns(ordered, limit).map(({ candidate }) => candidate)
    for (const { lane, tenant } of picked) {
      this.#cursors.stopAt(lane, tenant)
      this.#cursors.lastLane = lane
    }
    for (const one of due) {
      const ofLane = picked.filter(({ lane }) => lane === one.lane)
      if (picked.length >= limit) break
      if (!ofLane.includes(one) && ofLane.length < maxOf(one.lane)) picked.push(one)
    }
    return picked.map(({ item }) => item)
  }

  #firstOfEach<Item>(lane: string, waiting: readonly Waiting<Item>[]): Waiting<Item>[] {
    const first = [...Map.groupBy(waiting, ({ tenant }) => tenant).values()].map(([one]) => one!)
    return rotateBehind(first, ({ tenant }) => tenant, this.#cursors.tenantOf(lane))
  }
}
