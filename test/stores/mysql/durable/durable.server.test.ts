import type { PoolConnection } from 'mysql2/promise'
import { describe, expect, it } from 'vitest'
import type { Step } from '../../../../src/core/store/durable-store.ts'
import { mysqlStore } from '../../../../src/stores/mysql/index.ts'
import {
  BY,
  intentOf,
  messageOf,
  OPERATION,
  operationOf,
  resultOf,
  transactionOf,
} from '../../../../src/testing/durable-cases/durable-case.ts'
import { FakeClock } from '../../../../src/testing/fake-clock.ts'
import {
  bytes,
  claim,
  claimRequests,
  doubtOf,
  finish,
  hold,
  ofKind,
  releaseOf,
  RETENTION_MS,
  settle,
  viewOf,
} from '../../../../src/testing/store-cases/store-case.ts'
import { begun, intercepting, transact, untilWaiting } from './setup.ts'
import { completion, pay, telling, useMariadb } from '../setup.ts'

const setup = useMariadb()

const END = { kind: 'complete', ...completion() } as const

it('records an intent or a result with one read and one write', async () => {
  const { open, connect } = await setup()
  await open()
  const sent: string[] = []
  const store = mysqlStore({ pool: telling(connect(), (sql) => void sent.push(sql)) })
  const { lease } = await begun(store)
  const { phases } = store.durable
  const statements = async (step: Step) => {
    sent.length = 0
    ofKind(await phases.record(lease, step), 'advanced')
    return sent.length
  }
  expect(await statements({ phase: intentOf() })).toBe(2)
  expect(await statements({ phase: intentOf() })).toBe(2)
  expect(await statements({ phase: resultOf() })).toBe(2)
  expect(await statements({ phase: intentOf({ name: 'book', downstreamKey: 'b' }) })).toBe(2)
  // The step also completes the operation.
  expect(await statements({ phase: resultOf({ name: 'book' }), end: END })).toBe(2)
  expect((await viewOf(store, lease)).state).toBe('completed')

  // Three tables: two statements to begin, one lock, three writes, and one commit.
  const other = await hold(store, { key: 'other' })
  sent.length = 0
  ofKind(await phases.record(other, { operation: operationOf(), phase: intentOf() }), 'advanced')
  expect(sent.length).toBe(7)
})

// The record is read, then taken over by a transaction that has not committed, and then written.
it.each([
  ['an intent', intentOf({ name: 'other', downstreamKey: 'other' })],
  ['a repeated intent', intentOf()],
  ['a result', resultOf()],
])('does not record %s during a takeover that is about to commit', async (_, phase) => {
  const { open, app, column, connect } = await setup()
  // With other isolation levels the statement would lock the rows that it reads.
  const settings = 'SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED'
  const store = await open({ pool: connect({}, settings) })
  const { lease, recordId } = await begun(store)
  ofKind(await store.durable.phases.record(lease, { phase: intentOf() }), 'advanced')
  const before = await store.durable.phases.load(recordId)
  const taking = await app.getConnection()
  await taking.beginTransaction()
  await taking.query(`UPDATE oncekey_record SET token = 'other', attempt = attempt + 1`)
  const outcome = store.durable.phases.record(lease, { phase })
  await untilWaiting(column, 1)
  await taking.commit()
  taking.release()
  expect(await outcome).toEqual({ kind: 'fenced', own: false, state: 'in_progress' })
  expect(await store.durable.phases.load(recordId)).toEqual(before)
})

it('returns the conclusion of a phase that was made between the read and the write', async () => {
  const { open, connect } = await setup()
  const store = await open()
  const { lease, recordId } = await begun(store)
  ofKind(await store.durable.phases.record(lease, { phase: intentOf() }), 'advanced')
  let isConcluded = false
  const slow = mysqlStore({
    pool: telling(connect(), async (sql) => {
      if (isConcluded || !sql.includes('UPDATE')) return
      isConcluded = true
      const finding = { kind: 'done', result: bytes('by webhook'), providerId: 'w' } as const
      const act = { kind: 'conclude', phase: { downstreamKey: 'downstream-1' }, finding } as const
      ofKind(await store.durable.operator.act(act, BY), 'done')
    }),
  })
  const outcome = await slow.durable.phases.record(lease, { phase: resultOf() })
  expect(ofKind(outcome, 'concluded').result).toEqual(bytes('by webhook'))
  expect((await store.durable.phases.load(recordId))?.phases).toMatchObject([{ providerId: 'w' }])
})

const WORK = 'INSERT INTO payment'

/** Statements between the end of the work and the answer to its commit. */
const CUTS = ['RELEASE SAVEPOINT', 'FOR UPDATE', '_operation`', '_phase` (', 'UPDATE /*+', 'COMMIT']

describe('a connection that is killed after the work', () => {
  it.each(CUTS)(
    'writes nothing of a step that is cut at %s, and can record it again',
    async (cut) => {
      const { open, connect, app, paid } = await setup()
      const store = await open()
      const lease = await hold(store)
      const { recordId } = await viewOf(store, lease)
      let isCut = false
      const pool = intercepting(connect(), async (sql, send, connection) => {
        // The read at the beginning also names these tables.
        const isHere = sql.includes(cut) && (cut === 'FOR UPDATE' || !sql.includes('LEFT JOIN'))
        if (!isCut && isHere && !sql.includes(WORK)) {
          isCut = true
          await app.query(`KILL CONNECTION ${connection.threadId}`)
        }
        return send()
      })
      const phase = transactionOf()
      const advance = (own = store) =>
        own.durable.phases.advance(lease, async (tx) => {
          await pay(tx as PoolConnection, 'paid')
          await own.durable.outbox.add(tx, messageOf({ partition: 'p' }))
          return { operation: operationOf(), phase, end: END }
        })
      const failed = advance(mysqlStore({ pool }))
      await expect(failed).rejects.toMatchObject({ code: 'STORE_FAILED', failure: 'unavailable' })
      expect(isCut).toBe(true)
      expect(await paid()).toEqual([])
      expect(await store.durable.phases.load(recordId)).toBeUndefined()
      expect(await store.durable.outbox.list({ state: 'ready', limit: 9 })).toEqual([])
      expect(await viewOf(store, lease)).toMatchObject({
        state: 'in_progress',
        recoveryPoint: undefined,
      })

      ofKind(await advance(), 'advanced')
      expect(await paid()).toEqual(['paid'])
      expect((await store.durable.phases.load(recordId))?.phases).toMatchObject([{ state: 'done' }])
      expect((await store.durable.outbox.list({ state: 'ready', limit: 9 })).length).toBe(1)
    },
  )
})

it('keeps a step whose commit got no answer, and nothing of its repetition', async () => {
  const { open, connect, paid } = await setup()
  const store = await open()
  const lease = await hold(store)
  const { recordId } = await viewOf(store, lease)
  const pool = intercepting(connect(), async (sql, send, connection) => {
    const answer = await send()
    if (sql === 'COMMIT') connection.destroy()
    if (sql === 'COMMIT') throw Object.assign(new Error('cut'), { fatal: true })
    return answer
  })
  const advance = (own = store) =>
    own.durable.phases.advance(lease, async (tx) => {
      await pay(tx as PoolConnection, 'paid')
      return { operation: operationOf(), phase: transactionOf() }
    })
  await expect(advance(mysqlStore({ pool }))).rejects.toMatchObject({ failure: 'unavailable' })
  const fenced = { kind: 'fenced', own: true, state: 'in_progress' }
  expect(await advance()).toEqual(fenced)
  expect(await paid()).toEqual(['paid'])
  expect((await store.durable.phases.load(recordId))?.phases.length).toBe(1)
})

// The step is written and its lease has ended, but its COMMIT has not arrived.
it('answers in_progress for a lapsed key whose step is about to be committed', async () => {
  const { open, connect, app, paid } = await setup()
  const store = await open()
  const { lease } = await begun(store)
  const arrived = Promise.withResolvers<void>()
  const late = Promise.withResolvers<void>()
  const pool = intercepting(connect(), async (sql, send) => {
    if (sql === 'COMMIT') {
      arrived.resolve()
      await late.promise
    }
    return send()
  })
  const outcome = mysqlStore({ pool }).durable.phases.advance(lease, async (tx) => {
    await pay(tx as PoolConnection, 'paid')
    await app.query('UPDATE oncekey_record SET lease_until_ms = 0, due_at_ms = 0')
    return { phase: transactionOf() }
  })
  await arrived.promise
  ofKind(await claim(store), 'in_progress')
  expect(await store.sweep({ limit: 9 })).toEqual([])
  late.resolve()
  ofKind(await outcome, 'advanced')
  expect(ofKind(await claim(store), 'claimed')).toMatchObject({
    from: 'lapsed',
    recoveryPoint: 'book',
  })
  expect(await paid()).toEqual(['paid'])
})

// The lease ends and another attempt takes the key over before the work returns.
it('rolls back an attempt that was fenced before its commit', async () => {
  const { open, app, paid } = await setup()
  const store = await open()
  const { lease, recordId } = await begun(store)
  const outcome = store.durable.phases.advance(lease, async (tx) => {
    await pay(tx as PoolConnection, 'stale')
    await store.durable.outbox.add(tx, messageOf())
    await app.query('UPDATE oncekey_record SET lease_until_ms = 0, due_at_ms = 0')
    expect(ofKind(await claim(store, { onLapse: 'resume' }), 'claimed').from).toBe('lapsed')
    return { phase: transactionOf(), end: END }
  })
  expect(await outcome).toEqual({ kind: 'fenced', own: false, state: 'in_progress' })
  expect(await paid()).toEqual([])
  expect((await store.durable.phases.load(recordId))?.phases).toEqual([])
  expect(await store.durable.outbox.list({ state: 'ready', limit: 9 })).toEqual([])
})

// The statements that add a message must not hide that the deadlock has rolled back everything.
it('reports a deadlock after an added message as rolled back, not as unknown', async () => {
  const { open, app, connect } = await setup()
  const store = await open()
  await app.query('CREATE TABLE account (id INT PRIMARY KEY) ENGINE = InnoDB')
  await app.query('INSERT INTO account VALUES (0), (1)')
  const rival = await connect().getConnection()
  await rival.beginTransaction()
  for (let n = 10; n < 40; n++) await rival.query(`INSERT INTO account VALUES (${n})`)
  await rival.query('SELECT * FROM account WHERE id = 0 FOR UPDATE')
  const { lease } = await begun(store)
  const outcome = store.durable.phases.advance(lease, async (given) => {
    const tx = given as PoolConnection
    await store.durable.outbox.add(tx, messageOf({ partition: 'p' }))
    await tx.query('SELECT * FROM account WHERE id = 1 FOR UPDATE')
    const waiting = rival.query('SELECT * FROM account WHERE id = 1 FOR UPDATE')
    await tx.query('SELECT * FROM account WHERE id = 0 FOR UPDATE').catch(() => undefined)
    await waiting
    return { phase: transactionOf() }
  })
  await expect(outcome).rejects.toMatchObject({ code: 'STORE_FAILED', failure: 'unavailable' })
  await rival.rollback()
  rival.release()
  expect(await store.durable.outbox.list({ state: 'ready', limit: 9 })).toEqual([])
})

it('removes operations and phases together with their records, and no others', async () => {
  const { open, column } = await setup()
  const clock = new FakeClock()
  const store = await open({ clock })
  const { phases, operator } = store.durable
  const begin = async (key: string) => {
    const { lease, recordId } = await begun(store, { key })
    ofKind(await phases.record(lease, { phase: transactionOf(), end: END }), 'advanced')
    return recordId
  }
  await begin('reaped')
  await begin('replaced')
  clock.advance(RETENTION_MS)
  const [discarded, kept] = [await begin('discarded'), await begin('kept')]
  expect(ofKind(await claim(store, { key: 'replaced' }), 'claimed').from).toBe('expired')
  expect((await store.reap({ limit: 10 })).removed).toBe(1)
  const discard = { kind: 'discard_reply', attempt: 1, despiteEffects: true } as const
  ofKind(await operator.act({ ...discard, ref: { recordId: discarded } }, BY), 'done')
  expect(await column('SELECT record_id FROM oncekey_record_operation')).toEqual([kept])
  expect(await column('SELECT record_id FROM oncekey_record_phase')).toEqual([kept])
})

// One due time stands for both: when a worker may take the record, and when it expires.
it('reaps an operation that is due after its expiry, unless it has run before', async () => {
  const { open } = await setup()
  const clock = new FakeClock()
  const store = await open({ clock })
  const { phases } = store.durable
  const later = { end: { kind: 'hand_over', afterMs: 3 * RETENTION_MS } } as const
  const fresh = await begun(store, { key: 'fresh' })
  ofKind(await phases.record(fresh.lease, later), 'advanced')
  const run = await begun(store, { key: 'run' })
  ofKind(await settle(store, releaseOf(run.lease)), 'settled')
  const again = await hold(store, { key: 'run' })
  ofKind(await phases.record(again, later), 'advanced')

  const due = async () =>
    (await phases.due({ operations: [OPERATION], limit: 9 })).map(({ record }) => record.key)
  clock.advance(RETENTION_MS)
  expect(await due()).toEqual([])
  expect((await store.reap({ limit: 9, abandoned: completion() })).abandoned).toBe(1)
  expect((await viewOf(store, fresh.lease)).state).toBe('completed')
  clock.advance(2 * RETENTION_MS)
  expect(await due()).toEqual(['run'])
})

it('gives each unknown record to one of many nodes that take records at once', async () => {
  const { open } = await setup()
  const store = await open()
  const leases = (await store.claim(claimRequests(60))).map((one) => ofKind(one, 'claimed').lease)
  await store.settle(leases.map((lease) => doubtOf(lease)))
  const taken = await Promise.all(
    Array.from({ length: 6 }, () =>
      store.durable.operator.takeUnknown({ limit: 25, againMs: 60_000 }),
    ),
  )
  const rest = await store.durable.operator.takeUnknown({ limit: 100, againMs: 60_000 })
  const ids = [...taken.flat(), ...rest].map(({ record }) => record.recordId)
  expect(new Set(ids).size).toBe(60)
  expect(ids.length).toBe(60)
})

it('needs only the rights to read and write rows, and to insert into the audit', async () => {
  const { open, url, app, connect } = await setup()
  await open()
  const user = `acts_${new URL(url).pathname.slice(-8)}`
  await app.query(`CREATE USER ${user}`)
  const grant = (rights: string, table: string) =>
    app.query(`GRANT ${rights} ON ${new URL(url).pathname.slice(1)}.${table} TO ${user}`)
  for (const suffix of ['', '_operation', '_phase', '_message', '_partition']) {
    await grant('SELECT, INSERT, UPDATE, DELETE', `oncekey_record${suffix}`)
  }
  for (const suffix of ['_audit', '_discarded']) {
    await grant('SELECT, INSERT', `oncekey_record${suffix}`)
  }
  const pool = connect({ user })
  const store = mysqlStore({ pool })
  const { lease, recordId } = await begun(store)
  const ref = { recordId }
  ofKind(await store.durable.operator.act({ kind: 'release', ref }, BY), 'done')
  ofKind(await store.durable.operator.act({ kind: 'requeue', ref }, BY), 'done')
  expect(ofKind(await settle(store, releaseOf(lease)), 'fenced').own).toBe(false)
  expect((await store.durable.phases.due({ operations: [OPERATION], limit: 9 })).length).toBe(1)
  await transact(pool, (tx) => store.durable.outbox.add(tx, messageOf({ partition: 'p' })))
  const claimed = { topics: ['receipts'], limit: 9, leaseMs: 1000, token: 't' }
  expect((await store.durable.outbox.claim(claimed)).length).toBe(1)
  expect(await store.durable.outbox.prune({ limit: 9, olderThanMs: 0 })).toBe(0)

  const done = { recordId: (await viewOf(store, await finish(store, { key: 'done' }))).recordId }
  const discard = { kind: 'discard_reply', attempt: 1, despiteEffects: false } as const
  ofKind(await store.durable.operator.act({ ...discard, ref: done }, BY), 'done')
  expect((await store.durable.operator.discarded({ ...done, limit: 9 })).length).toBe(1)

  expect((await store.durable.operator.audit({ limit: 9 })).map(({ act }) => act)).toEqual([
    'discard_reply',
    'requeue',
    'release',
  ])
  for (const table of ['oncekey_record_audit', 'oncekey_record_discarded']) {
    for (const sql of ['DELETE FROM {table}', `UPDATE {table} SET number = 1`]) {
      await expect(pool.query(sql.replace('{table}', table))).rejects.toThrow('denied')
    }
  }
  await pool.end()
  await app.query(`DROP USER ${user}`)
})

it.each([
  `SET SESSION TRANSACTION ISOLATION LEVEL SERIALIZABLE`,
  `SET SESSION TRANSACTION ISOLATION LEVEL READ UNCOMMITTED`,
  `SET SESSION sql_mode = 'ANSI,NO_BACKSLASH_ESCAPES,PAD_CHAR_TO_FULL_LENGTH,EMPTY_STRING_IS_NULL'`,
  `SET SESSION sql_mode = 'ORACLE,SIMULTANEOUS_ASSIGNMENT'`,
  `SET SESSION autocommit = 0`,
  `SET NAMES gbk`,
])('works the same for operations and messages in a session with %s', async (settings) => {
  const { open, connect, column } = await setup()
  const pool = connect({}, settings)
  const store = await open({ pool })
  const { phases, outbox, operator } = store.durable
  const { lease, recordId } = await begun(store)
  ofKind(await phases.record(lease, { phase: intentOf({ downstreamKey: '租 ' }) }), 'advanced')
  const ref = { downstreamKey: '租' }
  const finding = { kind: 'not_executed' } as const
  ofKind(await operator.act({ kind: 'conclude', phase: ref, finding }, BY), 'not_found')
  const advanced = phases.advance(lease, async (tx) => {
    await outbox.add(tx, messageOf({ topic: 't', partition: '', key: '' }))
    await outbox.add(tx, messageOf({ topic: 't ', payload: bytes('') }))
    return { phase: resultOf({ downstreamKey: '租 ' }), end: { kind: 'hand_over', afterMs: 0 } }
  })
  ofKind(await advanced, 'advanced')
  // Another session sees the rows, so they are committed.
  expect(await column('SELECT state FROM oncekey_record')).toEqual(['pending'])
  expect(await column('SELECT COUNT(*) FROM oncekey_record_message')).toEqual([2])
  expect((await phases.due({ operations: [OPERATION], limit: 9 })).length).toBe(1)
  const { phases: recorded = [] } = (await phases.load(recordId)) ?? {}
  expect(recorded.map(({ downstreamKey }) => downstreamKey)).toEqual(['租 '])

  const claimed = { topics: ['t'], limit: 9, leaseMs: 60_000, token: 'token' }
  const [message] = await outbox.claim(claimed)
  expect(message).toMatchObject({ topic: 't', partition: '', key: '', attempt: 1 })
  expect((await outbox.claim(claimed)).length).toBe(1)
  const { id } = message!
  expect(await outbox.renew([{ id, token: 'token ' }], 60_000)).toEqual([false])
  expect(await outbox.renew([{ id, token: 'token' }], 60_000)).toEqual([true])
  const settlement = { kind: 'dead', id, token: 'token', error: 'é', blocks: true } as const
  expect(await outbox.settle([settlement])).toEqual([true])
  ofKind(await operator.act({ kind: 'retry_message', messageId: id }, BY), 'done')
  expect(await column('SELECT COUNT(*) FROM oncekey_record_audit')).toEqual([1])
  expect((await outbox.read(id))?.errors).toMatchObject([{ error: 'é' }])
})
