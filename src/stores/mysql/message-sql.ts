/**
 * Every statement on messages. As in `sql.ts`, every access names its index. Those who hold
 * messages lock them in the order of their ids; those who look for some to take skip what is
 * locked, and wait for nobody.
 */
import type { MessageState, NewMessage } from '../../core/durable-store.ts'
import { NO_ERRORS } from '../../core/messages.ts'
import {
  laneOf,
  MESSAGE_ALL,
  MESSAGE_HEAD,
  messageColumn,
  messageList,
  messageLiteral,
  NO_PARTITION,
  type MessageField,
} from './message-columns.ts'
import {
  asciiKey,
  assignments,
  BOUNDED,
  deleteBy,
  IS_OPEN,
  SERVER_NOW_US,
  STRICT,
  STRICT_HINT,
  type KeyedChange,
  type Tables,
} from './sql.ts'
import { numberLiteral } from './values.ts'

const FREE_LANE = messageLiteral('lane', NO_PARTITION)

const ids = (of: readonly string[]) => of.map((id) => messageLiteral('id', id)).join(', ')

/** What a claim has taken, whole. */
export function heldSql({ message }: Tables, token: string, of: readonly string[]): string {
  return `SELECT ${IS_OPEN}, ${messageList(MESSAGE_ALL)}
    FROM ${message} AS m FORCE INDEX (PRIMARY)
    WHERE m.id IN (${ids(of)}) AND m.state = 'held' AND m.token = ${messageLiteral('token', token)}
    ORDER BY m.id`
}

/** Some that are due and that nobody else is about to take, under a lock. */
export function lockFreeSql(
  { message }: Tables,
  now: string,
  { topic, limit }: { readonly topic: string; readonly limit: number },
): string {
  return `${BOUNDED} SELECT ${messageList(MESSAGE_ALL)} FROM ${message} AS m FORCE INDEX (line)
    WHERE m.topic = ${messageLiteral('topic', topic)} AND m.lane = ${FREE_LANE}
    AND m.place <= ${now}
    ORDER BY m.place, m.added_at_us LIMIT ${numberLiteral('limit', limit)}
    FOR UPDATE SKIP LOCKED`
}

/** The same for these, as long as they are due. */
export function lockDueSql({ message }: Tables, now: string, of: readonly string[]): string {
  return `${BOUNDED} SELECT ${messageList(MESSAGE_ALL)} FROM ${message} AS m FORCE INDEX (PRIMARY)
    WHERE m.id IN (${ids(of)}) AND m.lane IS NOT NULL AND m.due_at_ms <= ${now}
    ORDER BY m.id FOR UPDATE SKIP LOCKED`
}

/**
 * Which of these are the heads of their lanes. A statement of its own, after the one that locks:
 * it sees what was committed before the lock was had.
 */
export function headsSql({ message }: Tables, of: readonly string[]): string {
  return `SELECT m.id FROM ${message} AS m FORCE INDEX (PRIMARY)
    WHERE m.id IN (${ids(of)}) AND m.id = (
      SELECT h.id FROM ${message} AS h FORCE INDEX (line)
      WHERE h.topic = m.topic AND h.lane = m.lane ORDER BY h.place LIMIT 1)`
}

/** Takes messages that are locked. Held ones are the first in their lane: see `place`. */
export function holdSql(
  { message }: Tables,
  now: string,
  of: { readonly ids: readonly string[]; readonly token: string; readonly leaseMs: number },
): string {
  const until = `${now} + ${numberLiteral('leaseMs', of.leaseMs)}`
  return `${STRICT} UPDATE ${STRICT_HINT} ${message} FORCE INDEX (PRIMARY)
    SET state = 'held', token = ${messageLiteral('token', of.token)}, attempt = attempt + 1,
      due_at_ms = ${until}, place = CASE WHEN lane = ${FREE_LANE} THEN ${until} ELSE -sequence END
    WHERE id IN (${ids(of.ids)})`
}

/** Messages as they are, after the time, which comes even where there are none. */
export function messagesSql({ message }: Tables, now: string, of: readonly string[]): string {
  return `SELECT ${IS_OPEN}, ${now}, ${messageList(MESSAGE_HEAD)}
    FROM (SELECT 1 AS one) AS once
    LEFT JOIN ${message} AS m FORCE INDEX (PRIMARY) ON m.id IN (${ids(of)})`
}

/** The same under a lock, within a transaction. */
export function lockMessagesSql({ message }: Tables, now: string, of: readonly string[]): string {
  return `${BOUNDED} SELECT ${now}, ${messageList(MESSAGE_HEAD)}
    FROM ${message} AS m FORCE INDEX (PRIMARY)
    WHERE m.id IN (${ids(of)}) ORDER BY m.id FOR UPDATE`
}

/** A message that changes: the fence, and the columns that become something else. */
export interface MessageChange {
  readonly id: string
  readonly token: string
  readonly state: MessageState
  readonly columns: ReadonlyMap<string, string>
}

/** Writes only where a message still is in the state, and under the token, that it was seen in. */
export function changeMessagesSql({ message }: Tables, changes: readonly MessageChange[]): string {
  const keyed = changes.map(({ id, columns }): KeyedChange => {
    return { key: messageLiteral('id', id), columns }
  })
  const fences = changes.map(
    ({ id, token, state }) =>
      `WHEN ${messageLiteral('id', id)} THEN token = ${messageLiteral('token', token)}
        AND state = ${messageLiteral('state', state)}`,
  )
  return `${STRICT} UPDATE ${STRICT_HINT} ${message} FORCE INDEX (PRIMARY)
    SET ${assignments('id', keyed)}
    WHERE id IN (${ids(changes.map(({ id }) => id))}) AND CASE id ${fences.join(' ')} END`
}

export function renewMessagesSql(
  { message }: Tables,
  now: string,
  of: {
    readonly leases: readonly { readonly id: string; readonly token: string }[]
    readonly leaseMs: number
  },
): string {
  const until = `${now} + ${numberLiteral('leaseMs', of.leaseMs)}`
  const fences = of.leases.map(
    ({ id, token }) =>
      `WHEN ${messageLiteral('id', id)} THEN token = ${messageLiteral('token', token)}`,
  )
  return `${STRICT} UPDATE ${STRICT_HINT} ${message} FORCE INDEX (PRIMARY)
    SET due_at_ms = ${until}, place = CASE WHEN lane = ${FREE_LANE} THEN ${until} ELSE place END
    WHERE id IN (${ids(of.leases.map(({ id }) => id))}) AND state = 'held'
    AND CASE id ${fences.join(' ')} END`
}

export function readMessageSql({ message }: Tables, id: string): string {
  return `SELECT ${IS_OPEN}, ${messageList(MESSAGE_ALL)}
    FROM ${message} AS m FORCE INDEX (PRIMARY) WHERE m.id = ${messageLiteral('id', id)}`
}

/** The first topic after this one, of whatever messages there are. */
export function nextTopicSql({ message }: Tables, after: string): string {
  return `SELECT ${IS_OPEN}, ${messageList(['topic'])} FROM ${message} AS m FORCE INDEX (line)
    WHERE m.topic > ${messageLiteral('topic', after)} ORDER BY m.topic LIMIT 1`
}

/** The entries of the index are sorted, and only the rows that are asked for are read. */
export function listMessagesSql(
  { message }: Tables,
  { state, limit }: { readonly state: MessageState; readonly limit: number },
): string {
  return `SELECT STRAIGHT_JOIN ${IS_OPEN}, ${messageList(MESSAGE_HEAD)}
    FROM (SELECT x.id FROM ${message} AS x FORCE INDEX (state)
      WHERE x.state = ${messageLiteral('state', state)}
      ORDER BY x.added_at_us, x.id LIMIT ${numberLiteral('limit', limit)}) AS found
    JOIN ${message} AS m FORCE INDEX (PRIMARY) ON m.id = found.id
    ORDER BY m.added_at_us, m.id`
}

/** Messages that were over long ago, under a lock, with the partitions that they were in. */
export function lockEndedSql(
  { message }: Tables,
  now: string,
  of: {
    readonly state: 'done' | 'dropped'
    readonly olderThanMs: number
    readonly limit: number
  },
): string {
  return `${BOUNDED} SELECT ${messageList(['id', 'topic', 'partition'])}
    FROM ${message} AS m FORCE INDEX (state)
    WHERE m.state = ${messageLiteral('state', of.state)}
    AND m.ended_at_ms < ${now} - ${numberLiteral('olderThanMs', of.olderThanMs)}
    ORDER BY m.ended_at_ms LIMIT ${numberLiteral('limit', of.limit)} FOR UPDATE SKIP LOCKED`
}

export function deleteMessagesSql({ message }: Tables, of: readonly string[]): string {
  const keys = of.map((id) => asciiKey(messageLiteral('id', id)))
  return deleteBy(message, 'id', keys)
}

/**
 * Where a statement that adds a message may write at all: on this connection, and in an open
 * transaction. MySQL cannot say whether there is one.
 */
export const guardSql = (connection: string): string =>
  `AND CONNECTION_ID() = ${connection} /*M! AND @@in_transaction */`

/**
 * The next number of a partition. Whoever adds to the same one waits from here until the commit, so
 * that messages are numbered in the order in which they are committed. Plain, because the caller's
 * work is watched for statements that are not.
 *
 * A counter that was pruned begins again behind all numbers that its partition has had: an operator
 * may bring back a message that has one of them, and its place is before the new ones. So numbers
 * begin with the time in microseconds. No partition gets as many messages.
 */
export function countSql({ partition }: Tables, now: string, { added, guard }: Adding): string {
  const { topic, partition: name } = added
  const tenant = messageLiteral('tenant', added.tenant)
  return `INSERT INTO ${partition} (topic, lane, sequence, is_open, tenant, used_at_ms)
    SELECT ${messageLiteral('topic', topic)}, ${messageLiteral('lane', laneOf(name))},
      ${SERVER_NOW_US}, 1, ${tenant}, ${now}
    FROM (SELECT 1 AS one) AS once WHERE TRUE ${guard}
    ON DUPLICATE KEY UPDATE sequence = sequence + 1, is_open = 1, tenant = ${tenant},
      used_at_ms = ${now}`
}

/** A message that is added, and where that may be done: see `guardSql`. */
export interface Adding {
  readonly added: NewMessage
  readonly guard: string
}

/**
 * Adds a message. It takes the number of its partition from where `countSql` has left it:
 * LAST_INSERT_ID would have spared the look, but it belongs to the caller. MariaDB says so where it
 * has written; MySQL has to be asked.
 */
export function addSql(
  { message, partition }: Tables,
  now: string,
  { added, guard }: Adding,
): string {
  const { id, topic, tenant, key, partition: name, payload, delayMs } = added
  const lane = messageLiteral('lane', laneOf(name))
  const dueAt = `${now} + ${numberLiteral('delayMs', delayMs)}`
  const isFree = name === undefined
  const values: Readonly<Record<Exclude<MessageField, 'endedAtMs' | 'providerId'>, string>> = {
    id: messageLiteral('id', id),
    topic: messageLiteral('topic', topic),
    lane,
    place: isFree ? dueAt : 'q.sequence',
    sequence: isFree ? '0' : 'q.sequence',
    state: `'ready'`,
    token: `x''`,
    attempt: '0',
    createdAtMs: now,
    addedAtUs: SERVER_NOW_US,
    dueAtMs: dueAt,
    tenant: messageLiteral('tenant', tenant),
    partition: messageLiteral('partition', name),
    key: messageLiteral('key', key),
    errors: messageLiteral('errors', NO_ERRORS),
    payload: messageLiteral('payload', payload),
  }
  const fields = Object.keys(values) as readonly (keyof typeof values)[]
  const from = isFree
    ? '(SELECT 1 AS one) AS once WHERE TRUE'
    : `${partition} AS q FORCE INDEX (PRIMARY) WHERE q.topic = ${values.topic} AND q.lane = ${lane}`
  return `INSERT INTO ${message} (${fields.map(messageColumn).join(', ')})
    SELECT ${fields.map((field) => values[field]).join(', ')} FROM ${from} ${guard}
    /*M! RETURNING 'added' AS answer */`
}

/** One text, for every tool to pass on as it is. */
export function isAddedSql({ message }: Tables, id: string): string {
  return `SELECT CONVERT(COUNT(*) USING utf8mb4) AS answer
    FROM ${message} AS m FORCE INDEX (PRIMARY) WHERE m.id = ${messageLiteral('id', id)}`
}
