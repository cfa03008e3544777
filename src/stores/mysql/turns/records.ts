/**
 * Turns of tenants among the records of one operation, shared by `due.ts` and `unknown.ts`. See
 * `walk.ts` for the words.
 */
import { pickInTurns } from '../../kit/turns.ts'
import type { Row } from '../client.ts'
import { DUE_NOW, REAPERS, type PassQuery, type RecordLeap } from './sql.ts'
import { cursorAfter, type Stop, type TurnMemory, type TurnWalk } from './walk.ts'

/** Statements with leaps in one call, and leaps in each statement, for all lanes together. */
export const ROUNDS_MAX = 4
export const LEAPS_MAX = 64

/** Additional rows of the fill if tenants or operations are left out. */
export const LEFT_OUT_ROWS = 64

/** Each round reads so many times as far as the round before. */
export const ROUND_GROWTH = 4

/** An entry of the index of turns. */
export interface TurnEntry {
  /** Tenant as a key of the index. */
  readonly key: string
  /** Number of the operation. */
  readonly number: number
  readonly atMs: number
  readonly isDue: boolean
  /** The time has come, but the caller may not take the record. */
  readonly isInTheWay: boolean
  readonly identity: string
}

/** The tenants of one operation. */
export interface RecordLane {
  readonly number: number
  readonly walk: TurnWalk<TurnEntry>
}

export const laneKey = ({ number }: RecordLane): string => String(number)

/** A tenant as a key of the index. */
export const tenantKey = (tenant: string): string =>
  Buffer.from(tenant, 'utf8').toString('hex').toUpperCase()

export const tenantKeys = (tenants: readonly string[] = []): ReadonlySet<string> =>
  new Set(tenants.map(tenantKey))

/** Limits of one call: it returns at most `limit`, and nothing of the tenants in `without`. */
export interface TurnQuery {
  readonly limit: number
  readonly without: ReadonlySet<string>
}

/** The longest due entry of each tenant that is not left out. */
export function candidatesOf({ walk }: RecordLane, without: ReadonlySet<string>): TurnEntry[] {
  return walk.stops.flatMap(({ key, entries }) => {
    const due = without.has(key) ? undefined : entries.find(({ isDue }) => isDue)
    return due === undefined ? [] : [due]
  })
}

/** Whether a due entry of a tenant may come after the entries that leaps have read. */
export function isHidden({ entries }: Stop<TurnEntry>): boolean {
  return entries.length > 0 && entries.every(({ isInTheWay }) => isInTheWay)
}

/** A leap, and its lane. */
export interface LaneLeap {
  readonly lane: RecordLane
  readonly leap: RecordLeap
}

/** Next leaps, for lanes with fewer candidates than their share that may have more. */
export function nextLeaps(
  lanes: readonly RecordLane[],
  { limit, without }: TurnQuery,
  round: number,
): LaneLeap[] {
  const counted = inReach(
    lanes.map((lane) => ({ lane, count: candidatesOf(lane, without).length })),
    limit,
  )
  const sharing = counted.filter(({ lane, count }) => !lane.walk.isOver || count > 0)
  const share = Math.ceil(limit / Math.max(1, sharing.length))
  const isEnough = counted.reduce((sum, { count }) => sum + count, 0) >= limit
  const open = sharing
    .filter(({ lane, count }) => !lane.walk.isOver && (count < share || !isEnough))
    .slice(0, LEAPS_MAX)
  const count = Math.max(1, Math.floor(LEAPS_MAX / Math.max(1, open.length)))
  return open.flatMap(({ lane, count: found }) => {
    const wanted = Math.max(1, limit - found) * ROUND_GROWTH ** (round - 1)
    const { number: of } = lane
    return lane.walk.leaps({ count, wanted }).map((leap) => ({ lane, leap: { ...leap, of } }))
  })
}

/** Drops the lanes that come after `limit` lanes with a candidate. */
function inReach<Counted extends { readonly count: number }>(
  lanes: readonly Counted[],
  limit: number,
): readonly Counted[] {
  const last = lanes.filter(({ count }) => count > 0)[limit - 1]
  return last === undefined ? lanes : lanes.slice(0, lanes.indexOf(last) + 1)
}

/** Passes the entries that each leap has found to the walk of its lane. */
export function noteLeaps(
  leaps: readonly LaneLeap[],
  found: readonly (readonly TurnEntry[])[],
): void {
  for (const lane of new Set(leaps.map((one) => one.lane))) {
    const own = leaps.flatMap((one, n) => (one.lane === lane ? [{ leap: one.leap, n }] : []))
    lane.walk.note(
      own.map(({ leap }) => leap),
      own.map(({ n }) => found[n] ?? []),
    )
  }
}

/** Groups entries by the index of their leap. */
export function byLeap(
  entries: readonly (TurnEntry & { readonly part: number })[],
  leaps: number,
): TurnEntry[][] {
  const found: TurnEntry[][] = Array.from({ length: leaps }, () => [])
  for (const entry of entries) found[entry.part]?.push(entry)
  return found.map(inIndexOrder)
}

/** `part` is the index of the leap that has found the entry, or `FILL`. */
export function toEntry([part, at, kind, tenant, number, identity]: Row) {
  return {
    part: Number(part),
    key: String(tenant),
    number: Number(number),
    atMs: Number(at),
    isDue: Number(kind) === DUE_NOW,
    isInTheWay: Number(kind) === REAPERS,
    identity: String(identity).toLowerCase(),
  }
}

/** Sorts entries as the index does, which a walk requires. */
export function inIndexOrder(entries: readonly TurnEntry[]): TurnEntry[] {
  return entries.toSorted((one, other) => {
    if (one.number !== other.number) return one.number - other.number
    return one.key === other.key ? one.atMs - other.atMs : one.key < other.key ? -1 : 1
  })
}

/**
 * Picks the entries that have a turn, from lanes in the order of their turns. Remembers where each
 * lane stopped: after the last tenant before one that got nothing or was not read to the end.
 */
export function chooseInTurns(
  lanes: readonly RecordLane[],
  { limit, without }: TurnQuery,
  memory: TurnMemory,
): TurnEntry[] {
  const open = lanes.map((lane) => {
    return { key: laneKey(lane), max: limit, lane, candidates: candidatesOf(lane, without) }
  })
  const picks = pickInTurns(open, limit)
  memory.lastLane = picks.at(-1)?.lane ?? memory.lastLane
  const isPicked = new Set(picks.map(({ candidate }) => candidate))
  for (const { key, lane, candidates } of open) {
    if (!lane.walk.isMoved) continue
    const left = new Set(candidates.filter((one) => !isPicked.has(one)).map((one) => one.key))
    const stops = lane.walk.stops.map((stop) => {
      const isLeft = left.has(stop.key) || (isHidden(stop) && !without.has(stop.key))
      return { key: stop.key, isLeft }
    })
    const cursor = cursorAfter(memory.of(key).cursor, stops)
    memory.set(key, lane.walk.rememberAt(cursor))
  }
  return picks.map(({ candidate }) => candidate)
}

/** Entries of the index that one statement reads, for all lanes together. */
const PASS_ROWS = 10_000

/**
 * Moves the walks of these lanes past entries that are not due yet, for which leaps would take too
 * many statements. Returns whether a walk has reached an entry that is due.
 */
export async function passLater(
  lanes: readonly RecordLane[],
  without: ReadonlySet<string>,
  ask: (query: PassQuery) => Promise<readonly Row[]>,
): Promise<boolean> {
  const open = lanes
    .flatMap(({ number, walk }) => {
      const rest = walk.rest
      return rest === undefined ? [] : [{ ...rest, number, walk }]
    })
    .slice(0, LEAPS_MAX)
  if (open.length === 0) return false
  const rows = Math.ceil(PASS_ROWS / open.length)
  const found = await ask({ rests: open, rows, without })
  for (const [n, count, last, due] of found) {
    const isEnd = Number(count) < rows
    open[Number(n)]?.walk.pass({ last: toKey(last), due: toKey(due), isEnd })
  }
  return found.some(([, , , due]) => due !== null)
}

const toKey = (column: unknown) => (typeof column === 'string' ? column : undefined)
