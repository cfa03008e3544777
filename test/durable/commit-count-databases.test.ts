/** The round trips and commits of an operation, on PostgreSQL and MariaDB. */
import type { PoolConnection } from 'mysql2/promise'
import type pg from 'pg'
import { expect, it } from 'vitest'
import { mysqlStore } from '../../src/stores/mysql/index.ts'
import { countingPool } from '../stores/postgres-counting.ts'
import { telling, useMariadb } from '../stores/mysql-setup.ts'
import { usePostgres } from '../stores/postgres-setup.ts'
import {
  onePhase,
  quietEngine,
  runCounted,
  threePhases,
  type CountedStore,
} from './commit-count-payment.ts'

const setupPostgres = usePostgres()
const setupMariadb = useMariadb()

async function postgresCounted() {
  const { open, url } = await setupPostgres()
  const { pool, sent } = countingPool(url)
  return { store: await open({ pool }), sent }
}

async function mariadbCounted() {
  const { open, connect } = await setupMariadb()
  await open()
  const statements: string[] = []
  const store = mysqlStore({
    pool: telling(connect(), (sql: string | undefined) => void statements.push(sql ?? '(plain)')),
  })
  return { store, sent: () => [...statements] }
}

const onPostgres = (tx: unknown, row: string) =>
  (tx as pg.Client).query('INSERT INTO payment VALUES ($1)', [row])

const onMariadb = (tx: unknown, row: string) =>
  (tx as PoolConnection).query({ sql: 'INSERT INTO payment VALUES (?)', values: [row] })

/** The statements of one run, after one that has warmed everything up. */
async function statementsOf(
  { store, sent }: { store: CountedStore; sent: () => string[] },
  make: (engine: ReturnType<typeof quietEngine>) => Parameters<typeof runCounted>[1],
): Promise<string[]> {
  const engine = quietEngine(store)
  const one = make(engine)
  expect(await runCounted(engine, one)).toBe('ran')
  const before = sent().length
  expect(await runCounted(engine, one, 'second')).toBe('ran')
  return sent().slice(before)
}

it('x', async () => {
  const a = await postgresCounted()
  console.log((await statementsOf(a, (engine) => threePhases(engine, onPostgres))).length)
  console.log((await statementsOf(await postgresCounted(), () => onePhase(onPostgres))).length)
  const b = await mariadbCounted()
  console.log(
    (await statementsOf(b, (engine) => threePhases(engine, onMariadb))).map((s) =>
      s.trim().replaceAll(/\s+/g, ' ').slice(0, 90),
    ),
  )
  console.log(
    (await statementsOf(await mariadbCounted(), () => onePhase(onMariadb))).map((s) =>
      s.trim().replaceAll(/\s+/g, ' ').slice(0, 90),
    ),
  )
})
