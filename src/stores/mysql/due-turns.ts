/** Which operations are due, in the turns of their operations and tenants. */
import { toView } from '../../core/decide.ts'
import type { DueOperation, DueQuery } from '../../core/durable-store.ts'
import type { StoredRecord } from '../../core/record.ts'
import { rotateBehind } from '../../core/turns.ts'
import type { Row } from './client.ts'
import { toRecord, VIEW } from './columns.ts'
import { readCommitted, type Session } from './driver.ts'
import { OPERATION } from './phase-columns.ts'
import { dueOperationsSql, numbersOf, runAs } from './phase-sql.ts'
import {
  chooseInTurns,
  inIndexOrder,
  laneKey,
  LEFT_OUT_ROWS,
  nextLeaps,
  noteLeaps,
  ROUNDS_MAX,
  tenantKey,
  tenantKeys,
  toEntries,
  type LaneLeap,
  type RecordLane,
  type TurnEntry,
} from './record-turns.ts'
import type { Inside } from './settlement.ts'
import { TurnMemory } from './turn-memory.ts'
import { dueTurnsSql, FILL, pickedOperationsSql } from './turn-sql.ts'
import { TurnWalk } from './turn-walk.ts'
import { fromColumn } from './values.ts'

/** More leaps cost more in the wide rows of the fill than in a statement of their own. */
const EARLY_LEAPS_MAX = 4

/** An operation as the fill brings it. */
interface Found {
  readonly name: string
  readonly version: number
  readonly dueAtMs: number
  readonly record: StoredRecord
}

export class DueTurns {
  readonly #inside: () => Inside
  readonly #memory = new TurnMemory()
  /** There was more than could be handed out: the next look leaps at once. */
  #isBehind = false

  constructor(inside: () => Inside) {
    this.#inside = inside
  }

  async find(session: Session, query: DueQuery): Promise<DueOperation[]> {
    const { limit } = query
    if (limit < 1 || query.operations.length === 0) return []
    const without = tenantKeys(query.withoutTenants)
    const lanes = this.#lanes(query)
    const found = await this.#look(session, query, lanes)
    const picked = chooseInTurns(lanes, { limit, without }, this.#memory)
    const chosen = await this.#load(session, query, { picked, found })
    const isChosen = new Set(picked.map(({ identity }) => identity))
    const rest = found.filter(
      ({ record }) => !isChosen.has(record.identity) && !without.has(tenantKey(record.tenant)),
    )
    return [...chosen, ...rest].slice(0, limit).map(({ name, version, record }) => {
      return { name, version, record: toView(record) }
    })
  }

  #lanes({ operations }: DueQuery): RecordLane[] {
    const lanes = numbersOf(operations).map((number): RecordLane => {
      return { number, walk: new TurnWalk(this.#memory.of(String(number))) }
    })
    return rotateBehind(lanes, laneKey, this.#memory.lastLane)
  }

  /** Walks the lanes, and gives the fill. Where that is all that is due, no walk is needed. */
  async #look(
    session: Session,
    query: DueQuery,
    lanes: readonly RecordLane[],
  ): Promise<readonly Found[]> {
    const without = tenantKeys(query.withoutTenants)
    const wanted = { limit: query.limit, without }
    const rows = query.limit + 1 + (without.size > 0 ? LEFT_OUT_ROWS : 0)
    const early = this.#isBehind ? nextLeaps(lanes, wanted, 1) : []
    const first = early.length <= EARLY_LEAPS_MAX ? early : []
    const { found, entries } = await this.#ask(session, first, { ...query, limit: rows })
    this.#isBehind = found.length === rows
    if (!this.#isBehind) {
      for (const { number, walk } of lanes) walk.noteAll(entriesOf(number, found))
      return found
    }
    noteLeaps(first, entries)
    for (const { number, walk } of lanes) walk.learn(entriesOf(number, found).map(({ key }) => key))
    for (let round = first.length > 0 ? 2 : 1; round <= ROUNDS_MAX; round++) {
      const leaps = nextLeaps(lanes, wanted, round)
      if (leaps.length === 0) break
      noteLeaps(leaps, (await this.#ask(session, leaps)).entries)
    }
    return found
  }

  async #ask(
    session: Session,
    leaps: readonly LaneLeap[],
    filling?: DueQuery,
  ): Promise<{ readonly found: readonly Found[]; readonly entries: TurnEntry[][] }> {
    const { tables, now } = this.#inside()
    const fill = filling && dueOperationsSql(tables, now, filling)
    const sql = dueTurnsSql(tables, now, { leaps: leaps.map(({ leap }) => leap), fill })
    const rows = await readCommitted(session, sql)
    const found = rows.filter(([part]) => Number(part) === FILL).map(toFound)
    return {
      found: found.toSorted((one, other) => one.dueAtMs - other.dueAtMs),
      entries: toEntries(rows, leaps.length),
    }
  }

  /** What the fill has not brought. Two operations may have one number: only those asked for. */
  async #load(
    session: Session,
    { operations }: DueQuery,
    of: { readonly picked: readonly TurnEntry[]; readonly found: readonly Found[] },
  ): Promise<Found[]> {
    const byIdentity = new Map(of.found.map((one) => [one.record.identity, one]))
    const identities = of.picked.map(({ identity }) => identity)
    const missing = identities.filter((identity) => !byIdentity.has(identity))
    if (missing.length > 0) {
      const { tables, now } = this.#inside()
      const rows = await readCommitted(session, pickedOperationsSql(tables, now, missing))
      for (const one of rows.map(toFound)) byIdentity.set(one.record.identity, one)
    }
    const isAsked = ({ name, version }: Found) =>
      operations.some((one) => one.name === name && one.version === version)
    return identities
      .flatMap((identity) => byIdentity.get(identity) ?? [])
      .filter((one) => isAsked(one))
  }
}

function toFound([, dueAt, , name, version, ...values]: Row): Found {
  return {
    name: fromColumn(OPERATION.name, name) as string,
    version: Number(version),
    dueAtMs: Number(dueAt),
    record: toRecord(VIEW, values),
  }
}

function entriesOf(number: number, found: readonly Found[]): TurnEntry[] {
  const own = found.filter((one) => runAs(one) === number)
  return inIndexOrder(
    own.map(({ dueAtMs, record: { identity, tenant } }) => {
      return { key: tenantKey(tenant), number, atMs: dueAtMs, isDue: true, identity }
    }),
  )
}
