import { systemClock } from '../../core/clock.ts'
import { pickInTurns, type TurnCursors } from '../../core/turns.ts'
import { Round } from './round.ts'

/** Something that waits, as an index has it. The row itself is read once it is taken. */
export interface WaitingKey {
  /** The rowid. */
  readonly number: number
  readonly tenant: string
  readonly due_at_ms: number
}

export interface DueKey extends WaitingKey {
  /** The key of its lane. */
  readonly lane: string
}

/** An operation or a topic, as an index over its tenants has it. */
export interface WalkedLane {
  readonly key: string
  /** At most so many of it. */
  readonly max: number
  /** The first of the next tenant of which anything waits. `is_free`: 0 where it is for `reap`. */
  readonly next: (behind: string | undefined) => ReachedKey | undefined
  /** What is due of a tenant, the longest due first. */
  readonly ofTenant: (tenant: string, limit: number) => WaitingKey[]
}

export interface ReachedKey extends WaitingKey {
  readonly is_free?: 0 | 1
}

export interface Walk {
  /** In the order of their turns. */
  readonly lanes: readonly WalkedLane[]
  readonly cursors: TurnCursors
  readonly limit: number
  readonly nowMs: number
  readonly withoutTenants: readonly string[] | undefined
  /** Some are left out, and none may be answered only where none of the others are due. */
  readonly mustFind?: boolean
  /** The key of a lane behind which there are more lanes, for a later call. */
  readonly moreBehind?: string | undefined
  /** What is due longest in all lanes together, whichever tenant's it is. */
  readonly longest: (limit: number) => DueKey[]
}

export interface Walked {
  readonly keys: readonly DueKey[]
  /** Nothing was found, and not everything was examined. */
  readonly isCut: boolean
  /** Lets the next walk go on where this one has stopped. */
  readonly keep: () => void
}

/**
 * Tenants that one call goes through: enough in the usual case, and a bound in the others. Where
 * some are left out and nothing was found yet, the lanes go on up to the last of these numbers: the
 * longest due, which replace the turns otherwise, may be nothing but those of a tenant that is left
 * out. A leap takes some microseconds of the event loop.
 */
const LANE_LEAPS_MIN = 64
const CALL_LEAPS_MIN = 1000
const SEARCH_LEAPS_MIN = 2000

/** How often a call walks that finds nothing before it has to end. */
const WALKS_MAX = 16

/** How often the places that are left are divided among the tenants that have more. */
const SHARES_MAX = 4

/** Rows that may belong to tenants that are left out, when the longest due are read. */
const LONGEST_MORE = 64

/**
 * One of each lane and tenant in turns, by leaps over an index: what a tenant has waiting costs
 * nothing. Where there are fewer tenants than places, they share the rest. Where a lane has more
 * tenants than a call goes through, the rest is filled with the longest due, so that one that is
 * due is found among very many that are not.
 *
 * With 100 tenants, and without handlers or disk, the store's own CPU time allows 0.87 of the
 * operations and messages that it allowed without turns. One more index is part of that.
 */
export function walkInTurns(walk: Walk): Walked {
  const { lanes, cursors, limit, withoutTenants, mustFind = false, moreBehind } = walk
  const leaps = Math.max(mustFind ? SEARCH_LEAPS_MIN : CALL_LEAPS_MIN, 4 * limit)
  const budget: Budget = { leaps, lastLane: undefined }
  const tours = lanes.map((lane) => new Tour(lane, walk, budget))
  const picks = pickOfTours({ tours, budget, limit, mustFind })
  const choice = new Choice(lanes, limit)
  for (const key of picks) choice.add(key)
  shareRest(choice, lanes, picks)
  const isCut = tours.some(({ lane, isWhole }) => !isWhole && choice.roomIn(lane.key) > 0)
  const hasMore = isCut || moreBehind !== undefined
  if (choice.room > 0 && hasMore) {
    for (const key of walk.longest(limit + LONGEST_MORE)) {
      if (withoutTenants?.includes(key.tenant) !== true) choice.add(key)
    }
  }
  const keep = () => {
    for (const { lane, stop } of tours) if (stop !== undefined) cursors.stopAt(lane.key, stop)
    const isExamined = tours.every(({ isBegun }) => isBegun)
    cursors.lastLane = (isExamined ? moreBehind : undefined) ?? budget.lastLane ?? cursors.lastLane
  }
  return { keys: choice.keys, isCut: mustFind && hasMore && choice.keys.length === 0, keep }
}

/**
 * Repeats a walk that was cut short, and lets the event loop go round in between. Sixteen walks go
 * through 32,000 tenants, or through 1,024 operations with unknown records. Beyond that, the answer
 * is none although something may be due, and the next call goes on there.
 */
export async function walkOn<Found extends { readonly isCut: boolean }>(
  walk: () => Promise<Found>,
): Promise<Found> {
  let found = await walk()
  for (let walks = 1; found.isCut && walks < WALKS_MAX; walks++) {
    await new Promise<void>((resolve) => systemClock.soon(resolve))
    found = await walk()
  }
  return found
}

interface Picking {
  readonly tours: readonly Tour[]
  readonly budget: Budget
  readonly limit: number
  readonly mustFind: boolean
}

/** One candidate of each lane, and so on. `mustFind`: until one is found or no lane goes on. */
function pickOfTours({ tours, budget, limit, mustFind }: Picking): DueKey[] {
  for (;;) {
    const leapsBefore = budget.leaps
    const picks = pickInTurns(
      tours.map((tour) => ({ ...tour.lane, candidates: tour.candidates() })),
      limit,
    )
    const hasLeapt = budget.leaps < leapsBefore
    if (!mustFind || picks.length > 0 || !hasLeapt) return picks.map(({ candidate }) => candidate)
  }
}

/** What all lanes of a call share. */
interface Budget {
  leaps: number
  /** The key of the lane that was examined last. */
  lastLane: string | undefined
}

/** The tenants of one lane, once around. */
class Tour {
  readonly lane: WalkedLane
  /** The last tenant that was reached. */
  stop: string | undefined
  /** Its tenants were examined, or there was none. */
  isBegun = false
  readonly #round: Round<ReachedKey>
  readonly #walk: Walk
  readonly #budget: Budget
  #leaps = 0

  constructor(lane: WalkedLane, walk: Walk, budget: Budget) {
    this.lane = lane
    this.#walk = walk
    this.#budget = budget
    this.#round = new Round({
      start: walk.cursors.tenantOf(lane.key),
      next: lane.next,
      keyOf: ({ tenant }) => tenant,
      mayLeap: () => this.#mayLeap(),
    })
  }

  /** No tenant of the lane was left unreached. */
  get isWhole(): boolean {
    return this.#round.isWhole
  }

  #mayLeap(): boolean {
    if (this.#leaps < 1 || this.#budget.leaps < 1) return false
    this.#leaps--
    this.#budget.leaps--
    this.#budget.lastLane = this.lane.key
    this.isBegun = true
    return true
  }

  /** The longest due of each tenant. Asked for again, it goes on. */
  *candidates(): Generator<DueKey, void> {
    const { nowMs, withoutTenants, limit } = this.#walk
    this.#leaps = Math.max(LANE_LEAPS_MIN, 2 * limit)
    for (const reached of this.#round.places()) {
      const { tenant, due_at_ms, is_free } = reached
      this.stop = tenant
      if (due_at_ms > nowMs || withoutTenants?.includes(tenant) === true) continue
      const [first] = is_free === 0 ? this.lane.ofTenant(tenant, 1) : [reached]
      if (first !== undefined) yield keyIn(this.lane, first)
    }
  }
}

function keyIn({ key: lane }: WalkedLane, { number, tenant, due_at_ms }: WaitingKey): DueKey {
  return { number, lane, tenant, due_at_ms }
}

/** What is taken, within its limits and nothing twice. */
class Choice {
  readonly keys: DueKey[] = []
  readonly #numbers = new Set<number>()
  readonly #limit: number
  readonly #left: Map<string, number>

  constructor(lanes: readonly WalkedLane[], limit: number) {
    this.#limit = limit
    this.#left = new Map(lanes.map(({ key, max }) => [key, max]))
  }

  get room(): number {
    return this.#limit - this.keys.length
  }

  roomIn(lane: string): number {
    return Math.min(this.room, this.#left.get(lane) ?? this.#limit)
  }

  add(key: DueKey): void {
    const { number, lane } = key
    if (this.#numbers.has(number) || this.roomIn(lane) < 1) return
    this.keys.push(key)
    this.#numbers.add(number)
    this.#left.set(lane, (this.#left.get(lane) ?? this.#limit) - 1)
  }
}

/** Divides the places that are left among the tenants that were reached. */
function shareRest(choice: Choice, lanes: readonly WalkedLane[], picks: readonly DueKey[]): void {
  const laneOf = new Map(lanes.map((lane) => [lane.key, lane]))
  let open = picks.map(({ lane, tenant }) => ({ lane: laneOf.get(lane)!, tenant, count: 1 }))
  for (let round = 0; round < SHARES_MAX && open.length > 0 && choice.room > 0; round++) {
    const share = Math.ceil(choice.room / open.length)
    open = open.filter((one) => {
      const more = Math.min(share, choice.roomIn(one.lane.key))
      if (more < 1) return false
      const due = one.lane.ofTenant(one.tenant, one.count + more)
      for (const key of due) choice.add(keyIn(one.lane, key))
      const hasMore = due.length === one.count + more
      one.count = due.length
      return hasMore
    })
  }
}
