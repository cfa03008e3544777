import type { MessageLease, MessageSettlement, OutboxStore } from '../../core/durable-store.ts'
import { addError } from '../../core/messages.ts'
import { inRounds } from '../../core/rounds.ts'
import { addMessage } from './add-message.ts'
import { inPieces } from './calls.ts'
import { MessageClaims } from './claim-messages.ts'
import type { Row } from './client.ts'
import { isRows, readCommitted, transact, writeAlone, type Session } from './driver.ts'
import { storeFailed } from './failures.ts'
import {
  MESSAGE_ALL,
  MESSAGE_HEAD,
  messageChanges,
  messageLiteral,
  NO_PARTITION,
  TOKEN_LENGTH_MAX,
  toMessage,
  toMessageView,
  type MessageRow,
} from './message-columns.ts'
import {
  changeMessagesSql,
  listMessagesSql,
  lockMessagesSql,
  messagesSql,
  readMessageSql,
  renewMessagesSql,
  type MessageChange,
} from './message-sql.ts'
import type { DurableContext } from './phases.ts'
import { Pruning } from './prune-messages.ts'
import type { Inside } from './settlement.ts'
import { findUnrelayed } from './unrelayed-messages.ts'
import { isUuid, numberLiteral } from './values.ts'

export function outboxStore(context: DurableContext): OutboxStore {
  const { calls, place, tables } = context
  const claims = new MessageClaims(calls, place)
  const pruning = new Pruning(calls, place)
  const rows = (operation: string, sql: string, signal: AbortSignal | undefined) =>
    calls.make(operation, (session) => readCommitted(session, sql), signal)
  return {
    add: (tx, message) => addMessage(context, tx, message),
    async claim(request, signal) {
      checked('claim messages', () => {
        for (const topic of request.topics) messageLiteral('topic', topic)
        messageLiteral('token', request.token)
        numberLiteral('leaseMs', request.leaseMs)
      })
      return claims.claim(request, signal)
    },
    async settle(settlements, signal) {
      checkSettlements(settlements)
      return inBatches(settlements, (batch) =>
        calls.make('settle messages', (session) => settleBatch(session, place(), batch), signal),
      )
    },
    async renew(leases, leaseMs, signal) {
      checked('renew messages', () => numberLiteral('leaseMs', leaseMs))
      return inBatches(leases, (batch) =>
        calls.make(
          'renew messages',
          (session) => renewBatch(session, place(), { leases: batch, leaseMs }),
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
        (session) => findUnrelayed(session, place(), query),
        signal,
      ),
    prune: (request, signal) => pruning.prune(request, signal),
  }
}

function checked(operation: string, check: () => void): void {
  try {
    check()
  } catch (error) {
    throw storeFailed(operation, error)
  }
}

/** Refuses what no column can hold before anything of the batch is sent. */
function checkSettlements(settlements: readonly MessageSettlement[]): void {
  checked('settle messages', () => {
    for (const settlement of settlements) {
      if (settlement.kind === 'done' || settlement.kind === 'note') {
        messageLiteral('providerId', settlement.providerId)
      }
      if (settlement.kind === 'retry') numberLiteral('delayMs', settlement.delayMs)
    }
  })
}

/** What no message can be called is in no batch: it has moved on, wherever to. */
async function inBatches<Request extends MessageLease>(
  requests: readonly Request[],
  call: (batch: readonly Request[]) => Promise<boolean[]>,
): Promise<boolean[]> {
  const isKnown = requests.map(({ id, token }) => isUuid(id) && isToken(token))
  const answers = await inRounds(
    requests.filter((_, n) => isKnown[n]),
    ({ id }) => id,
    (round) => inPieces(round, () => 0, call),
  )
  const next = answers.values()
  return isKnown.map((known) => known && next.next().value === true)
}

/** A message that nobody has taken yet has an empty one. */
function isToken(token: unknown): boolean {
  if (typeof token !== 'string' || token === '') return false
  return token.length <= TOKEN_LENGTH_MAX && token.isWellFormed()
}

/**
 * Reads, decides, and writes in one statement whose WHERE clause is the fence. Where that wrote
 * less than was decided, it is decided again under locks; what was written recognises itself.
 */
async function settleBatch(
  session: Session,
  inside: Inside,
  settlements: readonly MessageSettlement[],
): Promise<boolean[]> {
  const { tables, now } = inside
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
    if (before === undefined || before.token !== settlement.token) return false
    const { id, token, state } = before
    if (state !== 'held') return state === SETTLED_STATE[settlement.kind]
    const columns = messageChanges(before, settledAs(before, settlement, nowMs))
    if (columns.size > 0) changes.push({ id, token, state, columns })
    return true
  })
  return { changes, answers }
}

/** What a settlement leads to. Found there by the same token, it is the same one repeated. */
const SETTLED_STATE = {
  done: 'done',
  note: 'held',
  retry: 'ready',
  dead: 'dead',
  return: 'ready',
} as const satisfies Record<MessageSettlement['kind'], MessageRow['state']>

function settledAs(row: MessageRow, settlement: MessageSettlement, nowMs: number): MessageRow {
  const { attempt } = row
  const withError = (error: string) => addError(row.errors, { atMs: nowMs, attempt, error })
  switch (settlement.kind) {
    case 'done': {
      const providerId = settlement.providerId ?? row.providerId
      return { ...ended(row, nowMs), state: 'done', providerId }
    }
    case 'note':
      return { ...row, providerId: settlement.providerId }
    case 'retry': {
      const errors = withError(settlement.error)
      return { ...ready(row, nowMs + settlement.delayMs), errors }
    }
    case 'dead': {
      const errors = withError(settlement.error)
      const dead: MessageRow = { ...ended(row, nowMs), state: 'dead', errors }
      const isWaitedFor = settlement.blocks && row.partition !== undefined
      return isWaitedFor ? { ...dead, lane: row.lane, place: row.sequence } : dead
    }
    case 'return':
      return { ...ready(row, nowMs), attempt: attempt - 1 }
  }
}

/** In its place, to be taken at that time. */
export function ready(row: MessageRow, dueAtMs: number): MessageRow {
  const place = row.lane === NO_PARTITION ? dueAtMs : row.sequence
  return { ...row, state: 'ready', place, dueAtMs, endedAtMs: undefined }
}

/** Out of its lane, and never due again. */
export function ended(row: MessageRow, nowMs: number): MessageRow {
  return { ...row, lane: undefined, dueAtMs: undefined, endedAtMs: nowMs }
}

async function renewBatch(
  session: Session,
  { tables, now }: Inside,
  { leases, leaseMs }: { readonly leases: readonly MessageLease[]; readonly leaseMs: number },
): Promise<boolean[]> {
  const sorted = leases.toSorted((one, other) => (one.id < other.id ? -1 : 1))
  const sql = renewMessagesSql(tables, now, { leases: sorted, leaseMs })
  const written = await writeAlone(session, sql)
  if (!isRows(written) && written.affectedRows === leases.length) return leases.map(() => true)
  // Some have moved on. Those that are still held by the same token were prolonged just now.
  const ids = sorted.map(({ id }) => id)
  const rows = await readCommitted(session, messagesSql(tables, now, ids))
  const found = rows.map(([, ...values]) => toMessage(MESSAGE_HEAD, values))
  const byId = new Map(found.map((row) => [row.id, row]))
  return leases.map(({ id, token }) => {
    const row = byId.get(id)
    return row?.state === 'held' && row.token === token
  })
}
