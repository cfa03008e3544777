/** Which unknown records are due, in the turns of their operations and tenants. */
import type { UnknownOperation, UnknownRequest } from '../../core/durable-store.ts'
import type { Session } from './driver.ts'
import { runAs } from './phase-sql.ts'
import { passLater } from './pass-later.ts'
import {
  byLeap,
  candidatesOf,
  chooseInTurns,
  inIndexOrder,
  LEAPS_MAX,
  LEFT_OUT_ROWS,
  nextLeaps,
  noteLeaps,
  ROUND_GROWTH,
  ROUNDS_MAX,
  tenantKeys,
  toEntry,
  type RecordLane,
  type TurnEntry,
  type Wanted,
} from './record-turns.ts'
import type { Inside } from './settlement.ts'
import { TurnMemory } from './turn-memory.ts'
import { FILL, passSql, unknownTurnsSql, type RecordLeap } from './turn-sql.ts'
import { UNKNOWN_RUN, UNKNOWN_SCOPE } from './turn-tables.ts'
import { cursorAfter, inWalkOrder, TurnWalk, type Entry } from './turn-walk.ts'

type Request = Pick<UnknownRequest, 'limit' | 'withoutOperations' | 'withoutTenants'>

/** The number that the index knows unknown records of this operation by. */
function numberOf({ name, version }: UnknownOperation): number {
  return version === undefined
    ? UNKNOWN_SCOPE + crc32(Buffer.from(name, 'utf8'))
    : UNKNOWN_RUN + runAs({ name, version })
}

/** As the database computes it. */
function crc32(bytes: Uint8Array): number {
  let crc = 0xffffffff
  for (const byte of bytes) {
    crc ^= byte
    for (let bit = 0; bit < 8; bit++) crc = (crc >>> 1) ^ ((crc & 1) * CRC_POLYNOMIAL)
  }
  return ~crc >>> 0
}

const CRC_POLYNOMIAL = 0xedb88320

/** As wide as any number of the index, so that keys sort as their numbers do. */
const NUMBER_DIGITS = 16

const numberKey = (number: number) => number.toString(16).toUpperCase().padStart(NUMBER_DIGITS, '0')
const fromKey = (key: string) => Number.parseInt(key, 16)

interface Asked extends Wanted {
  readonly withoutNumbers: ReadonlySet<number>
}

/** Where the turns of operations are remembered, among those of tenants. */
const OPERATIONS = 'operations'

/**
 * Looks of one call: where operations and tenants have nothing due, it goes on with the next ones.
 * Each look is at most eight statements, and there is more than one only while more is due than was
 * asked for. Some 400 operations may wait before one that is due.
 */
const LOOKS_MAX = 8

export class UnknownTurns {
  readonly #memory = new TurnMemory()
  /** There was more than could be handed out: the next look leaps at once. */
  #isBehind = false

  /** Identities, in the order of their turns. Within a transaction; locks nothing. */
  async find(session: Session, inside: Inside, request: Request): Promise<string[]> {
    const asked: Asked = {
      limit: request.limit,
      without: tenantKeys(request.withoutTenants),
      withoutNumbers: new Set((request.withoutOperations ?? []).map(numberOf)),
    }
    const picked = new Set<string>()
    const longest = new Set<string>()
    const seen = new Set<string>()
    for (let looks = 1; looks <= LOOKS_MAX; looks++) {
      const look = await this.#look(session, inside, asked, looks === 1)
      for (const { identity } of this.#choose(look, asked)) picked.add(identity)
      for (const { identity } of look.filled) longest.add(identity)
      const hasNew = look.keys.some((key) => !seen.has(key))
      for (const key of look.keys) seen.add(key)
      const mayFindMore = hasNew && look.hasMoreOperations && picked.size < asked.limit
      const isEmpty = picked.size + longest.size === 0
      if (!mayFindMore && !(isEmpty && look.hasMoreTenants)) break
    }
    return [...new Set([...picked, ...longest])].slice(0, asked.limit)
  }

  /** Who has a turn. Remembers where the turns of the operations stopped. */
  #choose({ keys, lanes, save }: Looked, asked: Asked): TurnEntry[] {
    const picked = chooseInTurns(lanes, asked, this.#memory)
    const isServed = new Set(picked.map(({ number }) => number))
    const walked = new Set(lanes.map(({ number }) => number))
    const lastServed = keys.findLastIndex((key) => isServed.has(fromKey(key)))
    // Once all places are taken, the operations after that are not walked to the end.
    const end = picked.length === asked.limit ? lastServed + 1 : keys.length
    const stops = keys.slice(0, end).map((key) => {
      const number = fromKey(key)
      const lane = lanes.find((one) => one.number === number)
      const hasDue = lane !== undefined && candidatesOf(lane, asked.without).length > 0
      const isUnseen = !walked.has(number) && !asked.withoutNumbers.has(number)
      return { key, isLeft: isUnseen || (hasDue && !isServed.has(number)) }
    })
    save(cursorAfter(this.#memory.of(OPERATIONS).cursor, stops))
    return picked
  }

  /** A later look of a call takes more operations, and passes over what waits for later. */
  async #look(session: Session, inside: Inside, asked: Asked, isFirst: boolean): Promise<Looked> {
    const isLeavingOut = asked.without.size > 0 || asked.withoutNumbers.size > 0
    const rows = asked.limit + 1 + (isLeavingOut ? LEFT_OUT_ROWS : 0)
    const walk = new TurnWalk<Entry>(this.#memory.of(OPERATIONS))
    const first = this.#isBehind ? operationLeaps(walk, asked.limit, 1) : []
    const { longest, entries } = await ask(session, inside, { leaps: first, fill: rows })
    const filled = longest.filter(
      ({ key, number }) => !asked.without.has(key) && !asked.withoutNumbers.has(number),
    )
    const isBehind = longest.length === rows
    const round = this.#isBehind ? 2 : 1
    this.#isBehind = isBehind
    if (!isBehind) return this.#lookAtAll(filled, asked)
    walk.note(first, toKeys(entries))
    const enough = isFirst ? Math.min(Math.max(asked.limit, OPERATIONS_MIN), LEAPS_MAX) : LEAPS_MAX
    await walkOperations(session, inside, { walk, asked, round, enough })
    const keys = walk.stops.map(({ key }) => key)
    const lanes = this.#lanes(keys.map(fromKey), asked)
    if (!isFirst) await passAll(session, inside, { lanes, asked })
    await walkTenants(session, inside, { lanes, asked })
    const save = (cursor: string | undefined) =>
      this.#memory.set(OPERATIONS, walk.rememberAt(cursor))
    const hasMoreOperations = !walk.isOver
    const hasMoreTenants = lanes.some((lane) => !lane.walk.isOver)
    return { filled, keys, lanes, hasMoreOperations, hasMoreTenants, save }
  }

  /** The fill has all that is due. */
  #lookAtAll(filled: readonly TurnEntry[], asked: Asked): Looked {
    const numbers = [...new Set(filled.map(({ number }) => number))]
    const keys = inWalkOrder(numbers.map(numberKey), this.#memory.of(OPERATIONS).cursor)
    const lanes = this.#lanes(keys.map(fromKey), asked)
    for (const { number, walk } of lanes) {
      walk.noteAll(inIndexOrder(filled.filter((one) => one.number === number)))
    }
    const save = (cursor: string | undefined) =>
      this.#memory.set(OPERATIONS, { ...this.#memory.of(OPERATIONS), cursor })
    return { filled, keys, lanes, hasMoreOperations: false, hasMoreTenants: false, save }
  }

  #lanes(numbers: readonly number[], { withoutNumbers }: Asked): RecordLane[] {
    const wanted = numbers.filter((number) => !withoutNumbers.has(number)).slice(0, LEAPS_MAX)
    return wanted.map((number) => {
      return { number, walk: new TurnWalk(this.#memory.of(String(number))) }
    })
  }
}

interface Looked {
  /** The longest due, without what is left out. */
  readonly filled: readonly TurnEntry[]
  /** Of the operations that were found, in the order of their turns. */
  readonly keys: readonly string[]
  readonly lanes: readonly RecordLane[]
  /** Operations, or tenants of these, that the look has not come to. */
  readonly hasMoreOperations: boolean
  readonly hasMoreTenants: boolean
  readonly save: (cursor: string | undefined) => void
}

interface InLanes {
  readonly lanes: readonly RecordLane[]
  readonly asked: Asked
}

/** Of some operations that are found, nothing may be due. */
const OPERATIONS_MIN = 8

function operationLeaps(walk: TurnWalk<Entry>, limit: number, round: number): RecordLeap[] {
  const wanted = Math.max(limit, OPERATIONS_MIN) * ROUND_GROWTH ** (round - 1)
  const leaps = walk.leaps({ count: LEAPS_MAX, wanted })
  return leaps.map((leap) => ({ ...leap, of: 'unknown' }))
}

/** From operation to operation, until there are enough. */
async function walkOperations(
  session: Session,
  inside: Inside,
  of: {
    readonly walk: TurnWalk<Entry>
    readonly asked: Asked
    readonly round: number
    readonly enough: number
  },
): Promise<void> {
  const { walk, asked, enough } = of
  const isMeant = ({ key }: Entry) => !asked.withoutNumbers.has(fromKey(key))
  for (let { round } = of; round <= ROUNDS_MAX; round++) {
    if (walk.stops.filter(isMeant).length >= enough) return
    const leaps = operationLeaps(walk, asked.limit, round)
    if (leaps.length === 0) return
    walk.note(leaps, toKeys((await ask(session, inside, { leaps, fill: 0 })).entries))
  }
}

/** From tenant to tenant in each operation, until there are enough. */
async function walkTenants(session: Session, inside: Inside, { lanes, asked }: InLanes) {
  for (let round = 1; round <= ROUNDS_MAX; round++) {
    const leaps = nextLeaps(lanes, asked, round)
    if (leaps.length === 0) return
    const answer = await ask(session, inside, { leaps: leaps.map(({ leap }) => leap), fill: 0 })
    noteLeaps(leaps, answer.entries)
  }
}

async function passAll(session: Session, inside: Inside, { lanes, asked }: InLanes) {
  const { tables, now } = inside
  await passLater(lanes, asked.without, async (query) => {
    const rows = await session.rows(passSql(tables, now, query))
    return rows.map(([, ...values]) => values)
  })
}

const toKeys = (entries: readonly (readonly TurnEntry[])[]): Entry[][] =>
  entries.map((found) => found.map(({ number }) => ({ key: numberKey(number) })))

async function ask(
  session: Session,
  { tables, now }: Inside,
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
