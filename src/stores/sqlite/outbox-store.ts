import type {
  HeldMessage,
  MessageClaim,
  MessageSettlement,
  NewMessage,
  OutboxStore,
} from '../../core/durable-store.ts'
import { addError } from '../../core/messages.ts'
import { TurnCursors } from '../../core/turns.ts'
import { INSERT_MESSAGE } from './durable-sql.ts'
import { storeFailed } from './failures.ts'
import type { FileAccess, Tables } from './file-access.ts'
import { openForeign } from './foreign.ts'
import {
  insertValues,
  toHeld,
  toMessageView,
  type MessageRow,
  type MessageTable,
} from './message-table.ts'
import { inPieces, PIECE_BYTES } from './pieces.ts'
import { forTable } from './sql.ts'

export function outboxStore(access: FileAccess): OutboxStore {
  const { messages } = access.tables
  const cursors = new TurnCursors()
  return {
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
  const foreign = own === undefined ? openForeign(access, tx) : undefined
  try {
    if (own === undefined) {
      foreign!.prepare(forTable(access.table, INSERT_MESSAGE)).run(...insertValues(message, nowMs))
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
  // Most calls find nothing, and need not take the write lock to learn it.
  const isFound = await access.read('claim messages', (nowMs) => {
    const { reading, messages, messageTurns } = access.committed
    return reading.run(
      () =>
        messageTurns.finds(request, cursors, nowMs) ||
        messages.held(request.token, nowMs).length > 0,
    )
  })
  if (!isFound) return []
  return access.write('claim messages', (nowMs) => take(access.tables, cursors, { request, nowMs }))
}

function take(
  { messages, messageTurns }: Tables,
  cursors: TurnCursors,
  { request, nowMs }: { readonly request: MessageClaim; readonly nowMs: number },
): HeldMessage[] {
  const { token, leaseMs } = request
  const held = messages.held(token, nowMs)
  if (held.length > 0) return held.map(toHeld)
  const { keys, keep } = messageTurns.walk(request, cursors, nowMs)
  keep()
  return messages.getAll(keys.map(({ number }) => number)).map((row) => {
    const write = { ...row, token, attempt: row.attempt + 1, due_at_ms: nowMs + leaseMs }
    messages.hold(write)
    return toHeld(write)
  })
}

/** What a settlement leads to. Found there by the same token, it is the same one repeated. */
const SETTLED_STATE = {
  done: 'done',
  note: 'held',
  retry: 'ready',
  dead: 'dead',
  return: 'ready',
} as const satisfies Record<MessageSettlement['kind'], MessageRow['state']>

interface Settled {
  readonly isSettled: boolean
  /** The message as it is now, where it was changed. */
  readonly write?: MessageRow
}

function settleMessage(
  messages: MessageTable,
  row: MessageRow | undefined,
  { settlement, nowMs }: { readonly settlement: MessageSettlement; readonly nowMs: number },
): Settled {
  if (row === undefined || row.token !== settlement.token) return { isSettled: false }
  if (row.state !== 'held') return { isSettled: row.state === SETTLED_STATE[settlement.kind] }

  const write = settledAs(row, settlement, nowMs)
  messages.update(write)
  if (row.lane !== null && write.state !== 'held') messages.passOn(write, row.lane)
  return { isSettled: true, write }
}

function settledAs(row: MessageRow, settlement: MessageSettlement, nowMs: number): MessageRow {
  const { attempt } = row
  const withError = (error: string) => addError(row.errors, { atMs: nowMs, attempt, error })
  switch (settlement.kind) {
    case 'done': {
      const provider_id = settlement.providerId ?? row.provider_id
      return { ...row, ...ended(nowMs), state: 'done', provider_id }
    }
    case 'note':
      return { ...row, provider_id: settlement.providerId }
    case 'retry': {
      const errors = withError(settlement.error)
      return { ...row, state: 'ready', errors, due_at_ms: nowMs + settlement.delayMs }
    }
    case 'dead': {
      const errors = withError(settlement.error)
      const { lane, is_head } = row
      const over = { ...row, ...ended(nowMs), state: 'dead', errors } as const
      return settlement.blocks ? { ...over, lane, is_head } : over
    }
    case 'return':
      return { ...row, state: 'ready', attempt: attempt - 1, due_at_ms: nowMs }
  }
}

/** Out of its lane, and never due again. */
function ended(nowMs: number) {
  return { lane: null, is_head: 0, due_at_ms: null, ended_at_ms: nowMs } as const
}

/** A dead message that is to be relayed after all. Its token goes: whoever held it is answered. */
export function revived(messages: MessageTable, row: MessageRow, nowMs: number): void {
  const { partition } = row
  // One that the others waited for is still in its lane: its head, unless one before it came back.
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

/** A dead message that is not to be relayed. Whoever waited for it goes on. */
export function dropped(messages: MessageTable, row: MessageRow, nowMs: number): void {
  const write: MessageRow = { ...row, ...ended(nowMs), state: 'dropped', token: null }
  messages.update(write)
  if (row.lane !== null) messages.passOn(write, row.lane)
}
