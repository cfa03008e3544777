/** The outbox: adds, claims, settles, renews, lists and prunes messages. */
import {
  UNRELAYED_HEADS_MAX,
  UNRELAYED_TOPICS_MAX,
  type MessageLease,
  type MessageSettlement,
  type NewMessage,
  type OutboxStore,
  type UnrelayedQuery,
  type UnrelayedTopic,
} from '../../../core/store/durable-store.ts'
import { answerOf } from '../../kit/foreign-transaction.ts'
import { decideMessageSettlement, type MessageSettled } from '../../kit/messages.ts'
import { inRounds } from '../../kit/rounds.ts'
import {
  checkOpen,
  joinTransaction,
  notOpen,
  send,
  type JoinedTransaction,
} from '../caller-transaction.ts'
import { checkValues, inPieces, withoutBytes } from '../calls.ts'
import type { Row } from '../client.ts'
import { ValueFault } from '../../kit/value-fault.ts'
import { isUuid, numberLiteral } from '../columns.ts'
import { isRows, readCommitted, transact, writeAlone, type Session } from '../driver/driver.ts'
import { storeFailed } from '../failures.ts'
import { openSql, type SqlContext } from '../sql.ts'
import { lookSql } from '../turns/sql.ts'
import { MessageClaims } from './claim-messages.ts'
import {
  isDue,
  MESSAGE_ALL,
  MESSAGE_HEAD,
  messageChanges,
  messageLiteral,
  NO_PARTITION,
  TOKEN_LENGTH_MAX,
  toLookRow,
  toMessage,
  toMessageView,
  type MessageRow,
} from './message-columns.ts'
import {
  addSql,
  changeMessagesSql,
  countSql,
  guardSql,
  isAddedSql,
  listMessagesSql,
  lockMessagesSql,
  messagesSql,
  nextTopicSql,
  readMessageSql,
  renewMessagesSql,
  type MessageChange,
} from './message-sql.ts'
import type { DurableContext } from './phases.ts'
import { Pruning } from './prune-messages.ts'

export function outboxStore(context: DurableContext): OutboxStore {
  const { calls, current, tables } = context
  const claims = new MessageClaims(calls, current)
  const pruning = new Pruning(calls, current)
  const rows = (operation: string, sql: string, signal: AbortSignal | undefined) =>
    calls.make(operation, (session) => readCommitted(session, sql), signal)
  return {
    add: (tx, message) => addMessage(context, tx, message),
    async claim(request, signal) {
      checkValues('claim messages', () => {
        for (const topic of request.topics) messageLiteral('topic', topic)
        messageLiteral('token', request.token)
        numberLiteral('leaseMs', request.leaseMs)
      })
      return claims.claim(request, signal)
    },
    async settle(settlements, signal) {
      checkSettlements(settlements)
      return inBatches(settlements, (batch) =>
        calls.make('settle messages', (session) => settleBatch(session, current(), batch), signal),
      )
    },
    async renew(leases, leaseMs, signal) {
      checkValues('renew messages', () => numberLiteral('leaseMs', leaseMs))
      return inBatches(leases, (batch) =>
        calls.make(
          'renew messages',
          (session) => renewBatch(session, current(), { leases: batch, leaseMs }),
          signal,
        ),
      )
    },
    async read(id, signal) {
      if (!isUuid(id)) return undefined
      const [row] = await rows('read a message', readMessageSql(tables, id), signal)
      return row && toMessageView(toMessage(MESSAGE_ALL, row))
    },
    async list(query, signal) {
      const found = await rows('list messages', listMessagesSql(tables, query), signal)
      return found.map((row) => toMessageView(toMessage(MESSAGE_HEAD, row)))
    },
    unrelayed: (query, signal) =>
      calls.make(
        'find unrelayed messages',
        (session) => findUnrelayed(session, current(), query),
        signal,
      ),
    prune: (request, signal) => pruning.prune(request, signal),
  }
}

/** Rejects values that no column can hold before any part of the batch is sent. */
function checkSettlements(settlements: readonly MessageSettlement[]): void {
  checkValues('settle messages', () => {
    for (const settlement of settlements) {
      if (settlement.kind === 'done' || settlement.kind === 'note') {
        messageLiteral('providerId', settlement.providerId)
      }
      if (settlement.kind === 'retry') numberLiteral('delayMs', settlement.delayMs)
    }
  })
}

/** Answers `false` for leases with an id or a token that no message can have, without a call. */
async function inBatches<Request extends MessageLease>(
  requests: readonly Request[],
  call: (batch: readonly Request[]) => Promise<boolean[]>,
): Promise<boolean[]> {
  const isKnown = requests.map(({ id, token }) => isUuid(id) && isToken(token))
  const answers = await inRounds(
    requests.filter((_, n) => isKnown[n]),
    ({ id }) => id,
    (round) => inPieces(round, withoutBytes, call),
  )
  const next = answers.values()
  return isKnown.map((known) => known && next.next().value === true)
}

/** A message that was never claimed has an empty token, so an empty token is no lease. */
function isToken(token: unknown): boolean {
  if (typeof token !== 'string' || token === '') return false
  return token.length <= TOKEN_LENGTH_MAX && token.isWellFormed()
}

/**
 * Reads, decides, and writes in one statement with the fence in its WHERE clause. If that statement
 * wrote fewer messages than were decided, the batch is decided again under locks. A settlement that
 * the first statement wrote recognises itself.
 */
async function settleBatch(
  session: Session,
  context: SqlContext,
  settlements: readonly MessageSettlement[],
): Promise<boolean[]> {
  const { tables, now } = context
  const ids = settlements.map(({ id }) => id).toSorted()
  const rows = await readCommitted(session, messagesSql(tables, now, ids))
  const { changes, answers } = decide(settlements, rows)
  if (changes.length === 0) return answers
  const written = await writeAlone(session, changeMessagesSql(tables, changes))
  if (!isRows(written) && written.affectedRows === changes.length) return answers
  return transact(session, async () => {
    const locked = await session.rows(lockMessagesSql(tables, now, ids))
    const again = decide(settlements, locked)
    if (again.changes.length > 0) await session.run(changeMessagesSql(tables, again.changes))
    return again.answers
  })
}

function decide(settlements: readonly MessageSettlement[], rows: readonly Row[]) {
  const nowMs = Number(rows[0]?.[0] ?? 0)
  const found = rows.map(([, ...values]) => toMessage(MESSAGE_HEAD, values))
  const byId = new Map(found.map((row) => [row.id, row]))
  const changes: MessageChange[] = []
  const answers = settlements.map((settlement) => {
    const before = byId.get(settlement.id)
    const decision = decideMessageSettlement(before, settlement, nowMs)
    if (before !== undefined && decision.kind === 'settled') {
      const { id, token, state } = before
      const columns = messageChanges(before, settledRow(before, decision.to, nowMs))
      if (columns.size > 0) changes.push({ id, token, state, columns })
    }
    return decision.kind !== 'fenced'
  })
  return { changes, answers }
}

function settledRow(
  row: MessageRow,
  { dueAtMs, blocksLane, ...to }: MessageSettled,
  nowMs: number,
): MessageRow {
  switch (to.state) {
    case 'held':
      return { ...row, ...to }
    case 'ready':
      return { ...ready(row, dueAtMs ?? nowMs), ...to }
    default: {
      const isWaitedFor = blocksLane === true && row.partition !== undefined
      const place = isWaitedFor ? { lane: row.lane, place: row.sequence } : {}
      return { ...ended(row, nowMs), ...to, ...place }
    }
  }
}

/** Returns the message to its place in the lane, due at that time. */
export function ready(row: MessageRow, dueAtMs: number): MessageRow {
  const place = row.lane === NO_PARTITION ? dueAtMs : row.sequence
  return { ...row, state: 'ready', place, dueAtMs, endedAtMs: undefined }
}

/** Removes the message from its lane. It is never due again. */
export function ended(row: MessageRow, nowMs: number): MessageRow {
  return { ...row, lane: undefined, dueAtMs: undefined, endedAtMs: nowMs }
}

async function renewBatch(
  session: Session,
  { tables, now }: SqlContext,
  { leases, leaseMs }: { readonly leases: readonly MessageLease[]; readonly leaseMs: number },
): Promise<boolean[]> {
  const sorted = leases.toSorted((one, other) => (one.id < other.id ? -1 : 1))
  const sql = renewMessagesSql(tables, now, { leases: sorted, leaseMs })
  const written = await writeAlone(session, sql)
  if (!isRows(written) && written.affectedRows === leases.length) return leases.map(() => true)
  // Some messages have changed. The ones that the same token still holds were renewed just now.
  const ids = sorted.map(({ id }) => id)
  const rows = await readCommitted(session, messagesSql(tables, now, ids))
  const found = rows.map(([, ...values]) => toMessage(MESSAGE_HEAD, values))
  const byId = new Map(found.map((row) => [row.id, row]))
  return leases.map(({ id, token }) => {
    const row = byId.get(id)
    return row?.state === 'held' && row.token === token
  })
}

const ADDING = {
  caller: 'outbox.add',
  operation: 'add a message',
  advice: 'begin one, write, add the message, and commit',
} as const

/**
 * Adds a message in a transaction of the store, which is known to be open, or in a transaction of
 * the caller. The latter is checked first, and the statements then write only on its connection.
 */
export async function addMessage(
  { current, tables, transactions }: DurableContext,
  tx: unknown,
  message: NewMessage,
): Promise<void> {
  const joined = joinTransaction(tx, ADDING)
  checkMessage(message)
  const guard = transactions.hasLent(tx) ? '' : guardSql(await connectionOf(joined))
  const { now } = current()
  const adding = { added: message, guard }
  if (message.partition !== undefined) await send(joined, countSql(tables, now, adding))
  const rows = await send(joined, addSql(tables, now, adding))
  if (rows.length > 0 || guard === '') return
  // No row was returned: on MariaDB nothing was written, and MySQL never returns a row.
  const [isAdded] = await ask(joined, isAddedSql(tables, message.id))
  if (isAdded !== '1') throw notOpen(joined)
}

async function connectionOf(joined: JoinedTransaction): Promise<string> {
  const [open = '', connection = ''] = await ask(joined, openSql())
  if (!/^\d+$/.test(connection)) {
    const cause = new Error('the transaction returned an answer that the store cannot read')
    throw storeFailed(ADDING.operation, cause)
  }
  await checkOpen(joined, open)
  return connection
}

async function ask(joined: JoinedTransaction, sql: string): Promise<string[]> {
  const rows = await send(joined, sql)
  try {
    return answerOf(rows).split(' ')
  } catch (error) {
    throw storeFailed(ADDING.operation, error)
  }
}

/** Rejects values that no column can hold before anything is sent. */
function checkMessage(message: NewMessage): void {
  const { id, topic, tenant, key, partition, payload, delayMs } = message
  checkValues(ADDING.operation, () => {
    if (!isUuid(id)) throw new ValueFault('id cannot hold its value')
    if (!(payload instanceof Uint8Array)) throw new ValueFault('a payload is not a Uint8Array')
    if (typeof topic !== 'string') throw new ValueFault('topic cannot hold its value')
    messageLiteral('topic', topic)
    messageLiteral('tenant', tenant)
    messageLiteral('partition', partition)
    messageLiteral('key', key)
    numberLiteral('delayMs', delayMs)
  })
}

/**
 * Reads topic by topic, with one index access each: no plan of a single statement reliably skips
 * the messages between two topics.
 */
export async function findUnrelayed(
  session: Session,
  { tables, now }: SqlContext,
  { topics, overdueMs, limit }: UnrelayedQuery,
): Promise<UnrelayedTopic[]> {
  const dueBy = `(${now} - ${numberLiteral('overdueMs', overdueMs)})`
  const found: UnrelayedTopic[] = []
  let topic = ''
  for (let looks = 0; looks < UNRELAYED_TOPICS_MAX && found.length < limit; looks++) {
    const [row] = await readCommitted(session, nextTopicSql(tables, topic))
    if (row === undefined) break
    topic = toMessage(['topic'], row).topic
    if (topics.includes(topic)) continue
    const sql = lookSql(tables, dueBy, {
      // No claim has an empty token.
      token: '',
      freeMax: 1,
      topics: [{ topic, after: NO_PARTITION }],
      lanesMax: UNRELAYED_HEADS_MAX,
      withTenants: false,
      leaps: [],
    })
    const due = (await readCommitted(session, sql))
      .map(toLookRow)
      .filter(isDue)
      .toSorted((one, other) => one.dueAtMs - other.dueAtMs)
    const [first] = due
    if (first === undefined) continue
    found.push({ topic, messageId: first.id, dueAt: new Date(first.dueAtMs) })
  }
  return found
}
