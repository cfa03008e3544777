import type { NewMessage } from '../../core/durable-store.ts'
import { answerOf } from '../../core/foreign-transaction.ts'
import { storeFailed } from './failures.ts'
import { checkOpen, joinTransaction, notOpen, send, type Joined } from './joined-transaction.ts'
import { messageLiteral } from './message-columns.ts'
import { addSql, countSql, guardSql, isAddedSql } from './message-sql.ts'
import type { DurableContext } from './phases.ts'
import { openSql } from './sql.ts'
import { isUuid, numberLiteral, ValueFault } from './values.ts'

const ADDING = {
  caller: 'outbox.add',
  operation: 'add a message',
  advice: 'begin one, write, add the message, and commit',
} as const

/**
 * Adds a message in a transaction of the store's, which is known to be open, or in one of the
 * caller's, which is asked first and whose connection is then the only one that may be written on.
 */
export async function addMessage(
  { place, tables, transactions }: DurableContext,
  tx: unknown,
  message: NewMessage,
): Promise<void> {
  const joined = joinTransaction(tx, ADDING)
  checkMessage(message)
  const guard = transactions.hasLent(tx) ? '' : guardSql(await connectionOf(joined))
  const { now } = place()
  const adding = { added: message, guard }
  if (message.partition !== undefined) await send(joined, countSql(tables, now, adding))
  const rows = await send(joined, addSql(tables, now, adding))
  if (rows.length > 0 || guard === '') return
  // MySQL says nothing of its own accord. MariaDB would have: there it is not written.
  const [isAdded] = await ask(joined, isAddedSql(tables, message.id))
  if (isAdded !== '1') throw notOpen(joined)
}

async function connectionOf(joined: Joined): Promise<string> {
  const [open = '', connection = ''] = await ask(joined, openSql())
  if (!/^\d+$/.test(connection)) {
    const cause = new Error('the transaction gave no answer that can be read')
    throw storeFailed(ADDING.operation, cause)
  }
  await checkOpen(joined, open)
  return connection
}

async function ask(joined: Joined, sql: string): Promise<string[]> {
  const rows = await send(joined, sql)
  try {
    return answerOf(rows).split(' ')
  } catch (error) {
    throw storeFailed(ADDING.operation, error)
  }
}

/** Refuses what no column can hold before anything is sent. */
function checkMessage(message: NewMessage): void {
  const { id, topic, tenant, key, partition, payload, delayMs } = message
  try {
    if (!isUuid(id)) throw new ValueFault('id cannot hold its value')
    if (!(payload instanceof Uint8Array)) throw new ValueFault('a payload is not a Uint8Array')
    if (typeof topic !== 'string') throw new ValueFault('topic cannot hold its value')
    messageLiteral('topic', topic)
    messageLiteral('tenant', tenant)
    messageLiteral('partition', partition)
    messageLiteral('key', key)
    numberLiteral('delayMs', delayMs)
  } catch (error) {
    throw storeFailed(ADDING.operation, error)
  }
}
