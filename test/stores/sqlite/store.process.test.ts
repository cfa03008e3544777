import { mkdirSync, writeFileSync } from 'node:fs'
import { expect, it, onTestFinished, vi } from 'vitest'
import { createEngine } from '../../../src/core/engine/engine.ts'
import { sqliteStore } from '../../../src/stores/sqlite/index.ts'
import {
  claim,
  claimRequest,
  claimRequests,
  completeOf,
  finish,
  hold,
  LEASE_MS,
  ofKind,
  RETENTION_MS,
  settle,
  tally,
  viewOf,
} from '../../../src/testing/store-cases/store-case.ts'
import { completion, isPending, setup, setupFile } from './setup.ts'

it('has its records after the file is opened again', async () => {
  const { store, open } = setup()
  const lease = await finish(store)
  const before = await viewOf(store, lease)
  await store.close()

  const reopened = open()
  expect(await viewOf(reopened, lease)).toEqual(before)
  ofKind(await claim(reopened), 'completed')
})

it('opens a file while another connection holds the write lock', async () => {
  const { store, open, app } = setup()
  await finish(store)
  app.exec('BEGIN IMMEDIATE')
  ofKind(await claim(open()), 'completed')
})

it('creates the folder of the file', async () => {
  const { folder, clock, open } = setupFile()
  const store = open({ path: folder.file('a/b/records.db'), clock })
  await hold(store)
})

it('gives each key to one claim when three stores race for the same file', async () => {
  const { store, open } = setup()
  const stores = [store, open(), open()]
  const rounds = Array.from({ length: 30 }, (_, n) => stores[n % 3]!)
  const outcomes = await Promise.all(rounds.map((one) => one.claim(claimRequests(20))))
  expect(tally(outcomes.flat())).toEqual({ claimed: 20, in_progress: 580 })
})

it('counts each lapse once when many stores sweep the same file', async () => {
  const { store, open, clock } = setup()
  await store.claim(claimRequests(40))
  clock.advance(LEASE_MS)
  const stores = [store, open(), open(), open()]
  const swept = (await Promise.all(stores.map((one) => one.sweep({ limit: 25 })))).flat()
  expect(swept.length).toBe(40)
  expect(new Set(swept.map((one) => one.identity)).size).toBe(40)
})

// Another connection takes the write lock, a claim arrives, the lock is released.
it('waits for the write lock of another connection without blocking the event loop', async () => {
  const { store, app } = setup()
  app.exec('BEGIN IMMEDIATE')
  const claimed = claim(store)
  expect(await isPending(claimed)).toBe(true)
  app.exec('COMMIT')
  ofKind(await claimed, 'claimed')
})

it('answers calls that need no write while another connection holds the write lock', async () => {
  const { store, app } = setup()
  await finish(store, { key: 'done' })
  await hold(store, { key: 'held' })
  app.exec('BEGIN IMMEDIATE')
  ofKind(await claim(store, { key: 'done' }), 'completed')
  ofKind(await claim(store, { key: 'held' }), 'in_progress')
  ofKind(await claim(store, { key: 'held', fingerprint: 'other' }), 'mismatch')
  ofKind(await claim(store, { key: 'none', mode: 'find' }), 'free')
  const found = await store.claim(claimRequests(3, { mode: 'find' }))
  expect(tally(found)).toEqual({ free: 3 })
  expect(await store.sweep({ limit: 10 })).toEqual([])
  expect(await store.reap({ limit: 10 })).toEqual({ removed: 0, expired: 0, abandoned: 0 })
})

it('decides by the time after its wait for the write lock', async () => {
  const { store, app, clock } = setup()
  app.exec('BEGIN IMMEDIATE')
  const claimed = claim(store)
  expect(await isPending(claimed)).toBe(true)
  clock.advance(1000)
  app.exec('COMMIT')
  const { expiresAt } = ofKind(await claimed, 'claimed')
  expect(expiresAt).toEqual(new Date(clock.nowMs() + RETENTION_MS))
})

it('fails after 5 s if another connection does not release the write lock', async () => {
  const { store, app } = setup()
  app.exec('BEGIN IMMEDIATE')
  vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout', 'performance'] })
  try {
    const failed = claim(store).catch((thrown: unknown) => thrown)
    await vi.advanceTimersByTimeAsync(5100)
    expect(await failed).toMatchObject({
      code: 'STORE_FAILED',
      operation: 'claim',
      failure: 'unavailable',
    })
  } finally {
    vi.useRealTimers()
  }
  app.exec('ROLLBACK')
  ofKind(await claim(store), 'claimed')
})

it('refuses calls beyond the limit of its queue, and runs those within', async () => {
  const { store } = setup({ synchronous: 'normal' })
  const calls = await Promise.allSettled(Array.from({ length: 10_001 }, () => store.renew([])))
  const refused = calls.filter((call) => call.status === 'rejected')
  expect(refused.map((call) => call.reason.failure)).toEqual(['overloaded'])
})

it('writes no row of a batch in which one row cannot be stored', async () => {
  const { store } = setup()
  const [good, , better] = claimRequests(3)
  const bad = claimRequest({ key: 'secret-key', leaseMs: NaN })
  const error = await store.claim([good!, bad, better!]).catch((thrown: unknown) => thrown)
  expect(error).toMatchObject({ code: 'STORE_FAILED', failure: 'rejected' })
  expect(String(error)).not.toContain('secret-key')
  expect(await store.read({ identity: good!.identity })).toBeUndefined()

  expect(tally([...(await store.claim([good!])), ...(await store.claim([better!]))])).toEqual({
    claimed: 2,
  })
  await expect(store.claim([bad])).rejects.toMatchObject({ failure: 'rejected' })
})

it('rejects a batch with a settlement that cannot be stored, and settles none of it', async () => {
  const { store } = setup()
  const [first, second] = [await hold(store, { key: 'a' }), await hold(store, { key: 'b' })]
  const batch = [completeOf(first), completeOf(second, {} as never)]
  await expect(store.settle(batch)).rejects.toMatchObject({ failure: 'rejected' })
  expect((await viewOf(store, first)).state).toBe('in_progress')
  ofKind(await settle(store, completeOf(first)), 'settled')
})

// Only another program can write a number that JavaScript cannot hold.
it('a record that cannot be read fails alone, and the engine runs other keys', async () => {
  const { store, app } = setup()
  const [bad, good] = [await hold(store, { key: 'bad' }), await hold(store, { key: 'good' })]
  app
    .prepare('UPDATE oncekey_record SET expires_at_ms = ? WHERE identity = ?')
    .run(2n ** 53n, Buffer.from(bad.identity, 'hex'))
  const rejected = { code: 'STORE_FAILED', failure: 'rejected' }
  const batch = [claimRequest({ key: 'new' }), claimRequest({ key: 'bad' })]
  await expect(store.claim(batch)).rejects.toMatchObject(rejected)
  await expect(store.settle([completeOf(good), completeOf(bad)])).rejects.toMatchObject(rejected)
  const renewals = [good, bad].map((lease) => ({ ...lease, leaseMs: LEASE_MS }))
  await expect(store.renew(renewals)).rejects.toMatchObject(rejected)
  expect((await viewOf(store, good)).state).toBe('in_progress')

  const engine = createEngine({ store })
  onTestFinished(async () => void (await engine.close()))
  const run = (key: string) =>
    engine.run(
      { scope: { tenant: 'tenant-1', operation: 'POST /payments' }, key, fingerprint: 'f' },
      () => new Uint8Array(),
    )
  const runs = await Promise.allSettled(['new', 'bad', 'newer'].map(run))
  expect(runs.map((one) => one.status)).toEqual(['fulfilled', 'rejected', 'fulfilled'])
})

it('sets foreign keys of a record to NULL when it is reaped or replaced', async () => {
  const { store, app, clock } = setup()
  app.exec(`CREATE TABLE invoice (record_id TEXT
    REFERENCES oncekey_record (record_id) ON DELETE SET NULL)`)
  for (const key of ['reaped', 'replaced']) {
    const lease = await hold(store, { key })
    const { recordId } = await viewOf(store, lease)
    await store.transaction(lease, (tx) => {
      tx.prepare('INSERT INTO invoice VALUES (?)').run(recordId)
      return completion()
    })
  }
  const references = () =>
    app.prepare('SELECT count(record_id) AS count FROM invoice').get()?.['count']
  expect(references()).toBe(2)
  clock.advance(RETENTION_MS)
  expect(ofKind(await claim(store, { key: 'replaced' }), 'claimed').from).toBe('expired')
  expect(references()).toBe(1)
  await store.reap({ limit: 10 })
  expect(references()).toBe(0)
})

it('close waits for the running calls, and later calls are refused', async () => {
  const { store } = setup()
  const claimed = Promise.all(claimRequests(5).map((request) => store.claim([request])))
  const lease = await hold(store, { key: 'held' })
  const settled = settle(store, completeOf(lease))
  const closed = store.close()
  expect(tally((await claimed).flat())).toEqual({ claimed: 5 })
  ofKind(await settled, 'settled')
  await closed
  await store.close()
  const late = [
    store.claim([claimRequest()]),
    store.settle([completeOf(lease)]),
    store.read({ identity: lease.identity }),
    store.transaction(lease, () => completion()),
  ]
  for (const call of late) {
    await expect(call).rejects.toMatchObject({ code: 'STORE_FAILED', failure: 'unavailable' })
  }
})

it('does not change user_version or the tables of the application', () => {
  const { connect, open } = setupFile()
  const db = connect()
  db.exec('PRAGMA user_version = 7; CREATE TABLE mine (id INTEGER)')
  open()
  open({ table: 'second' })
  const names = db.prepare(`SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name`)
  expect(names.all().map((row) => row['name'])).toEqual([
    'mine',
    'oncekey_record',
    'oncekey_record_audit',
    'oncekey_record_discarded',
    'oncekey_record_history',
    'oncekey_record_message',
    'oncekey_record_migration',
    'oncekey_record_operation',
    'oncekey_record_phase',
    'second',
    'second_audit',
    'second_discarded',
    'second_history',
    'second_message',
    'second_migration',
    'second_operation',
    'second_phase',
  ])
  expect(db.prepare('PRAGMA user_version').get()).toEqual({ user_version: 7 })
})

it('refuses a file with migrations that this version does not know', () => {
  const { app, open } = setup()
  app.exec('INSERT INTO oncekey_record_migration VALUES (99, 0)')
  expect(() => open()).toThrow(/needs one that knows migration 99\. This version knows \d+/)
})

it.each([
  [{ path: ':memory:' }, /":memory:" is a database that only one connection can see.*memoryStore/],
  [{ path: '' }, /path must name a file, got ""/],
  [{}, /path must name a file, got undefined/],
  [{ path: 'file:records.db' }, /plain file path, not a URI/],
  [{ path: 'x.db', tabel: 'x' }, /no option "tabel"/],
  [{ path: 'x.db', table: 'x"; DROP TABLE y' }, /table must be a name/],
  [{ path: 'x.db', table: 'sqlite_x' }, /table must be a name/],
  [{ path: 'x.db', table: '' }, /table must be a name/],
  [{ path: 'x.db', synchronous: 'off' }, /synchronous must be 'full' or 'normal', got "off"/],
  [{ path: 'x.db', history: 1 }, /history must be/],
  [{ path: 'x.db', transactionTimeoutMs: 0 }, /transactionTimeoutMs must be a whole number/],
])('throws INVALID_OPTIONS for the options %j', (options, message) => {
  expect(() => sqliteStore(options as never)).toThrow(message)
  expect(() => sqliteStore(options as never)).toThrow(
    expect.objectContaining({ code: 'INVALID_OPTIONS' }),
  )
})

it('names the path if it is not a database or not a file', () => {
  const { folder, path, open } = setupFile()
  writeFileSync(path, 'Dear diary, '.repeat(100))
  expect(() => open()).toThrow(/path ".*records\.db" cannot be used: file is not a database/)
  mkdirSync(folder.file('folder'))
  expect(() => open({ path: folder.file('folder') })).toThrow(/cannot be used: unable to open/)
  expect(() => open({ path: `${path}/inside.db` })).toThrow(/cannot be used: E/)
})

it('names the Node version it needs if node:sqlite is missing', () => {
  const { path } = setupFile()
  const spy = vi.spyOn(process, 'getBuiltinModule').mockReturnValue(undefined)
  try {
    expect(() => sqliteStore({ path })).toThrow(
      `oncekey/sqlite needs Node 22.13 or newer, this is Node ${process.versions.node}`,
    )
  } finally {
    spy.mockRestore()
  }
})
