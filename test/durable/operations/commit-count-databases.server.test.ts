/** Counts the round trips and commits of an operation on PostgreSQL and MariaDB. */
import type { PoolConnection } from 'mysql2/promise'
import type pg from 'pg'
import { describe, expect, it } from 'vitest'
import { mysqlStore } from '../../../src/stores/mysql/index.ts'
import { countingPool } from '../../stores/postgres/counting.ts'
import { telling, useMariadb } from '../../stores/mysql/setup.ts'
import { usePostgres } from '../../stores/postgres/setup.ts'
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
  // Statements in a transaction of the caller are sent as plain text.
  const tell = (sql: string | undefined) => void statements.push(sql ?? 'a message')
  const store = mysqlStore({ pool: telling(connect(), tell) })
  return { store, sent: () => [...statements] }
}

const onPostgres = (tx: unknown, row: string) =>
  (tx as pg.Client).query('INSERT INTO payment VALUES ($1)', [row])

const onMariadb = (tx: unknown, row: string) =>
  (tx as PoolConnection).query({ sql: 'INSERT INTO payment VALUES (?)', values: [row] })

/** The statements of one run, after a first run that fills all caches. */
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

/** A statement outside of a transaction is a commit, unless it only reads. */
function commitsOf(statements: readonly string[], reads: RegExp): number {
  let isOpen = false
  let commits = 0
  for (const sql of statements) {
    if (/^(BEGIN|START TRANSACTION)/.test(sql)) isOpen = true
    if (!isOpen && !reads.test(sql)) commits++
    if (sql !== 'COMMIT') continue
    isOpen = false
    commits++
  }
  return commits
}

describe('on PostgreSQL', () => {
  // SELECT calls functions, which write.
  const reads = /^$/

  it('takes five commits and twelve round trips for three phases', async () => {
    const counted = await postgresCounted()
    const sent = await statementsOf(counted, (engine) => threePhases(engine, onPostgres))
    expect(commitsOf(sent, reads)).toBe(5)
    // The claim 1, the intent 1, the result 1. A transaction 3: begin with a check of the lease,
    // the step, commit (the result of the step must be known before). The statements of the work: a
    // row in the first transaction, a row and the receipt in the last.
    expect(sent).toHaveLength(3 + 3 + 1 + 3 + 2)
  })

  it('takes two commits and five round trips for one phase', async () => {
    const sent = await statementsOf(await postgresCounted(), () => onePhase(onPostgres))
    expect(commitsOf(sent, reads)).toBe(2)
    // The claim, the transaction and the row of the work.
    expect(sent).toHaveLength(1 + 3 + 1)
  })
})

describe('on MariaDB', () => {
  const reads = /^\s*(SELECT|SET TRANSACTION)/

  it('takes five commits and 27 round trips for three phases', async () => {
    const counted = await mariadbCounted()
    const sent = await statementsOf(counted, (engine) => threePhases(engine, onMariadb))
    expect(commitsOf(sent, reads)).toBe(5)
    // No functions, and one statement a round trip. The claim, the intent and the result 2 each:
    // a read that decides and a write that checks. A transaction 8: isolation, start, a check of
    // the lease, the savepoint, its release, the step's read and write, commit; and one more for
    // each table that the step writes: the operation and the phase in the first transaction. The
    // statements of the work: a row in the first transaction, a row and the receipt in the last.
    expect(sent).toHaveLength(3 * 2 + (8 + 2) + 1 + 8 + 2)
  })

  it('takes two commits and twelve round trips for one phase', async () => {
    const sent = await statementsOf(await mariadbCounted(), () => onePhase(onMariadb))
    expect(commitsOf(sent, reads)).toBe(2)
    // The claim, the transaction with the row of the operation, and the row of the work.
    expect(sent).toHaveLength(2 + (8 + 1) + 1)
  })
})
