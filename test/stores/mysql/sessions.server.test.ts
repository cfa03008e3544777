import type { Pool, PoolConnection } from 'mysql2/promise'
import { describe, expect, it } from 'vitest'
import type { MysqlPool } from '../../../src/stores/mysql/client.ts'
import {
  bytes,
  claim,
  claimRequest,
  completeOf,
  finish,
  hold,
  ofKind,
  settle,
} from '../../../src/testing/store-cases/store-case.ts'
import { completion, pay, useMariadb } from './setup.ts'

const setupServer = useMariadb()

/** Removes the comments that only MariaDB executes, so that the server behaves like MySQL. */
function likeMysql(pool: Pool): MysqlPool {
  return {
    pool: pool.pool,
    getConnection: async () => {
      const connection = await pool.getConnection()
      return {
        query: (query) =>
          connection.query({
            ...query,
            sql: query.sql.replaceAll(/\/\*M![^]*?\*\//g, ''),
          } as never),
        release: () => connection.release(),
        destroy: () => connection.destroy(),
      }
    },
  }
}

const SERVERS = {
  'a server that reports open transactions': (pool: Pool): MysqlPool => pool,
  'a server that does not report open transactions, like MySQL': likeMysql,
}

describe.each(Object.entries(SERVERS))('on %s', (_, as) => {
  /** A store on a pool with one connection that other code also uses, and another store. */
  async function setup(settings?: string) {
    const fixture = await setupServer()
    const pool = fixture.connect({ connectionLimit: 1 }, settings)
    const store = await fixture.open({ pool: as(pool), history: true })
    const other = await fixture.open({ history: true })
    /** Returns the connection to the pool without a COMMIT. */
    const leak = async (work: (connection: PoolConnection) => Promise<unknown>) => {
      const connection = await pool.getConnection()
      await connection.beginTransaction()
      await work(connection)
      connection.release()
    }
    return { ...fixture, pool, store, other, leak }
  }

  it('neither shows nor replays uncommitted rows of a transaction that was left open', async () => {
    const { store, other, leak, paid } = await setup()
    const lease = await hold(other)
    const { identity } = lease
    const complete = async (connection: PoolConnection) => {
      await pay(connection, 'never committed')
      ofKind(await other.settleIn(connection, lease, completion()), 'settled')
    }
    await leak(complete)
    expect((await store.read({ identity }))?.state).toBe('in_progress')
    await leak(complete)
    expect(await store.list({ state: 'completed', limit: 9 })).toEqual([])
    await leak(complete)
    ofKind(await claim(store, { token: 'other' }), 'in_progress')
    await leak(complete)
    ofKind(await settle(store, completeOf(lease, bytes('another'))), 'settled')
    expect((await other.read({ identity }))?.result).toEqual(bytes('another'))
    expect(await paid()).toEqual([])
  })

  it.each(['BEGIN', 'SET autocommit = 0'])(
    'reads the latest committed rows after %s',
    async (begin) => {
      const { store, other, leak } = await setup()
      const { identity } = claimRequest()
      const look = (connection: PoolConnection) => connection.query('SELECT * FROM oncekey_record')
      await leak(async (connection) => {
        await connection.query(begin)
        await look(connection)
      })
      expect(await store.read({ identity })).toBeUndefined()
      await leak(look)
      await finish(other)
      expect((await store.read({ identity }))?.state).toBe('completed')
      expect((await store.list({ state: 'completed', limit: 9 })).length).toBe(1)
      await leak(look)
      expect(await store.history!({ ref: { identity }, limit: 9 })).toEqual([])
      expect(Math.abs((await store.now!()).getTime() - Date.now())).toBeLessThan(10_000)
    },
  )

  it('migrates without committing a transaction that was left open', async () => {
    const { store, leak, paid, app } = await setup()
    await app.query('DROP TABLE oncekey_record_migration')
    await leak((connection) => pay(connection, 'never committed'))
    await store.migrate()
    expect(await paid()).toEqual([])
  })
})

it('replays no uncommitted result after a session has changed its isolation level', async () => {
  const { open, connect } = await setupServer()
  const pool = connect({ connectionLimit: 1 })
  const store = await open({ pool })
  const lease = await hold(store)
  await pool.query('SET SESSION TRANSACTION ISOLATION LEVEL READ UNCOMMITTED')
  const other = await connect().getConnection()
  await other.beginTransaction()
  ofKind(await store.settleIn(other, lease, completion()), 'settled')
  ofKind(await claim(store), 'in_progress')
  expect((await store.read({ identity: lease.identity }))?.state).toBe('in_progress')
  await other.rollback()
  other.release()
})
