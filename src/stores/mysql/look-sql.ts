/** What relays look at before they take messages. It only reads, and names its indexes. */
import { messageLiteral, NO_PARTITION } from './message-columns.ts'
import { IS_OPEN, type Tables } from './sql.ts'
import type { Leap } from './turn-walk.ts'
import { numberLiteral } from './values.ts'

/** Where a row of a look comes from. */
export const OWN = 0
export const FREE = 1
export const LANE = 2
const NOTHING = 3
/** A leap among messages without a partition, and one among partitions. */
export const FREE_LEAP = 4
export const LANE_LEAP = 5

const FREE_LANE = messageLiteral('lane', NO_PARTITION)

export interface LookAt {
  readonly token: string
  readonly topics: readonly TopicLook[]
  /** Messages without a partition that are looked at in each topic, and partitions. */
  readonly freeMax: number
  readonly lanesMax: number
  /** Of messages without a partition, whose they are: that takes a look at each of them. */
  readonly withTenants: boolean
  readonly leaps: readonly MessageLeap[]
}

export interface TopicLook {
  readonly topic: string
  /** The lane that was looked at last. */
  readonly after: string
}

export type MessageLeap = Leap & {
  readonly topic: string
  readonly among: typeof FREE_LEAP | typeof LANE_LEAP
}

/** Some partitions of one tenant, after the one that was looked at last. */
export interface TenantLanes extends TopicLook {
  readonly tenant: string
  readonly lanesMax: number
}

/**
 * What a claim may take, in rows of: where from, the number of the topic or of the leap, the id,
 * when it is due, when it was added, the lane, and the tenant. First what it has taken already, if
 * it is repeated. Of messages without a partition those that are due. Of partitions the head of
 * each, in the order of the lanes and after the one that was looked at last; without an id where
 * the lane is empty.
 */
export function lookSql(tables: Tables, now: string, at: LookAt): string {
  // So that there is always a row to say whether the session can be trusted.
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
  return [own, none, ...parts, ...leapParts(tables, now, at.leaps)].join(' UNION ALL ')
}

/** Leaps, and partitions of tenants, in rows of the same kind. */
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
  return [...leapParts(tables, now, of.leaps), ...lanesOf].join(' UNION ALL ')
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

function leapParts(tables: Tables, now: string, leaps: readonly MessageLeap[]): string[] {
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
