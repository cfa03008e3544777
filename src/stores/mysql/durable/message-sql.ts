/**
 * Statements on messages. As in `sql.ts`, every access names its index. Settlements lock messages
 * in the order of their ids. Claims skip locked messages and wait for no lock.
 */
import type { MessageState, NewMessage } from '../../../core/store/durable-store.ts'
import { NO_ERRORS } from '../../kit/messages.ts'
import { numberLiteral } from '../columns.ts'
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
} from '../sql.ts'
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

const FREE_LANE = messageLiteral('lane', NO_PARTITION)

const ids = (of: readonly string[]) => of.map((id) => messageLiteral('id', id)).join(', ')

/** Reads all fields of the messages that a claim has taken. */
export function heldSql({ message }: Tables, token: string, of: readonly string[]): string {
  return `SELECT ${IS_OPEN}, ${messageList(MESSAGE_ALL)}
    FROM ${message} AS m FORCE INDEX (PRIMARY)
    WHERE m.id IN (${ids(of)}) AND m.state = 'held' AND m.token = ${messageLiteral('token', token)}
    ORDER BY m.id`
}

/** Locks due messages without a partition. Skips messages that another claim has locked. */
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

/** Locks these messages if they are due. Skips messages that another call has locked. */
export function lockDueSql({ message }: Tables, now: string, of: readonly string[]): string {
  return `${BOUNDED} SELECT ${messageList(MESSAGE_ALL)} FROM ${message} AS m FORCE INDEX (PRIMARY)
    WHERE m.id IN (${ids(of)}) AND m.lane IS NOT NULL AND m.due_at_ms <= ${now}
    ORDER BY m.id FOR UPDATE SKIP LOCKED`
}

/**
 * Finds which of these messages are the heads of their lanes. A separate statement after the one
 * that locks, because it then reads everything that was committed before the lock was acquired.
 */
export function headsSql({ message }: Tables, of: readonly string[]): string {
  return `SELECT m.id FROM ${message} AS m FORCE INDEX (PRIMARY)
    WHERE m.id IN (${ids(of)}) AND m.id = (
      SELECT h.id FROM ${message} AS h FORCE INDEX (line)
      WHERE h.topic = m.topic AND h.lane = m.lane ORDER BY h.place LIMIT 1)`
}

/** Takes locked messages. A held message is the first of its lane: see `place` in `tables.ts`. */
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

/** Reads the time and messages. Returns a row with the time even if there is no message. */
export function messagesSql({ message }: Tables, now: string, of: readonly string[]): string {
  return `SELECT ${IS_OPEN}, ${now}, ${messageList(MESSAGE_HEAD)}
    FROM (SELECT 1 AS one) AS once
    LEFT JOIN ${message} AS m FORCE INDEX (PRIMARY) ON m.id IN (${ids(of)})`
}

/** Reads the time and messages, and locks the messages. Needs a transaction. */
export function lockMessagesSql({ message }: Tables, now: string, of: readonly string[]): string {
  return `${BOUNDED} SELECT ${now}, ${messageList(MESSAGE_HEAD)}
    FROM ${message} AS m FORCE INDEX (PRIMARY)
    WHERE m.id IN (${ids(of)}) ORDER BY m.id FOR UPDATE`
}

/** Change of one message: the fence, and the new values of columns as SQL. */
export interface MessageChange {
  readonly id: string
  readonly token: string
  readonly state: MessageState
  readonly columns: ReadonlyMap<string, string>
}

/** Writes a message only if it still has the state and the token that the decision is based on. */
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

/** Finds the first topic after this one, among messages in every state. */
export function nextTopicSql({ message }: Tables, after: string): string {
  return `SELECT ${IS_OPEN}, ${messageList(['topic'])} FROM ${message} AS m FORCE INDEX (line)
    WHERE m.topic > ${messageLiteral('topic', after)} ORDER BY m.topic LIMIT 1`
}

/** Sorts entries of the index, and reads only the rows within the limit. */
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

/** Locks messages that ended long ago, and reads their partitions. */
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
 * Condition under which a statement may add a message: on this connection and within a transaction.
 * MySQL cannot check the second part.
 */
export const guardSql = (connection: string): string =>
  `AND CONNECTION_ID() = ${connection} /*M! AND @@in_transaction */`

/**
 * Takes the next number of a partition. Other transactions that add to the partition wait until
 * this one commits, so messages are numbered in the order of their commits. Without `STRICT`,
 * because `StatementWatch` accepts only statements that begin with a known word.
 *
 * A counter that is created again after pruning must start after all earlier numbers of its
 * partition: an operator may return a message with an earlier number, and its place is before new
 * ones. So numbers start with the time in microseconds. No partition gets that many messages.
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

/** A message to add, and the condition for it: see `guardSql`. */
export interface Adding {
  readonly added: NewMessage
  readonly guard: string
}

/**
 * Adds a message. Reads the number that `countSql` has stored in the counter: LAST_INSERT_ID would
 * save this read, but it belongs to the caller. MariaDB returns a row if it has written; on MySQL
 * the message has to be read.
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

/** Returns one text, which every database tool passes on unchanged. */
export function isAddedSql({ message }: Tables, id: string): string {
  return `SELECT CONVERT(COUNT(*) USING utf8mb4) AS answer
    FROM ${message} AS m FORCE INDEX (PRIMARY) WHERE m.id = ${messageLiteral('id', id)}`
}
