import { describe, expect, it } from 'vitest'
import { migrationSql, postgresStore } from '../../../../src/stores/postgres/index.ts'
import { BY } from '../../../../src/testing/durable-cases/durable-case.ts'
import { FakeClock } from '../../../../src/testing/fake-clock.ts'
import {
  bytes,
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
} from '../../../../src/testing/store-cases/store-case.ts'
import { usePostgres } from '../setup.ts'

const setupServer = usePostgres()

const SEED = '0123456789abcdef0123456789abcdef'
const REFUSE_MS = 5_000
const refuse = { afterExpiry: 'refuse', refuseForMs: REFUSE_MS } as const

/** The name of the functions that claim, by the migration of the older node. */
const CLAIMS = { 1: 'claim_one', 2: 'claim_one_2' } as const

/** A store, and the calls that a node of an older version makes on its tables. */
async function setup() {
  const fixture = await setupServer()
  const { app, column } = fixture
  const clock = new FakeClock()

  /** The parameters of a call of an older node: a claim has no seed and no time of refusal. */
  const oldClaim = async (version: 1 | 2, overrides: Parameters<typeof claimRequest>[0] = {}) => {
    const one = claimRequest({ mode: 'hold', ...overrides })
    const [answer] = await column(
      `SELECT oncekey_record_${CLAIMS[version]}($1, true, $2, decode($3, 'hex'), $4, $5, $6, $7,
        $8, $9, $10, $11, $12, $13, $14)`,
      [
        ...[clock.nowMs(), one.mode, one.identity, one.recordId, one.tenant, one.operation],
        ...[one.key, one.fingerprint, one.token, one.leaseMs, one.retentionMs, one.onLapse],
        ...[one.maxLapses, one.afterExpiry],
      ],
    )
    const [how] = JSON.parse(String(answer)) as [string]
    return { how, ...one, lease: { identity: one.identity, token: one.token, attempt: 1 } }
  }
  const oldReap = async () => {
    const sql = 'SELECT * FROM oncekey_record_reap($1, 100, true, NULL, NULL)'
    return (await app.query({ text: sql, values: [clock.nowMs()], rowMode: 'array' })).rows[0]
  }
  return { ...fixture, clock, oldClaim, oldReap }
}

/** Tables in use of the version before migration 4. */
async function setupOldTables() {
  const fixture = await setup()
  const script = migrationSql()
  const end = 'VALUES (-3);'
  await fixture.app.query(`${script.slice(0, script.indexOf(end) + end.length)} COMMIT`)
  return fixture
}

it('migrates tables with records, tombstones and a history of the previous version', async () => {
  const { oldClaim, oldReap, clock, connect, column } = await setupOldTables()
  const complete = `SELECT oncekey_record_settle_one($1, decode($2, 'hex'), $3, 1, 'complete',
    '\\x6f6c64', NULL, NULL, $4, NULL, 0)`
  const finished = async (key: string, afterExpiry: 'new' | 'refuse', retentionMs: number) => {
    const { identity, token } = await oldClaim(2, { key, afterExpiry, retentionMs })
    await column(complete, [clock.nowMs(), identity, token, retentionMs])
    return identity
  }
  const gone = await finished('gone', 'new', 1)
  const tombstone = await finished('tombstone', 'refuse', 1)
  clock.advance(1)
  expect(await oldReap()).toEqual([1, 1, 0])
  const completed = await finished('completed', 'new', RETENTION_MS)
  const held = await oldClaim(2, { key: 'held', onLapse: 'rerun' })

  const store = postgresStore({ pool: connect(), clock, history: true })
  await store.migrate()
  expect(await column('SELECT min(number) FROM oncekey_record_migration')).toEqual([-4])
  for (const identity of [tombstone, completed, held.identity]) {
    const { idSeed, refuseForMs } = await viewOf(store, { identity })
    expect([idSeed, refuseForMs]).toEqual([undefined, undefined])
  }
  const [kept] = await store.history!({ ref: { identity: gone }, limit: 1 })
  expect([kept?.idSeed, kept?.refuseForMs]).toEqual([undefined, undefined])

  const replay = ofKind(await claim(store, { key: 'completed', idSeed: SEED }), 'completed')
  expect(Buffer.from(replay.result).toString()).toBe('old')
  ofKind(await claim(store, { key: 'tombstone', afterExpiry: 'refuse' }), 'expired')
  ofKind(await settle(store, releaseOf(held.lease)), 'settled')
  const retry = ofKind(await claim(store, { key: 'held', idSeed: SEED }), 'claimed')
  // The first attempt has derived its ids from the record id, so the second does, too.
  expect([retry.from, retry.idSeed]).toEqual(['retry', undefined])
  const { recordId } = await viewOf(store, { identity: completed })
  const discard = { kind: 'discard_reply', ref: { recordId }, attempt: 1 } as const
  ofKind(await store.durable.operator.act({ ...discard, despiteEffects: false }, BY), 'done')
})

describe.each([1, 2] as const)('beside a node of migration %s', (version) => {
  it('gives no seed to a record with which that node has replaced an expired one', async () => {
    const { open, clock, oldClaim } = await setup()
    const store = await open({ clock, history: true })
    const { identity } = await finish(store, { ...refuse, idSeed: SEED })
    const before = await viewOf(store, { identity })
    expect([before.idSeed, before.refuseForMs]).toEqual([SEED, REFUSE_MS])
    clock.advance(RETENTION_MS)
    const replaced = await oldClaim(version, { onLapse: 'rerun' })
    expect(replaced.how).toBe('expired')
    const after = await viewOf(store, { identity })
    expect(after.recordId).not.toBe(before.recordId)
    expect([after.idSeed, after.refuseForMs]).toEqual([undefined, undefined])
    clock.advance(LEASE_MS)
    const lapsed = ofKind(await claim(store, { idSeed: 'f'.repeat(32) }), 'claimed')
    expect([lapsed.recordId, lapsed.idSeed]).toEqual([after.recordId, undefined])
  })

  it('keeps the seed of a record that this node takes over', async () => {
    const { open, clock, oldClaim } = await setup()
    const store = await open({ clock })
    ofKind(await settle(store, releaseOf(await hold(store, { idSeed: SEED }))), 'settled')
    expect((await oldClaim(version)).how).toBe('retry')
    expect(await viewOf(store, claimRequest())).toMatchObject({ attempt: 2, idSeed: SEED })
  })

  it('keeps a tombstone of a record of that node for ever, and refuses its key', async () => {
    const { open, clock, oldClaim } = await setup()
    const store = await open({ clock })
    const { lease } = await oldClaim(version, { afterExpiry: 'refuse' })
    ofKind(await settle(store, completeOf(lease)), 'settled')
    clock.advance(RETENTION_MS)
    expect(await store.reap({ limit: 10 })).toMatchObject({ expired: 1 })
    expect((await viewOf(store, lease)).reconcileAt).toBeUndefined()
    clock.advance(1_000 * RETENTION_MS)
    expect(await store.reap({ limit: 10 })).toMatchObject({ removed: 0 })
    ofKind(await claim(store, { afterExpiry: 'refuse' }), 'expired')
    // The policy of the request decides, not that of the record.
    expect(ofKind(await claim(store, refuse), 'claimed').from).toBe('expired')
  })

  it('lets that node refuse and replace a tombstone', async () => {
    const { open, clock, oldClaim, oldReap } = await setup()
    const store = await open({ clock })
    await finish(store, { ...refuse, idSeed: SEED })
    clock.advance(RETENTION_MS)
    expect(await store.reap({ limit: 10 })).toMatchObject({ expired: 1 })
    expect((await oldClaim(version, { afterExpiry: 'refuse' })).how).toBe('found_expired')
    clock.advance(REFUSE_MS)
    // That node does not know that the tombstone is over.
    expect(await oldReap()).toEqual([0, 0, 0])
    expect((await oldClaim(version)).how).toBe('expired')
    const { state, fingerprint, reconcileAt } = await viewOf(store, claimRequest())
    expect([state, fingerprint, reconcileAt]).toEqual(['in_progress', 'fingerprint-1', undefined])
  })
})

it('lists the act of an older node that has removed a completed record', async () => {
  const { open, app } = await setup()
  const store = await open()
  const { identity } = await finish(store, {}, bytes('reply'))
  const { recordId: subject } = await viewOf(store, { identity })
  const entry = { atMs: 0, act: 'bust', subject, ...BY, detail: '{"from":"completed"}' }
  await app.query(
    `SELECT * FROM oncekey_record_act_write(false, decode($1, 'hex'), '{"remove":true}', NULL, $2)`,
    [identity, JSON.stringify(entry)],
  )
  expect(await store.read({ identity })).toBeUndefined()
  expect(await store.durable.operator.audit({ subject, limit: 10 })).toEqual([
    { at: new Date(0), act: 'bust', subject, ...BY, detail: '{"from":"completed"}' },
  ])
})
