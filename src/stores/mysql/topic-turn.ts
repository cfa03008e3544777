/** One topic in one claim: which tenants it has, and what of theirs is due. */
import { FREE_LEAP, LANE_LEAP, type MessageLeap } from './look-sql.ts'
import { LEAPS_MAX, ROUND_GROWTH } from './record-turns.ts'
import { byDueTime, isDue, type DueMessage, type Seen } from './seen-messages.ts'
import { inWalkOrder, TurnWalk, type Remembered } from './turn-walk.ts'

/** What a claim asks for. */
export interface Asked {
  readonly limit: number
  readonly without: ReadonlySet<string>
}

/** What the plain look has seen of a topic. */
export interface TopicSeen {
  readonly free: readonly DueMessage[]
  /** Of partitions, with those that are empty or not due. */
  readonly heads: readonly Seen[]
  /** No more than these are due without a partition, and whose they are is known. */
  readonly isAllFree: boolean
  readonly hasTenants: boolean
  /** No more than these are partitions. */
  readonly isAllHeads: boolean
}

export interface Candidate {
  readonly key: string
  readonly message: DueMessage
}

export class TopicTurn {
  readonly topic: string
  readonly max: number
  readonly cursor: string | undefined
  /** Tenants with messages that have no partition, and tenants with partitions. */
  readonly free: TurnWalk<Seen>
  readonly lanes: TurnWalk<Seen>
  /** By tenant, the heads of its partitions that were looked at. */
  readonly heads = new Map<string, readonly Seen[]>()
  readonly chosen: DueMessage[] = []
  /** Lately there were more partitions than a plain look goes through. */
  readonly hasManyLanes: boolean
  #seen: TopicSeen | undefined

  constructor(
    { topic, max }: { readonly topic: string; readonly max: number },
    { free, lanes }: { readonly free: Remembered; readonly lanes: Remembered },
  ) {
    this.topic = topic
    this.max = max
    this.cursor = free.cursor
    this.free = new TurnWalk(free)
    this.lanes = new TurnWalk({ ...lanes, cursor: free.cursor })
    this.hasManyLanes = lanes.known.length > 0
  }

  /** What the plain look has seen spares leaps where it is all that there is. */
  see(seen: TopicSeen): void {
    this.#seen = seen
    if (seen.isAllFree && seen.hasTenants) this.free.noteAll(inKeyOrder(seen.free))
    if (!seen.isAllHeads) return
    this.lanes.noteAll(inKeyOrder(seen.heads.filter(isDue)))
    for (const { key, entries } of this.lanes.stops) this.heads.set(key, entries)
  }

  get isSeen(): boolean {
    return this.#seen !== undefined
  }

  get hasAllHeads(): boolean {
    return this.#seen?.isAllHeads === true
  }

  /** Nothing else is due in this topic. */
  get isKnown(): boolean {
    return this.#seen?.isAllFree === true && this.hasAllHeads
  }

  /** What the plain look, and the look at partitions of tenants, have found due. */
  due({ without }: Asked): DueMessage[] {
    const { free = [], heads = [] } = this.#seen ?? {}
    const all = [...free, ...heads, ...[...this.heads.values()].flat()]
    const byId = new Map(all.filter(isDue).map((one) => [one.id, one]))
    return [...byId.values()].filter(({ key }) => !without.has(key))
  }

  /** Tenants that were met, up to where both walks have come. */
  get reached(): string[] {
    const met = [...this.free.stops, ...this.lanes.stops].map(({ key }) => key)
    return inWalkOrder([...new Set(met)], this.cursor).filter(
      (key) => this.free.reaches(key) && this.lanes.reaches(key),
    )
  }

  /** Tenants with partitions of which none was looked at, in the order of their turns. */
  unlooked({ without }: Asked): string[] {
    if (this.hasAllHeads) return []
    const keys = this.lanes.stops.map(({ key }) => key)
    return keys.filter((key) => !this.heads.has(key) && !without.has(key))
  }

  /** Of each tenant the longest due, in the order of their turns. */
  candidates({ without }: Asked): Candidate[] {
    const free = new Map(this.free.stops.map(({ key, entries }) => [key, entries]))
    return this.reached.flatMap((key) => {
      if (without.has(key)) return []
      const heads = this.heads.get(key) ?? []
      const own = [...(free.get(key) ?? []), ...heads.filter((one) => !without.has(one.key))]
      const [message] = own.filter(isDue).toSorted(byDueTime)
      return message === undefined ? [] : [{ key, message }]
    })
  }

  /** How many tenants may have something: of partitions that is not known before a look. */
  promising({ without }: Asked): number {
    const free = this.free.stops.filter(({ entries }) => entries.some(isDue))
    const keys = new Set([...free, ...this.lanes.stops].map(({ key }) => key))
    return this.reached.filter((key) => keys.has(key) && !without.has(key)).length
  }
}

function inKeyOrder(seen: readonly Seen[]): Seen[] {
  return seen.toSorted((one, other) => {
    return one.key === other.key ? byDueTime(one, other) : one.key < other.key ? -1 : 1
  })
}

/** A leap, and the topic that asked for it. */
export interface TopicLeap {
  readonly turn: TopicTurn
  readonly leap: MessageLeap
}

/** Where topics leap next that have not given their share and may have more. */
export function nextTopicLeaps(
  turns: readonly TopicTurn[],
  asked: Asked,
  round: number,
): TopicLeap[] {
  const counted = turns.map((turn) => {
    return { turn, count: turn.promising(asked), isOver: turn.free.isOver && turn.lanes.isOver }
  })
  const sharing = counted.filter(({ isOver, count }) => !isOver || count > 0)
  const share = Math.ceil(asked.limit / Math.max(1, sharing.length))
  const isEnough = counted.reduce((sum, { count }) => sum + count, 0) >= asked.limit
  const open = sharing
    .filter(({ isOver, count }) => !isOver && (count < share || !isEnough))
    .slice(0, LEAPS_MAX)
  const count = Math.max(1, Math.floor(LEAPS_MAX / Math.max(1, open.length)))
  return open.flatMap(({ turn, count: found }) => {
    const wanted = Math.max(1, asked.limit - found) * ROUND_GROWTH ** (round - 1)
    const { topic } = turn
    const leapsOf = (walk: TurnWalk<Seen>, among: MessageLeap['among']) =>
      walk.leaps({ count, wanted }).map((leap) => ({ turn, leap: { ...leap, topic, among } }))
    const isLanesTurn = turn.hasManyLanes || turn.isSeen
    return [
      ...leapsOf(turn.free, FREE_LEAP),
      ...(isLanesTurn ? leapsOf(turn.lanes, LANE_LEAP) : []),
    ]
  })
}

/** What the leaps have found, by their numbers. */
export function noteTopicLeaps(leaps: readonly TopicLeap[], seen: readonly Seen[]): void {
  for (const turn of new Set(leaps.map((one) => one.turn))) {
    for (const among of [FREE_LEAP, LANE_LEAP] as const) {
      const own = leaps.flatMap((one, n) => {
        return one.turn === turn && one.leap.among === among ? [{ leap: one.leap, n }] : []
      })
      const walk = among === FREE_LEAP ? turn.free : turn.lanes
      walk.note(
        own.map(({ leap }) => leap),
        own.map(({ n }) => seen.filter((one) => one.origin === among && one.topic === n)),
      )
    }
  }
}
