import type { Connection, Pool, PoolConnection } from 'mysql2/promise'
import { expect } from 'vitest'
import type { Lease } from '../../../../src/core/store/store.ts'
import type { MysqlPool } from '../../../../src/stores/mysql/index.ts'
import type { MysqlPoolConnection } from '../../../../src/stores/mysql/client.ts'
import type { MysqlStore } from '../../../../src/stores/mysql/store.ts'
import { messageOf, operationOf } from '../../../../src/testing/durable-cases/durable-case.ts'
import { hold, ofKind, viewOf } from '../../../../src/testing/store-cases/store-case.ts'

/** Removes the comments that only MariaDB executes, so that the server behaves like MySQL. */
const forMysql = (sql: string) => sql.replaceAll(/\/\*M![^]*?\*\//g, '')

type Send = (query: unknown, ...values: unknown[]) => Promise<readonly [unknown, unknown]>

/** A connection on which the server behaves like MySQL. */
export function likeMysqlConnection(connection: Pick<Connection, 'query'>): { query: Send } {
  const send = connection.query.bind(connection) as unknown as Send
  return {
    query: (query, ...values) =>
      typeof query === 'string'
        ? send(forMysql(query), ...values)
        : send({ ...(query as object), sql: forMysql((query as { sql: string }).sql) }, ...values),
  }
}

export function likeMysqlPool(pool: Pool): MysqlPool {
  return {
    pool: pool.pool,
    getConnection: async () => {
      const connection = await pool.getConnection()
      return {
        ...likeMysqlConnection(connection),
        release: () => connection.release(),
        destroy: () => connection.destroy(),
      }
    },
  }
}

/** Runs `work` in a transaction that the caller begins and commits. */
export async function transact<Result>(
  pool: Pool,
  work: (tx: PoolConnection) => Promise<Result> | Result,
): Promise<Result> {
  const connection = await pool.getConnection()
  try {
    await connection.beginTransaction()
    const result = await work(connection)
    await connection.commit()
    return result
  } catch (error) {
    await connection.rollback()
    throw error
  } finally {
    connection.release()
  }
}

/** Adds messages in one transaction, one after the other. */
export function addAll(
  pool: Pool,
  store: MysqlStore,
  messages: readonly Parameters<typeof messageOf>[0][],
): Promise<string[]> {
  return transact(pool, async (tx) => {
    const added = messages.map(messageOf)
    for (const message of added) await store.durable.outbox.add(tx, message)
    return added.map(({ id }) => id)
  })
}

/** Claims a key and records the first step of an operation. */
export async function begun(
  store: MysqlStore,
  request: Parameters<typeof hold>[1] = {},
): Promise<{ readonly lease: Lease; readonly recordId: string }> {
  const lease = await hold(store, { onLapse: 'resume', ...request })
  const step = { operation: operationOf() }
  ofKind(await store.durable.phases.record(lease, step), 'advanced')
  const { recordId } = await viewOf(store, lease)
  return { lease, recordId }
}

/** A pool that calls `intercept` instead of sending each statement. */
export function intercepting(
  pool: Pool,
  intercept: (
    sql: string,
    send: () => Promise<readonly [unknown, unknown]>,
    connection: PoolConnection,
  ) => Promise<readonly [unknown, unknown]>,
): MysqlPool {
  return {
    pool: pool.pool,
    getConnection: async (): Promise<MysqlPoolConnection> => {
      const connection = await pool.getConnection()
      const send = connection.query.bind(connection) as unknown as Send
      return {
        query: (query: unknown, ...values: unknown[]) => {
          const sql = typeof query === 'string' ? query : (query as { sql: string }).sql
          return intercept(sql, () => send(query, ...values), connection)
        },
        release: () => connection.release(),
        destroy: () => connection.destroy(),
      }
    },
  }
}

/** Waits until so many transactions wait for a lock. */
export async function untilWaiting(
  column: (sql: string) => Promise<unknown[]>,
  count: number,
): Promise<void> {
  const waiting = `SELECT COUNT(*) FROM information_schema.innodb_trx
    WHERE trx_state = 'LOCK WAIT'`
  // InnoDB caches this table for 0.1 s after each read.
  await expect.poll(() => column(waiting), { timeout: 3_000, interval: 150 }).toEqual([count])
}
