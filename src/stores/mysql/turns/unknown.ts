/**
 * Finds due unknown records in fair order: operations take turns, and within each of them its
 * tenants.
 *
 * Tests: test/stores/mysql/turns/turns.server.test.ts.
 */
import type { UnknownOperation, UnknownRequest } from '../../../core/store/operator-store.ts'
import type { Session } from '../driver/driver.ts'
import { runAs } from '../durable/phase-sql.ts'
import { UNKNOWN_RUN, UNKNOWN_SCOPE } from '../durable/tables.ts'
import type { SqlContext } from '../sql.ts'
import {
  byLeap,
  candidatesOf,
  chooseInTurns,
  inIndexOrder,
  LEAPS_MAX,
  LEFT_OUT_ROWS,
  nextLeaps,
  noteLeaps,
  passLater,
  ROUND_GROWTH,
  ROUNDS_MAX,
  tenantKeys,
  toEntry,
  type RecordLane,
  type TurnEntry,
  type TurnQuery,
} from './records.ts'
import { FILL, passSql, unknownTurnsSql, type RecordLeap } from './sql.ts'
import { cursorAfter, inWalkOrder, TurnMemory, TurnWalk, type Entry } from './walk.ts'

type Request = Pick<UnknownRequest, 'limit' | 'withoutOperations' | 'withoutTenants'>

/** Number of unknown records of this operation in the index. */
function numberOf({ name, version }: UnknownOperation): number {
  return version === undefined
    ? UNKNOWN_SCOPE + crc32(Buffer.from(name, 'utf8'))
    : UNKNOWN_RUN + runAs({ name, version })
}

/** The same as CRC32 in the database. */
function crc32(bytes: Uint8Array): number {
  let crc = 0xffffffff
  for (const byte of bytes) {
    crc ^= byte
    for (let bit = 0; bit < 8; bit++) crc = (crc >>> 1) ^ ((crc & 1) * CRC_POLYNOMIAL)
  }
  return ~crc >>> 0
}

const CRC_POLYNOMIAL = 0xedb88320

/** A fixed width, so that keys sort like their numbers. */
const NUMBER_DIGITS = 16

const numberKey = (number: number) => number.toString(16).toUpperCase().padStart(NUMBER_DIGITS, '0')
const fromKey = (key: string) => Number.parseInt(key, 16)

interface UnknownQuery extends TurnQuery {
  readonly withoutNumbers: ReadonlySet<number>
}

/** Name of the walk over operations in the memory. Other names are numbers of operations. */
const OPERATIONS = 'operations'

/**
 * Looks of one call: if operations and tenants have nothing due, the next look continues with the
 * next ones. Each look is at most eight statements, and there is more than one only while more is
 * due than the limit. About 400 operations may come before one that has a due record.
 */
const LOOKS_MAX = 8

export class UnknownTurns {
  readonly #memory = new TurnMemory()
  /** More was due than the last call returned, so the next one leaps with its first statement. */
  #isBehind = false

  /** Returns identities in the order of their turns. Runs within a transaction; takes no lock. */
  async find(session: Session, context: SqlContext, request: Request): Promise<string[]> {
    const query: UnknownQuery = {
      limit: request.limit,
      without: tenantKeys(request.withoutTenants),
      withoutNumbers: new Set((request.withoutOperations ?? []).map(numberOf)),
    }
    const picked = new Set<string>()
    const longest = new Set<string>()
    const seen = new Set<string>()
    for (let looks = 1; looks <= LOOKS_MAX; looks++) {
      const look = await this.#look(session, context, query, looks === 1)
      for (const { identity } of this.#choose(look, query)) picked.add(identity)
      for (const { identity } of look.filled) longest.add(identity)
      const hasNew = look.keys.some((key) => !seen.has(key))
      for (const key of look.keys) seen.add(key)
      const mayFindMore = hasNew && look.hasMoreOperations && picked.size < query.limit
      const isEmpty = picked.size + longest.size === 0
      if (!mayFindMore && !(isEmpty && look.hasMoreTenants)) break
    }
    return [...new Set([...picked, ...longest])].slice(0, query.limit)
  }

  /** Picks the entries that have a turn. Remembers where the turns of the operations stopped. */
  #choose({ keys, lanes, save }: UnknownLook, query: UnknownQuery): TurnEntry[] {
    const picked = chooseInTurns(lanes, query, this.#memory)
    const isServed = new Set(picked.map(({ number }) => number))
    const walked = new Set(lanes.map(({ number }) => number))
    const lastServed = keys.findLastIndex((key) => isServed.has(fromKey(key)))
    // After the limit is reached, the remaining operations have not been read to the end.
    const end = picked.length === query.limit ? lastServed + 1 : keys.length
    const stops = keys.slice(0, end).map((key) => {
      const number = fromKey(key)
      const lane = lanes.find((one) => one.number === number)
      const hasDue = lane !== undefined && candidatesOf(lane, query.without).length > 0
      const isUnseen = !walked.has(number) && !query.withoutNumbers.has(number)
      return { key, isLeft: isUnseen || (hasDue && !isServed.has(number)) }
    })
    save(cursorAfter(this.#memory.of(OPERATIONS).cursor, stops))
    return picked
  }

  /** A later look of a call reads more operations, and passes entries that are not due yet. */
  async #look(
    session: Session,
    context: SqlContext,
    query: UnknownQuery,
    isFirst: boolean,
  ): Promise<UnknownLook> {
    const isLeavingOut = query.without.size > 0 || query.withoutNumbers.size > 0
    const rows = query.limit + 1 + (isLeavingOut ? LEFT_OUT_ROWS : 0)
    const walk = new TurnWalk<Entry>(this.#memory.of(OPERATIONS))
    const first = this.#isBehind ? operationLeaps(walk, query.limit, 1) : []
    const { longest, entries } = await ask(session, context, { leaps: first, fill: rows })
    const filled = longest.filter(
      ({ key, number }) => !query.without.has(key) && !query.withoutNumbers.has(number),
    )
    const isBehind = longest.length === rows
    const round = this.#isBehind ? 2 : 1
    this.#isBehind = isBehind
    if (!isBehind) return this.#lookAtAll(filled, query)
    walk.note(first, toKeys(entries))
    const enough = isFirst ? Math.min(Math.max(query.limit, OPERATIONS_MIN), LEAPS_MAX) : LEAPS_MAX
    await walkOperations(session, context, { walk, query, round, enough })
    const keys = walk.stops.map(({ key }) => key)
    const lanes = this.#lanes(keys.map(fromKey), query)
    if (!isFirst) await passAll(session, context, { lanes, query })
    await walkTenants(session, context, { lanes, query })
    const save = (cursor: string | undefined) =>
      this.#memory.set(OPERATIONS, walk.rememberAt(cursor))
    const hasMoreOperations = !walk.isOver
    const hasMoreTenants = lanes.some((lane) => !lane.walk.isOver)
    return { filled, keys, lanes, hasMoreOperations, hasMoreTenants, save }
  }

  /** For a fill that has returned everything that is due. */
  #lookAtAll(filled: readonly TurnEntry[], query: UnknownQuery): UnknownLook {
    const numbers = [...new Set(filled.map(({ number }) => number))]
    const keys = inWalkOrder(numbers.map(numberKey), this.#memory.of(OPERATIONS).cursor)
    const lanes = this.#lanes(keys.map(fromKey), query)
    for (const { number, walk } of lanes) {
      walk.noteAll(inIndexOrder(filled.filter((one) => one.number === number)))
    }
    const save = (cursor: string | undefined) =>
      this.#memory.set(OPERATIONS, { ...this.#memory.of(OPERATIONS), cursor })
    return { filled, keys, lanes, hasMoreOperations: false, hasMoreTenants: false, save }
  }

  #lanes(numbers: readonly number[], { withoutNumbers }: UnknownQuery): RecordLane[] {
    const wanted = numbers.filter((number) => !withoutNumbers.has(number)).slice(0, LEAPS_MAX)
    return wanted.map((number) => {
      return { number, walk: new TurnWalk(this.#memory.of(String(number))) }
    })
  }
}

interface UnknownLook {
  /** The longest due, without left-out tenants and operations. */
  readonly filled: readonly TurnEntry[]
  /** Operations that were found, in the order of their turns. */
  readonly keys: readonly string[]
  readonly lanes: readonly RecordLane[]
  /** There are operations, or tenants of these operations, that the look has not reached. */
  readonly hasMoreOperations: boolean
  readonly hasMoreTenants: boolean
  readonly save: (cursor: string | undefined) => void
}

interface InLanes {
  readonly lanes: readonly RecordLane[]
  readonly query: UnknownQuery
}

/** At least so many operations are read, because some of them may have nothing due. */
const OPERATIONS_MIN = 8

function operationLeaps(walk: TurnWalk<Entry>, limit: number, round: number): RecordLeap[] {
  const wanted = Math.max(limit, OPERATIONS_MIN) * ROUND_GROWTH ** (round - 1)
  const leaps = walk.leaps({ count: LEAPS_MAX, wanted })
  return leaps.map((leap) => ({ ...leap, of: 'unknown' }))
}

/** Reads operation by operation until enough are found. */
async function walkOperations(
  session: Session,
  context: SqlContext,
  of: {
    readonly walk: TurnWalk<Entry>
    readonly query: UnknownQuery
    readonly round: number
    readonly enough: number
  },
): Promise<void> {
  const { walk, query, enough } = of
  const isWanted = ({ key }: Entry) => !query.withoutNumbers.has(fromKey(key))
  for (let { round } = of; round <= ROUNDS_MAX; round++) {
    if (walk.stops.filter(isWanted).length >= enough) return
    const leaps = operationLeaps(walk, query.limit, round)
    if (leaps.length === 0) return
    walk.note(leaps, toKeys((await ask(session, context, { leaps, fill: 0 })).entries))
  }
}

/** Reads tenant by tenant in each operation until enough records are found. */
async function walkTenants(session: Session, context: SqlContext, { lanes, query }: InLanes) {
  for (let round = 1; round <= ROUNDS_MAX; round++) {
    const leaps = nextLeaps(lanes, query, round)
    if (leaps.length === 0) return
    const answer = await ask(session, context, { leaps: leaps.map(({ leap }) => leap), fill: 0 })
    noteLeaps(leaps, answer.entries)
  }
}

async function passAll(session: Session, context: SqlContext, { lanes, query }: InLanes) {
  const { tables, now } = context
  await passLater(lanes, query.without, async (pass) => {
    const rows = await session.rows(passSql(tables, now, pass))
    return rows.map(([, ...values]) => values)
  })
}

const toKeys = (entries: readonly (readonly TurnEntry[])[]): Entry[][] =>
  entries.map((found) => found.map(({ number }) => ({ key: numberKey(number) })))

async function ask(
  session: Session,
  { tables, now }: SqlContext,
  of: { readonly leaps: readonly RecordLeap[]; readonly fill: number },
): Promise<{ readonly longest: readonly TurnEntry[]; readonly entries: TurnEntry[][] }> {
  const rows = await session.rows(unknownTurnsSql(tables, now, of))
  const found = rows.map(toEntry)
  const filled = found.filter(({ part }) => part === FILL)
  return {
    longest: filled.toSorted((one, other) => one.atMs - other.atMs),
    entries: byLeap(found, of.leaps.length),
  }
}
