/** The row that a handler, or the last phase of an operation, writes in its key's transaction. */
import type { Connection } from 'mysql2/promise'
import type { ClientBase } from 'pg'
import type { SqliteTransaction } from '../../src/stores/sqlite/index.ts'
import { REQUEST } from '../run/work.ts'
import type { OpenStore, StoreName } from './stores.ts'

const TABLE =
  'CREATE TABLE IF NOT EXISTS bench_payment (id varchar(36) PRIMARY KEY, amount_cents bigint)'

/** Writes the row. On SQLite it returns no promise, because transactions there are synchronous. */
export type WritePayment = (tx: unknown, id: string) => Promise<unknown> | undefined

export async function paymentRows(name: StoreName, opened: OpenStore): Promise<WritePayment> {
  if (opened.execute === undefined) throw new Error(`${name} has no transactions`)
  await opened.execute(TABLE)
  switch (name) {
    case 'sqlite-full':
    case 'sqlite-normal':
      return (tx, id) => {
        const insert = (tx as SqliteTransaction).prepare('INSERT INTO bench_payment VALUES (?, ?)')
        insert.run(id, REQUEST.amountCents)
        return undefined
      }
    case 'mariadb':
      return (tx, id) => {
        const values = [id, REQUEST.amountCents]
        return (tx as Connection).execute('INSERT INTO bench_payment VALUES (?, ?)', values)
      }
    case 'postgres':
    case 'cached':
      return (tx, id) =>
        (tx as ClientBase).query({
          name: 'bench_payment',
          text: 'INSERT INTO bench_payment VALUES ($1, $2)',
          values: [id, REQUEST.amountCents],
        })
    default:
      throw new Error(`${name} has no transactions`)
  }
}
