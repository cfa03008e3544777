import { describe, expect, it } from 'vitest'
import { newToken } from '../../../src/core/record/identity.ts'
import type { SqliteTransaction } from '../../../src/stores/sqlite/index.ts'
import {
  claim,
  finish,
  hold,
  LEASE_MS,
  ofKind,
  releaseOf,
  settle,
  viewOf,
} from '../../../src/testing/store-cases/store-case.ts'
import { completion, isPending, openTransaction, setup } from './setup.ts'

const pay = (tx: SqliteTransaction, amount: number) =>
  tx.prepare('INSERT INTO payment VALUES (?)').run(amount)

it('commits the rows of the work together with the key', async () => {
  const { store, amounts } = setup()
  const lease = await hold(store)
  const outcome = await store.transaction(lease, (tx) => {
    expect(pay(tx, 5).changes).toBe(1)
    tx.exec('UPDATE payment SET amount = amount * 2')
    expect(tx.prepare('SELECT amount FROM payment').get()).toMatchObject({ amount: 10 })
    expect(tx.prepare('SELECT amount FROM payment WHERE amount > ?').all(99)).toEqual([])
    expect(amounts()).toEqual([])
    return completion()
  })
  ofKind(outcome, 'settled')
  expect(amounts()).toEqual([10])
})

it('rolls back the rows of the work when it throws', async () => {
  const { store, amounts } = setup()
  const lease = await hold(store)
  const error = new Error('card declined')
  const failing = store.transaction(lease, async (tx) => {
    pay(tx, 5)
    await Promise.resolve()
    throw error
  })
  await expect(failing).rejects.toBe(error)
  expect(amounts()).toEqual([])
  expect((await viewOf(store, lease)).state).toBe('in_progress')
})

it('rolls back the rows of the work when its result cannot be stored', async () => {
  const { store, amounts } = setup()
  const lease = await hold(store)
  const failing = store.transaction(lease, (tx) => {
    pay(tx, 5)
    return { ...completion(), result: {} as never }
  })
  await expect(failing).rejects.toMatchObject({ code: 'STORE_FAILED', failure: 'rejected' })
  expect(amounts()).toEqual([])
})

// A stalls past its lease, B takes the key over, A wakes up and opens its transaction.
it('does not run the work of a holder that lost its lease', async () => {
  const { store, clock, amounts } = setup()
  const lost = await hold(store, { onLapse: 'rerun' })
  clock.advance(LEASE_MS)
  const held = await hold(store)
  const outcome = await store.transaction(lost, (tx) => {
    pay(tx, 5)
    return completion()
  })
  expect(outcome).toEqual({ kind: 'fenced', own: false, state: 'in_progress' })
  ofKind(await store.transaction(held, (tx) => (pay(tx, 7), completion())), 'settled')
  expect(amounts()).toEqual([7])
})

it('completes the key even if the lease lapses while the transaction is open', async () => {
  const { store, clock } = setup()
  const lease = await hold(store, { onLapse: 'rerun' })
  const { outcome, finish } = await openTransaction(store, lease)
  clock.advance(LEASE_MS)
  const rival = claim(store)
  expect(await isPending(rival)).toBe(true)
  finish()
  ofKind(await outcome, 'settled')
  ofKind(await rival, 'completed')
})

it('while a transaction is open, a new key waits and other claims are answered', async () => {
  const { store } = setup()
  await finish(store, { key: 'done' })
  const { outcome, finish: commit } = await openTransaction(store, await hold(store))
  const fresh = claim(store, { key: 'fresh' })
  ofKind(await claim(store, { key: 'done' }), 'completed')
  ofKind(await claim(store), 'in_progress')
  expect(await isPending(fresh)).toBe(true)
  commit()
  ofKind(await outcome, 'settled')
  ofKind(await fresh, 'claimed')
})

it('rolls back work that exceeds transactionTimeoutMs, and runs the next call', async () => {
  const { store, clock, amounts } = setup({ transactionTimeoutMs: 1000 })
  const lease = await hold(store)
  const entered = Promise.withResolvers<SqliteTransaction>()
  const hanging = store.transaction(lease, (tx) => {
    pay(tx, 5)
    entered.resolve(tx)
    return new Promise(() => {})
  })
  const tx = await entered.promise
  const next = claim(store, { key: 'next' })
  clock.advance(1000)
  await expect(hanging).rejects.toThrow(/took longer than 1000 ms and was rolled back/)
  ofKind(await next, 'claimed')
  expect(amounts()).toEqual([])
  expect(() => pay(tx, 6)).toThrow('the transaction has ended')
  ofKind(await settle(store, releaseOf(lease)), 'settled')
})

it('refuses statements on a transaction that has committed or was rolled back', async () => {
  const { store, amounts } = setup()
  const kept: { tx: SqliteTransaction; statement: ReturnType<SqliteTransaction['prepare']> }[] = []
  const keep = (tx: SqliteTransaction) => {
    kept.push({ tx, statement: tx.prepare('INSERT INTO payment VALUES (1)') })
    return completion()
  }
  const failing = store.transaction(await hold(store, { key: 'a' }), (tx) => {
    keep(tx)
    throw new Error('declined')
  })
  await expect(failing).rejects.toThrow('declined')
  await store.transaction(await hold(store, { key: 'b' }), keep)

  await store.transaction(await hold(store, { key: 'c' }), () => {
    // The transaction of another call is open now, on the same connection.
    for (const { tx, statement } of kept) {
      expect(() => tx.exec('DELETE FROM payment')).toThrow('the transaction has ended')
      expect(() => tx.prepare('SELECT 1')).toThrow('the transaction has ended')
      expect(() => statement.run()).toThrow('the transaction has ended')
      expect(() => statement.get()).toThrow('the transaction has ended')
      expect(() => statement.all()).toThrow('the transaction has ended')
    }
    return completion()
  })
  expect(kept.length).toBe(2)
  expect(amounts()).toEqual([])
})

describe.each(['COMMIT', 'ROLLBACK', 'COMMIT; BEGIN IMMEDIATE', 'INSERT OR ROLLBACK …'])(
  'work that runs %s in the transaction of the store',
  (statement) => {
    const end = (tx: SqliteTransaction) => {
      if (!statement.startsWith('INSERT')) return tx.exec(statement)
      tx.exec('CREATE TABLE single (id INTEGER PRIMARY KEY); INSERT INTO single VALUES (1)')
      expect(() => tx.exec('INSERT OR ROLLBACK INTO single VALUES (1)')).toThrow(/UNIQUE/)
    }
    const unknown = {
      code: 'OUTCOME_UNKNOWN',
      message: expect.stringMatching(/the callback ended the store's transaction itself/),
    }

    it('work that ended the transaction and returns has an unknown outcome', async () => {
      const { store } = setup()
      const lease = await hold(store)
      const failing = store.transaction(lease, (tx) => {
        end(tx)
        return completion()
      })
      await expect(failing).rejects.toMatchObject(unknown)
      expect((await viewOf(store, lease)).state).toBe('in_progress')
      ofKind(await claim(store, { key: 'next' }), 'claimed')
    })

    it('work that ended the transaction and throws has an unknown outcome', async () => {
      const { store } = setup()
      const lease = await hold(store)
      const cause = new Error('mail server down')
      const failing = store.transaction(lease, async (tx) => {
        end(tx)
        await Promise.resolve()
        throw cause
      })
      await expect(failing).rejects.toMatchObject({ ...unknown, cause })
      expect((await viewOf(store, lease)).state).toBe('in_progress')
      ofKind(await claim(store, { key: 'next' }), 'claimed')
    })

    it('work that ended the transaction and times out has an unknown outcome', async () => {
      const { store, clock } = setup({ transactionTimeoutMs: 1000 })
      const entered = Promise.withResolvers<void>()
      const failing = store.transaction(await hold(store), (tx) => {
        end(tx)
        entered.resolve()
        return new Promise(() => {})
      })
      await entered.promise
      clock.advance(1000)
      await expect(failing).rejects.toMatchObject({
        ...unknown,
        cause: { code: 'STORE_FAILED', message: expect.stringContaining('longer than 1000 ms') },
      })
    })
  },
)

it('lets the work use savepoints', async () => {
  const { store, amounts } = setup()
  const outcome = await store.transaction(await hold(store), (tx) => {
    pay(tx, 1)
    tx.exec('SAVEPOINT mine')
    pay(tx, 2)
    tx.exec('ROLLBACK TO mine')
    return completion()
  })
  ofKind(outcome, 'settled')
  expect(amounts()).toEqual([1])
})

it('does not run the work if this token never claimed the key', async () => {
  const { store } = setup()
  const lease = await hold(store)
  const outcome = await store.transaction({ ...lease, token: newToken() }, () => {
    throw new Error('must not run')
  })
  ofKind(outcome, 'fenced')
})
