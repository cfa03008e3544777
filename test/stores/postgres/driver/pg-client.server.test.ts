import pg from 'pg'
import { afterAll, beforeAll, describe, expect, it, onTestFinished } from 'vitest'
import { createEngine } from '../../../../src/core/engine/engine.ts'
import { postgresStore } from '../../../../src/stores/postgres/index.ts'
import { FakeClock } from '../../../../src/testing/fake-clock.ts'
import { storeCases, type StoreNeed } from '../../../../src/testing/store-cases.ts'
import {
  claim,
  claimRequest,
  completeOf,
  finish,
  hold,
  ofKind,
  settle,
} from '../../../../src/testing/store-cases/store-case.ts'
import { startPostgres, type PostgresServer } from '../../../servers/postgres.ts'
import { completion, usePostgres } from '../setup.ts'

const setupPools = usePostgres()

/** A store on one connection that the application also uses. */
async function setup(config: pg.ClientConfig = {}) {
  const fixture = await setupPools()
  const client = new pg.Client({ connectionString: fixture.url, ...config })
  client.on('error', () => undefined)
  await client.connect()
  onTestFinished(() => client.end())
  const store = await fixture.open({ pool: client })
  return { ...fixture, client, store }
}

/** One connection serves no transactions, and operators discard with an act of `durable`. */
const LACKS: readonly StoreNeed[] = ['transaction', 'discard']

describe('store: postgres, a single client of pg', () => {
  let server: PostgresServer
  let client: pg.Client
  beforeAll(async () => {
    server = await startPostgres()
    client = new pg.Client(await server.database())
    await client.connect()
    await postgresStore({ pool: client }).migrate()
  }, 120_000)
  afterAll(async () => {
    await client.end()
    await server.close()
  })

  const cases = storeCases.filter(
    ({ needs = [] }) => ![needs].flat().some((need) => LACKS.includes(need)),
  )
  for (const { name, run } of cases) {
    it(name, async () => {
      await client.query('DELETE FROM oncekey_record; DELETE FROM oncekey_record_history')
      const clock = new FakeClock()
      await run({ store: postgresStore({ pool: client, clock, history: true }), clock })
      expect(clock.pendingTimers).toBe(0)
    })
  }
})

it('treats a client of a pool as a single Client', async () => {
  const { connect, open } = await setup()
  const client = await connect().connect()
  onTestFinished(() => client.release())
  const store = await open({ pool: client })
  const lease = await hold(store)
  await expect(store.transaction(lease, () => completion())).rejects.toThrow('at least 2')
})

it('rejects a transaction on a single Client, says why, and leaves the key usable', async () => {
  const { store } = await setup()
  const engine = createEngine({ store })
  const request = { scope: { tenant: 't', operation: 'o' }, key: 'k', fingerprint: 'f' }
  const outcome = engine.run(request, (context) => context.transaction(() => new Uint8Array()))
  await expect(outcome).rejects.toThrow(/a pool of at least 2 connections: with one, no lease/)
  expect((await engine.run(request, () => new Uint8Array())).kind).toBe('ran')
  await engine.close()
})

it('writes nothing while the Client has a transaction open, and leaves it unaffected', async () => {
  const { store, client, column, paid } = await setup()
  await finish(store, { key: 'before' })
  await client.query('BEGIN')
  await client.query(`INSERT INTO payment VALUES ('mine')`)
  for (const call of [
    () => claim(store),
    () => claim(store, { key: 'before' }),
    () => store.sweep({ limit: 1 }),
    () => store.read({ identity: claimRequest().identity }),
    () => store.migrate(),
  ]) {
    await expect(call()).rejects.toThrow('has a transaction open on the Client')
  }
  await client.query('COMMIT')
  expect(await paid()).toEqual(['mine'])
  expect(await column('SELECT key FROM oncekey_record')).toEqual(['before'])
  ofKind(await claim(store), 'claimed')
})

// BEGIN is queued when the claim is sent, and the status of the Client does not show it yet.
it('fails a claim that was sent inside a transaction of the application', async () => {
  const { store, client, column } = await setup()
  for (const end of ['ROLLBACK', 'COMMIT']) {
    const begun = client.query('BEGIN')
    const claimed = claim(store, { key: end })
    await begun
    await expect(claimed).rejects.toMatchObject({ code: 'STORE_FAILED', failure: 'unavailable' })
    await client.query(end)
  }
  // The claim failed, so no handler runs; the engine releases the key by its token.
  expect(await column('SELECT key FROM oncekey_record')).toEqual(['COMMIT'])
})

it('works while the application sends statements on the same Client', async () => {
  const { store, client } = await setup()
  const claims = Array.from({ length: 10 }, async (_, n) => {
    const lease = await hold(store, { key: `key-${n}` })
    ofKind(await settle(store, completeOf(lease)), 'settled')
  })
  const own = client.query('SELECT 1 AS one')
  await Promise.all([...claims, own])
  expect((await own).rows).toEqual([{ one: 1 }])
})

it('rejects a Client that is unconnected, lost, pipelined or not READ COMMITTED', async () => {
  const { url } = await setup()
  const unconnected = postgresStore({ pool: new pg.Client({ connectionString: url }) })
  await expect(claim(unconnected)).rejects.toThrow('not connected')

  const { store, app } = await setup({ application_name: 'single' })
  await app.query(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE application_name = 'single'`)
  await expect(claim(store)).rejects.toMatchObject({ code: 'STORE_FAILED' })

  const pipelined = new pg.Client({ connectionString: url, pipeline: true })
  expect(() => postgresStore({ pool: pipelined })).toThrow('pipeline')

  const options = '-c default_transaction_isolation=repeatable\\ read'
  const { store: other } = await setup({ options })
  await expect(claim(other)).rejects.toThrow('needs READ COMMITTED')
})
