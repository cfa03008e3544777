/**
 * Statements on the turns of records: those that wait for a worker, and unknown ones. As in
 * `sql.ts`, every access names its index. All of them only read.
 */
import { DUE, literalOf, nameOf, TO_RUN, VIEW } from './columns.ts'
import { IS_OPEN, list, type Tables } from './sql.ts'
import { UNKNOWN_RUN } from './turn-tables.ts'
import type { Leap } from './turn-walk.ts'
import { numberLiteral } from './values.ts'

/** A leap from tenant to tenant among records of one number, or from number to number. */
export type RecordLeap = Leap & { readonly of: number | 'unknown' }

/** Where a row of these statements comes from: the number of its leap, or the fill. */
export const FILL = -1

/** What was accepted, has never run and is past its expiry is the reaper's: no worker takes it. */
const isDueSql = (now: string) =>
  `r.turn_at_ms <= ${now} AND (r.state <> 'pending' OR r.${nameOf('expiresAtMs')} > ${now}
    OR r.attempt > 0)`

/** Behind the last tenant. Any text is as long as the empty one, or longer. */
function behind(column: string, { after }: Leap): string {
  return after === undefined ? `${column} >= x''` : `${column} > x'${after}'`
}

function rangeOf(leap: RecordLeap): string {
  if (leap.of !== 'unknown') {
    return `r.turn_of = ${numberLiteral('turn_of', leap.of)} AND ${behind('r.turn_tenant', leap)}`
  }
  const { after } = leap
  return after === undefined
    ? `r.turn_of >= ${UNKNOWN_RUN}`
    : `r.turn_of > ${numberLiteral('turn_of', Number.parseInt(after, 16))}`
}

/**
 * The entries that a leap finds, in the order of the index, in rows of: the number of the leap, the
 * time, whether it is due, the tenant, the number of the operation, the identity.
 */
function leapSql(
  { record }: Tables,
  now: string,
  { leap, n, more }: { readonly leap: RecordLeap; readonly n: number; readonly more: string },
): string {
  return `(SELECT ${IS_OPEN}, ${n}, r.turn_at_ms, ${isDueSql(now)}, HEX(r.turn_tenant), r.turn_of,
      HEX(r.identity)${more}
    FROM ${record} AS r FORCE INDEX (turn) WHERE ${rangeOf(leap)}
    ORDER BY r.turn_of, r.turn_tenant, r.turn_at_ms LIMIT ${numberLiteral('rows', leap.rows)})`
}

/** Leaps, and where it is wanted the fill, which brings whole records. */
export function dueTurnsSql(
  tables: Tables,
  now: string,
  { leaps, fill }: { readonly leaps: readonly RecordLeap[]; readonly fill: string | undefined },
): string {
  const more = fill === undefined ? '' : ', NULL'.repeat(VIEW.length - 1)
  const parts = leaps.map((leap, n) => leapSql(tables, now, { leap, n, more }))
  return [...(fill === undefined ? [] : [`(${fill})`]), ...parts].join(' UNION ALL ')
}

/** The same for unknown records, of which the fill brings what the leaps bring. */
export function unknownTurnsSql(
  tables: Tables,
  now: string,
  { leaps, fill }: { readonly leaps: readonly RecordLeap[]; readonly fill: number },
): string {
  const first =
    fill === 0
      ? []
      : [
          `(SELECT ${IS_OPEN}, ${FILL}, r.${DUE}, 1, HEX(r.turn_tenant), r.turn_of, HEX(r.identity)
      FROM ${tables.record} AS r FORCE INDEX (due)
      WHERE r.state = 'unknown' AND r.${TO_RUN} = 0 AND r.${DUE} <= ${now}
      ORDER BY r.${DUE} LIMIT ${numberLiteral('limit', fill)})`,
        ]
  const parts = leaps.map((leap, n) => leapSql(tables, now, { leap, n, more: '' }))
  return [...first, ...parts].join(' UNION ALL ')
}

/** Operations that a walk has picked, as far as they are still due, in the rows of the fill. */
export function pickedOperationsSql(
  { record, operation }: Tables,
  now: string,
  identities: readonly string[],
): string {
  const listed = identities.map((identity) => literalOf('identity', identity)).join(', ')
  return `SELECT STRAIGHT_JOIN ${IS_OPEN}, ${FILL}, r.${DUE}, 1, HEX(o.name), o.version,
      ${list(VIEW)}
    FROM ${record} AS r FORCE INDEX (PRIMARY)
    JOIN ${operation} AS o FORCE INDEX (PRIMARY) ON o.record_id = r.record_id
    WHERE r.identity IN (${listed}) AND r.${TO_RUN} > 0 AND ${isDueSql(now)}`
}
