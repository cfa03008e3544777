import pg from 'pg'
import postgres from 'postgres'
import { onTestFinished } from 'vitest'
import {
  postgresStore,
  type PostgresPool,
  type PostgresStoreOptions,
} from '../../../../src/stores/postgres/index.ts'
import type { OpenDurableStore } from '../../run-durable-cases.ts'
import type { FakeClock } from '../../../../src/testing/fake-clock.ts'

type Tx = pg.ClientBase | postgres.TransactionSql

/** A driver, and the statements that the cases send beside the store. */
export interface DurableDriver {
  readonly pool: PostgresPool
  readonly transact: OpenDurableStore['transact']
  readonly run: (sql: string) => Promise<unknown>
  readonly end: () => Promise<unknown>
}

export const DURABLE_DRIVERS = {
  pg: (url: string): DurableDriver => {
    const pool = new pg.Pool({ connectionString: url, max: 20 })
    return {
      pool,
      transact: async (work) => {
        const client = await pool.connect()
        try {
          await client.query('BEGIN')
          await work(client)
          await client.query('COMMIT')
        } catch (error) {
          await client.query('ROLLBACK')
          throw error
        } finally {
          client.release()
        }
      },
      run: (sql) => pool.query(sql),
      end: () => pool.end(),
    }
  },
  'postgres.js': (url: string): DurableDriver => {
    const sql = postgres(url, { onnotice: () => undefined, max: 20, prepare: false })
    return {
      pool: sql,
      transact: async (work) => {
        await sql.begin(async (tx) => work(tx))
      },
      run: (text) => sql.unsafe(text),
      end: () => sql.end(),
    }
  },
}

const send = async (tx: unknown, text: string): Promise<void> => {
  const own = tx as Tx
  await ('query' in own ? own.query(text) : own.unsafe(text))
}

/** Empties the tables. The trigger of the audit is disabled for that. */
const emptySql = (prefix: string) => `ALTER TABLE ${prefix}_audit" DISABLE TRIGGER unchanged;
  DELETE FROM ${prefix}_audit"; ALTER TABLE ${prefix}_audit" ENABLE TRIGGER unchanged;
  DELETE FROM ${prefix}"; DELETE FROM ${prefix}_history"; DELETE FROM ${prefix}_message";
  DELETE FROM ${prefix}_partition"; DELETE FROM ${prefix}_discarded";
  UPDATE ${prefix}_waiting" SET until = '-infinity';
  DELETE FROM note`

/** Opens the store of one case on tables that all cases share; the first case migrates. */
export function durableOpener(
  driverOf: () => DurableDriver,
  options: Omit<PostgresStoreOptions, 'pool' | 'clock'>,
) {
  const { schema = 'public', table = 'oncekey_record' } = options
  let isMigrated = false
  return async (clock: FakeClock): Promise<OpenDurableStore> => {
    const driver = driverOf()
    const store = postgresStore({ pool: driver.pool, clock, ...options })
    onTestFinished(() => store.close())
    if (!isMigrated) {
      await store.migrate()
      await driver.run('CREATE TABLE IF NOT EXISTS note (text text)')
    }
    isMigrated = true
    await driver.run(emptySql(`"${schema}"."${table}`))
    return {
      store,
      transact: driver.transact,
      note: (tx, text) => send(tx, `INSERT INTO note VALUES ('${text}')`),
      notes: async () => {
        const answer = (await driver.run('SELECT text FROM note')) as
          | { rows: { text: string }[] }
          | { text: string }[]
        return ('rows' in answer ? answer.rows : [...answer]).map(({ text }) => text)
      },
      commitInside: (tx) => send(tx, 'COMMIT'),
    }
  }
}
