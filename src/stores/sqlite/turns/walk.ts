/** Tests: test/stores/sqlite/turns/walk.test.ts, test/stores/sqlite/turns/turns.test.ts. */
import { systemClock } from '../../../core/time/clock.ts'
import { pickInTurns, type TurnCursors } from '../../kit/turns.ts'

/** An index entry of waiting work. The row itself is read after it was chosen. */
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

/** An operation or a topic, with an index over its tenants. */
export interface Lane {
  readonly key: string
  /** How much of this lane one call may take. */
  readonly max: number
  /** The first entry of the next tenant with waiting work. */
  readonly next: (behind: string | undefined) => FirstOfTenant | undefined
  /** Due work of a tenant, the longest due first. */
  readonly ofTenant: (tenant: string, limit: number) => WaitingKey[]
}

export interface FirstOfTenant extends WaitingKey {
  /** 0 if only `reap` may take it. */
  readonly is_free?: 0 | 1
}

export interface WalkOptions {
  /** In the order of their turns. */
  readonly lanes: readonly Lane[]
  readonly cursors: TurnCursors
  readonly limit: number
  readonly nowMs: number
  readonly withoutTenants: readonly string[] | undefined
  /** Some work is excluded, and an empty answer must mean that no other work is due. */
  readonly mustFind?: boolean
  /** The key of a lane after which a later call finds more lanes. */
  readonly moreBehind?: string | undefined
  /** The longest due work of all lanes and tenants. */
  readonly longest: (limit: number) => DueKey[]
}

export interface WalkResult {
  readonly keys: readonly DueKey[]
  /** Nothing was found, but not everything was examined. */
  readonly isCut: boolean
  /** Makes the next walk continue where this one stopped. */
  readonly saveCursors: () => void
}

/**
 * How many tenants one call visits: enough in the usual case, and a bound in the others. If some
 * tenants are excluded and nothing was found yet, the lanes continue up to `SEARCH_LEAPS_MIN`: the
 * longest due entries, which otherwise replace the turns, may all belong to an excluded tenant. A
 * leap takes some microseconds of the event loop.
 */
const LANE_LEAPS_MIN = 64
const CALL_LEAPS_MIN = 1000
const SEARCH_LEAPS_MIN = 2000

/** How many walks without a result one call makes before it ends. */
const WALKS_MAX = 16

/** How many times the remaining places are divided among the tenants that have more work. */
const SHARES_MAX = 4

/** Extra rows to read of the longest due, because some may belong to excluded tenants. */
const LONGEST_MORE = 64

/**
 * Picks one entry of each lane and tenant in turns, by leaps over an index, so that a tenant's
 * backlog costs nothing. If there are fewer tenants than places, they share the rest. If a lane has
 * more tenants than a call visits, the longest due entries fill the rest, so that one due entry is
 * found among very many that are not due.
 *
 * With 100 tenants, and without handlers or disk, the store's own CPU time allows 0.87 of the
 * operations and messages that it allowed without turns. That includes the cost of one more index.
 */
export function walkInTurns(options: WalkOptions): WalkResult {
  const { lanes, cursors, limit, withoutTenants, mustFind = false, moreBehind } = options
  const leaps = Math.max(mustFind ? SEARCH_LEAPS_MIN : CALL_LEAPS_MIN, 4 * limit)
  const budget: Budget = { leaps, lastLane: undefined }
  const tours = lanes.map((lane) => new Tour(lane, options, budget))
  const picks = pickOfTours({ tours, budget, limit, mustFind })
  const choice = new Choice(lanes, limit)
  for (const key of picks) choice.add(key)
  shareRest(choice, lanes, picks)
  const isCut = tours.some(({ lane, isWhole }) => !isWhole && choice.roomIn(lane.key) > 0)
  const hasMore = isCut || moreBehind !== undefined
  if (choice.room > 0 && hasMore) {
    for (const key of options.longest(limit + LONGEST_MORE)) {
      if (withoutTenants?.includes(key.tenant) !== true) choice.add(key)
    }
  }
  const saveCursors = () => {
    for (const { lane, stop } of tours) if (stop !== undefined) cursors.stopAt(lane.key, stop)
    const isExamined = tours.every(({ isBegun }) => isBegun)
    cursors.lastLane = (isExamined ? moreBehind : undefined) ?? budget.lastLane ?? cursors.lastLane
  }
  return { keys: choice.keys, isCut: mustFind && hasMore && choice.keys.length === 0, saveCursors }
}

/**
 * Repeats a walk that was cut short, and lets the event loop turn in between. Sixteen walks visit
 * 32,000 tenants, or 1,024 operations with unknown records. Beyond that the answer is empty
 * although work may be due, and the next call continues there.
 */
export async function repeatWalk<Result extends { readonly isCut: boolean }>(
  walk: () => Promise<Result>,
): Promise<Result> {
  let result = await walk()
  for (let walks = 1; result.isCut && walks < WALKS_MAX; walks++) {
    await new Promise<void>((resolve) => systemClock.soon(resolve))
    result = await walk()
  }
  return result
}

interface PickOptions {
  readonly tours: readonly Tour[]
  readonly budget: Budget
  readonly limit: number
  readonly mustFind: boolean
}

/** With `mustFind`, continues until an entry is found or no lane has a leap left. */
function pickOfTours({ tours, budget, limit, mustFind }: PickOptions): DueKey[] {
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

/** Shared by all lanes of a call. */
interface Budget {
  leaps: number
  /** The key of the lane that was examined last. */
  lastLane: string | undefined
}

/** Visits the tenants of one lane once. */
class Tour {
  readonly lane: Lane
  /** The last tenant that was visited. */
  stop: string | undefined
  /** The tenants of the lane were examined, or it has none. */
  isBegun = false
  readonly #round: Round<FirstOfTenant>
  readonly #options: WalkOptions
  readonly #budget: Budget
  #leaps = 0

  constructor(lane: Lane, options: WalkOptions, budget: Budget) {
    this.lane = lane
    this.#options = options
    this.#budget = budget
    this.#round = new Round({
      start: options.cursors.tenantOf(lane.key),
      next: lane.next,
      keyOf: ({ tenant }) => tenant,
      mayLeap: () => this.#mayLeap(),
    })
  }

  /** Every tenant of the lane was visited. */
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

  /** The longest due entry of each tenant. A second call continues after the first. */
  *candidates(): Generator<DueKey, void> {
    const { nowMs, withoutTenants, limit } = this.#options
    this.#leaps = Math.max(LANE_LEAPS_MIN, 2 * limit)
    for (const first of this.#round.entries()) {
      const { tenant, due_at_ms, is_free } = first
      this.stop = tenant
      if (due_at_ms > nowMs || withoutTenants?.includes(tenant) === true) continue
      const [due] = is_free === 0 ? this.lane.ofTenant(tenant, 1) : [first]
      if (due !== undefined) yield keyIn(this.lane, due)
    }
  }
}

function keyIn({ key: lane }: Lane, { number, tenant, due_at_ms }: WaitingKey): DueKey {
  return { number, lane, tenant, due_at_ms }
}

export interface RoundOptions<Entry> {
  /** The key of the entry to begin behind; `undefined` begins with the first entry. */
  readonly start: string | undefined
  /** The entry behind the one with this key, or the first entry. */
  readonly next: (behind: string | undefined) => Entry | undefined
  readonly keyOf: (entry: Entry) => string
  /** Called before each leap; `false` pauses the round. */
  readonly mayLeap: () => boolean
}

/**
 * Visits the entries of an index once, from the start to the last and then from the first. When
 * the leaps have run out, a second call of `entries` continues the round.
 */
export class Round<Entry> {
  readonly #options: RoundOptions<Entry>
  readonly #visited = new Set<string>()
  #behind: string | undefined
  #isFromFirst: boolean
  /** Every entry was visited. */
  isWhole = false

  constructor(options: RoundOptions<Entry>) {
    this.#options = options
    this.#behind = options.start
    this.#isFromFirst = options.start === undefined
  }

  *entries(): Generator<Entry, void> {
    const { start, next, keyOf, mayLeap } = this.#options
    while (!this.isWhole && mayLeap()) {
      const entry = next(this.#behind)
      if (entry === undefined && !this.#isFromFirst) {
        this.#isFromFirst = true
        this.#behind = undefined
        continue
      }
      // If the entry at the start was removed, the round ends when it meets a visited entry.
      this.isWhole = entry === undefined || this.#visited.has(keyOf(entry))
      if (entry === undefined || this.isWhole) return
      const key = keyOf(entry)
      this.#behind = key
      this.#visited.add(key)
      this.isWhole = key === start
      yield entry
    }
  }
}

/** The chosen entries: within the limits, and each once. */
class Choice {
  readonly keys: DueKey[] = []
  readonly #numbers = new Set<number>()
  readonly #limit: number
  readonly #left: Map<string, number>

  constructor(lanes: readonly Lane[], limit: number) {
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

/** Divides the remaining places among the tenants that were visited. */
function shareRest(choice: Choice, lanes: readonly Lane[], picks: readonly DueKey[]): void {
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
