import pg from 'pg'
import postgres from 'postgres'
import { afterAll, beforeAll, expect, it, onTestFinished } from 'vitest'
import { createEngine } from '../../../src/core/engine/engine.ts'
import { postgresStore, type PostgresStore } from '../../../src/stores/postgres/index.ts'
import {
  bytes,
  claimRequests,
  completeOf,
  hold,
  ofKind,
  settle,
  tally,
} from '../../../src/testing/store-cases/store-case.ts'
import { startPgbouncer, type Pgbouncer } from '../../servers/pgbouncer.ts'
import { startPostgres, type PostgresServer } from '../../servers/postgres.ts'
import { completion } from './setup.ts'
import { runStoreCases } from '../run-store-cases.ts'

let server: PostgresServer
let bouncer: Pgbouncer
let pool: pg.Pool

beforeAll(async () => {
  server = await startPostgres()
  bouncer = await startPgbouncer(await server.database())
  pool = new pg.Pool({ connectionString: bouncer.url, max: 20 })
  await postgresStore({ pool, prepare: false }).migrate()
  await pool.query('CREATE TABLE payment (key text)')
}, 120_000)

afterAll(async () => {
  await pool.end()
  await bouncer.close()
  await server.close()
})

async function open(options: { pool?: postgres.Sql } = {}): Promise<PostgresStore> {
  await pool.query(`DELETE FROM oncekey_record; DELETE FROM oncekey_record_history;
    DELETE FROM payment`)
  return postgresStore({ pool, prepare: false, ...options })
}

runStoreCases({
  name: 'postgres, behind pgbouncer in transaction mode',
  open: async (clock) => {
    await open()
    return { store: postgresStore({ pool, prepare: false, history: true, clock }) }
  },
  without: { discard: 'it has durable, whose act discards with an audit' },
})

it('gives each key to one client, with more clients than connections', async () => {
  const store = await open()
  const batches = await Promise.all(
    Array.from({ length: 40 }, () => store.claim(claimRequests(50))),
  )
  expect(tally(batches.flat())).toEqual({ claimed: 50, in_progress: 1950 })
  const { rows } = await pool.query(`SELECT count(*)::int AS count FROM pg_stat_activity
    WHERE datname = current_database() AND backend_type = 'client backend'`)
  expect(pool.totalCount).toBeGreaterThan(rows[0].count)
})

it('commits rows with their key, with postgres.js', async () => {
  const sql = postgres(bouncer.url, { prepare: false, onnotice: () => undefined })
  onTestFinished(() => sql.end({ timeout: 1 }))
  const store = await open({ pool: sql })
  const lease = await hold(store)
  const failing = store.transaction<postgres.TransactionSql>(lease, async (tx) => {
    await tx`INSERT INTO payment VALUES (${'lost'})`
    throw new Error('declined')
  })
  await expect(failing).rejects.toThrow('declined')
  const outcome = await store.transaction<postgres.TransactionSql>(lease, async (tx) => {
    await tx`INSERT INTO payment VALUES (${'kept'})`
    return completion()
  })
  ofKind(outcome, 'settled')
  expect((await pool.query('SELECT key FROM payment')).rows).toEqual([{ key: 'kept' }])
})

it('answers a waiting request by polling', async () => {
  const store = await open()
  expect(store.watch).toBeUndefined()
  const lease = await hold(store)
  const engine = createEngine({ store, whileInProgress: { waitMs: 20_000 } })
  const request = {
    scope: { tenant: 'tenant-1', operation: 'POST /payments' },
    key: 'key-1',
    fingerprint: 'fingerprint-1',
  }
  const waiting = engine.run(request, () => bytes('never'))
  ofKind(await settle(store, completeOf(lease)), 'settled')
  expect((await waiting).kind).toBe('replayed')
  await engine.close()
})
