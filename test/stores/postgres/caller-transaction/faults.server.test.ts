import fc from 'fast-check'
import type pg from 'pg'
import { describe, expect, it, onTestFinished } from 'vitest'
import { systemClock } from '../../../../src/core/time/clock.ts'
import { createEngine } from '../../../../src/core/engine/engine.ts'
import type { EngineOptions } from '../../../../src/core/engine/engine-contract.ts'
import type { RunContext } from '../../../../src/core/attempt/run-context.ts'
import { Calls } from '../../../../src/stores/postgres/calls.ts'
import { Settlements } from '../../../../src/stores/postgres/settlements.ts'
import {
  claim,
  claimRequests,
  completeOf,
  hold,
  LEASE_MS,
  ofKind,
  settle,
  tally,
  viewOf,
} from '../../../../src/testing/store-cases/store-case.ts'
import { TOOLS, withPg } from './tools.ts'
import { completion, usePostgres } from '../setup.ts'
import { prismaClient } from '../../caller-transaction/prisma.ts'

const setup = usePostgres()

const bytes = (text: string) => new TextEncoder().encode(text)
const SCOPE = { tenant: 'acme', operation: 'pay' }
const REQUEST = { scope: SCOPE, key: 'k', fingerprint: 'f' }
const UPKEEP_OFF = { sweepEveryMs: 0, reapEveryMs: 0 }

async function withEngine(options: Partial<EngineOptions> = {}) {
  const database = await setup()
  const store = await database.open()
  const engine = createEngine({ store, ...UPKEEP_OFF, ...options })
  const record = () => engine.read({ scope: SCOPE, key: 'k' })
  return { ...database, store, engine, record }
}

/** A client that is destroyed when the test ends, with its open transaction. */
async function clientOf(pool: pg.Pool): Promise<pg.PoolClient> {
  const client = await pool.connect()
  onTestFinished(() => client.release(true))
  return client
}

describe('a connection without a transaction', () => {
  it('rejects settleIn on a connection without a transaction, and writes nothing', async () => {
    const { open, connect } = await setup()
    const store = await open()
    const lease = await hold(store)
    const client = await clientOf(connect())
    // With the simple protocol, and with the extended one, where a single statement begins before
    // the time that it reports.
    const extended = {
      runSql: async (text: string) => {
        const query = { text, values: [], queryMode: 'extended' }
        return (await client.query<object>(query)).rows
      },
    }
    for (const tx of [client, extended]) {
      for (const sql of ['SELECT 1', 'BEGIN; SELECT 1; COMMIT', 'BEGIN; SELECT 1; ROLLBACK']) {
        await client.query(sql)
        const refused = store.settleIn(tx, lease, completion())
        await expect(refused).rejects.toThrow('no transaction is open')
      }
    }
    expect((await viewOf(store, lease)).state).toBe('in_progress')
    await client.query('BEGIN')
    ofKind(await store.settleIn(extended, lease, completion()), 'settled')
    await client.query('COMMIT')
    expect((await viewOf(store, lease)).state).toBe('completed')
  })

  it('rejects settleIn on a connection of postgres.js without a transaction', async () => {
    const { open, connectJs } = await setup()
    const store = await open()
    const lease = await hold(store)
    const reserved = await connectJs().reserve()
    const refused = store.settleIn(reserved, lease, completion())
    await expect(refused).rejects.toThrow('no transaction is open')
    await reserved`BEGIN`
    ofKind(await store.settleIn(reserved, lease, completion()), 'settled')
    await reserved`ROLLBACK`
    reserved.release()
    expect((await viewOf(store, lease)).state).toBe('in_progress')
  })
})

describe('two completions of one lease', () => {
  it('settles only one of two transactions', async () => {
    const { open, connect } = await setup()
    const store = await open()
    const lease = await hold(store)
    const pool = connect()
    const [a, b] = [await clientOf(pool), await clientOf(pool)]
    for (const client of [a, b]) await client.query('BEGIN')
    ofKind(await store.settleIn(a, lease, completion('a')), 'settled')
    // The second waits for the first, and finds that it has committed.
    const second = store.settleIn(b, lease, completion('b'))
    await a.query('COMMIT')
    expect(await second).toEqual({ kind: 'fenced', own: true, state: 'completed' })
    await b.query('ROLLBACK')
    expect(await viewOf(store, lease)).toMatchObject({ result: Buffer.from('a') })
  })

  it('undoes the completion if its savepoint is rolled back', async () => {
    const { open, connect, paid } = await setup()
    const store = await open()
    const lease = await hold(store)
    const client = await clientOf(connect())
    await client.query(`BEGIN; INSERT INTO payment VALUES ('kept'); SAVEPOINT s`)
    ofKind(await store.settleIn(client, lease, completion('undone')), 'settled')
    await client.query('ROLLBACK TO s')
    ofKind(await store.settleIn(client, lease, completion('kept')), 'settled')
    await client.query('COMMIT')
    expect(await viewOf(store, lease)).toMatchObject({ result: Buffer.from('kept') })
    expect(await paid()).toEqual(['kept'])
  })
})

describe('a transaction that stays open', () => {
  it('delays no other key, and its duplicate gets in_progress at once', async () => {
    const { store, connect, engine, paid } = await withEngine()
    const lease = await hold(store)
    const client = await clientOf(connect())
    await client.query(`BEGIN; INSERT INTO payment VALUES ('held')`)
    ofKind(await store.settleIn(client, lease, completion('held')), 'settled')

    // Each call is answered while the row of the key is locked.
    ofKind(await claim(store), 'in_progress')
    ofKind(await claim(store, { fingerprint: 'other' }), 'mismatch')
    const outcomes = await store.claim([...claimRequests(20), ...claimRequests(20)])
    expect(tally(outcomes)).toEqual({ claimed: 19, in_progress: 21 })
    const others = outcomes.flatMap((one) => (one.kind === 'claimed' ? [one.lease] : []))
    const renewals = others.map((one) => ({ ...one, leaseMs: LEASE_MS }))
    expect(await store.renew(renewals)).not.toContain(false)
    await store.settle(others.map((one) => completeOf(one)))
    await store.sweep({ limit: 10 })
    const runs = Array.from({ length: 20 }, (_, n) =>
      engine.run({ ...REQUEST, key: `other-${n}` }, () => bytes('ok')),
    )
    expect(tally(await Promise.all(runs))).toEqual({ ran: 20 })

    await client.query('COMMIT')
    expect(ofKind(await claim(store), 'completed').result).toEqual(Buffer.from('held'))
    expect(await paid()).toEqual(['held'])
  })

  // The lease has lapsed, but the row is locked: a claim must wait for the transaction.
  it('keeps its key when its lease lapses', async () => {
    const { open, connect, app } = await setup()
    const store = await open()
    const lease = await hold(store, { onLapse: 'rerun', leaseMs: 1 })
    await expect
      .poll(
        async () =>
          (
            await app.query(`SELECT 1 FROM oncekey_record
      WHERE lease_until < clock_timestamp()`)
          ).rowCount,
      )
      .toBe(1)
    const client = await clientOf(connect())
    await client.query('BEGIN')
    ofKind(await store.settleIn(client, lease, completion('held')), 'settled')
    ofKind(await claim(store, { onLapse: 'rerun' }), 'in_progress')
    expect(await store.sweep({ limit: 10 })).toEqual([])
    await client.query('COMMIT')
    ofKind(await claim(store, { onLapse: 'rerun' }), 'completed')
  })

  it('makes a settlement wait at most settleTimeoutMs, and counts when it commits', async () => {
    const { engine, connect, record, paid } = await withEngine({ settleTimeoutMs: 100 })
    const client = await clientOf(connect())
    const running = engine.run(REQUEST, async (context) => {
      await client.query(`BEGIN; INSERT INTO payment VALUES ('late')`)
      await context.completeIn(client, bytes('late'))
      return bytes('something else')
    })
    await expect(running).rejects.toMatchObject({ code: 'OUTCOME_NOT_RECORDED' })
    await client.query('COMMIT')
    expect(await engine.close()).toEqual({ abandoned: 0 })
    expect(await record()).toMatchObject({ state: 'completed', result: Buffer.from('late') })
    expect(await paid()).toEqual(['late'])
  })
})

describe('completeIn through the engine', () => {
  const pay =
    (pool: pg.Pool, after: (client: pg.PoolClient) => Promise<unknown> = async () => undefined) =>
    (context: RunContext) =>
      withPg(pool).transact(async ({ tx, pay: insert }) => {
        await insert('row')
        await context.completeIn(tx, bytes('receipt'))
        await after(tx as pg.PoolClient)
        return bytes('receipt')
      })

  // PostgreSQL answers this COMMIT with ROLLBACK, and `pg` reports success.
  it('acknowledges nothing if COMMIT rolled a failed transaction back', async () => {
    const { engine, connect, paid, record } = await withEngine()
    const fail = (client: pg.PoolClient) => client.query('SELECT 1 / 0').catch(() => undefined)
    const running = engine.run(REQUEST, pay(connect(), fail))
    await expect(running).rejects.toMatchObject({ code: 'OUTCOME_UNKNOWN' })
    expect(await paid()).toEqual([])
    expect(await record()).toMatchObject({ state: 'unknown' })
  })

  it('does not run the handler again if its rows were committed without the key', async () => {
    const { engine, connect, paid, record } = await withEngine()
    const pool = connect()
    const run = () =>
      engine.run(REQUEST, (context) =>
        withPg(pool).transact(async ({ tx, pay: insert }) => {
          const client = tx as pg.PoolClient
          await insert('row')
          await client.query('SAVEPOINT part')
          await context.completeIn(tx, bytes('receipt'))
          await client.query('ROLLBACK TO SAVEPOINT part')
          return bytes('receipt')
        }),
      )
    await expect(run()).rejects.toMatchObject({ code: 'OUTCOME_UNKNOWN' })
    expect(await run()).toMatchObject({ kind: 'unknown' })
    expect(await record()).toMatchObject({ state: 'unknown', attempt: 1 })
    expect(await paid()).toEqual(['row'])
  })

  it('returns the result if the answer to COMMIT was lost, and fences a second one', async () => {
    const { engine, connect, paid } = await withEngine()
    const pool = connect()
    const outcome = await engine.run(REQUEST, async (context) => {
      const lost = pay(pool)(context).then(() => Promise.reject(new Error('connection lost')))
      return lost.catch(() => pay(pool)(context))
    })
    expect(outcome).toMatchObject({ kind: 'ran', result: Buffer.from('receipt') })
    expect(await paid()).toEqual(['row'])
  })

  it('keeps neither row nor result if the connection is lost before the commit', async () => {
    const { engine, connect, app, paid, record } = await withEngine()
    const client = await clientOf(connect())
    client.on('error', () => undefined)
    const running = engine.run(REQUEST, async (context) => {
      await client.query(`BEGIN; INSERT INTO payment VALUES ('cut')`)
      await context.completeIn(client, bytes('receipt'))
      const [{ pid }] = (await client.query('SELECT pg_backend_pid() AS pid')).rows as [
        { pid: number },
      ]
      await app.query('SELECT pg_terminate_backend($1)', [pid])
      await client.query('COMMIT').catch(() => undefined)
      throw new Error('declined')
    })
    await expect(running).rejects.toThrow('declined')
    expect(await paid()).toEqual([])
    expect(await record()).toMatchObject({ state: 'failed_retryable', proof: 'declared' })
  })

  it('makes the outcome unknown if the handler passes a pool by mistake', async () => {
    const { engine, connect, paid, record } = await withEngine()
    const pool = connect()
    const running = engine.run(REQUEST, async (context) => {
      await pool.query(`INSERT INTO payment VALUES ('at once')`)
      await context.completeIn(pool, bytes('receipt'))
      return bytes('receipt')
    })
    await expect(running).rejects.toThrow('was given a pool')
    // The row is committed: running the handler again would pay twice.
    expect(await paid()).toEqual(['at once'])
    expect(await record()).toMatchObject({ state: 'unknown' })
  })
})

describe('a statement that fails', () => {
  it.each(['Drizzle on pg', 'Knex', 'pg', 'Prisma'])(
    'throws an error without the bytes of the result, with %s',
    async (name) => {
      const { open, app, ...connections } = await setup()
      const store = await open()
      const lease = await hold(store)
      await app.query('DROP FUNCTION oncekey_record_settle_one')
      const tool = TOOLS[name]!(connections)
      const failed = tool.transact(({ tx }) => store.settleIn(tx, lease, completion('secret')))
      const error = await failed.catch((reason: unknown) => reason)
      expect(error).toMatchObject({ code: 'STORE_FAILED', failure: 'unavailable' })
      const { message } = error as Error
      expect(message).toContain('oncekey_record_settle_one')
      expect(message).not.toContain(Buffer.from('secret').toString('hex'))
    },
  )

  it('rejects settleIn in a read-only transaction and in a failed one', async () => {
    const { open, connect } = await setup()
    const store = await open()
    const lease = await hold(store)
    const client = await clientOf(connect())
    for (const begin of ['BEGIN READ ONLY', 'BEGIN; SELECT 1 / 0']) {
      await client.query(begin).catch(() => undefined)
      const failed = store.settleIn(client, lease, completion())
      await expect(failed).rejects.toMatchObject({ code: 'STORE_FAILED' })
      await client.query('COMMIT')
    }
    ofKind(await settle(store, completeOf(lease)), 'settled')
  })
})

describe.each(['REPEATABLE READ', 'SERIALIZABLE'])('under %s', (level) => {
  /** A transaction whose snapshot is older than later changes. */
  async function begun(pool: pg.Pool): Promise<pg.PoolClient> {
    const client = await clientOf(pool)
    await client.query(`BEGIN ISOLATION LEVEL ${level}; INSERT INTO payment VALUES ('row')`)
    return client
  }

  it('commits the key with its rows, or neither', async () => {
    const { open, connect, paid } = await setup()
    const store = await open()
    const lease = await hold(store)
    const pool = connect()
    const undone = await begun(pool)
    ofKind(await store.settleIn(undone, lease, completion('undone')), 'settled')
    await undone.query('ROLLBACK')
    expect([await paid(), (await viewOf(store, lease)).state]).toEqual([[], 'in_progress'])
    const client = await begun(pool)
    ofKind(await store.settleIn(client, lease, completion('kept')), 'settled')
    await client.query('COMMIT')
    expect(await paid()).toEqual(['row'])
    expect(await viewOf(store, lease)).toMatchObject({ result: Buffer.from('kept') })
    // The rows of the first transaction are committed, and must not be written twice.
    const again = await begun(pool)
    const own = { kind: 'fenced', own: true, state: 'completed' }
    expect(await store.settleIn(again, lease, completion())).toEqual(own)
  })

  it.each(['taken over', 'renewed', 'completed'])(
    'raises a conflict and keeps nothing if the record was %s after the snapshot',
    async (how) => {
      const { open, connect, app, paid } = await setup()
      const store = await open()
      const lease = await hold(store, { onLapse: 'rerun' })
      const client = await begun(connect())
      if (how === 'taken over') {
        await app.query(`UPDATE oncekey_record SET lease_until = now() - interval '1 second'`)
        expect(ofKind(await claim(store), 'claimed').lease.attempt).toBe(2)
      } else if (how === 'renewed') {
        expect(await store.renew([{ ...lease, leaseMs: 2 * LEASE_MS }])).toEqual([true])
      } else {
        ofKind(await settle(store, completeOf(lease)), 'settled')
      }
      const before = await viewOf(store, lease)
      const conflict = store.settleIn(client, lease, completion('stale'))
      await expect(conflict).rejects.toMatchObject({ code: '40001' })
      await client.query('COMMIT')
      expect(await paid()).toEqual([])
      expect(await viewOf(store, lease)).toEqual(before)
    },
  )

  it('passes a conflict on as the error of the tool', async () => {
    const { open, url } = await setup()
    const store = await open()
    const lease = await hold(store)
    const isolationLevel = level === 'SERIALIZABLE' ? 'Serializable' : 'RepeatableRead'
    const conflict = prismaClient(url).$transaction(
      async (tx) => {
        await tx.$executeRawUnsafe('SELECT 1 FROM oncekey_record')
        expect(await store.renew([{ ...lease, leaseMs: 2 * LEASE_MS }])).toEqual([true])
        await store.settleIn(tx, lease, completion())
      },
      { isolationLevel },
    )
    await expect(conflict).rejects.toMatchObject({ name: 'PrismaClientKnownRequestError' })
    await expect(conflict).rejects.toThrow('40001')
    expect((await viewOf(store, lease)).state).toBe('in_progress')
  })

  // Only a call that joins a transaction accepts its level: its answer depends on the commit.
  it('rejects a settlement that joins no transaction', async () => {
    const { open, connect } = await setup()
    const store = await open()
    const lease = await hold(store)
    const client = await begun(connect())
    // An earlier join on the same connection has no effect after its transaction.
    ofKind(await store.settleIn(client, lease, completion('undone')), 'settled')
    await client.query(`ROLLBACK; BEGIN ISOLATION LEVEL ${level}`)
    const empty = Array.from({ length: 10 }, () => `'{}'`).join(', ')
    const lone = client.query(`SELECT * FROM oncekey_record_settle(NULL, ${empty})`)
    await expect(lone).rejects.toThrow('needs READ COMMITTED')
  })
})

describe('the statements of settleIn', () => {
  const calls = new Calls(undefined as never, {
    name: { schema: 's', table: 't' },
    clock: systemClock,
  })
  const settlements = new Settlements(calls)
  const sent = async (
    lease: { identity: string; token: string; attempt: number },
    result: Uint8Array,
  ) => {
    const statements: string[] = []
    const runSql = async (sql: string) => {
      statements.push(sql)
      return [{ answer: 'absent' }]
    }
    await settlements.settleIn({ runSql }, lease, { result, retentionMs: 1000 })
    return statements
  }

  it('contain nothing that a tool could take for a placeholder', async () => {
    const token = fc.string({ unit: 'grapheme' })
    const property = fc.asyncProperty(token, fc.uint8Array(), async (text, result) => {
      for (const sql of await sent({ identity: 'ab12', token: text, attempt: 1 }, result)) {
        expect(sql).toMatch(/^[\w\s"'(),.=[\]]+$/)
        // Every literal is a fixed word or hexadecimal.
        const literals = sql.match(/'[^']*'/g) ?? []
        for (const literal of literals) expect(literal).toMatch(/^'([a-zA-Z.8 ]+|([0-9a-f]{2})*)'$/)
      }
    })
    await fc.assert(property)
  })

  it('sends no statement with an invalid value', async () => {
    const lease = { identity: 'ab12', token: 't', attempt: 1 }
    const wrong = [
      sent({ ...lease, identity: `' OR 1` }, bytes('x')),
      sent({ ...lease, token: '\ud800' }, bytes('x')),
      sent({ ...lease, attempt: Number.NaN }, bytes('x')),
      sent(lease, 'text' as never),
    ]
    for (const one of wrong) {
      await expect(one).rejects.toMatchObject({ code: 'STORE_FAILED', failure: 'rejected' })
    }
  })
})
