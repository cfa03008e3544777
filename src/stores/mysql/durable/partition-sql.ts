/**
 * Statements on the counters of partitions, which also record which lanes may contain messages. As
 * in `sql.ts`, every access names its index.
 */
import { numberLiteral } from '../columns.ts'
import { BOUNDED, IS_OPEN, SERVER_NOW_US, STRICT, STRICT_HINT, type Tables } from '../sql.ts'
import { messageLiteral } from './message-columns.ts'

/** Lanes of one topic. */
export interface Lanes {
  readonly topic: string
  readonly lanes: readonly string[]
}

/** Locks counters. Skips those of lanes to which an open transaction adds a message. */
export function lockLanesSql({ partition }: Tables, { topic, lanes }: Lanes): string {
  return `${BOUNDED} SELECT HEX(q.lane) FROM ${partition} AS q FORCE INDEX (PRIMARY)
    WHERE q.topic = ${messageLiteral('topic', topic)} AND q.lane IN (${laneList(lanes)})
    ORDER BY q.lane FOR UPDATE SKIP LOCKED`
}

const laneList = (lanes: readonly string[]) =>
  lanes.map((lane) => messageLiteral('lane', lane)).join(', ')

/** Finds the empty ones of these locked lanes. No message can be added to them. */
export function emptyLanesSql(
  { message, partition }: Tables,
  { topic: name, lanes, isIdle = 'TRUE' }: Lanes & { readonly isIdle?: string | undefined },
): string {
  const topic = messageLiteral('topic', name)
  return `SELECT HEX(q.lane) FROM ${partition} AS q FORCE INDEX (PRIMARY)
    WHERE q.topic = ${topic} AND q.lane IN (${laneList(lanes)}) AND ${isIdle} AND (
      SELECT h.id FROM ${message} AS h FORCE INDEX (line)
      WHERE h.topic = ${topic} AND h.lane = q.lane ORDER BY h.place LIMIT 1) IS NULL`
}

export function closeLanesSql({ partition }: Tables, { topic, lanes }: Lanes): string {
  return `UPDATE ${partition} FORCE INDEX (PRIMARY) SET is_open = 0
    WHERE topic = ${messageLiteral('topic', topic)} AND lane IN (${laneList(lanes)})`
}

/** Condition: no message was added for so long. A node of an older version stores no time. */
export const isIdleSql = (now: string, idleMs: number): string =>
  `(q.used_at_ms IS NULL OR q.used_at_ms < ${now} - ${numberLiteral('olderThanMs', idleMs)})`

/** Deletes the counters of locked and empty lanes. Joins a list of lanes: see `deleteBy`. */
export function deleteLanesSql({ partition }: Tables, { topic, lanes }: Lanes): string {
  const listed = lanes.map((lane) => `SELECT ${messageLiteral('lane', lane)} AS named`)
  return `DELETE t FROM (${listed.join(' UNION ALL ')}) AS listed
    STRAIGHT_JOIN ${partition} AS t FORCE INDEX (PRIMARY)
    ON t.topic = ${messageLiteral('topic', topic)} AND t.lane = listed.named`
}

export interface LanesAfter {
  readonly topic: string
  readonly lane: string
  readonly rows: number
  readonly isIdle: string
}

/**
 * Reads the counters after this one, in the order of their key, and whether their lanes are empty
 * and idle. In two parts, because neither database uses an index for all keys after a pair.
 */
export function lanesAfterSql(
  { message, partition }: Tables,
  { topic, lane, rows, isIdle }: LanesAfter,
): string {
  const after = messageLiteral('topic', topic)
  const limit = numberLiteral('rows', rows)
  const part = (where: string, order: string) =>
    `(SELECT ${IS_OPEN}, HEX(q.topic), HEX(q.lane), ${isIdle} AND (
        SELECT h.id FROM ${message} AS h FORCE INDEX (line)
        WHERE h.topic = q.topic AND h.lane = q.lane ORDER BY h.place LIMIT 1) IS NULL
      FROM ${partition} AS q FORCE INDEX (PRIMARY)
      WHERE ${where} ORDER BY ${order} LIMIT ${limit})`
  return [
    part(`q.topic = ${after} AND q.lane > ${messageLiteral('lane', lane)}`, 'q.lane'),
    part(`q.topic > ${after}`, 'q.topic, q.lane'),
  ].join(' UNION ALL ')
}

export interface ReopenedLane {
  readonly topic: string
  readonly lane: string
  readonly tenant: string | undefined
  /** Number of the message that returns. */
  readonly sequence: number
}

/**
 * Opens a lane and locks its counter, so that no message is added until the commit. A counter that
 * was pruned starts as in `countSql`. If a node of an older version has created it again, it has
 * started with 1 and must continue after the number of the message that returns.
 */
export function openLaneSql({ partition }: Tables, now: string, of: ReopenedLane): string {
  const sequence = numberLiteral('sequence', of.sequence)
  return `${STRICT} INSERT ${STRICT_HINT}
    INTO ${partition} (topic, lane, sequence, is_open, tenant, used_at_ms)
    VALUES (${messageLiteral('topic', of.topic)}, ${messageLiteral('lane', of.lane)},
      GREATEST(${SERVER_NOW_US}, ${sequence}), 1, ${messageLiteral('tenant', of.tenant)}, ${now})
    ON DUPLICATE KEY UPDATE is_open = 1, used_at_ms = ${now},
      sequence = GREATEST(sequence, ${sequence})`
}

/** Reads the id of the head of a lane. */
export function headSql(
  { message }: Tables,
  { topic, lane }: { readonly topic: string; readonly lane: string },
): string {
  return `SELECT m.id FROM ${message} AS m FORCE INDEX (line)
    WHERE m.topic = ${messageLiteral('topic', topic)} AND m.lane = ${messageLiteral('lane', lane)}
    ORDER BY m.place LIMIT 1`
}
