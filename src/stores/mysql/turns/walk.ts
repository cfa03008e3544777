/**
 * Finds the tenants that have work by skipping through an index. The words of this folder:
 *
 * - A leap is one range read of the index that starts after a given tenant.
 * - A walk is a sequence of leaps that visits the tenants in the order of the index, starts after
 *   the tenant where the last walk stopped (its cursor), and wraps around once (a new lap).
 * - A stop is a tenant that a walk has found, with the first of its entries.
 * - A lane is the part of the work whose tenants one walk visits: an operation or a topic. In the
 *   tables of messages a lane is a partition.
 * - The fill is the read of the longest due entries, without regard to tenants.
 *
 * Neither database can be made to skip from tenant to tenant within one statement reliably, because
 * the plan depends on the statistics. So each leap is a SELECT with the tenant as a literal. To run
 * many leaps in one round trip, a walk leaps from tenants that earlier walks have found, and checks
 * afterwards that no new tenant exists between two of them.
 *
 * Keys are upper-case hexadecimal digits, which sort like the bytes that they encode.
 */

/** Reads at most `rows` entries of the index after `after`, or from the first one. */
export interface Leap {
  readonly after: string | undefined
  readonly rows: number
  /** 0 before the walk has wrapped around, 1 after that. */
  readonly lap: 0 | 1
}

/** One entry of the index. Leaps return entries in the order of the index. */
export interface Entry {
  readonly key: string
}

/** A tenant with the first of its entries. */
export interface Stop<One extends Entry> {
  readonly key: string
  readonly entries: readonly One[]
}

/**
 * Entries that a leap reads. A leap costs as much as a dozen entries. So if tenants have more
 * entries than that, a leap reads the first few of one tenant. If they have fewer, it reads the
 * entries of many tenants.
 */
const ROWS_OF_ONE = 4
const ROWS_OF_MANY = 64
const MANY_EACH = 12
const FIRST_EACH = 4

/** Enough to visit a few tenants completely in one round. */
const LEAPS_MIN = 4

/** How many known tenants are kept as starting points of leaps. */
const KNOWN_MAX = 512

/** Tenants after `after`, up to and including `upTo`. */
export interface Rest {
  readonly after: string | undefined
  readonly upTo: string | undefined
}

/** Result of reading the first entries of a rest. */
export interface PassResult {
  /** The last tenant of these entries. */
  readonly last: string | undefined
  /** The first tenant that has a due entry. */
  readonly due: string | undefined
  /** There are no more entries than these. */
  readonly isEnd: boolean
}

/** State of a walk that the next one starts with. */
export interface WalkMemory {
  readonly cursor: string | undefined
  /** Tenants at which leaps have ended, sorted. The next leaps start there. */
  readonly known: readonly string[]
  /** There are no entries after the last of them. */
  readonly isEndKnown: boolean
  /** Average number of entries of a tenant, as far as leaps have read them. */
  readonly each: number
}

export const NOTHING_KNOWN: WalkMemory = {
  cursor: undefined,
  known: [],
  isEndKnown: false,
  each: FIRST_EACH,
}

export class TurnWalk<One extends Entry> {
  readonly #before: WalkMemory
  readonly #stops = new Map<string, One[]>()
  readonly #learned = new Set<string>()
  #isEndKnown: boolean
  #lap: 0 | 1 = 0
  /** All tenants up to this one have been visited in this lap. */
  #at: string | undefined
  #isOver = false
  /** No leap has found more than one tenant. */
  #isOfOne = true
  /** All entries came from `noteAll`, and none from leaps. */
  #isAll = false
  #isMoved = false

  constructor(before: WalkMemory) {
    this.#before = before
    this.#at = before.cursor
    this.#isEndKnown = before.isEndKnown
  }

  get #start(): string | undefined {
    return this.#before.cursor
  }

  get isOver(): boolean {
    return this.#isOver
  }

  /** Whether the walk has read anything. */
  get isMoved(): boolean {
    return this.#isMoved
  }

  /** Stops in the order of the walk. */
  get stops(): Stop<One>[] {
    return [...this.#stops].map(([key, entries]) => ({ key, entries }))
  }

  /** Next leaps: at most `count`, to find about `wanted` tenants. */
  leaps({ count, wanted }: { readonly count: number; readonly wanted: number }): Leap[] {
    if (this.#isOver) return []
    const { each } = this.#before
    const enough = Math.min(ROWS_OF_MANY, Math.ceil(wanted * each) + 1)
    const rows = each >= MANY_EACH ? ROWS_OF_ONE : Math.max(ROWS_OF_ONE, enough)
    const perLeap = Math.max(1, Math.floor(rows / each))
    const most = Math.min(count, Math.max(LEAPS_MIN, Math.ceil(wanted / perLeap) + 1))
    return this.#froms()
      .slice(0, most)
      .map((from) => ({ ...from, rows }))
  }

  #froms(): Omit<Leap, 'rows'>[] {
    const here = { after: this.#at, lap: this.#lap }
    const known = this.#known()
    const inLap = (lap: 0 | 1, isInLap: (key: string) => boolean) =>
      known.filter(isInLap).map((after) => ({ after, lap }))
    const start = this.#start
    const isAhead = (key: string) => this.#at === undefined || key > this.#at
    if (this.#lap === 1) return [here, ...inLap(1, (key) => isAhead(key) && key < start!)]
    const first = [here, ...inLap(0, isAhead)]
    if (start === undefined || !this.#isEndKnown) return first
    return [...first, { after: undefined, lap: 1 }, ...inLap(1, (key) => key < start)]
  }

  /** Drops known tenants that the walk has passed without a leap that ended there. */
  #known(): string[] {
    if (this.#isAll) return [...this.#before.known]
    const kept = this.#before.known.filter((key) => !this.reaches(key))
    return [...new Set([...kept, ...this.#learned])].toSorted()
  }

  /** Whether a known tenant is this one or a later one. */
  #isKnownFrom(key: string): boolean {
    const highest = this.#before.known.at(-1)
    return (highest !== undefined && highest >= key) || [...this.#learned].some((one) => one >= key)
  }

  /** Adds starting points of leaps from another read, until leaps have reached the end once. */
  learn(keys: readonly string[]): void {
    if (this.#before.isEndKnown) return
    for (const key of keys) if (!this.reaches(key)) this.#learned.add(key)
  }

  /** Adds the entries that each leap has found. */
  note(leaps: readonly Leap[], found: readonly (readonly One[])[]): void {
    for (const [n, leap] of leaps.entries()) {
      this.#isMoved = true
      const entries = found[n] ?? []
      const last = entries.length === leap.rows ? entries.at(-1) : undefined
      if (this.#isOver || leap.lap < this.#lap) continue
      // An earlier leap has ended before the start of this one, and tenants may exist between them.
      const isBeyond =
        leap.lap > this.#lap ||
        (leap.after !== undefined && (this.#at === undefined || leap.after > this.#at))
      if (last !== undefined && last.key !== entries[0]?.key) this.#isOfOne = false
      if (!isBeyond) this.#noteOne(leap, entries)
      if (last !== undefined) this.#learned.add(last.key)
    }
  }

  /** Adds all existing entries, and ends the walk. */
  noteAll(entries: readonly One[]): void {
    const start = this.#start
    const isBehind = ({ key }: One) => start === undefined || key > start
    this.#add([...entries.filter(isBehind), ...entries.filter((entry) => !isBehind(entry))])
    this.#isOver = true
    this.#isAll = true
    this.#isMoved = true
  }

  /** Replaces the entries of a tenant after a read that went further than leaps do. */
  reveal(key: string, entries: readonly One[]): void {
    this.#stops.set(key, [...entries])
  }

  /** The part of the index that the walk has not reached in this lap. */
  get rest(): Rest | undefined {
    if (this.#isOver) return undefined
    return { after: this.#at, upTo: this.#lap === 1 ? this.#start : undefined }
  }

  /** Moves the walk past tenants of the rest that have nothing due. */
  pass({ last, due, isEnd }: PassResult): void {
    this.#isMoved = true
    const at = due === undefined ? last : justBefore(due)
    // An empty stop, so that the cursor can be set after it.
    if (at !== undefined && !this.#stops.has(at)) this.#stops.set(at, [])
    if (due === undefined && isEnd) this.#endLap()
    else if (at !== undefined) this.#at = at
  }

  #noteOne({ rows }: Leap, entries: readonly One[]): void {
    const at = this.#at
    const isWithin = ({ key }: One) => this.#lap === 0 || key <= this.#start!
    this.#add(entries.filter((entry) => (at === undefined || entry.key > at) && isWithin(entry)))
    const last = entries.at(-1)
    const isAtEnd = entries.length < rows || last === undefined
    if (!isAtEnd && isWithin(last)) {
      if (at === undefined || last.key > at) this.#at = last.key
      const isNewEnd = this.#lap === 0 && !this.#isKnownFrom(last.key)
      if (isNewEnd) this.#isEndKnown = false
      if (this.#lap === 1 && this.#at === this.#start) this.#isOver = true
    } else {
      if (isAtEnd) this.#isEndKnown = true
      this.#endLap()
    }
  }

  #endLap(): void {
    if (this.#lap === 1 || this.#start === undefined) this.#isOver = true
    this.#lap = 1
    this.#at = undefined
  }

  #add(entries: readonly One[]): void {
    for (const entry of entries) {
      const stop = this.#stops.get(entry.key)
      if (stop === undefined) this.#stops.set(entry.key, [entry])
      else stop.push(entry)
    }
  }

  /** Whether all tenants up to this one have been visited. */
  reaches(key: string): boolean {
    if (this.#isOver) return true
    const lap = this.#start === undefined || key > this.#start ? 0 : 1
    if (lap !== this.#lap) return lap < this.#lap
    return this.#at !== undefined && key <= this.#at
  }

  /** State for the next walk, which starts after `cursor`. */
  rememberAt(cursor: string | undefined): WalkMemory {
    const known = inWalkOrder(this.#known(), cursor).slice(0, KNOWN_MAX).toSorted()
    return { cursor, known, isEndKnown: this.#isEndKnown, each: this.#each() }
  }

  /**
   * If each leap has found only one tenant, tenants have at least as many entries as a leap reads.
   */
  #each(): number {
    const counts = [...this.#stops.values()].map(({ length }) => length).filter((n) => n > 0)
    if (counts.length === 0 || this.#isAll) return this.#before.each
    const entries = counts.reduce((sum, count) => sum + count, 0)
    return this.#isOfOne ? MANY_EACH : entries / counts.length
  }
}

/** The last tenant before the first one that has due work and got no turn. */
export function cursorAfter(
  start: string | undefined,
  stops: readonly { readonly key: string; readonly isLeft: boolean }[],
): string | undefined {
  const left = stops.findIndex(({ isLeft }) => isLeft)
  const passed = left === -1 ? stops : stops.slice(0, left)
  return passed.at(-1)?.key ?? start
}

/** A key between this tenant and all tenants before it. UTF-8 contains no byte FF. */
function justBefore(key: string): string | undefined {
  if (key === '') return undefined
  const byte = Number.parseInt(key.slice(-2), 16)
  const first = key.slice(0, -2)
  if (byte === 0) return first
  return `${first}${(byte - 1).toString(16).toUpperCase().padStart(2, '0')}FF`
}

/** Sorts keys in the order of a walk: first those after `start`, then the others. */
export function inWalkOrder(keys: readonly string[], start: string | undefined): string[] {
  const isAhead = (key: string) => start === undefined || key > start
  const sorted = keys.toSorted()
  return [...sorted.filter(isAhead), ...sorted.filter((key) => !isAhead(key))]
}

/** Characters that each map may hold. */
const CHARACTERS_MAX = 4_000_000

/** About the size of a map entry without its characters. */
const ENTRY = 64

/** Drops the values that were set least recently when all values together are too long. */
export class BoundedMap<Value> {
  readonly #values = new Map<string, Value>()
  readonly #lengthOf: (value: Value) => number
  #weight = 0

  constructor(lengthOf: (value: Value) => number) {
    this.#lengthOf = lengthOf
  }

  get(key: string): Value | undefined {
    return this.#values.get(key)
  }

  set(key: string, value: Value): void {
    this.delete(key)
    this.#values.set(key, value)
    this.#weight += this.#weightOf(key, value)
    for (const oldest of this.#values.keys()) {
      if (this.#weight <= CHARACTERS_MAX) return
      this.delete(oldest)
    }
  }

  delete(key: string): void {
    const value = this.#values.get(key)
    if (value === undefined) return
    this.#weight -= this.#weightOf(key, value)
    this.#values.delete(key)
  }

  #weightOf(key: string, value: Value): number {
    return ENTRY + key.length + this.#lengthOf(value)
  }
}

/**
 * If a cursor is dropped, its turns start with the first tenant again, and the last tenants may
 * never get a turn. There is room for more than 20,000 cursors of the usual length.
 */
export class CursorMap extends BoundedMap<string> {
  constructor() {
    super(({ length }) => length)
  }
}

/** If these are dropped, a walk is only slower. */
type Hints = Omit<WalkMemory, 'cursor'>

const lengthOfHints = ({ known }: Hints) => known.reduce((sum, { length }) => sum + length, 0)

/** Memory of one store object: where its turns stopped, and the tenants that they visited. */
export class TurnMemory {
  /** Key of the lane at which the last call stopped. */
  lastLane: string | undefined
  readonly #cursors = new CursorMap()
  readonly #hints = new BoundedMap<Hints>(lengthOfHints)

  of(lane: string): WalkMemory {
    return { ...NOTHING_KNOWN, ...this.#hints.get(lane), cursor: this.#cursors.get(lane) }
  }

  /** Does not set an unchanged cursor again, because that could drop cursors that have changed. */
  set(lane: string, { cursor, ...hints }: WalkMemory): void {
    if (cursor !== undefined && cursor !== this.#cursors.get(lane)) this.#cursors.set(lane, cursor)
    this.#hints.set(lane, hints)
  }
}
