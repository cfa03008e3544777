import type pg from 'pg'
import type postgres from 'postgres'
import { expect, it } from 'vitest'
import { createEngine } from '../../../src/core/engine/engine.ts'
import { postgresStore } from '../../../src/stores/postgres/index.ts'
import {
  claim,
  claimRequests,
  completeOf,
  hold,
  LEASE_MS,
  ofKind,
  releaseOf,
  settle,
  tally,
  viewOf,
} from '../../../src/testing/store-cases/store-case.ts'
import { completion, openTransaction, usePostgres } from './setup.ts'

const setup = usePostgres()

it('commits the rows together with the key, or neither', async () => {
  const { open, paid } = await setup()
  const store = await open()
  const lease = await hold(store)
  const failing = store.transaction<pg.Client>(lease, async (tx) => {
    await tx.query(`INSERT INTO payment VALUES ('lost')`)
    throw new Error('declined')
  })
  await expect(failing).rejects.toThrow('declined')
  const broken = store.transaction<pg.Client>(lease, async (tx) => {
    await tx.query(`INSERT INTO payment VALUES ('lost')`)
    await tx.query('SELECT 1 / 0')
    return completion()
  })
  await expect(broken).rejects.toThrow('division by zero')
  expect(await paid()).toEqual([])
  const { outcome, finish } = await openTransaction(store, lease, 'kept')
  finish()
  ofKind(await outcome, 'settled')
  expect(await paid()).toEqual(['kept'])
})

it('commits the rows together with the key, or neither, with postgres.js', async () => {
  const { open, connectJs, paid } = await setup()
  const store = await open({ pool: connectJs() })
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
  expect(await paid()).toEqual(['kept'])
})

it('commits a key although another transaction has its row locked at first', async () => {
  const { open, connect, column, paid } = await setup()
  const store = await open()
  const lease = await hold(store)
  const other = await connect().connect()
  await other.query('BEGIN')
  await other.query(`UPDATE oncekey_record SET lease_until = lease_until + interval '1 minute'`)
  const { outcome, finish } = await openTransaction(store, lease, 'kept')
  finish()
  // The row has another ctid when the settlement gets the lock.
  const isWaiting = `SELECT count(*)::int FROM pg_stat_activity WHERE wait_event_type = 'Lock'`
  await expect.poll(() => column(isWaiting)).toEqual([1])
  await other.query('COMMIT')
  other.release()
  ofKind(await outcome, 'settled')
  expect(await paid()).toEqual(['kept'])
})

it('rolls back the rows of a holder whose key was taken over during its work', async () => {
  const { open, app, paid } = await setup()
  const store = await open()
  const lease = await hold(store, { onLapse: 'rerun' })
  const { outcome, finish } = await openTransaction(store, lease, 'stale')
  await app.query(`UPDATE oncekey_record SET lease_until = now() - interval '1 second'`)
  const second = ofKind(await claim(store), 'claimed')
  expect([second.from, second.lease.attempt]).toEqual(['lapsed', 2])
  finish()
  expect(await outcome).toEqual({ kind: 'fenced', own: false, state: 'in_progress' })
  expect(await paid()).toEqual([])
})

it('keeps the rows of only one of two transactions of the same lease', async () => {
  const { open, paid } = await setup()
  const store = await open()
  const lease = await hold(store)
  const [a, b] = [
    await openTransaction(store, lease, 'a'),
    await openTransaction(store, lease, 'b'),
  ]
  a.finish()
  ofKind(await a.outcome, 'settled')
  b.finish()
  ofKind(await b.outcome, 'settled')
  expect(await paid()).toEqual(['a'])
})

// The row of the key is updated and not committed, as during the COMMIT of a settlement.
it('delays no other key while a row is locked, and answers a duplicate of its key', async () => {
  const { open, connect } = await setup()
  const store = await open()
  const lease = await hold(store)
  const { outcome, finish } = await openTransaction(store, lease, 'row')
  const blocker = await connect().connect()
  await blocker.query('BEGIN')
  await blocker.query('UPDATE oncekey_record SET error_code = error_code')

  // Each call is answered while the two transactions stay open.
  ofKind(await claim(store), 'in_progress')
  ofKind(await claim(store, { fingerprint: 'other' }), 'mismatch')
  const outcomes = await store.claim([...claimRequests(20), ...claimRequests(20)])
  expect(tally(outcomes)).toEqual({ claimed: 19, in_progress: 21 })
  const others = outcomes.flatMap((one) => (one.kind === 'claimed' ? [one.lease] : []))
  expect(await store.renew(others.map((one) => ({ ...one, leaseMs: LEASE_MS })))).not.toContain(
    false,
  )
  await store.settle(others.map((one) => completeOf(one)))
  await store.sweep({ limit: 10 })
  await store.reap({ limit: 10 })
  // A lease that could not be renewed is not reported as renewed: the engine tries again.
  const locked = store.renew([{ ...lease, leaseMs: LEASE_MS }])
  await expect(locked).rejects.toMatchObject({ code: 'STORE_FAILED', failure: 'unavailable' })

  await blocker.query('ROLLBACK')
  blocker.release()
  finish()
  ofKind(await outcome, 'settled')
})

it('renews and claims while transactions use all connections that they may use', async () => {
  const { open, connect, paid } = await setup()
  const store = await open({ pool: connect({ max: 5 }) })
  const leases = await Promise.all(
    Array.from({ length: 8 }, (_, n) => hold(store, { key: `key-${n}` })),
  )
  const opened = await Promise.all(
    leases.slice(0, 3).map((lease, n) => openTransaction(store, lease, `row-${n}`)),
  )
  const waiting = leases.slice(3).map((lease, n) => openTransaction(store, lease, `row-${n + 3}`))
  const renewals = leases.map((lease) => ({ ...lease, leaseMs: LEASE_MS }))
  expect(await store.renew(renewals)).toEqual(leases.map(() => true))
  ofKind(await claim(store, { key: 'new' }), 'claimed')
  for (const one of opened) one.finish()
  for (const one of waiting) (await one).finish()
  for (const one of opened) ofKind(await one.outcome, 'settled')
  for (const one of waiting) ofKind(await (await one).outcome, 'settled')
  expect((await paid()).length).toBe(8)
})

it('rejects a transaction on a pool of one connection, and says why', async () => {
  const { open, connect } = await setup()
  const store = await open({ pool: connect({ max: 1 }) })
  const lease = await hold(store)
  await expect(store.transaction(lease, () => completion())).rejects.toThrow('at least 2')
})

it.each(['pg', 'postgres.js'] as const)(
  'rolls back work that exceeds transactionTimeoutMs, with %s',
  async (driver) => {
    const { open, connectJs, connect, paid } = await setup()
    const pool = driver === 'pg' ? connect() : connectJs()
    const store = await open({ pool, transactionTimeoutMs: 200 })
    const lease = await hold(store)
    const late = Promise.withResolvers<void>()
    let leaked: { query?: unknown } = {}
    const outcome = store.transaction<pg.Client & postgres.TransactionSql>(lease, async (tx) => {
      leaked = tx
      const insert = `INSERT INTO payment VALUES ('late')`
      await (driver === 'pg' ? tx.query(insert) : tx.unsafe(insert))
      await late.promise
      return completion()
    })
    await expect(outcome).rejects.toMatchObject({ code: 'STORE_FAILED', failure: 'unavailable' })
    expect(() => leaked.query).toThrow('the transaction has ended')
    late.resolve()
    expect(await paid()).toEqual([])
    ofKind(await settle(store, releaseOf(lease)), 'settled')
    ofKind(await store.transaction(await hold(store), () => completion()), 'settled')
  },
)

it.each(['COMMIT', 'ROLLBACK', 'COMMIT; BEGIN', 'ROLLBACK; BEGIN; SELECT 1 / 0'])(
  'throws OutcomeUnknownError if the work sends %s',
  async (sql) => {
    const { open } = await setup()
    const store = await open()
    const lease = await hold(store)
    for (const isThrown of [true, false]) {
      const outcome = store.transaction<pg.Client>(lease, async (tx) => {
        await tx.query(sql).catch(() => undefined)
        if (isThrown) throw new Error('after that')
        return completion()
      })
      // COMMIT of an aborted transaction rolls back, so the last case keeps no row.
      const code = sql.endsWith('0') && !isThrown ? 'STORE_FAILED' : 'OUTCOME_UNKNOWN'
      await expect(outcome).rejects.toMatchObject({ code })
      expect((await viewOf(store, lease)).state).toBe('in_progress')
    }
    ofKind(await settle(store, releaseOf(lease)), 'settled')
  },
)

it.each(['pg', 'postgres.js'] as const)(
  'survives the loss of a connection during the work, with %s',
  async (driver) => {
    const { open, connectJs, connect, app, paid } = await setup()
    const store = await open({ pool: driver === 'pg' ? connect() : connectJs() })
    const lease = await hold(store)
    const cut = store.transaction<pg.Client & postgres.TransactionSql>(lease, async (tx) => {
      const send = (sql: string) => (driver === 'pg' ? tx.query(sql) : tx.unsafe(sql))
      await send(`INSERT INTO payment VALUES ('cut')`)
      const sleeping = send('SELECT pg_sleep(20)')
      const caught = Promise.resolve(sleeping).catch((error: unknown) => error)
      const cutOff = `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
      WHERE query LIKE 'SELECT pg_sleep%' AND state = 'active' AND pid <> pg_backend_pid()`
      while ((await app.query(cutOff)).rowCount === 0);
      throw await caught
    })
    await expect(cut).rejects.toThrow(/terminat|closed/i)
    expect(await paid()).toEqual([])
    expect((await viewOf(store, lease)).state).toBe('in_progress')
    ofKind(await store.transaction(lease, () => completion()), 'settled')
  },
)

// An external call was reset. The connection of the transaction is alive and must be used.
it.each(['pg', 'postgres.js'] as const)(
  'rolls back at once and passes the error on if an external call of the work fails, with %s',
  async (driver) => {
    const { open, connectJs, connect, column, paid } = await setup()
    const store = await open({ pool: driver === 'pg' ? connect() : connectJs() })
    const lease = await hold(store)
    const lost = Object.assign(new Error('read ECONNRESET'), { code: 'ECONNRESET' })
    const outcome = store.transaction<pg.Client & postgres.TransactionSql>(lease, async (tx) => {
      const insert = `INSERT INTO payment VALUES ('lost')`
      await (driver === 'pg' ? tx.query(insert) : tx.unsafe(insert))
      throw lost
    })
    await expect(outcome).rejects.toBe(lost)
    expect(await paid()).toEqual([])
    const inTransaction = `SELECT pid FROM pg_stat_activity
      WHERE datname = current_database() AND state LIKE 'idle in transaction%'`
    expect(await column(inTransaction)).toEqual([])
    ofKind(await store.transaction(lease, () => completion()), 'settled')
  },
)

// The COMMIT arrives and succeeds; its answer is lost.
it('reports a transaction as settled if it committed and the answer was lost', async () => {
  const { open, connect, paid } = await setup()
  const pool = connect()
  let isCut = false
  const losing = {
    options: pool.options,
    query: (query: pg.QueryConfig) => pool.query(query),
    connect: async () => {
      const client = await pool.connect()
      return new Proxy(client, {
        get(target, name) {
          const value = Reflect.get(target, name)
          if (typeof value !== 'function') return value
          return async (...values: unknown[]) => {
            const answer = await Reflect.apply(value, target, values)
            if (name !== 'query' || values[0] !== 'COMMIT' || isCut) return answer
            isCut = true
            throw Object.assign(new Error('read ECONNRESET'), { code: 'ECONNRESET' })
          }
        },
      })
    },
  }
  const store = await open()
  const engine = createEngine({ store: postgresStore({ pool: losing }) })
  const request = { scope: { tenant: 't', operation: 'pay' }, key: 'k', fingerprint: 'f' }
  const outcome = await engine.run(request, (context) =>
    context.transaction<pg.Client>(async (tx) => {
      await tx.query(`INSERT INTO payment VALUES ('once')`)
      return new Uint8Array([1])
    }),
  )
  expect([isCut, outcome.kind]).toEqual([true, 'ran'])
  expect(await paid()).toEqual(['once'])
  expect((await store.list({ state: 'completed', limit: 10 })).length).toBe(1)
  await engine.close()
})
