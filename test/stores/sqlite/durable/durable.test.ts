import { DatabaseSync } from 'node:sqlite'
import { expect, it, onTestFinished } from 'vitest'
import type { HeldMessage } from '../../../../src/core/store/durable-store.ts'
import { isOncekeyError } from '../../../../src/core/errors.ts'
import { newToken } from '../../../../src/core/record/identity.ts'
import type { SqliteStore, SqliteTransaction } from '../../../../src/stores/sqlite/index.ts'
import {
  intentOf,
  messageOf,
  operationOf,
  transactionOf,
} from '../../../../src/testing/durable-cases/durable-case.ts'
import {
  bytes,
  completeOf,
  hold,
  LEASE_MS,
  ofKind,
  settle,
  viewOf,
} from '../../../../src/testing/store-cases/store-case.ts'
import { scratchFolder } from '../../scratch-folder.ts'
import { completion, isPending, setup } from '../setup.ts'

const STEP = { operation: operationOf(), phase: transactionOf() }

function claimMessages(store: SqliteStore, limit = 100) {
  const request = { topics: ['receipts'], limit, leaseMs: LEASE_MS, token: newToken() }
  return store.durable.outbox.claim(request)
}

/** Runs `work` in a transaction on the connection of the application. */
function within(app: DatabaseSync, work: () => void): void {
  app.exec('BEGIN IMMEDIATE')
  work()
  app.exec('COMMIT')
}

function thrownBy(run: () => unknown): unknown {
  try {
    run()
  } catch (error) {
    return error
  }
  return undefined
}

// The application's connection would block the process while it waits for the store's transaction,
// so not even a promise callback may run between BEGIN and COMMIT.
it('runs synchronous work from BEGIN to COMMIT without running other code', async () => {
  const { store, app } = setup()
  const lease = await hold(store)
  const other = await hold(store, { key: 'other' })
  const written: unknown[] = []
  const writeSoon = () => {
    void Promise.resolve().then(() => {
      written.push(thrownBy(() => within(app, () => app.exec('INSERT INTO payment VALUES (1)'))))
    })
  }
  const advanced = await store.durable.phases.advance(lease, () => {
    writeSoon()
    return STEP
  })
  const settled = await store.transaction(other, () => {
    writeSoon()
    return completion()
  })
  expect([advanced.kind, settled.kind]).toEqual(['advanced', 'settled'])
  expect(written).toEqual([undefined, undefined])
})

it('rolls back a step that exceeds transactionTimeoutMs, and revokes its transaction', async () => {
  const { store, clock, amounts } = setup({ transactionTimeoutMs: 1000 })
  const lease = await hold(store)
  const entered = Promise.withResolvers<SqliteTransaction>()
  const advancing = store.durable.phases.advance(lease, (open) => {
    const tx = open as SqliteTransaction
    tx.exec('INSERT INTO payment VALUES (5)')
    void store.durable.outbox.add(tx, messageOf())
    entered.resolve(tx)
    return new Promise<never>(() => {})
  })
  const tx = await entered.promise
  clock.advance(1000)
  await expect(advancing).rejects.toThrow('took longer than 1000 ms')
  expect(() => store.durable.outbox.add(tx, messageOf())).toThrow('the transaction has ended')
  expect([amounts(), await claimMessages(store)]).toEqual([[], []])
  ofKind(await store.durable.phases.record(lease, STEP), 'advanced')
})

it('a message claim waits for an open transaction, and a list does not wait', async () => {
  const { store, app } = setup()
  within(app, () => void store.durable.outbox.add(app, messageOf({ key: 'first' })))
  const lease = await hold(store)
  const entered = Promise.withResolvers<void>()
  const finished = Promise.withResolvers<void>()
  const advancing = store.durable.phases.advance(lease, async (tx) => {
    await store.durable.outbox.add(tx, messageOf({ key: 'second' }))
    entered.resolve()
    await finished.promise
    return STEP
  })
  await entered.promise
  const claiming = claimMessages(store)
  expect(await isPending(claiming)).toBe(true)
  const listed = await store.durable.outbox.list({ state: 'ready', limit: 10 })
  expect(listed.map(({ key }) => key)).toEqual(['first'])
  finished.resolve()
  ofKind(await advancing, 'advanced')
  expect((await claiming).map(({ key }) => key)).toEqual(['first', 'second'])
})

it('outbox.add on a connection of the application writes or throws synchronously', () => {
  const { store, app } = setup()
  const { outbox } = store.durable
  within(app, () => expect(outbox.add(app, messageOf())).toBe(undefined))
  expect(thrownBy(() => outbox.add(app, messageOf()))).toMatchObject({
    code: 'INVALID_OPTIONS',
    message: expect.stringContaining('no transaction is open'),
  })
  app.exec('BEGIN')
  expect(outbox.add(app, messageOf())).toBe(undefined)
  app.exec('ROLLBACK')
  expect(app.prepare('SELECT count(*) AS count FROM oncekey_record_message').get()).toEqual({
    count: 1,
  })
})

it.each([
  ['does not report its transaction', (app: DatabaseSync) => ({ prepare: app.prepare.bind(app) })],
  [
    'reports its transaction like better-sqlite3',
    (app: DatabaseSync) => ({
      prepare: app.prepare.bind(app),
      get inTransaction() {
        return app.isTransaction
      },
    }),
  ],
])('outbox.add takes a client with prepare() that %s', (_, clientOf) => {
  const { store, app } = setup()
  const { outbox } = store.durable
  const client = clientOf(app)
  expect(() => outbox.add(client, messageOf())).toThrow('no transaction is open')
  // The check for a transaction has left none open.
  expect(app.isTransaction).toBe(false)
  within(app, () => void outbox.add(client, messageOf()))
  expect(app.prepare('SELECT state FROM oncekey_record_message').all()).toEqual([
    { state: 'ready' },
  ])
})

it('outbox.add refuses a connection to another file with the same tables', () => {
  const { store } = setup()
  const other = setup()
  const memory = new DatabaseSync(':memory:')
  onTestFinished(() => memory.close())
  for (const app of [other.app, memory]) {
    within(app, () => {
      const error = thrownBy(() => store.durable.outbox.add(app, messageOf()))
      expect(error).toMatchObject({ code: 'INVALID_OPTIONS' })
      expect(String(error)).toContain('they can only commit together in the same file')
    })
  }
  expect(other.app.prepare('SELECT id FROM oncekey_record_message').all()).toEqual([])
})

it('outbox.add takes the transaction of another store on the same file', async () => {
  const { store, open } = setup()
  const second = open()
  const lease = await hold(store)
  const advanced = await store.durable.phases.advance(lease, (tx) => {
    void second.durable.outbox.add(tx, messageOf())
    return STEP
  })
  ofKind(advanced, 'advanced')
  expect((await claimMessages(second)).length).toBe(1)
})

it('outbox.add fails while another connection writes, and the caller can try again', () => {
  const { store, app, connect } = setup()
  const rival = connect()
  rival.exec('BEGIN IMMEDIATE')
  app.exec('BEGIN')
  const error = thrownBy(() => store.durable.outbox.add(app, messageOf()))
  expect(error).toMatchObject({ code: 'STORE_FAILED', failure: 'unavailable' })
  rival.exec('ROLLBACK')
  void store.durable.outbox.add(app, messageOf())
  app.exec('COMMIT')
  expect(app.prepare('SELECT id FROM oncekey_record_message').all().length).toBe(1)
})

it('wakes watchers only when messages were committed', async () => {
  const { store } = setup()
  const { phases, outbox, operator } = store.durable
  let wakes = 0
  const end = outbox.watch!(() => wakes++)
  const wakesAfter = async (run: () => Promise<unknown>) => {
    const before = wakes
    await run().catch(() => {})
    await new Promise((resolve) => setImmediate(resolve))
    return wakes - before
  }
  const lease = await hold(store)
  const dead = messageOf()
  const add = (message = messageOf()) => {
    return phases.advance(lease, (tx) => {
      void outbox.add(tx, message)
      return { operation: operationOf() }
    })
  }
  expect(await wakesAfter(() => phases.advance(lease, () => STEP))).toBe(0)
  const failing = phases.advance(lease, (tx) => {
    void outbox.add(tx, messageOf())
    throw new Error('rolled back')
  })
  expect(await wakesAfter(() => failing)).toBe(0)
  expect(await wakesAfter(() => add(dead))).toBe(1)

  const [held] = await claimMessages(store)
  await outbox.settle([{ ...held!, kind: 'dead', error: 'no', blocks: true }])
  const act = { kind: 'retry_message', messageId: dead.id } as const
  expect(await wakesAfter(() => operator.act(act, { who: 'ops', why: 'fixed' }))).toBe(1)
  end()
  expect(await wakesAfter(() => add())).toBe(0)
})

it('relays the next message of a partition after earlier ones were deleted with SQL', async () => {
  const { store, app } = setup()
  const messages = Array.from({ length: 3 }, (_, n) => messageOf({ partition: 'p', key: `${n}` }))
  within(app, () => {
    for (const message of messages) void store.durable.outbox.add(app, message)
  })
  const remove = app.prepare('DELETE FROM oncekey_record_message WHERE id = ?')
  remove.run(messages[1]!.id)
  remove.run(messages[0]!.id)
  expect((await claimMessages(store)).map(({ key }) => key)).toEqual(['2'])
})

it('prunes many messages in pieces, and fewer in each if their payloads are large', async () => {
  const { store, app, clock } = setup()
  const large = new Uint8Array(3 * 1024 * 1024)
  within(app, () => {
    for (let n = 0; n < 250; n++) void store.durable.outbox.add(app, messageOf())
    for (let n = 0; n < 3; n++) void store.durable.outbox.add(app, messageOf({ payload: large }))
  })
  const held = await claimMessages(store, 1000)
  const done = held.map(({ id, token }) => ({ id, token, kind: 'done', providerId: '' }) as const)
  await store.durable.outbox.settle(done)
  clock.advance(1)
  expect(await store.durable.outbox.prune({ limit: 120, olderThanMs: 0 })).toBe(120)
  expect(await store.durable.outbox.prune({ limit: 1000, olderThanMs: 0 })).toBe(133)
})

it('refuses updates and deletions of the audit', async () => {
  const { store, app } = setup()
  const lease = await hold(store)
  const { recordId } = await viewOf(store, lease)
  const by = { who: 'ops', why: 'test' }
  ofKind(await store.durable.operator.act({ kind: 'release', ref: { recordId } }, by), 'done')
  for (const sql of [
    "UPDATE oncekey_record_audit SET who = 'another'",
    'DELETE FROM oncekey_record_audit',
  ]) {
    expect(() => app.exec(sql)).toThrow('append-only')
  }
  expect((await store.durable.operator.audit({ limit: 10 })).length).toBe(1)
})

it('writes nothing for a phase without an operation', async () => {
  const { store } = setup()
  const lease = await hold(store)
  const before = await viewOf(store, lease)
  const recording = store.durable.phases.record(lease, { phase: intentOf() })
  await expect(recording).rejects.toMatchObject({ code: 'STORE_FAILED', failure: 'rejected' })
  expect(await viewOf(store, lease)).toEqual(before)
})

it('reaping records removes their operations and phases', async () => {
  const { store, app, clock } = setup()
  for (let n = 0; n < 5; n++) {
    const lease = await hold(store, { key: `key-${n}` })
    ofKind(await store.durable.phases.record(lease, STEP), 'advanced')
    ofKind(await settle(store, completeOf(lease)), 'settled')
  }
  clock.advance(1_000_000)
  expect((await store.reap({ limit: 100 })).removed).toBe(5)
  for (const table of ['oncekey_record', 'oncekey_record_operation', 'oncekey_record_phase']) {
    expect(app.prepare(`SELECT count(*) AS count FROM ${table}`).get()).toEqual({ count: 0 })
  }
})

it('refuses every durable call after close', async () => {
  const { store, app } = setup()
  const lease = await hold(store)
  await store.close()
  const { phases, outbox, operator } = store.durable
  const query = { operations: [], limit: 1 }
  const by = { who: 'ops', why: 'test' }
  const { id } = messageOf()
  const calls = {
    advance: () => phases.advance(lease, () => STEP),
    record: () => phases.record(lease, STEP),
    load: () => phases.load('id'),
    due: () => phases.due(query),
    orphans: () => phases.orphans(query),
    add: async () => outbox.add(app, messageOf()),
    claim: () => claimMessages(store),
    settle: () => outbox.settle([]),
    renew: () => outbox.renew([], 1),
    read: () => outbox.read(id),
    list: () => outbox.list({ state: 'ready', limit: 1 }),
    prune: () => outbox.prune({ limit: 1, olderThanMs: 0 }),
    takeUnknown: () => operator.takeUnknown({ limit: 1, againMs: 1 }),
    postpone: () => operator.postpone({ recordId: 'id', attempt: 1, inMs: 1 }),
    act: () => operator.act({ kind: 'retry_message', messageId: id }, by),
    discarded: () => operator.discarded({ recordId: 'id', limit: 1 }),
    audit: () => operator.audit({ limit: 1 }),
  }
  for (const [name, call] of Object.entries(calls)) {
    const error = await call().catch((thrown: unknown) => thrown)
    const isClosed = isOncekeyError(error) && error.message.includes('the store is closed')
    expect({ name, isClosed }).toEqual({ name, isClosed: true })
  }
})

it('outbox.add takes a connection that opened the file through a symbolic link', async () => {
  const { symlinkSync } = await import('node:fs')
  const { store, path } = setup()
  const folder = scratchFolder()
  onTestFinished(folder.remove)
  const link = folder.file('link.db')
  symlinkSync(path, link)
  const app = new DatabaseSync(link)
  onTestFinished(() => app.close())
  within(app, () => void store.durable.outbox.add(app, messageOf({ payload: bytes('linked') })))
  expect((await claimMessages(store)).length).toBe(1)
})

it('applies several settlements of one message in their order', async () => {
  const { store, app } = setup()
  const { outbox } = store.durable
  within(app, () => void outbox.add(app, messageOf()))
  const [{ id, token }] = (await claimMessages(store)) as [HeldMessage]
  const settlements = [
    { id, token, kind: 'retry', error: 'not now', delayMs: 0 },
    { id, token, kind: 'done', providerId: undefined },
    { id, token, kind: 'return' },
  ] as const
  expect(await outbox.settle(settlements)).toEqual([true, false, true])
  expect((await outbox.read(id))?.state).toBe('ready')
})
