/** Rows that nodes of older versions write or change, and tables that they have made. */
import type { DatabaseSync } from 'node:sqlite'
import { expect, it } from 'vitest'
import type { Store } from '../../../src/core/store/store.ts'
import { migrate, MIGRATIONS } from '../../../src/stores/sqlite/migrations.ts'
import { forTable } from '../../../src/stores/sqlite/sql.ts'
import {
  claim,
  claimRequest,
  completeOf,
  finish,
  hold,
  LEASE_MS,
  ofKind,
  releaseOf,
  RETENTION_MS,
  settle,
  viewOf,
} from '../../../src/testing/store-cases/store-case.ts'
import { setup, setupFile } from './setup.ts'

const SEED = '0123456789abcdef0123456789abcdef'
const REFUSE_MS = 5000
const refuse = { afterExpiry: 'refuse', refuseForMs: REFUSE_MS } as const
const { identity } = claimRequest()

/** The columns that all versions know: those of the first migration. */
const OLD_COLUMNS = `
  identity, record_id, tenant, operation, key, fingerprint, state, attempt, lapses, token,
  lease_until_ms, on_lapse, after_expiry, proof, recovery_point, error_code, reconcile_at_ms, tries,
  created_at_ms, last_run_at_ms, completed_at_ms, expires_at_ms`

const OLD_HISTORY_COLUMNS = `${OLD_COLUMNS.replace(' state,', '').replace(' token,', '')}, result`

interface OldRecord {
  readonly key: string
  readonly recordId: string
  readonly state: string
  readonly token: string
  readonly expiresAtMs: number
  readonly afterExpiry?: 'new' | 'refuse'
}

/** Inserts a record with its first attempt, as an older node does. */
function insertOld(db: DatabaseSync, record: OldRecord): void {
  const { key, recordId, state, token, expiresAtMs, afterExpiry = 'new' } = record
  const id = claimRequest({ key }).identity
  const isCompleted = state === 'completed'
  db.prepare(
    `INSERT INTO oncekey_record (${OLD_COLUMNS}, result) VALUES (unhex(?), ?, 'tenant-1',
      'POST /payments', ?, 'fingerprint-1', ?, 1, 0, ?, ?, 'unknown', ?, NULL, NULL, NULL, NULL, 0,
      0, 0, ?, ?, ?)`,
  ).run(
    ...[id, recordId, key, state, token, expiresAtMs, afterExpiry],
    ...[isCompleted ? 0 : null, expiresAtMs, isCompleted ? Buffer.from('old') : null],
  )
}

/** The tables as the version before the fourth migration has left them. */
function createOldTables(db: DatabaseSync): void {
  for (const { sql } of MIGRATIONS.slice(0, 3)) db.exec(forTable('oncekey_record', sql))
  db.exec(`
    CREATE TABLE oncekey_record_migration
      (number INTEGER PRIMARY KEY, applied_at_ms INTEGER NOT NULL) STRICT;
    INSERT INTO oncekey_record_migration VALUES (1, 0), (-2, 0), (-3, 0)`)
}

async function idsOf(store: Store, key: string): Promise<unknown[]> {
  const { idSeed, refuseForMs } = await viewOf(store, claimRequest({ key }))
  return [idSeed, refuseForMs]
}

it('uses the records of a table that an older version has made', async () => {
  const { connect, open, clock } = setupFile()
  const db = connect()
  createOldTables(db)
  const expiresAtMs = clock.nowMs() + RETENTION_MS
  const rows = ['completed', 'in_progress', 'expired'].map((state, n) => {
    const [recordId, token] = [`018f0000-0000-7000-8000-00000000000${n}`, `${n}`.repeat(32)]
    return { key: state, recordId, state, token, expiresAtMs }
  })
  for (const row of rows) insertOld(db, { ...row, afterExpiry: 'refuse' })
  db.exec(`
    INSERT INTO oncekey_record_history (${OLD_HISTORY_COLUMNS})
      SELECT ${OLD_HISTORY_COLUMNS} FROM oncekey_record WHERE state = 'completed';
    INSERT INTO oncekey_record_audit (at_ms, act, subject, who, why, detail)
      VALUES (0, 'bust', 'id', 'ops', 'by an older version', '{}')`)

  const store = open({ history: true })
  for (const { key } of rows) expect(await idsOf(store, key)).toEqual([undefined, undefined])
  const ref = { identity: claimRequest({ key: 'completed' }).identity }
  expect((await store.history!({ ref, limit: 10 })).map(({ idSeed }) => idSeed)).toEqual([
    undefined,
  ])
  const [entry] = await store.durable.operator.audit({ limit: 10 })
  expect([entry?.act, entry?.why]).toEqual(['bust', 'by an older version'])
  ofKind(await claim(store, { key: 'completed' }), 'completed')
  const held = { identity: claimRequest({ key: 'in_progress' }).identity, token: '1'.repeat(32) }
  ofKind(await settle(store, completeOf({ ...held, attempt: 1 })), 'settled')
  // A tombstone of an older version has no time after which it is removed.
  clock.advance(RETENTION_MS)
  expect(await store.reap({ limit: 10 })).toEqual({ removed: 0, expired: 2, abandoned: 0 })
  clock.advance(1000 * RETENTION_MS)
  expect((await store.reap({ limit: 10 })).removed).toBe(0)
  ofKind(await claim(store, { key: 'expired', ...refuse, refuseForMs: undefined }), 'expired')
  expect(ofKind(await claim(store, { key: 'expired', ...refuse }), 'claimed').from).toBe('expired')
})

it('migrates a table of an older version once, and that version starts on it again', () => {
  const { connect } = setupFile()
  const db = connect()
  createOldTables(db)
  for (let n = 0; n < 2; n++) migrate(db, 'oncekey_record', 0)
  const numbers = db.prepare('SELECT number FROM oncekey_record_migration ORDER BY number DESC')
  // The highest number is the migration that a node must know.
  expect(numbers.all().map(({ number }) => number)).toEqual([1, -2, -3, -4])
})

it('gives a retry of the record of an older node no seed, but its time of refusal', async () => {
  const { store, app, clock } = setup()
  const expiresAtMs = clock.nowMs() + RETENTION_MS
  const recordId = '018f0000-0000-7000-8000-000000000000'
  const token = 'f'.repeat(32)
  insertOld(app, { key: 'key-1', recordId, state: 'in_progress', token, expiresAtMs })
  ofKind(await settle(store, releaseOf({ identity, token, attempt: 1 })), 'settled')
  const again = ofKind(await claim(store, { idSeed: SEED, ...refuse }), 'claimed')
  expect([again.recordId, again.idSeed]).toEqual([recordId, undefined])
  ofKind(await settle(store, completeOf(again.lease)), 'settled')
  expect(await idsOf(store, 'key-1')).toEqual([undefined, REFUSE_MS])
  clock.advance(RETENTION_MS)
  expect((await store.reap({ limit: 10 })).expired).toBe(1)
  clock.advance(REFUSE_MS)
  expect((await store.reap({ limit: 10 })).removed).toBe(1)
})

it.each([
  // What older nodes of this store do, and what they could do: they claim the key of an expired
  // record with a new row, not in place.
  ['in a new row', (db: DatabaseSync) => db.exec('DELETE FROM oncekey_record')],
  ['in the same row', () => {}],
])(
  'gives a record that an older node has made %s nothing of the expired one',
  async (_, remove) => {
    const { store, app, clock } = setup({ history: true })
    await finish(store, { idSeed: SEED, ...refuse })
    expect(await idsOf(store, 'key-1')).toEqual([SEED, REFUSE_MS])
    clock.advance(RETENTION_MS)
    remove(app)
    const recordId = '018f0000-0000-7000-8000-000000000009'
    const expiresAtMs = clock.nowMs() + RETENTION_MS
    const { changes } = app
      .prepare(`UPDATE oncekey_record SET record_id = ?, state = 'completed', expires_at_ms = ?`)
      .run(recordId, expiresAtMs)
    const row = { key: 'key-1', recordId, state: 'completed', token: 'e'.repeat(32), expiresAtMs }
    if (changes === 0) insertOld(app, { ...row, afterExpiry: 'refuse' })

    expect(await idsOf(store, 'key-1')).toEqual([undefined, undefined])
    const [listed] = await store.list({ state: 'completed', limit: 1 })
    expect([listed?.idSeed, listed?.refuseForMs]).toEqual([undefined, undefined])
    clock.advance(RETENTION_MS)
    expect((await store.reap({ limit: 10 })).expired).toBe(1)
    const [kept] = await store.history!({ ref: { identity }, limit: 1 })
    expect([kept?.recordId, kept?.idSeed, kept?.refuseForMs]).toEqual([
      recordId,
      undefined,
      undefined,
    ])
    clock.advance(1000 * REFUSE_MS)
    expect((await store.reap({ limit: 10 })).removed).toBe(0)
  },
)

// An older node takes the released record and completes it, with statements that do not know the
// columns.
it('keeps the seed of a record that an older node has run again', async () => {
  const { store, app, clock } = setup()
  const { recordId } = await viewOf(store, await hold(store, { idSeed: SEED, onLapse: 'rerun' }))
  clock.advance(LEASE_MS)
  const token = 'd'.repeat(32)
  app
    .prepare(
      `UPDATE oncekey_record SET attempt = 2, lapses = 1, token = ?, lease_until_ms = ?,
        after_expiry = 'new' WHERE record_id = ?`,
    )
    .run(token, clock.nowMs() + LEASE_MS, recordId)
  expect(await idsOf(store, 'key-1')).toEqual([SEED, undefined])
  ofKind(await settle(store, releaseOf({ identity, token, attempt: 2 })), 'settled')
  const third = ofKind(await claim(store), 'claimed')
  expect([third.lease.attempt, third.recordId, third.idSeed]).toEqual([3, recordId, SEED])
})

// Nodes of older versions reap with a statement that keeps key and fingerprint.
it('keeps a tombstone that an older node has made for ever', async () => {
  const { store, app, clock } = setup()
  await finish(store, { idSeed: SEED, ...refuse })
  clock.advance(RETENTION_MS)
  app.exec(`UPDATE oncekey_record SET state = 'expired', token = '', result = NULL`)
  clock.advance(1000 * REFUSE_MS)
  expect(await store.reap({ limit: 10 })).toEqual({ removed: 0, expired: 0, abandoned: 0 })
  expect((await viewOf(store, { identity })).idSeed).toBe(SEED)
  const again = ofKind(await claim(store, refuse), 'claimed')
  expect([again.from, again.idSeed]).toEqual(['expired', undefined])
})

it.each([
  ['a record id that is no UUID', { recordId: 'record-1', idSeed: SEED }],
  ['a seed with too few characters', { idSeed: 'abc' }],
  ['a seed that is not hexadecimal', { idSeed: 'x'.repeat(32) }],
])('refuses %s, because the seed would count for no record', async (_, request) => {
  const { store } = setup()
  await expect(claim(store, request)).rejects.toMatchObject({ failure: 'rejected' })
  expect(await store.read({ identity })).toBeUndefined()
})
