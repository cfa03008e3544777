/**
 * Finds due operations in fair order: operations take turns, and within each of them its tenants.
 * See `walk.ts` for the words.
 *
 * Tests: test/stores/mysql/turns/due.server.test.ts, test/stores/mysql/turns/turns.server.test.ts.
 */
import { toView } from '../../../core/record/decide.ts'
import type { DueOperation, DueQuery, OperationName } from '../../../core/store/durable-store.ts'
import { rotateBehind } from '../../kit/turns.ts'
import type { Row } from '../client.ts'
import { fromColumn, toRecord, VIEW } from '../columns.ts'
import { readCommitted, type Session } from '../driver/driver.ts'
import { OPERATION } from '../durable/operation-columns.ts'
import { numbersOf } from '../durable/phase-sql.ts'
import type { SqlContext } from '../sql.ts'
import {
  byLeap,
  candidatesOf,
  chooseInTurns,
  inIndexOrder,
  isHidden,
  laneKey,
  LEFT_OUT_ROWS,
  nextLeaps,
  noteLeaps,
  passLater,
  ROUNDS_MAX,
  tenantKeys,
  toEntry,
  type LaneLeap,
  type RecordLane,
  type TurnEntry,
  type TurnQuery,
} from './records.ts'
import { digSql, dueTurnsSql, FILL, passSql, type PassQuery } from './sql.ts'
import { TurnMemory, TurnWalk } from './walk.ts'

export class DueTurns {
  readonly #current: () => SqlContext
  readonly #memory = new TurnMemory()
  /** More was due than the last call returned, so the next one leaps with its first statement. */
  #isBehind = false

  constructor(current: () => SqlContext) {
    this.#current = current
  }

  async find(session: Session, request: DueQuery): Promise<DueOperation[]> {
    const { limit, operations } = request
    if (limit < 1 || operations.length === 0) return []
    const query = { limit, without: tenantKeys(request.withoutTenants) }
    const lanes = this.#lanes(request)
    const look = new DueLook(session, this.#current(), { operations, query, lanes })
    const isAll = await look.fill(this.#isBehind)
    this.#isBehind = !isAll
    if (!isAll) await look.walk()
    return look.results(chooseInTurns(lanes, query, this.#memory))
  }

  #lanes({ operations }: DueQuery): RecordLane[] {
    const lanes = numbersOf(operations).map((number): RecordLane => {
      return { number, walk: new TurnWalk(this.#memory.of(String(number))) }
    })
    return rotateBehind(lanes, laneKey, this.#memory.lastLane)
  }
}

/**
 * Tenants whose first entries are all for the reaper, and how many entries of each are read: at
 * most 8,000 rows, in about 10 ms. An operation after more such entries waits for the reaper.
 */
const DIGS_MAX = 16
const DIG_ROWS = 500

/**
 * If all due operations that were found belong to tenants that are left out, up to 50,000 entries
 * that are not due yet are passed before a look returns nothing; the next look continues after
 * them. Measured: 10 to 20 ms for 10,000 entries on MariaDB, so at most 100 ms in a look. This
 * happens only while the left-out tenants have more due operations than the fill reads.
 */
const PASSES_MAX = 5

/**
 * One look for due operations: the fill reads the longest due of all tenants, and then leaps read
 * tenant by tenant.
 */
class DueLook {
  readonly #session: Session
  readonly #context: SqlContext
  readonly #operations: readonly OperationName[]
  readonly #query: TurnQuery
  readonly #lanes: readonly RecordLane[]
  /** The longest due of all tenants, ordered by due time. */
  #filled: readonly TurnEntry[] = []
  /** The operation of each due entry, by identity. */
  readonly #dueByIdentity = new Map<string, DueOperation>()
  #round = 1

  constructor(
    session: Session,
    context: SqlContext,
    of: {
      readonly operations: readonly OperationName[]
      readonly query: TurnQuery
      readonly lanes: readonly RecordLane[]
    },
  ) {
    this.#session = session
    this.#context = context
    this.#operations = of.operations
    this.#query = of.query
    this.#lanes = of.lanes
  }

  /** Reads the longest due, and returns whether these are all. If not likely, also leaps. */
  async fill(isBehind: boolean): Promise<boolean> {
    const { limit, without } = this.#query
    const rows = limit + 1 + (without.size > 0 ? LEFT_OUT_ROWS : 0)
    const leaps = isBehind ? this.#nextLeaps() : []
    const found = await this.#leap(leaps, rows)
    const filled = found.filter(({ part }) => part === FILL)
    this.#filled = filled.toSorted((one, other) => one.atMs - other.atMs)
    const isAll = filled.length < rows
    for (const { number, walk } of this.#lanes) {
      const own = inIndexOrder(filled.filter((one) => one.number === number))
      if (isAll) walk.noteAll(own)
      else walk.learn(own.map(({ key }) => key))
    }
    return isAll
  }

  /** Reads tenant by tenant until enough operations are found, and passes entries if none is. */
  async walk(): Promise<void> {
    while (this.#round <= ROUNDS_MAX) {
      const leaps = this.#nextLeaps()
      if (leaps.length === 0) break
      await this.#leap(leaps)
    }
    await this.#dig()
    for (let passes = 0; passes < PASSES_MAX && !this.#hasDue(); passes++) {
      if (!(await this.#pass())) continue
      this.#round = 1
      await this.#leap(this.#nextLeaps())
      await this.#dig()
    }
  }

  /** The operations that have a turn, and then the longest due. */
  results(picked: readonly TurnEntry[]): DueOperation[] {
    const { limit, without } = this.#query
    const rest = this.#filled.filter(({ key }) => !without.has(key))
    const identities = new Set([...picked, ...rest].map(({ identity }) => identity))
    const due = [...identities].flatMap((identity) => this.#dueByIdentity.get(identity) ?? [])
    return due.slice(0, limit)
  }

  #nextLeaps(): LaneLeap[] {
    return nextLeaps(this.#lanes, this.#query, this.#round++)
  }

  #hasDue(): boolean {
    const { without } = this.#query
    return (
      this.#filled.some(({ key }) => !without.has(key)) ||
      this.#lanes.some((lane) => candidatesOf(lane, without).length > 0)
    )
  }

  async #leap(leaps: readonly LaneLeap[], fillRows = 0) {
    if (leaps.length === 0 && fillRows === 0) return []
    const { tables, now } = this.#context
    const fill = fillRows === 0 ? undefined : { operations: this.#operations, limit: fillRows }
    const asked = { leaps: leaps.map(({ leap }) => leap), fill }
    const found = await this.#ask(dueTurnsSql(tables, now, asked))
    noteLeaps(leaps, byLeap(found, leaps.length))
    return found
  }

  /** Reads further entries of tenants whose first entries are all for the reaper. */
  async #dig(): Promise<void> {
    const hidden = this.#lanes
      .flatMap(({ number, walk }) =>
        walk.stops.filter(isHidden).map(({ key }) => ({ number, walk, key })),
      )
      .filter(({ key }) => !this.#query.without.has(key))
      .slice(0, DIGS_MAX)
    if (hidden.length === 0) return
    const { tables, now } = this.#context
    const of = { operations: this.#operations, tenants: hidden, rows: DIG_ROWS }
    const found = byLeap(await this.#ask(digSql(tables, now, of)), hidden.length)
    for (const [n, { walk, key }] of hidden.entries()) walk.reveal(key, found[n] ?? [])
  }

  #pass(): Promise<boolean> {
    const sqlOf = (of: PassQuery) => passSql(this.#context.tables, this.#context.now, of)
    return passLater(this.#lanes, this.#query.without, (of) => this.#rows(sqlOf(of)))
  }

  #rows(sql: string): Promise<readonly Row[]> {
    return readCommitted(this.#session, sql)
  }

  /** Two operations may have the same number. An entry of the one not in the query is skipped. */
  async #ask(sql: string) {
    return (await this.#rows(sql)).map((row) => {
      const entry = toEntry(row)
      if (!entry.isDue) return entry
      const operation = toDue(row)
      if (!this.#operations.some((one) => isSame(one, operation))) {
        return { ...entry, isDue: false, isInTheWay: true }
      }
      this.#dueByIdentity.set(entry.identity, operation)
      return entry
    })
  }
}

const isSame = (one: OperationName, other: OperationName) =>
  one.name === other.name && one.version === other.version

function toDue([, , , , , , name, version, ...values]: Row): DueOperation {
  return {
    name: fromColumn(OPERATION.name, name) as string,
    version: Number(version),
    record: toView(toRecord(VIEW, values)),
  }
}
