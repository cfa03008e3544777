/**
 * Statements on the turns of records: those that wait for a worker, and unknown ones. As in
 * `sql.ts`, every access names its index. All of them only read.
 */
import type { DueQuery } from '../../core/durable-store.ts'
import { DUE, nameOf, TO_RUN, VIEW } from './columns.ts'
import { isOneOf, numbersOf, WAITING, waitingSql } from './phase-sql.ts'
import { IS_OPEN, list, type Tables } from './sql.ts'
import { UNKNOWN_RUN } from './turn-tables.ts'
import type { Leap, Rest } from './turn-walk.ts'
import { numberLiteral } from './values.ts'

/** A leap from tenant to tenant among records of one number, or from number to number. */
export type RecordLeap = Leap & { readonly of: number | 'unknown' }

/** Where a row of these statements comes from: the number of its leap, or the fill. */
export const FILL = -1

/** What an entry waits for. The reaper's are never begun and past their expiry. */
export const LATER = 0
export const DUE_NOW = 1
export const REAPERS = 2

const mayBeTaken = (now: string) =>
  `(r.state <> 'pending' OR r.${nameOf('expiresAtMs')} > ${now} OR r.attempt > 0)`

/** Behind the last tenant. Any text is as long as the empty one, or longer. */
function behind(column: string, { after }: { readonly after: string | undefined }): string {
  return after === undefined ? `${column} >= x''` : `${column} > x'${after}'`
}

const ofNumber = (number: number) => `r.turn_of = ${numberLiteral('turn_of', number)}`

function rangeOf(leap: RecordLeap): string {
  if (leap.of !== 'unknown') return `${ofNumber(leap.of)} AND ${behind('r.turn_tenant', leap)}`
  const { after } = leap
  return after === undefined
    ? `r.turn_of >= ${UNKNOWN_RUN}`
    : `r.turn_of > ${numberLiteral('turn_of', Number.parseInt(after, 16))}`
}

const IN_ORDER = 'ORDER BY r.turn_of, r.turn_tenant, r.turn_at_ms'

/** The entries that a leap finds, as a part of a statement with other parts. */
function leapPart({ record }: Tables, now: string, leap: RecordLeap, n: number): string {
  return `(SELECT ${n} AS part, r.turn_at_ms AS at_ms,
      CASE WHEN r.turn_at_ms > ${now} THEN ${LATER} WHEN ${mayBeTaken(now)} THEN ${DUE_NOW}
        ELSE ${REAPERS} END AS kind, r.turn_tenant AS tenant, r.turn_of AS number, r.identity
    FROM ${record} AS r FORCE INDEX (turn) WHERE ${rangeOf(leap)}
    ${IN_ORDER} LIMIT ${numberLiteral('rows', leap.rows)})`
}

const leapParts = (tables: Tables, now: string, leaps: readonly RecordLeap[]) =>
  leaps.map((leap, n) => leapPart(tables, now, leap, n))

/** The longest due operations of these names and versions, without regard to turns. */
function fillPart(tables: Tables, now: string, { operations, limit }: DueQuery): string {
  const parts = numbersOf(operations).flatMap((number) =>
    WAITING.map((state) => {
      const where = `r.${TO_RUN} = ${number} AND ${isOneOf(operations, number)}`
      const columns = `r.${DUE}, r.turn_tenant, r.turn_of, r.identity`
      return `(${waitingSql(tables, now, { state, where, columns })}
        ORDER BY r.${DUE} LIMIT ${numberLiteral('limit', limit)})`
    }),
  )
  return `(SELECT ${FILL} AS part, filled.${DUE} AS at_ms, ${DUE_NOW} AS kind,
      filled.turn_tenant AS tenant, filled.turn_of AS number, filled.identity
    FROM (${parts.join(' UNION ALL ')}
      ORDER BY ${DUE} LIMIT ${numberLiteral('limit', limit)}) AS filled)`
}

/** A tenant of an operation. */
export interface OneTenant {
  readonly number: number
  readonly key: string
}

/** The longest due of a tenant among the first entries that it has, `rows` of them. */
function digPart(
  { record, operation }: Tables,
  now: string,
  of: OneTenant & Pick<DueQuery, 'operations'> & { readonly n: number; readonly rows: number },
): string {
  return `(SELECT STRAIGHT_JOIN ${of.n} AS part, dug.turn_at_ms AS at_ms, ${DUE_NOW} AS kind,
      dug.turn_tenant AS tenant, dug.turn_of AS number, dug.identity
    FROM (SELECT r.turn_at_ms, r.turn_tenant, r.turn_of, r.identity
      FROM ${record} AS r FORCE INDEX (turn)
      WHERE ${ofNumber(of.number)} AND r.turn_tenant = x'${of.key}' AND r.turn_at_ms <= ${now}
      ${IN_ORDER} LIMIT ${numberLiteral('rows', of.rows)}) AS dug
    JOIN ${record} AS r FORCE INDEX (PRIMARY) ON r.identity = dug.identity
    JOIN ${operation} AS o FORCE INDEX (PRIMARY) ON o.record_id = r.record_id
    WHERE ${mayBeTaken(now)} AND ${isOneOf(of.operations, of.number)}
    ORDER BY dug.turn_at_ms LIMIT 1)`
}

/**
 * Entries in rows of: where from, the time, what it waits for, the tenant, the number of the
 * operation, the identity; and the whole operation with its record where it is due.
 */
function wholeSql({ record, operation }: Tables, parts: readonly string[]): string {
  return `SELECT STRAIGHT_JOIN ${IS_OPEN}, found.part, found.at_ms, found.kind, HEX(found.tenant),
      found.number, HEX(found.identity), HEX(o.name), o.version, ${list(VIEW)}
    FROM (${parts.join(' UNION ALL ')}) AS found
    LEFT JOIN ${record} AS r FORCE INDEX (PRIMARY)
      ON r.identity = found.identity AND found.kind = ${DUE_NOW}
    LEFT JOIN ${operation} AS o FORCE INDEX (PRIMARY) ON o.record_id = r.record_id`
}

/** Leaps, and where it is wanted the fill. */
export function dueTurnsSql(
  tables: Tables,
  now: string,
  { leaps, fill }: { readonly leaps: readonly RecordLeap[]; readonly fill?: DueQuery | undefined },
): string {
  const first = fill === undefined ? [] : [fillPart(tables, now, fill)]
  return wholeSql(tables, [...first, ...leapParts(tables, now, leaps)])
}

/** What is due of tenants whose first entries are for the reaper. */
export function digSql(
  tables: Tables,
  now: string,
  of: Pick<DueQuery, 'operations'> & {
    readonly tenants: readonly OneTenant[]
    readonly rows: number
  },
): string {
  const { operations, rows } = of
  const parts = of.tenants.map((tenant, n) =>
    digPart(tables, now, { ...tenant, operations, n, rows }),
  )
  return wholeSql(tables, parts)
}

/** A part of the index of an operation. */
export type NumberRest = Rest & { readonly number: number }

export interface PassQuery {
  readonly rests: readonly NumberRest[]
  readonly rows: number
  readonly without: ReadonlySet<string>
}

/**
 * Of the first `rows` entries of each rest: their count, the last tenant, and the first one with
 * something that is due and not left out. Reads the index alone.
 */
export function passSql({ record }: Tables, now: string, of: PassQuery): string {
  const without = [...of.without].map((key) => `x'${key}'`).join(', ')
  const isMeant = without === '' ? 'TRUE' : `passed.turn_tenant NOT IN (${without})`
  const parts = of.rests.map(({ number, upTo, ...rest }, n) => {
    const until = upTo === undefined ? '' : `AND r.turn_tenant <= x'${upTo}'`
    return `(SELECT ${IS_OPEN}, ${n}, COUNT(*), HEX(MAX(passed.turn_tenant)),
        HEX(MIN(CASE WHEN passed.turn_at_ms <= ${now} AND ${isMeant} THEN passed.turn_tenant END))
      FROM (SELECT r.turn_tenant, r.turn_at_ms FROM ${record} AS r FORCE INDEX (turn)
        WHERE ${ofNumber(number)} AND ${behind('r.turn_tenant', rest)} ${until}
        ${IN_ORDER} LIMIT ${numberLiteral('rows', of.rows)}) AS passed)`
  })
  return parts.join(' UNION ALL ')
}

/** Leaps among unknown records and, where it is wanted, the longest due of them, as entries. */
export function unknownTurnsSql(
  tables: Tables,
  now: string,
  { leaps, fill }: { readonly leaps: readonly RecordLeap[]; readonly fill: number },
): string {
  const first = `(SELECT ${FILL} AS part, r.${DUE} AS at_ms, ${DUE_NOW} AS kind,
      r.turn_tenant AS tenant, r.turn_of AS number, r.identity
    FROM ${tables.record} AS r FORCE INDEX (due)
    WHERE r.state = 'unknown' AND r.${TO_RUN} = 0 AND r.${DUE} <= ${now}
    ORDER BY r.${DUE} LIMIT ${numberLiteral('limit', fill)})`
  const parts = [...(fill === 0 ? [] : [first]), ...leapParts(tables, now, leaps)]
  return `SELECT found.part, found.at_ms, found.kind, HEX(found.tenant), found.number,
      HEX(found.identity)
    FROM (${parts.join(' UNION ALL ')}) AS found`
}
