/** Tests: test/stores/sqlite/durable/durable.test.ts. */
import type {
  HeldMessage,
  MessageClaim,
  MessageSettlement,
  NewMessage,
  OutboxStore,
} from '../../../core/store/durable-store.ts'
import { decideMessageSettlement, type MessageSettled } from '../../kit/messages.ts'
import { TurnCursors } from '../../kit/turns.ts'
import { INSERT_MESSAGE } from './message-sql.ts'
import { storeFailed } from '../failures.ts'
import type { FileAccess, Tables } from '../driver/file-access.ts'
import { openCallerTransaction } from '../caller-transaction.ts'
import {
  insertValues,
  toHeld,
  toMessageView,
  type MessageRow,
  type MessageTable,
} from './message-columns.ts'
import { inPieces, PIECE_BYTES } from '../upkeep.ts'
import { forTable } from '../sql.ts'

export function outboxStore(access: FileAccess): OutboxStore {
  const { messages } = access.tables
  const cursors = new TurnCursors()
  return {
    isSynchronous: true,
    add: (tx, message) => addMessage(access, tx, message),
    claim: (request) => claimMessages(access, cursors, request),
    settle: (settlements) =>
      access.write('settle messages', (nowMs) => {
        const rows = messages.findAll(settlements.map(({ id }) => id))
        return settlements.map((settlement) => {
          const row = rows.get(settlement.id)
          const { isSettled, write } = settleMessage(messages, row, { settlement, nowMs })
          if (write !== undefined) rows.set(write.id, write)
          return isSettled
        })
      }),
    renew: (leases, leaseMs) =>
      access.write('renew messages', (nowMs) =>
        leases.map(({ id, token }) => {
          const row = messages.find(id)
          if (row?.state !== 'held' || row.token !== token) return false
          messages.update({ ...row, due_at_ms: nowMs + leaseMs })
          return true
        }),
      ),
    read: (id) =>
      access.read('read a message', () => {
        const row = access.committed.messages.read(id)
        return row && toMessageView(row)
      }),
    list: ({ state, limit }) =>
      access.read('list messages', () =>
        access.committed.messages.list(state, limit).map(toMessageView),
      ),
    unrelayed: (query) =>
      access.read('find unrelayed messages', (nowMs) =>
        access.committed.messages
          .unrelayed(query, nowMs - query.overdueMs)
          .map(({ topic, id, due_at_ms }) => {
            return { topic, messageId: id, dueAt: new Date(due_at_ms!) }
          }),
      ),
    prune: async ({ limit, olderThanMs }) => {
      const ended = (table: MessageTable, nowMs: number, rows: number) =>
        table.ended(nowMs - olderThanMs, { rows, bytes: PIECE_BYTES })
      const pruned = await inPieces(access, 'prune messages', {
        limit,
        isDue: (nowMs) => ended(access.committed.messages, nowMs, 1).length > 0,
        piece: (nowMs, rows) => {
          const numbers = ended(messages, nowMs, rows)
          for (const number of numbers) messages.remove(number)
          return numbers
        },
      })
      return pruned.length
    },
    watch: (wake) => access.open.watch(wake),
  }
}

function addMessage(access: FileAccess, tx: unknown, message: NewMessage): void {
  access.refuseIfClosed('add a message')
  access.refuseIfReplaced('add a message')
  const nowMs = access.clock.nowMs()
  const own = access.open.find(tx)
  const callers = own === undefined ? openCallerTransaction(access, tx) : undefined
  try {
    if (own === undefined) {
      callers!.prepare(forTable(access.table, INSERT_MESSAGE)).run(...insertValues(message, nowMs))
    } else {
      own.use(() => access.tables.messages.insert(message, nowMs))
      own.hasMessages = true
    }
  } catch (error) {
    throw storeFailed('add a message', error)
  }
}

async function claimMessages(
  access: FileAccess,
  cursors: TurnCursors,
  request: MessageClaim,
): Promise<HeldMessage[]> {
  // Reads first: most calls find nothing, and then take no write lock.
  const hasWork = await access.read('claim messages', (nowMs) => {
    const { reading, messages, messageTurns } = access.committed
    return reading.run(
      () =>
        messageTurns.hasDue(request, cursors, nowMs) ||
        messages.held(request.token, nowMs).length > 0,
    )
  })
  if (!hasWork) return []
  return access.write('claim messages', (nowMs) =>
    holdDue(access.tables, cursors, { request, nowMs }),
  )
}

/** For use within a write transaction. A repeated claim gets the messages it already holds. */
function holdDue(
  { messages, messageTurns }: Tables,
  cursors: TurnCursors,
  { request, nowMs }: { readonly request: MessageClaim; readonly nowMs: number },
): HeldMessage[] {
  const { token, leaseMs } = request
  const held = messages.held(token, nowMs)
  if (held.length > 0) return held.map(toHeld)
  const { keys, saveCursors } = messageTurns.walk(request, cursors, nowMs)
  saveCursors()
  return messages.getAll(keys.map(({ number }) => number)).map((row) => {
    const write = { ...row, token, attempt: row.attempt + 1, due_at_ms: nowMs + leaseMs }
    messages.hold(write)
    return toHeld(write)
  })
}

interface SettlementResult {
  readonly isSettled: boolean
  /** The new row, if it changed. */
  readonly write?: MessageRow
}

function settleMessage(
  messages: MessageTable,
  row: MessageRow | undefined,
  { settlement, nowMs }: { readonly settlement: MessageSettlement; readonly nowMs: number },
): SettlementResult {
  const fields = row && { ...row, providerId: row.provider_id ?? undefined }
  const decision = decideMessageSettlement(fields, settlement, nowMs)
  if (row === undefined || decision.kind !== 'settled') {
    return { isSettled: decision.kind === 'repeated' }
  }
  const write = settledRow(row, decision.to, nowMs)
  messages.update(write)
  if (row.lane !== null && write.state !== 'held') messages.passOn(write, row.lane)
  return { isSettled: true, write }
}

function settledRow(row: MessageRow, to: MessageSettled, nowMs: number): MessageRow {
  const { state, attempt = row.attempt, errors = row.errors, dueAtMs, blocksLane } = to
  const provider_id = to.providerId ?? row.provider_id
  const settled = { ...row, state, attempt, errors, provider_id }
  if (state === 'held') return settled
  if (state === 'ready') return { ...settled, due_at_ms: dueAtMs ?? nowMs }
  const { lane, is_head } = row
  const place = blocksLane === true ? { lane, is_head } : {}
  return { ...settled, ...endedColumns(nowMs), ...place }
}

/** The message leaves its lane and is never due again. */
function endedColumns(nowMs: number) {
  return { lane: null, is_head: 0, due_at_ms: null, ended_at_ms: nowMs } as const
}

/** Makes a dead message ready again. Clears its token: the last holder already has its answer. */
export function reviveMessage(messages: MessageTable, row: MessageRow, nowMs: number): void {
  const { partition } = row
  // A message that blocks its lane is still in it: the head, unless an earlier message returned.
  const isHead =
    row.lane === null
      ? partition === null || messages.retakeHead(row, partition)
      : row.is_head === 1
  messages.update({
    ...row,
    state: 'ready',
    token: null,
    lane: partition,
    is_head: isHead ? 1 : 0,
    due_at_ms: nowMs,
    ended_at_ms: null,
  })
}

/** Gives up a dead message. The next message of its lane becomes the head. */
export function dropMessage(messages: MessageTable, row: MessageRow, nowMs: number): void {
  const write: MessageRow = { ...row, ...endedColumns(nowMs), state: 'dropped', token: null }
  messages.update(write)
  if (row.lane !== null) messages.passOn(write, row.lane)
}
