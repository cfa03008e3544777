/** The turns of tenants among records of one number: what workers and reconcilers share. */
import { pickInTurns } from '../../core/turns.ts'
import type { Row } from './client.ts'
import type { TurnMemory } from './turn-memory.ts'
import { DUE_NOW, REAPERS, type RecordLeap } from './turn-sql.ts'
import { cursorAfter, type Stop, type TurnWalk } from './turn-walk.ts'

/** Statements of one call that leap, and leaps in each of them, over all lanes. */
export const ROUNDS_MAX = 4
export const LEAPS_MAX = 64

/** Rows of the fill that are read beyond the limit where something is left out. */
export const LEFT_OUT_ROWS = 64

/** Each round goes as many times as far as the round before. */
export const ROUND_GROWTH = 4

/** An entry of the index of turns. */
export interface TurnEntry {
  /** Of its tenant. */
  readonly key: string
  /** Of its operation. */
  readonly number: number
  readonly atMs: number
  readonly isDue: boolean
  /** Its time has come, and the caller may not take it. */
  readonly isInTheWay: boolean
  readonly identity: string
}

/** The tenants of one operation, by its number. */
export interface RecordLane {
  readonly number: number
  readonly walk: TurnWalk<TurnEntry>
}

export const laneKey = ({ number }: RecordLane): string => String(number)

/** A tenant as the key that the index has. */
export const tenantKey = (tenant: string): string =>
  Buffer.from(tenant, 'utf8').toString('hex').toUpperCase()

export const tenantKeys = (tenants: readonly string[] = []): ReadonlySet<string> =>
  new Set(tenants.map(tenantKey))

export interface Wanted {
  readonly limit: number
  readonly without: ReadonlySet<string>
}

/** Of each tenant that is not left out, the longest due. */
export function candidatesOf({ walk }: RecordLane, without: ReadonlySet<string>): TurnEntry[] {
  return walk.stops.flatMap(({ key, entries }) => {
    const due = without.has(key) ? undefined : entries.find(({ isDue }) => isDue)
    return due === undefined ? [] : [due]
  })
}

/** Whether what a tenant has due may stand behind more than leaps have read of it. */
export function isHidden({ entries }: Stop<TurnEntry>): boolean {
  return entries.length > 0 && entries.every(({ isInTheWay }) => isInTheWay)
}

/** A leap, and the lane that asked for it. */
export interface LaneLeap {
  readonly lane: RecordLane
  readonly leap: RecordLeap
}

/** Where lanes leap next that have not given their share and may have more. */
export function nextLeaps(
  lanes: readonly RecordLane[],
  { limit, without }: Wanted,
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

/** Without the lanes that come after as many with something as there are places. */
function inReach<Counted extends { readonly count: number }>(
  lanes: readonly Counted[],
  limit: number,
): readonly Counted[] {
  const last = lanes.filter(({ count }) => count > 0)[limit - 1]
  return last === undefined ? lanes : lanes.slice(0, lanes.indexOf(last) + 1)
}

/** What each of the leaps has found, by their number. */
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

/** Entries by the number of their leap. */
export function byLeap(
  entries: readonly (TurnEntry & { readonly part: number })[],
  leaps: number,
): TurnEntry[][] {
  const found: TurnEntry[][] = Array.from({ length: leaps }, () => [])
  for (const entry of entries) found[entry.part]?.push(entry)
  return found.map(inIndexOrder)
}

/** `part`: the leap that has found it, or the fill. */
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

/** In the order that a walk wants, which is the one of the index. */
export function inIndexOrder(entries: readonly TurnEntry[]): TurnEntry[] {
  return entries.toSorted((one, other) => {
    if (one.number !== other.number) return one.number - other.number
    return one.key === other.key ? one.atMs - other.atMs : one.key < other.key ? -1 : 1
  })
}

/**
 * Who has a turn, in lanes that come in their order. Remembers where each lane stopped: behind the
 * last tenant before one that was not served, or not examined to the end.
 */
export function chooseInTurns(
  lanes: readonly RecordLane[],
  { limit, without }: Wanted,
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
