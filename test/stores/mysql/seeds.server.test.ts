// What an older node leaves in the columns that it does not know, and look-ups of keys.
import type { Pool } from 'mysql2/promise'
import { expect, it } from 'vitest'
import { newRecordId } from '../../../src/core/record/identity.ts'
import { migrationSql, mysqlStore } from '../../../src/stores/mysql/index.ts'
import { BY, OPERATION } from '../../../src/testing/durable-cases/durable-case.ts'
import { FakeClock } from '../../../src/testing/fake-clock.ts'
import {
  claim,
  claimRequest,
  claimRequests,
  finish,
  hold,
  ofKind,
  releaseOf,
  RETENTION_MS,
  settle,
  tally,
  viewOf,
} from '../../../src/testing/store-cases/store-case.ts'
import { likeMysqlPool } from './durable/setup.ts'
import { telling, useMariadb } from './setup.ts'
import { fillRecords } from './turns/turn-fill.ts'

const setup = useMariadb()

const [SEED, OTHER] = ['0123456789abcdef0123456789abcdef', 'f'.repeat(32)]
const REFUSE_MS = 5000
const refuse = { afterExpiry: 'refuse', refuseForMs: REFUSE_MS } as const

/** Gives the only record another id, and leaves every column that is new in migration 4. */
async function replaceAsAnOlderNode(
  app: Pool,
  { nowMs, state }: { readonly nowMs: number; readonly state: 'failed_retryable' | 'completed' },
): Promise<string> {
  const recordId = newRecordId(0)
  const expiresAtMs = nowMs + RETENTION_MS
  await app.query(
    `UPDATE oncekey_record SET record_id = ?, state = ?, attempt = 1, token = 'older',
      after_expiry = 'refuse', expires_at_ms = ?, due_at_ms = ?`,
    [recordId, state, expiresAtMs, expiresAtMs],
  )
  return recordId
}

it('gives a record of an older node no id seed and no refusal of an earlier record', async () => {
  const { open, app, column } = await setup()
  const clock = new FakeClock()
  const store = await open({ clock })
  const { identity } = await finish(store, { ...refuse, idSeed: SEED })
  expect(await viewOf(store, { identity })).toMatchObject({
    idSeed: SEED,
    refuseForMs: REFUSE_MS,
  })
  clock.advance(RETENTION_MS)
  const older = { nowMs: clock.nowMs(), state: 'failed_retryable' } as const
  const recordId = await replaceAsAnOlderNode(app, older)
  expect(await column('SELECT refuse_for_ms FROM oncekey_record')).toEqual([REFUSE_MS])
  const absent = { recordId, idSeed: undefined, refuseForMs: undefined }
  expect(await viewOf(store, { identity })).toMatchObject(absent)
  const retry = ofKind(await claim(store, { idSeed: OTHER, afterExpiry: 'refuse' }), 'claimed')
  expect(retry).toMatchObject({ recordId, from: 'retry', idSeed: undefined })
  expect(await viewOf(store, { identity })).toMatchObject(absent)

  // A refusal that a later claim asks for is valid, and does not bring the seed back.
  ofKind(await settle(store, releaseOf(retry.lease)), 'settled')
  ofKind(await claim(store, { ...refuse, refuseForMs: 7 }), 'claimed')
  expect(await viewOf(store, { identity })).toMatchObject({ ...absent, refuseForMs: 7 })
})

// The seed makes the column valid again, in which the refusal of the earlier record still is.
it('does not bring back the refusal of an earlier record with the seed of a discard', async () => {
  const { open, app, column } = await setup()
  const clock = new FakeClock()
  const store = await open({ clock })
  const { identity } = await finish(store, { ...refuse, idSeed: SEED })
  const older = { nowMs: clock.nowMs(), state: 'completed' } as const
  const recordId = await replaceAsAnOlderNode(app, older)
  const act = {
    kind: 'discard_reply',
    ref: { recordId },
    attempt: 1,
    idSeed: OTHER,
    despiteEffects: false,
  } as const
  ofKind(await store.durable.operator.act(act, BY), 'done')
  const expected = { recordId, idSeed: OTHER, refuseForMs: undefined }
  expect(await viewOf(store, { identity })).toMatchObject(expected)
  expect(await column('SELECT refuse_for_ms FROM oncekey_record')).toEqual([null])
  expect(ofKind(await claim(store), 'claimed').idSeed).toBe(OTHER)
})

it('keeps the id seed while an older node settles and claims the same record', async () => {
  const { open, app } = await setup()
  const store = await open({ clock: new FakeClock() })
  const lease = await hold(store, { ...refuse, idSeed: SEED })
  await app.query(`UPDATE oncekey_record SET state = 'failed_retryable', proof = 'proven'`)
  await app.query(`UPDATE oncekey_record SET state = 'in_progress', attempt = 2, proof = NULL,
    token = 'older', after_expiry = 'new'`)
  await app.query(`UPDATE oncekey_record SET state = 'failed_retryable', proof = 'proven'`)
  expect(ofKind(await claim(store, { idSeed: OTHER }), 'claimed').idSeed).toBe(SEED)
  expect(await viewOf(store, lease)).toMatchObject({ afterExpiry: 'new', refuseForMs: undefined })
})

it('keeps the seed and the refusal of every record of the history, also without any', async () => {
  const { open, app } = await setup()
  const clock = new FakeClock()
  const store = await open({ clock, history: true })
  const { identity } = await finish(store, { ...refuse, idSeed: SEED })
  clock.advance(RETENTION_MS)
  expect((await store.reap({ limit: 10 })).expired).toBe(1)
  // An older node copies the columns that it knows.
  await app.query(`INSERT INTO oncekey_record_history (identity, record_id, attempt, lapses,
      lease_until_ms, created_at_ms, last_run_at_ms, expires_at_ms, on_lapse, after_expiry,
      fingerprint, tenant, operation, \`key\`)
    SELECT identity, UUID(), attempt, lapses, lease_until_ms, created_at_ms, last_run_at_ms,
      expires_at_ms, on_lapse, after_expiry, fingerprint, tenant, operation, \`key\`
    FROM oncekey_record_history`)
  const entries = await store.history!({ ref: { identity }, limit: 10 })
  expect(entries.map(({ idSeed, refuseForMs, key }) => [idSeed, refuseForMs, key])).toEqual([
    [undefined, undefined, 'key-1'],
    [SEED, REFUSE_MS, 'key-1'],
  ])
  expect(entries[1]).toMatchObject({ fingerprint: 'fingerprint-1', state: 'expired' })
})

/** The script up to this migration, as a node of that version has run it. */
function scriptUpTo(number: number): string {
  const end = `VALUES (${number === 1 ? 1 : -number});`
  const script = migrationSql()
  return script.slice(0, script.indexOf(end) + end.length)
}

/** Rows as a node with three migrations writes them: one of each kind. */
const ROWS_OF_VERSION_3 = `
  INSERT INTO oncekey_record (identity, record_id, tenant, operation, \`key\`, fingerprint, state,
    attempt, lapses, token, lease_until_ms, lease_ms, lease_from_ms, on_lapse, after_expiry, proof,
    error_code, reconcile_at_ms, tries, created_at_ms, last_run_at_ms, completed_at_ms,
    expires_at_ms, due_at_ms, result)
  VALUES
    (?, UUID(), 't', 'o', 'done', 'f', 'completed', 1, 0, 'token', 1000, 1000, 0, 'unknown',
      'refuse', NULL, NULL, NULL, 0, 0, 0, 1, 60000, 60000, 'reply'),
    (?, UUID(), 't', 'o', 'failed', 'f', 'failed_retryable', 1, 0, 'token', 1000, 1000, 0,
      'unknown', 'new', 'proven', 'no', NULL, 0, 0, 0, NULL, 60000, 60000, NULL),
    (?, UUID(), 't', 'o', 'doubt', 'f', 'unknown', 1, 0, 'token', 1000, 1000, 0, 'unknown', 'new',
      NULL, 'no', 5, 0, 0, 0, NULL, 60000, 5, NULL),
    (?, UUID(), 't', 'o', 'refused', 'f', 'expired', 1, 0, '', 1000, 1000, 0, 'unknown', 'refuse',
      NULL, NULL, NULL, 0, 0, 0, 1, 2, 0, NULL)`

const scope = { tenant: 't', operation: 'o', fingerprint: 'f' }
const named = (key: string) => claimRequest({ ...scope, key })

async function setupVersion3() {
  const { app, connect, column } = await setup()
  await connect({ multipleStatements: true }).query(scriptUpTo(3))
  const identities = ['done', 'failed', 'doubt', 'refused'].map((key) =>
    Buffer.from(named(key).identity, 'hex'),
  )
  await app.query(ROWS_OF_VERSION_3, identities)
  await fillRecords(app, { rows: 500, tenant: `'t'`, atMs: '10' })
  return { app, connect, column }
}

it('migrates a table with rows of the previous version, which keep their meaning', async () => {
  const { connect, column } = await setupVersion3()
  const clock = new FakeClock(100)
  const store = mysqlStore({ pool: connect(), clock })
  await store.migrate()
  const script = await column('SELECT MIN(number) FROM oncekey_record_migration')
  expect(script).toEqual([-4])
  ofKind(await claim(store, named('done')), 'completed')
  const again = ofKind(await claim(store, { ...named('failed'), idSeed: OTHER }), 'claimed')
  expect([again.from, again.idSeed]).toEqual(['retry', undefined])
  ofKind(await claim(store, { ...named('refused'), afterExpiry: 'refuse' }), 'expired')
  const query = { operations: [OPERATION], limit: 9 }
  expect((await store.durable.phases.due(query)).length).toBe(9)
  expect((await store.durable.operator.takeUnknown({ limit: 9, againMs: 5 })).length).toBe(1)
  clock.advance(60_000)
  // The record of the previous version that refuses its key has no time, and stays.
  expect(await store.reap({ limit: 9 })).toEqual({ removed: 0, expired: 1, abandoned: 0 })
  clock.advance(1000 * RETENTION_MS)
  expect(await store.reap({ limit: 9 })).toMatchObject({ removed: 0, expired: 0 })
  expect((await viewOf(store, named('refused'))).key).toBe('refused')
  expect((await viewOf(store, named('done'))).key).toBe('')
})

/** Claims of a node with three migrations, and its search for due operations. */
const CLAIM_OF_VERSION_3 = `INSERT INTO oncekey_record (
  identity, record_id, tenant, operation, \`key\`, fingerprint, state, attempt, lapses, token,
  lease_until_ms, lease_ms, lease_from_ms, on_lapse, after_expiry, tries, created_at_ms,
  last_run_at_ms, expires_at_ms, due_at_ms)
  VALUES (UNHEX(MD5(UUID())), UUID(), 't', 'o', 'k', 'f', 'in_progress', 1, 0, 'token', 1000, 1000,
    0, 'unknown', 'new', 0, 0, 0, 2000, 1000)`
const DUE_OF_VERSION_3 = `SELECT r.turn_of, r.turn_tenant FROM oncekey_record AS r
  FORCE INDEX (due) WHERE r.state = 'failed_retryable' AND r.to_run > 0 LIMIT 9`

// The process crashes between the end of the old index and the new one.
it.each([
  ['by IF EXISTS', (pool: Pool) => pool],
  ['by the errors of a server without it', likeMysqlPool],
])('serves older nodes during its change, and continues it after a crash, %s', async (_, to) => {
  const { app, connect, column } = await setupVersion3()
  const statements: string[] = []
  const crashing = telling(connect(), async (sql) => {
    if (!sql.startsWith('ALTER')) return
    statements.push(sql)
    await app.query(CLAIM_OF_VERSION_3)
    expect((await app.query<never[]>(DUE_OF_VERSION_3))[0].length).toBe(9)
    if (sql.includes('ADD INDEX')) throw new Error('crashed here')
  })
  await expect(mysqlStore({ pool: crashing }).migrate()).rejects.toThrow('crashed here')
  expect(statements.length).toBe(4)
  const indexes = `SELECT COUNT(*) FROM information_schema.statistics WHERE
    table_schema = DATABASE() AND table_name = 'oncekey_record' AND index_name = 'turn'`
  expect(await column(indexes)).toEqual([0])

  const store = mysqlStore({ pool: to(connect()), clock: new FakeClock(100) })
  await store.migrate()
  expect(await column(indexes)).toEqual([3])
  const query = { operations: [OPERATION], limit: 9 }
  for (let n = 0; n < 3; n++) expect((await store.durable.phases.due(query)).length).toBe(9)
  expect(ofKind(await claim(store, { key: 'new', idSeed: SEED }), 'claimed').idSeed).toBe(SEED)
})

it('looks keys up with one read, and adds nothing to the statements of other claims', async () => {
  const { open, connect } = await setup()
  await open()
  const sent: string[] = []
  const store = mysqlStore({ pool: telling(connect(), (sql) => void sent.push(sql)) })
  const statements = async (requests: Parameters<typeof store.claim>[0]) => {
    sent.length = 0
    return { found: tally(await store.claim(requests)), sent: [...sent] }
  }
  const finds = claimRequests(20, { mode: 'find' })
  const free = await statements(finds)
  expect([free.found, free.sent.length]).toEqual([{ free: 20 }, 1])
  expect(free.sent[0]).toMatch(/^SELECT/)
  expect(free.sent[0]).not.toContain('FOR UPDATE')
  const holds = claimRequests(10, { idSeed: SEED, ...refuse })
  const held = await statements(holds)
  expect([held.found, held.sent.length]).toEqual([{ claimed: 10 }, 2])
  const mixed = await statements([...finds, ...claimRequests(30).slice(20)])
  expect([mixed.found, mixed.sent.length]).toEqual([{ in_progress: 10, free: 10, claimed: 10 }, 2])
})

it('looks up a key whose row another transaction has locked, without waiting', async () => {
  const { open, connect } = await setup()
  const store = await open()
  await finish(store)
  const other = await connect().getConnection()
  await other.beginTransaction()
  await other.query('SELECT * FROM oncekey_record FOR UPDATE')
  ofKind(await claim(store, { mode: 'find' }), 'completed')
  await other.rollback()
  other.release()
})

it('rejects an id seed or a refusal that no column can hold, and writes nothing', async () => {
  const { open } = await setup()
  const store = await open()
  const [good] = claimRequests(1)
  for (const bad of [
    { idSeed: 'zz' },
    { idSeed: SEED.slice(1) },
    { idSeed: SEED + SEED },
    { refuseForMs: Number.NaN },
    { refuseForMs: 2 ** 60 },
  ]) {
    const error = await store.claim([good!, claimRequest(bad)]).catch((thrown: unknown) => thrown)
    expect({ bad, error }).toMatchObject({ bad, error: { failure: 'rejected' } })
    expect(await store.read({ identity: good!.identity })).toBeUndefined()
  }
})
