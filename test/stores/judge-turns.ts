/**
 * Whether what a store has handed out is a legal choice. The contract leaves open with whom the
 * turns begin, so a model cannot say beforehand what a store takes; it can say what was wrong.
 */

/** Something that a store might have taken: due, not left out, and of a lane that was asked for. */
export interface Waiting {
  readonly id: string
  /** Its operation or topic. */
  readonly lane: string
  readonly tenant: string
  readonly dueAtMs: number
}

export interface Places {
  readonly limit: number
  readonly maxOf: (lane: string) => number
}

/** In so many calls another one of the lane may come before a tenant that waits all the time. */
const PASSED_MAX = 2

/** Judges the calls of one store object, one after the other. */
export class TurnsJudge {
  readonly #passed = new Passed()
  readonly #passedLanes = new Passed()

  /** What is wrong with taking these; empty where nothing is. */
  judge(all: readonly Waiting[], taken: readonly string[], { limit, maxOf }: Places): string[] {
    const waiting = limit > 0 ? all.filter(({ lane }) => maxOf(lane) > 0) : []
    const isTaken = ({ id }: Waiting) => taken.includes(id)
    const lanes = [...Map.groupBy(waiting, ({ lane }) => lane)].map(([lane, items]) => {
      const tenants = [...Map.groupBy(items, ({ tenant }) => tenant).values()]
      return { lane, max: maxOf(lane), tenants, count: items.filter(isTaken).length }
    })
    return [
      ...taken.filter((id) => !waiting.some((one) => one.id === id)).map((id) => `${id} not due`),
      ...(new Set(taken).size === taken.length ? [] : ['one is taken twice']),
      ...(taken.length <= limit ? [] : [`more than ${limit}`]),
      ...(taken.length === 0 && waiting.length > 0 ? ['none, although some are due'] : []),
      ...lanes.filter(({ count, max }) => count > max).map(({ lane }) => `too many of ${lane}`),
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

  /** A call was made that was not judged. */
  forget(): void {
    this.#passed.clear()
    this.#passedLanes.clear()
  }
}

interface JudgedLane {
  readonly lane: string
  readonly max: number
  readonly count: number
  /** What waits, by tenant. */
  readonly tenants: readonly (readonly Waiting[])[]
}

function tenantOf([one]: readonly Waiting[]): string {
  return one!.tenant
}

/** Of one tenant: one that is due for longer was left. */
function outOfOrder(items: readonly Waiting[], isTaken: (one: Waiting) => boolean): string[] {
  const left = items.filter((one) => !isTaken(one)).map(({ dueAtMs }) => dueAtMs)
  return items
    .filter((one) => isTaken(one) && one.dueAtMs > Math.min(...left))
    .map(({ id }) => `${id} before one that is due for longer`)
}

/** A tenant went without, although another has two, a lane has more, or places were left. */
function unfairNow(
  lanes: readonly JudgedLane[],
  isTaken: (one: Waiting) => boolean,
  hasRoom: boolean,
): string[] {
  const countOf = (items: readonly Waiting[]) => items.filter(isTaken).length
  const servedIn = ({ tenants }: JudgedLane) => tenants.filter((items) => countOf(items) > 0).length
  const most = Math.max(0, ...lanes.flatMap(({ tenants }) => tenants.map(countOf)))
  const mostServed = Math.max(0, ...lanes.map(servedIn))
  return lanes.flatMap((lane) => {
    const without = lane.tenants.find((items) => countOf(items) === 0)
    if (without === undefined || lane.count >= lane.max) return []
    const who = `${tenantOf(without)} of ${lane.lane} went without`
    return [
      ...(hasRoom ? [`${who}, although there was room`] : []),
      ...(most > 1 ? [`${who}, although another has ${most}`] : []),
      ...(mostServed > servedIn(lane) + 1 ? [`${who}, although another lane has more turns`] : []),
    ]
  })
}

/** Who waits, and how often each of the others was served meanwhile. */
class Passed {
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
        if (count > PASSED_MAX) faults.push(`${other} came ${count} times before ${one}`)
      }
    }
    return faults
  }

  clear(): void {
    this.#counts.clear()
  }
}
