/** One look for due operations: the longest due of all, and then from tenant to tenant. */
import { toView } from '../../core/decide.ts'
import type { DueOperation, OperationName } from '../../core/durable-store.ts'
import type { Row } from './client.ts'
import { toRecord, VIEW } from './columns.ts'
import { readCommitted, type Session } from './driver.ts'
import { OPERATION } from './phase-columns.ts'
import { passLater } from './pass-later.ts'
import {
  byLeap,
  candidatesOf,
  inIndexOrder,
  isHidden,
  LEFT_OUT_ROWS,
  nextLeaps,
  noteLeaps,
  ROUNDS_MAX,
  toEntry,
  type LaneLeap,
  type RecordLane,
  type TurnEntry,
  type Wanted,
} from './record-turns.ts'
import type { Inside } from './settlement.ts'
import { digSql, dueTurnsSql, FILL, passSql, type PassQuery } from './turn-sql.ts'
import { fromColumn } from './values.ts'

/**
 * Tenants whose first entries are all for the reaper, and entries of each that are gone through:
 * 8,000 rows at the most, in some 10 ms. What stands behind more than these waits for the reaper.
 */
const DIGS_MAX = 16
const DIG_ROWS = 500

/**
 * Where all that was found due is of tenants that are left out, up to 50,000 entries are passed
 * that wait for later, before a look may find nothing; the next one goes on behind them. Measured:
 * 10 to 20 ms for 10,000 entries on MariaDB, so 100 ms at the most in a look. That happens only
 * while the tenants that are left out have more due than the fill reads.
 */
const PASSES_MAX = 5

export class DueLook {
  readonly #session: Session
  readonly #inside: Inside
  readonly #operations: readonly OperationName[]
  readonly #wanted: Wanted
  readonly #lanes: readonly RecordLane[]
  /** The longest due of all, in their order. */
  #filled: readonly TurnEntry[] = []
  /** Of each entry that is due, by its identity. */
  readonly #whole = new Map<string, DueOperation>()
  #round = 1

  constructor(
    session: Session,
    inside: Inside,
    of: {
      readonly operations: readonly OperationName[]
      readonly wanted: Wanted
      readonly lanes: readonly RecordLane[]
    },
  ) {
    this.#session = session
    this.#inside = inside
    this.#operations = of.operations
    this.#wanted = of.wanted
    this.#lanes = of.lanes
  }

  /** Reads the longest due, and says whether they are all. Where that is not likely, leaps too. */
  async fill(isBehind: boolean): Promise<boolean> {
    const { limit, without } = this.#wanted
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

  /** From tenant to tenant, until there are enough, and at the least until there is one. */
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

  /** Those that have a turn, and then the longest due. */
  give(picked: readonly TurnEntry[]): DueOperation[] {
    const { limit, without } = this.#wanted
    const rest = this.#filled.filter(({ key }) => !without.has(key))
    const identities = new Set([...picked, ...rest].map(({ identity }) => identity))
    return [...identities].flatMap((identity) => this.#whole.get(identity) ?? []).slice(0, limit)
  }

  #nextLeaps(): LaneLeap[] {
    return nextLeaps(this.#lanes, this.#wanted, this.#round++)
  }

  #hasDue(): boolean {
    const { without } = this.#wanted
    return (
      this.#filled.some(({ key }) => !without.has(key)) ||
      this.#lanes.some((lane) => candidatesOf(lane, without).length > 0)
    )
  }

  async #leap(leaps: readonly LaneLeap[], fillRows = 0) {
    if (leaps.length === 0 && fillRows === 0) return []
    const { tables, now } = this.#inside
    const fill = fillRows === 0 ? undefined : { operations: this.#operations, limit: fillRows }
    const asked = { leaps: leaps.map(({ leap }) => leap), fill }
    const found = await this.#ask(dueTurnsSql(tables, now, asked))
    noteLeaps(leaps, byLeap(found, leaps.length))
    return found
  }

  /** Looks behind entries that stand in the way of others of their tenant. */
  async #dig(): Promise<void> {
    const hidden = this.#lanes
      .flatMap(({ number, walk }) =>
        walk.stops.filter(isHidden).map(({ key }) => ({ number, walk, key })),
      )
      .filter(({ key }) => !this.#wanted.without.has(key))
      .slice(0, DIGS_MAX)
    if (hidden.length === 0) return
    const { tables, now } = this.#inside
    const of = { operations: this.#operations, tenants: hidden, rows: DIG_ROWS }
    const found = byLeap(await this.#ask(digSql(tables, now, of)), hidden.length)
    for (const [n, { walk, key }] of hidden.entries()) walk.reveal(key, found[n] ?? [])
  }

  #pass(): Promise<boolean> {
    const sqlOf = (of: PassQuery) => passSql(this.#inside.tables, this.#inside.now, of)
    return passLater(this.#lanes, this.#wanted.without, (of) => this.#rows(sqlOf(of)))
  }

  #rows(sql: string): Promise<readonly Row[]> {
    return readCommitted(this.#session, sql)
  }

  /** Two operations may have one number: an entry of one that is not asked for is in the way. */
  async #ask(sql: string) {
    return (await this.#rows(sql)).map((row) => {
      const entry = toEntry(row)
      if (!entry.isDue) return entry
      const operation = toDue(row)
      if (!this.#operations.some((one) => isSame(one, operation))) {
        return { ...entry, isDue: false, isInTheWay: true }
      }
      this.#whole.set(entry.identity, operation)
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
