import type { PoolConnection, RowDataPacket } from 'mysql2/promise'
import { expect, it } from 'vitest'
import { createEngine } from '../../../src/core/engine/engine.ts'
import type { Lease } from '../../../src/core/store/store.ts'
import type { MysqlStore } from '../../../src/stores/mysql/index.ts'
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
import { completion, openTransaction, pay, useMariadb } from './setup.ts'

const setup = useMariadb()

it('commits the rows together with the key, or rolls back both', async () => {
  const { open, paid } = await setup()
  const store = await open()
  const lease = await hold(store)
  const failing = store.transaction<PoolConnection>(lease, async (tx) => {
    await pay(tx, 'lost')
    throw new Error('declined')
  })
  await expect(failing).rejects.toThrow('declined')
  const broken = store.transaction<PoolConnection>(lease, async (tx) => {
    await pay(tx, 'lost')
    await tx.query('SELECT no_such_column')
    return completion()
  })
  await expect(broken).rejects.toThrow('no_such_column')
  expect(await paid()).toEqual([])
  const { outcome, finish } = await openTransaction(store, lease, 'kept')
  finish()
  ofKind(await outcome, 'settled')
  expect(await paid()).toEqual(['kept'])
})

it('lends the connection to the work, with prepared statements, until the work ends', async () => {
  const { open, connect, paid } = await setup()
  const store = await open({ pool: connect({ connectionLimit: 2 }) })
  for (const key of ['one', 'two', 'three']) {
    let leaked: Partial<PoolConnection> = {}
    const outcome = store.transaction<PoolConnection>(await hold(store, { key }), async (tx) => {
      leaked = tx
      await tx.execute('INSERT INTO payment VALUES (?)', [key])
      expect(tx.threadId).toBeGreaterThan(0)
      for (const name of ['commit', 'rollback', 'beginTransaction', 'release', 'end'] as const) {
        expect(tx[name]).toBeUndefined()
      }
      return completion()
    })
    ofKind(await outcome, 'settled')
    expect(() => leaked.query).toThrow('the transaction has ended')
  }
  expect(await paid()).toEqual(['one', 'three', 'two'])
})

it('rolls back the rows of a holder when its key was taken over during the work', async () => {
  const { open, app, paid } = await setup()
  const store = await open()
  const lease = await hold(store, { onLapse: 'rerun' })
  const { outcome, finish } = await openTransaction(store, lease, 'stale')
  await app.query('UPDATE oncekey_record SET lease_until_ms = 0')
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

// One transaction runs its work, and another has settled its key and does not commit.
it('delays no other key, and answers duplicates of open transactions at once', async () => {
  const { open, connect } = await setup()
  const store = await open()
  const working = await openTransaction(store, await hold(store, { key: 'working' }), 'row')
  const lease = await hold(store)
  const holder = await connect().getConnection()
  await holder.beginTransaction()
  ofKind(await store.settleIn(holder, lease, completion()), 'settled')

  // All calls get their answers while the two transactions stay open.
  for (const key of ['working', 'key-1']) {
    ofKind(await claim(store, { key }), 'in_progress')
    ofKind(await claim(store, { key, fingerprint: 'other' }), 'mismatch')
  }
  const outcomes = await store.claim([...claimRequests(20), ...claimRequests(20)])
  expect(tally(outcomes)).toEqual({ claimed: 19, in_progress: 21 })
  const others = outcomes.flatMap((one) => (one.kind === 'claimed' ? [one.lease] : []))
  expect(await store.renew(others.map((one) => ({ ...one, leaseMs: LEASE_MS })))).not.toContain(
    false,
  )
  await store.settle(others.map((one) => completeOf(one)))
  expect((await viewOf(store, lease)).state).toBe('in_progress')
  // A lease that could not be renewed is not reported as renewed, so the holder tries again.
  const locked = store.renew([{ ...lease, leaseMs: LEASE_MS }])
  await expect(locked).rejects.toMatchObject({ code: 'STORE_FAILED', failure: 'unavailable' })
  expect(await store.sweep({ limit: 10 })).toEqual([])
  expect((await store.reap({ limit: 10 })).removed).toBe(0)

  await holder.commit()
  working.finish()
  ofKind(await working.outcome, 'settled')
  ofKind(await claim(store), 'completed')
})

it.each(['READ UNCOMMITTED', 'REPEATABLE READ', 'SERIALIZABLE'])(
  'answers from committed rows without waiting in a session with isolation level %s',
  async (level) => {
    const { open, connect } = await setup()
    const settings = `SET SESSION TRANSACTION ISOLATION LEVEL ${level}`
    const store = await open({ pool: connect({}, settings) })
    const lease = await hold(store)
    const holder = await connect().getConnection()
    await holder.beginTransaction()
    ofKind(await store.settleIn(holder, lease, completion('undone')), 'settled')
    const outcomes = await store.claim(claimRequests(3))
    expect(outcomes.map(({ kind }) => kind)).toEqual(['claimed', 'in_progress', 'claimed'])
    expect((await viewOf(store, lease)).state).toBe('in_progress')
    expect((await store.list({ state: 'completed', limit: 1 })).length).toBe(0)
    await holder.rollback()
    ofKind(await settle(store, releaseOf(lease)), 'settled')
  },
)

it('does not take over or wait for a lapsed key while its holder is committing', async () => {
  const { open, connect } = await setup()
  const store = await open()
  const lease = await hold(store, { leaseMs: 0, onLapse: 'rerun' })
  const holder = await connect().getConnection()
  await holder.beginTransaction()
  ofKind(await store.settleIn(holder, lease, completion()), 'settled')
  expect(ofKind(await claim(store), 'in_progress').leaseLeftMs).toBe(0)
  expect(await store.sweep({ limit: 10 })).toEqual([])
  await holder.commit()
  ofKind(await claim(store), 'completed')
})

it('renews and claims while transactions use all connections that they may use', async () => {
  const { open, connect, paid } = await setup()
  const store = await open({ pool: connect({ connectionLimit: 5 }) })
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

it('rejects a transaction on a pool with a single connection', async () => {
  const { open, connect } = await setup()
  const store = await open({ pool: connect({ connectionLimit: 1 }) })
  const lease = await hold(store)
  await expect(store.transaction(lease, () => completion())).rejects.toThrow('at least 2')
})

it('rolls back a transaction when its work takes longer than transactionTimeoutMs', async () => {
  const { open, paid } = await setup()
  const store = await open({ transactionTimeoutMs: 200 })
  const lease = await hold(store)
  const late = Promise.withResolvers<void>()
  let leaked: Partial<PoolConnection> = {}
  const outcome = store.transaction<PoolConnection>(lease, async (tx) => {
    leaked = tx
    await pay(tx, 'late')
    await late.promise
    return completion()
  })
  await expect(outcome).rejects.toMatchObject({ code: 'STORE_FAILED', failure: 'unavailable' })
  expect(() => leaked.query).toThrow('the transaction has ended')
  late.resolve()
  expect(await paid()).toEqual([])
  ofKind(await settle(store, releaseOf(lease)), 'settled')
  ofKind(await store.transaction(await hold(store), () => completion()), 'settled')
})

it.each([
  ['COMMIT'],
  ['ROLLBACK'],
  ['START TRANSACTION'],
  ['COMMIT AND CHAIN'],
  ['CREATE TABLE created_inside (id INT)', 'DROP TABLE created_inside'],
  ['CREATE TABLE other_inside (id INT)', 'START TRANSACTION'],
])('throws OUTCOME_UNKNOWN when the work runs %s', async (...statements) => {
  const { open } = await setup()
  const store = await open()
  const lease = await hold(store)
  for (const isThrown of [true, false]) {
    const outcome = store.transaction<PoolConnection>(lease, async (tx) => {
      for (const sql of statements) await tx.query(sql)
      await pay(tx, 'beside the key')
      if (isThrown) throw new Error('after that')
      return completion()
    })
    await expect(outcome).rejects.toMatchObject({ code: 'OUTCOME_UNKNOWN' })
    expect((await viewOf(store, lease)).state).toBe('in_progress')
    if (statements[0].includes('other')) break
  }
  ofKind(await settle(store, releaseOf(lease)), 'settled')
})

// With the default isolation level of the server, a transaction reads rows as old as itself, and
// cannot lock a row that has changed since: a renewal would be enough to fail it.
it('lets the work read what others have committed, and settles a renewed lease', async () => {
  const { open, connect, paid } = await setup()
  const settings = 'SET SESSION innodb_snapshot_isolation = ON'
  const store = await open({ pool: connect({}, settings) })
  const lease = await hold(store)
  const outcome = store.transaction<PoolConnection>(lease, async (tx) => {
    const count = async () => (await tx.query<RowDataPacket[]>('SELECT * FROM payment'))[0].length
    expect(await count()).toBe(0)
    const other = await openTransaction(store, await hold(store, { key: 'other' }), 'other')
    other.finish()
    ofKind(await other.outcome, 'settled')
    expect(await count()).toBe(1)
    expect(await store.renew([{ ...lease, leaseMs: 2 * LEASE_MS }])).toEqual([true])
    await pay(tx, 'own')
    return completion()
  })
  ofKind(await outcome, 'settled')
  expect(await paid()).toEqual(['other', 'own'])
})

it('lets the work use its own savepoints', async () => {
  const { open, paid } = await setup()
  const store = await open()
  const outcome = store.transaction<PoolConnection>(await hold(store), async (tx) => {
    await pay(tx, 'kept')
    await tx.query('SAVEPOINT mine')
    await pay(tx, 'undone')
    await tx.query('ROLLBACK TO SAVEPOINT mine')
    return completion()
  })
  ofKind(await outcome, 'settled')
  expect(await paid()).toEqual(['kept'])
})

/** Two transactions each lock a row and then wait for the other's row: the database ends one. */
async function deadlock(
  store: MysqlStore,
  leases: readonly [Lease, Lease],
  after: (tx: PoolConnection, ask: Promise<unknown>) => Promise<unknown>,
  before: string = 'SELECT 1',
) {
  const locked = [Promise.withResolvers<void>(), Promise.withResolvers<void>()] as const
  const run = (own: 0 | 1) =>
    store.transaction<PoolConnection>(leases[own], async (tx) => {
      await pay(tx, `row-${own}`)
      if (own === 0) await tx.query(before)
      await tx.query('SELECT * FROM account WHERE id = ? FOR UPDATE', [own])
      locked[own].resolve()
      await locked[1 - own]!.promise
      await after(tx, tx.query('SELECT * FROM account WHERE id = ? FOR UPDATE', [1 - own]))
      return completion(`row-${own}`)
    })
  const results = await Promise.allSettled([run(0), run(1)])
  const failed = results.findIndex(({ status }) => status === 'rejected')
  const { reason } = results[failed] as PromiseRejectedResult
  ofKind((results[1 - failed] as PromiseFulfilledResult<{ kind: 'settled' }>).value, 'settled')
  return { failed, reason: reason as unknown }
}

const ACCOUNTS = 'CREATE TABLE account (id INT PRIMARY KEY) ENGINE = InnoDB'

it.each([
  ['rethrows the error', (_: PoolConnection, ask: Promise<unknown>) => ask, { errno: 1213 }],
  [
    'ignores the error',
    (_: PoolConnection, ask: Promise<unknown>) => ask.catch(() => undefined),
    { code: 'STORE_FAILED', failure: 'unavailable' },
  ],
  [
    'writes again after the error',
    async (tx: PoolConnection, ask: Promise<unknown>) => {
      if (
        await ask.then(
          () => false,
          () => true,
        )
      )
        await pay(tx, 'after the deadlock')
    },
    { message: 'the database has rolled this transaction back' },
  ],
  [
    'had sent another statement',
    (tx: PoolConnection, ask: Promise<unknown>) =>
      Promise.all([ask, pay(tx, 'on its way').catch(() => undefined)]),
    { code: 'OUTCOME_UNKNOWN' },
  ],
] as const)(
  'reports the right error after a deadlock whose victim %s',
  async (how, after, error) => {
    const { open, app, paid } = await setup()
    const store = await open()
    await app.query(ACCOUNTS)
    await app.query('INSERT INTO account VALUES (0), (1)')
    const leases = [await hold(store, { key: '0' }), await hold(store, { key: '1' })] as const
    const { failed, reason } = await deadlock(store, leases, after)
    expect(reason).toMatchObject(error)
    expect((await viewOf(store, leases[failed]!)).state).toBe('in_progress')
    if (how === 'had sent another statement') return
    // The rows of the victim were rolled back, and its work may run again.
    expect(await paid()).toEqual([`row-${1 - failed}`])
    const again = await openTransaction(store, leases[failed]!, 'again')
    again.finish()
    ofKind(await again.outcome, 'settled')
  },
)

it('throws OUTCOME_UNKNOWN after a deadlock whose victim had committed before', async () => {
  const { open, app } = await setup()
  const store = await open()
  await app.query(ACCOUNTS)
  await app.query('INSERT INTO account VALUES (0), (1)')
  const leases = [await hold(store, { key: '0' }), await hold(store, { key: '1' })] as const
  // The transaction has nothing left to roll back, so the database chooses it as the victim.
  const pass = (_: PoolConnection, ask: Promise<unknown>) => ask
  const { failed, reason } = await deadlock(store, leases, pass, 'COMMIT AND CHAIN')
  expect(failed).toBe(0)
  expect(reason).toMatchObject({ code: 'OUTCOME_UNKNOWN', cause: { errno: 1213 } })
})

it('runs a handler again after its transaction was the victim of a deadlock', async () => {
  const { open, app, connect, paid } = await setup()
  const store = await open()
  await app.query(ACCOUNTS)
  await app.query('INSERT INTO account VALUES (0), (1)')
  const engine = createEngine({ store })
  const rival = await connect().getConnection()
  let runs = 0
  const run = () =>
    engine.run({ scope: { tenant: 't', operation: 'o' }, key: 'k', fingerprint: 'f' }, (context) =>
      context.transaction<PoolConnection>(async (tx) => {
        await pay(tx, `run ${++runs}`)
        if (runs === 1) await beVictim(tx, rival)
        return new Uint8Array()
      }),
    )
  await expect(run()).rejects.toMatchObject({ errno: 1213 })
  const [view] = await store.list({ state: 'failed_retryable', limit: 1 })
  expect(view?.proof).toBe('proven')
  expect((await run()).kind).toBe('ran')
  expect(await paid()).toEqual(['run 2'])
  rival.release()
  await engine.close()
})

/** The database chooses the transaction that has written less. */
async function beVictim(tx: PoolConnection, rival: PoolConnection): Promise<void> {
  const update = (id: number) => `SELECT * FROM account WHERE id = ${id} FOR UPDATE`
  await rival.beginTransaction()
  for (let n = 10; n < 40; n++) await rival.query(`INSERT INTO account VALUES (${n})`)
  await rival.query(update(0))
  await tx.query(update(1))
  const waiting = rival.query(update(1))
  try {
    await tx.query(update(0))
  } finally {
    await waiting
    await rival.rollback()
  }
}
