import type pg from 'pg'
import { expect, it } from 'vitest'
import { postgresStore } from '../../../../src/stores/postgres/index.ts'
import {
  claim,
  claimRequest,
  completeOf,
  hold,
  ofKind,
  settle,
} from '../../../../src/testing/store-cases/store-case.ts'
import { completion, usePostgres } from '../setup.ts'

const setupServer = usePostgres()

/** A store on a pool whose connections `leak` releases in a transaction, and a second store. */
async function setup(max = 2) {
  const fixture = await setupServer()
  const pool = fixture.connect({ max })
  const store = await fixture.open({ pool, listen: false })
  const other = await fixture.open({ listen: false })
  /** Acts like code that returns before its COMMIT. */
  const leak = async (...statements: string[]) => {
    const client = await pool.connect()
    for (const sql of ['BEGIN', ...statements]) await client.query(sql).catch(() => undefined)
    client.release()
  }
  return { ...fixture, pool, store, other, leak }
}

it('commits claims and settlements although other code left a transaction open', async () => {
  const { store, other, leak, pool } = await setup()
  await leak()
  const { lease } = ofKind(await claim(store), 'claimed')
  ofKind(await claim(other, { token: 'other' }), 'in_progress')
  await leak('no statement')
  ofKind(await settle(store, completeOf(lease)), 'settled')
  expect((await other.read({ identity: lease.identity }))?.state).toBe('completed')
  expect(pool.totalCount - pool.idleCount).toBe(0)
})

it('reads no uncommitted changes of a transaction that was left open', async () => {
  const { store, other, leak, pool } = await setup(1)
  const lease = await hold(other)
  const client = await pool.connect()
  await client.query('BEGIN')
  ofKind(await store.settleIn(client, lease, completion()), 'settled')
  client.release()
  expect((await store.read({ identity: lease.identity }))?.state).toBe('in_progress')
  await leak()
  expect(await store.list({ state: 'completed', limit: 9 })).toEqual([])
})

it('commits its transaction and rolls back the ones that were left open', async () => {
  const { store, leak, paid } = await setup()
  const lease = await hold(store)
  await leak(`INSERT INTO payment VALUES ('never committed')`)
  await leak(`INSERT INTO payment VALUES ('never committed')`)
  const outcome = await store.transaction<pg.Client>(lease, async (tx) => {
    await tx.query(`INSERT INTO payment VALUES ('paid')`)
    return completion()
  })
  ofKind(outcome, 'settled')
  expect(await paid()).toEqual(['paid'])
})

it('fails a claim on a connection that other code uses after releasing it', async () => {
  const { store, other, pool } = await setup(1)
  const client = await pool.connect()
  const begun = client.query('BEGIN')
  client.release()
  await expect(store.claim([claimRequest()])).rejects.toMatchObject({ code: 'STORE_FAILED' })
  await begun
  ofKind(await claim(other, { token: 'other' }), 'claimed')
  ofKind(await claim(store), 'in_progress')
})

it('fails if every connection has a transaction open, and destroys all of them', async () => {
  const { pool } = await setup(3)
  let lent = 0
  const leaking = {
    options: pool.options,
    query: () => Promise.reject(new Error('not to be used')),
    connect: async () => {
      const client = await pool.connect()
      await client.query('BEGIN')
      lent++
      return client
    },
  }
  const store = postgresStore({ pool: leaking, listen: false })
  const failed = { code: 'STORE_FAILED', failure: 'unavailable', operation: 'claim' }
  await expect(store.claim([claimRequest()])).rejects.toMatchObject(failed)
  expect([lent, pool.totalCount]).toEqual([4, 0])
})

it('works with clients that do not report whether a transaction is open', async () => {
  const { pool, other } = await setup()
  const old = {
    options: pool.options,
    query: () => Promise.reject(new Error('not to be used')),
    connect: async () => Object.assign(await pool.connect(), { getTransactionStatus: undefined }),
  }
  const lease = await hold(postgresStore({ pool: old, listen: false }))
  ofKind(await settle(other, completeOf(lease)), 'settled')
})
