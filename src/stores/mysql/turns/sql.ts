/**
 * Statements on the turns of tenants: records that wait for a worker, unknown records, and
 * messages. As in `sql.ts`, every access names its index. The statements only read. See `walk.ts`
 * for the words.
 */
import type { DueQuery } from '../../../core/store/durable-store.ts'
import { DUE, nameOf, numberLiteral, TO_RUN, VIEW } from '../columns.ts'
import { messageLiteral, NO_PARTITION } from '../durable/message-columns.ts'
import { isOneOf, numbersOf, WAITING, waitingSql } from '../durable/phase-sql.ts'
import { UNKNOWN_RUN } from '../durable/tables.ts'
import { IS_OPEN, list, type Tables } from '../sql.ts'
import type { Leap, Rest } from './walk.ts'

/** A leap to the next tenants of one operation, or to the next operations of unknown records. */
export type RecordLeap = Leap & { readonly of: number | 'unknown' }

/** In place of the index of a leap: the row comes from the fill. */
export const FILL = -1

/** State of an entry: later, due, or for the reaper because it has expired without ever running. */
export const LATER = 0
export const DUE_NOW = 1
export const REAPERS = 2

const mayBeTaken = (now: string) =>
  `(r.state <> 'pending' OR r.${nameOf('expiresAtMs')} > ${now} OR r.attempt > 0)`

/** Condition: after this tenant, or from the first one. Every text is >= the empty text. */
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

/** Reads the entries of one leap, as one part of a UNION. */
function leapPart({ record }: Tables, now: string, leap: RecordLeap, n: number): string {
  return `(SELECT ${n} AS part, r.turn_at_ms AS at_ms,
      CASE WHEN r.turn_at_ms > ${now} THEN ${LATER} WHEN ${mayBeTaken(now)} THEN ${DUE_NOW}
        ELSE ${REAPERS} END AS kind, r.turn_tenant AS tenant, r.turn_of AS number, r.identity
    FROM ${record} AS r FORCE INDEX (turn) WHERE ${rangeOf(leap)}
    ${IN_ORDER} LIMIT ${numberLiteral('rows', leap.rows)})`
}

const recordLeapParts = (tables: Tables, now: string, leaps: readonly RecordLeap[]) =>
  leaps.map((leap, n) => leapPart(tables, now, leap, n))

/** Reads the longest due operations of these names and versions, without regard to turns. */
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

/** Finds the longest due operation among the first `rows` entries of a tenant. */
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
 * Returns entries. Columns: the part, the time, what the entry waits for, the tenant, the number of
 * the operation, the identity; and for a due entry the operation with its record.
 */
function wholeSql({ record, operation }: Tables, parts: readonly string[]): string {
  return `SELECT STRAIGHT_JOIN ${IS_OPEN}, found.part, found.at_ms, found.kind, HEX(found.tenant),
      found.number, HEX(found.identity), HEX(o.name), o.version, ${list(VIEW)}
    FROM (${parts.join(' UNION ALL ')}) AS found
    LEFT JOIN ${record} AS r FORCE INDEX (PRIMARY)
      ON r.identity = found.identity AND found.kind = ${DUE_NOW}
    LEFT JOIN ${operation} AS o FORCE INDEX (PRIMARY) ON o.record_id = r.record_id`
}

/** Runs leaps, and optionally the fill. */
export function dueTurnsSql(
  tables: Tables,
  now: string,
  { leaps, fill }: { readonly leaps: readonly RecordLeap[]; readonly fill?: DueQuery | undefined },
): string {
  const first = fill === undefined ? [] : [fillPart(tables, now, fill)]
  return wholeSql(tables, [...first, ...recordLeapParts(tables, now, leaps)])
}

/** Finds due operations of tenants whose first entries are for the reaper. */
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

/** A range of tenants of one operation. */
export type NumberRest = Rest & { readonly number: number }

export interface PassQuery {
  readonly rests: readonly NumberRest[]
  readonly rows: number
  readonly without: ReadonlySet<string>
}

/**
 * For the first `rows` entries of each rest: their count, the last tenant, and the first tenant
 * that has a due entry and is not left out. Reads only the index.
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

/** Runs leaps among unknown records, and optionally the fill of `fill` rows. Returns entries. */
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
  const parts = [...(fill === 0 ? [] : [first]), ...recordLeapParts(tables, now, leaps)]
  return `SELECT found.part, found.at_ms, found.kind, HEX(found.tenant), found.number,
      HEX(found.identity)
    FROM (${parts.join(' UNION ALL ')}) AS found`
}

/** Origin of a row of `lookSql`: taken by this claim before, without a partition, a lane, none. */
export const OWN = 0
export const FREE = 1
export const LANE = 2
const NOTHING = 3
/** Origin of a row of a leap: messages without a partition, or partitions. */
export const FREE_LEAP = 4
export const LANE_LEAP = 5

const FREE_LANE = messageLiteral('lane', NO_PARTITION)

/** Input of the read that precedes a claim of messages. */
export interface LookQuery {
  readonly token: string
  readonly topics: readonly TopicPosition[]
  /** Limits for each topic: messages without a partition, and partitions. */
  readonly freeMax: number
  readonly lanesMax: number
  /** Also reads the tenants of messages without a partition, which needs an access to each row. */
  readonly withTenants: boolean
  readonly leaps: readonly MessageLeap[]
}

export interface TopicPosition {
  readonly topic: string
  /** The lane that was read last. */
  readonly after: string
}

export type MessageLeap = Leap & {
  readonly topic: string
  readonly among: typeof FREE_LEAP | typeof LANE_LEAP
}

/** Partitions of one tenant to read, after the one that was read last. */
export interface TenantLanes extends TopicPosition {
  readonly tenant: string
  readonly lanesMax: number
}

/**
 * Reads messages that a claim may take. Columns: the origin, the index of the topic or of the leap,
 * the id, the due time, the time of adding, the lane, and the tenant. The rows are: messages that
 * the claim has taken already, if it is repeated; due messages without a partition; and the head of
 * each partition, in the order of the lanes and after the lane that was read last. A row of an
 * empty lane has no id.
 */
export function lookSql(tables: Tables, now: string, at: LookQuery): string {
  // One row in every case, because `IS_OPEN` is read from the rows.
  const none = `(SELECT ${IS_OPEN}, ${NOTHING}, 0, NULL, NULL, NULL, NULL, NULL)`
  const own = `(SELECT ${IS_OPEN}, ${OWN} AS origin, 0 AS topic, m.id, m.due_at_ms,
      m.added_at_us, NULL AS lane, NULL AS tenant
    FROM ${tables.message} AS m FORCE INDEX (state)
    WHERE m.state = 'held' AND m.ended_at_ms IS NULL
    AND m.token = ${messageLiteral('token', at.token)} AND m.due_at_ms > ${now})`
  const parts = at.topics.flatMap(({ topic: name, after }, n) => {
    const topic = messageLiteral('topic', name)
    const lanes = `SELECT q.lane FROM ${tables.partition} AS q FORCE INDEX (open)
      WHERE q.topic = ${topic} AND q.is_open = 1 AND q.lane > ${messageLiteral('lane', after)}
      ORDER BY q.lane LIMIT ${numberLiteral('lanes', at.lanesMax)}`
    return [
      `(SELECT ${IS_OPEN}, ${FREE}, ${n}, m.id, m.place, m.added_at_us, NULL,
          ${at.withTenants ? `HEX(COALESCE(m.tenant, x''))` : 'NULL'}
        FROM ${tables.message} AS m FORCE INDEX (line)
        WHERE m.topic = ${topic} AND m.lane = ${FREE_LANE} AND m.place <= ${now}
        ORDER BY m.place, m.added_at_us LIMIT ${numberLiteral('limit', at.freeMax)})`,
      headsOfSql(tables, now, { n, topic, lanes }),
    ]
  })
  return [own, none, ...parts, ...messageLeapParts(tables, now, at.leaps)].join(' UNION ALL ')
}

/** Runs leaps and reads partitions of tenants. Returns the same columns as `lookSql`. */
export function leapLookSql(
  tables: Tables,
  now: string,
  of: { readonly leaps: readonly MessageLeap[]; readonly tenants: readonly TenantLanes[] },
): string {
  const lanesOf = of.tenants.map(({ topic: name, tenant, after, lanesMax }, n) => {
    const topic = messageLiteral('topic', name)
    const lanes = `SELECT q.lane FROM ${tables.partition} AS q FORCE INDEX (turn)
      WHERE q.topic = ${topic} AND q.turn_tenant = x'${tenant}'
      AND q.lane > ${messageLiteral('lane', after)}
      ORDER BY q.lane LIMIT ${numberLiteral('lanes', lanesMax)}`
    return headsOfSql(tables, now, { n, topic, lanes })
  })
  return [...messageLeapParts(tables, now, of.leaps), ...lanesOf].join(' UNION ALL ')
}

function headsOfSql(
  { message }: Tables,
  now: string,
  of: { readonly n: number; readonly topic: string; readonly lanes: string },
): string {
  return `(SELECT STRAIGHT_JOIN ${IS_OPEN}, ${LANE}, ${of.n}, m.id,
      CASE WHEN m.due_at_ms <= ${now} THEN m.due_at_ms END, m.added_at_us, HEX(lanes.lane),
      HEX(COALESCE(m.tenant, x''))
    FROM (${of.lanes}) AS lanes
    LEFT JOIN ${message} AS m FORCE INDEX (PRIMARY) ON m.id = (
      SELECT h.id FROM ${message} AS h FORCE INDEX (line)
      WHERE h.topic = ${of.topic} AND h.lane = lanes.lane ORDER BY h.place LIMIT 1))`
}

function messageLeapParts(tables: Tables, now: string, leaps: readonly MessageLeap[]): string[] {
  return leaps.map((leap, n) => {
    const topic = messageLiteral('topic', leap.topic)
    const behind = leap.after === undefined ? `>= x''` : `> x'${leap.after}'`
    const limit = `LIMIT ${numberLiteral('rows', leap.rows)}`
    return leap.among === LANE_LEAP
      ? `(SELECT ${IS_OPEN}, ${LANE_LEAP}, ${n}, NULL, NULL, NULL, NULL, HEX(q.turn_tenant)
        FROM ${tables.partition} AS q FORCE INDEX (turn)
        WHERE q.topic = ${topic} AND q.turn_tenant ${behind}
        ORDER BY q.turn_tenant, q.lane ${limit})`
      : `(SELECT ${IS_OPEN}, ${FREE_LEAP}, ${n}, m.id,
          CASE WHEN m.turn_at_ms <= ${now} THEN m.turn_at_ms END, m.added_at_us, NULL,
          HEX(m.turn_tenant)
        FROM ${tables.message} AS m FORCE INDEX (turn)
        WHERE m.topic = ${topic} AND m.turn_tenant ${behind}
        ORDER BY m.turn_tenant, m.turn_at_ms, m.added_at_us ${limit})`
  })
}
