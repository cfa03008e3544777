/**
 * Judges whether the items that a store has returned are a legal choice. The contract does not say
 * which tenant or lane comes first, so a model cannot predict the choice. It can only say which
 * rules the choice breaks.
 */

/** An item that the store could have chosen: due, not excluded, and of a requested lane. */
export interface WaitingItem {
  readonly id: string
  /** The operation or topic of the item. */
  readonly lane: string
  readonly tenant: string
  readonly dueAtMs: number
}

export interface TurnLimits {
  readonly limit: number
  readonly maxOf: (lane: string) => number
}

/** How often another tenant or lane may be served while one waits all the time. */
const PASSED_MAX = 2

/** Judges the calls of one store object, one after the other. */
export class TurnsJudge {
  readonly #passed = new PassCounts()
  readonly #passedLanes = new PassCounts()

  /** Returns the rules that this choice breaks. */
  judge(
    all: readonly WaitingItem[],
    taken: readonly string[],
    { limit, maxOf }: TurnLimits,
  ): string[] {
    const waiting = limit > 0 ? all.filter(({ lane }) => maxOf(lane) > 0) : []
    const isTaken = ({ id }: WaitingItem) => taken.includes(id)
    const lanes = [...Map.groupBy(waiting, ({ lane }) => lane)].map(([lane, items]) => {
      const tenants = [...Map.groupBy(items, ({ tenant }) => tenant).values()]
      return { lane, max: maxOf(lane), tenants, count: items.filter(isTaken).length }
    })
    return [
      ...taken
        .filter((id) => !waiting.some((one) => one.id === id))
        .map((id) => `${id} is not due`),
      ...(new Set(taken).size === taken.length ? [] : ['an item is taken twice']),
      ...(taken.length <= limit ? [] : [`takes more than ${limit}`]),
      ...(taken.length === 0 && waiting.length > 0 ? ['takes none, although some are due'] : []),
      ...lanes
        .filter(({ count, max }) => count > max)
        .map(({ lane }) => `takes too many of ${lane}`),
      ...lanes.flatMap(({ tenants }) => tenants.flatMap((items) => outOfOrder(items, isTaken))),
      ...unfairNow(lanes, isTaken, taken.length < limit),
      ...lanes.flatMap(({ lane, tenants }) => {
        const served = tenants.filter((items) => items.some(isTaken))
        return this.#passed.note(lane, tenants.map(tenantOf), served.map(tenantOf))
      }),
      ...this.#passedLanes.note(
        'all lanes',
        lanes.map(({ lane }) => lane),
        lanes.filter(({ count }) => count > 0).map(({ lane }) => lane),
      ),
    ]
  }

  /** Call this after a call to the store that was not judged. */
  forget(): void {
    this.#passed.clear()
    this.#passedLanes.clear()
  }
}

interface LaneChoice {
  readonly lane: string
  readonly max: number
  readonly count: number
  /** The waiting items of each tenant. */
  readonly tenants: readonly (readonly WaitingItem[])[]
}

function tenantOf([one]: readonly WaitingItem[]): string {
  return one!.tenant
}

/** Reports items that were taken although an item of the same tenant has been due longer. */
function outOfOrder(
  items: readonly WaitingItem[],
  isTaken: (one: WaitingItem) => boolean,
): string[] {
  const left = items.filter((one) => !isTaken(one)).map(({ dueAtMs }) => dueAtMs)
  return items
    .filter((one) => isTaken(one) && one.dueAtMs > Math.min(...left))
    .map(({ id }) => `${id} is taken before an item that is due for longer`)
}

/**
 * Reports a tenant that got nothing although another tenant got two items, another lane got more
 * turns, or the limit was not reached.
 */
function unfairNow(
  lanes: readonly LaneChoice[],
  isTaken: (one: WaitingItem) => boolean,
  hasRoom: boolean,
): string[] {
  const countOf = (items: readonly WaitingItem[]) => items.filter(isTaken).length
  const servedIn = ({ tenants }: LaneChoice) => tenants.filter((items) => countOf(items) > 0).length
  const most = Math.max(0, ...lanes.flatMap(({ tenants }) => tenants.map(countOf)))
  const mostServed = Math.max(0, ...lanes.map(servedIn))
  return lanes.flatMap((lane) => {
    const without = lane.tenants.find((items) => countOf(items) === 0)
    if (without === undefined || lane.count >= lane.max) return []
    const fault = `${tenantOf(without)} of ${lane.lane} got nothing`
    return [
      ...(hasRoom ? [`${fault}, although there was room`] : []),
      ...(most > 1 ? [`${fault}, although another tenant got ${most}`] : []),
      ...(mostServed > servedIn(lane) + 1
        ? [`${fault}, although another lane got more turns`]
        : []),
    ]
  })
}

/** Counts, for each waiting name, how often each other name was served during its wait. */
class PassCounts {
  readonly #counts = new Map<string, Map<string, Map<string, number>>>()

  note(among: string, waiting: readonly string[], served: readonly string[]): string[] {
    const before = this.#counts.get(among)
    const after = new Map<string, Map<string, number>>()
    this.#counts.set(among, after)
    const faults: string[] = []
    for (const one of waiting.filter((name) => !served.includes(name))) {
      const counts = new Map(before?.get(one))
      after.set(one, counts)
      for (const other of served) {
        const count = (counts.get(other) ?? 0) + 1
        counts.set(other, count)
        if (count > PASSED_MAX) faults.push(`${other} was served ${count} times before ${one}`)
      }
    }
    return faults
  }

  clear(): void {
    this.#counts.clear()
  }
}
