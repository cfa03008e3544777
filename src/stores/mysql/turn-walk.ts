/**
 * Walks from tenant to tenant by an index, in leaps. Neither database can be made to leap inside of
 * one statement, whatever the statistics, so each leap is a SELECT with the tenant as a literal. To
 * make many of them in one round trip, a walk leaps from the tenants that it has found before, and
 * checks afterwards that no new tenant stands between two of them.
 *
 * Keys are hexadecimal digits in capital letters, which sort as the bytes do.
 */

/** The entries of the index after `after`, or from the first: at most `rows` of them. */
export interface Leap {
  readonly after: string | undefined
  readonly rows: number
  /** Before the walk has wrapped around (0), and after that (1). */
  readonly lap: 0 | 1
}

/** One entry of the index. They come in the order of the index. */
export interface Entry {
  readonly key: string
}

/** A tenant with the first of its entries. */
export interface Stop<One extends Entry> {
  readonly key: string
  readonly entries: readonly One[]
}

/**
 * Entries that a leap reads. A leap costs as much as a dozen entries. So where tenants have more
 * than that, it reads the first few of one tenant; where they have less, it goes past many tenants.
 */
const ROWS_OF_ONE = 4
const ROWS_OF_MANY = 64
const MANY_EACH = 12
const FIRST_EACH = 4

/** So that a few tenants are met in one round, all around. */
const LEAPS_MIN = 4

/** Tenants that a walk begins its leaps from. */
const KNOWN_MAX = 512

/** Tenants behind `after`, up to and with `upTo`. */
export interface Rest {
  readonly after: string | undefined
  readonly upTo: string | undefined
}

/** What a look at the first entries of a rest has found. */
export interface Passed {
  /** The last tenant of these entries. */
  readonly last: string | undefined
  /** The first of them that has something due. */
  readonly due: string | undefined
  /** There are no more entries than these. */
  readonly isEnd: boolean
}

/** What a walk leaves for the next one. */
export interface Remembered {
  readonly cursor: string | undefined
  /** Tenants at which leaps have ended, in their order: the next ones begin there. */
  readonly known: readonly string[]
  /** After the last of them the index came to its end. */
  readonly isEndKnown: boolean
  /** Entries of each tenant, as far as leaps have read them. */
  readonly each: number
}

export const NOTHING_KNOWN: Remembered = {
  cursor: undefined,
  known: [],
  isEndKnown: false,
  each: FIRST_EACH,
}

export class TurnWalk<One extends Entry> {
  readonly #before: Remembered
  readonly #stops = new Map<string, One[]>()
  readonly #learned = new Set<string>()
  #isEndKnown: boolean
  #lap: 0 | 1 = 0
  /** All tenants up to this one, in this lap, have been seen. */
  #at: string | undefined
  #isOver = false
  /** No leap has found two tenants. */
  #isOfOne = true
  /** What there is came from elsewhere: leaps have found nothing. */
  #isAll = false
  #isMoved = false

  constructor(before: Remembered) {
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

  /** Whether it has found anything out. */
  get isMoved(): boolean {
    return this.#isMoved
  }

  /** In the order of the walk. */
  get stops(): Stop<One>[] {
    return [...this.#stops].map(([key, entries]) => ({ key, entries }))
  }

  /** Where to leap from next; at most `count` leaps for about `wanted` tenants. */
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
    const inLap = (lap: 0 | 1, isMeant: (key: string) => boolean) =>
      known.filter(isMeant).map((after) => ({ after, lap }))
    const start = this.#start
    const isAhead = (key: string) => this.#at === undefined || key > this.#at
    if (this.#lap === 1) return [here, ...inLap(1, (key) => isAhead(key) && key < start!)]
    const first = [here, ...inLap(0, isAhead)]
    if (start === undefined || !this.#isEndKnown) return first
    return [...first, { after: undefined, lap: 1 }, ...inLap(1, (key) => key < start)]
  }

  /** Without those that were passed and that no leap has ended at. */
  #known(): string[] {
    if (this.#isAll) return [...this.#before.known]
    const kept = this.#before.known.filter((key) => !this.reaches(key))
    return [...new Set([...kept, ...this.#learned])].toSorted()
  }

  /** Whether leaps are known that begin at this tenant or later. */
  #isKnownFrom(key: string): boolean {
    const highest = this.#before.known.at(-1)
    return (highest !== undefined && highest >= key) || [...this.#learned].some((one) => one >= key)
  }

  /** Tenants from elsewhere to begin leaps from, until leaps have found their own. */
  learn(keys: readonly string[]): void {
    if (this.#before.isEndKnown) return
    for (const key of keys) if (!this.reaches(key)) this.#learned.add(key)
  }

  /** The entries that each of the leaps has found. */
  note(leaps: readonly Leap[], found: readonly (readonly One[])[]): void {
    for (const [n, leap] of leaps.entries()) {
      this.#isMoved = true
      const entries = found[n] ?? []
      const last = entries.length === leap.rows ? entries.at(-1) : undefined
      if (this.#isOver || leap.lap < this.#lap) continue
      // A new tenant was found before it, and there may be more of them.
      const isBeyond =
        leap.lap > this.#lap ||
        (leap.after !== undefined && (this.#at === undefined || leap.after > this.#at))
      if (last !== undefined && last.key !== entries[0]?.key) this.#isOfOne = false
      if (!isBeyond) this.#noteOne(leap, entries)
      if (last !== undefined) this.#learned.add(last.key)
    }
  }

  /** All entries that there are. */
  noteAll(entries: readonly One[]): void {
    const start = this.#start
    const isBehind = ({ key }: One) => start === undefined || key > start
    this.#add([...entries.filter(isBehind), ...entries.filter((entry) => !isBehind(entry))])
    this.#isOver = true
    this.#isAll = true
    this.#isMoved = true
  }

  /** What of a tenant could not be seen by leaps. */
  reveal(key: string, entries: readonly One[]): void {
    this.#stops.set(key, [...entries])
  }

  /** The part of the index that the walk has not come to in this lap. */
  get rest(): Rest | undefined {
    if (this.#isOver) return undefined
    return { after: this.#at, upTo: this.#lap === 1 ? this.#start : undefined }
  }

  /** Goes on behind tenants of the rest of which nothing is due. */
  pass({ last, due, isEnd }: Passed): void {
    this.#isMoved = true
    const at = due === undefined ? last : justBefore(due)
    // An empty stop, for the cursor to stand behind.
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

  /** Whether all tenants up to this one have been seen. */
  reaches(key: string): boolean {
    if (this.#isOver) return true
    const lap = this.#start === undefined || key > this.#start ? 0 : 1
    if (lap !== this.#lap) return lap < this.#lap
    return this.#at !== undefined && key <= this.#at
  }

  /** What the next walk begins with. */
  rememberAt(cursor: string | undefined): Remembered {
    const known = inWalkOrder(this.#known(), cursor).slice(0, KNOWN_MAX).toSorted()
    return { cursor, known, isEndKnown: this.#isEndKnown, each: this.#each() }
  }

  /** Where each leap has read of one tenant only, that tenant has as many or more. */
  #each(): number {
    const counts = [...this.#stops.values()].map(({ length }) => length).filter((n) => n > 0)
    if (counts.length === 0 || this.#isAll) return this.#before.each
    const entries = counts.reduce((sum, count) => sum + count, 0)
    return this.#isOfOne ? MANY_EACH : entries / counts.length
  }
}

/**
 * The last tenant before the first one that has something due and was not served: the next walk
 * begins behind it.
 */
export function cursorAfter(
  start: string | undefined,
  stops: readonly { readonly key: string; readonly isLeft: boolean }[],
): string | undefined {
  const left = stops.findIndex(({ isLeft }) => isLeft)
  const passed = left === -1 ? stops : stops.slice(0, left)
  return passed.at(-1)?.key ?? start
}

/**
 * Comes after all tenants before this one, and before it: tenants are UTF-8, without a byte FF.
 */
function justBefore(key: string): string | undefined {
  if (key === '') return undefined
  const byte = Number.parseInt(key.slice(-2), 16)
  const first = key.slice(0, -2)
  if (byte === 0) return first
  return `${first}${(byte - 1).toString(16).toUpperCase().padStart(2, '0')}FF`
}

/** As the walk goes: behind `start` first, and around. */
export function inWalkOrder(keys: readonly string[], start: string | undefined): string[] {
  const isAhead = (key: string) => start === undefined || key > start
  const sorted = keys.toSorted()
  return [...sorted.filter(isAhead), ...sorted.filter((key) => !isAhead(key))]
}
