import { expect, it } from 'vitest'
import type { ClaimRequest, Store } from '../../../src/core/store/store.ts'
import { operationOf, transactionOf } from '../../../src/testing/durable-cases/durable-case.ts'
import {
  bytes,
  claimRequests,
  completeOf,
  finish,
  hold,
  ofKind,
  releaseOf,
  RETENTION_MS,
  settle,
  viewOf,
} from '../../../src/testing/store-cases/store-case.ts'
import { setup } from './setup.ts'

const REFUSE_MS = 5000
const refuse = { afterExpiry: 'refuse', refuseForMs: REFUSE_MS } as const
const NOTHING = { removed: 0, expired: 0, abandoned: 0 }

async function completeAll(
  store: Store,
  count: number,
  overrides: Partial<ClaimRequest>,
  result = bytes('done'),
): Promise<void> {
  const outcomes = await store.claim(claimRequests(count, overrides))
  const leases = outcomes.map((outcome) => ofKind(outcome, 'claimed').lease)
  await store.settle(leases.map((lease) => completeOf(lease, result)))
}

it('keeps the whole record in the history when it becomes a tombstone, and only once', async () => {
  const { store, app, clock } = setup({ history: true })
  const lease = await finish(store, { ...refuse, key: 'a name' }, bytes('reply'))
  const { identity } = lease
  const before = await viewOf(store, lease)
  clock.advance(RETENTION_MS)
  expect((await store.reap({ limit: 10 })).expired).toBe(1)
  const columns = 'key, fingerprint, token, recovery_point, error_code, result, run_name'
  expect(app.prepare(`SELECT ${columns} FROM oncekey_record`).get()).toEqual({
    ...{ key: '', fingerprint: '', token: '', recovery_point: null, error_code: null },
    ...{ result: null, run_name: null },
  })
  clock.advance(REFUSE_MS)
  expect((await store.reap({ limit: 10 })).removed).toBe(1)
  const history = await store.history!({ ref: { identity }, limit: 10 })
  expect(history).toEqual([{ ...before, state: 'expired' }])
})

// A page has room for one such record: an update in place would leave each tombstone a page.
it('frees the space of the record when it becomes a tombstone', async () => {
  const { store, app, clock } = setup({ synchronous: 'normal' })
  const bytesUsed = () => {
    const used = "SELECT sum(pgsize) AS bytes FROM dbstat WHERE name LIKE 'oncekey_record%'"
    return Number(app.prepare(used).get()?.['bytes'])
  }
  const empty = bytesUsed()
  await completeAll(store, 500, { ...refuse, idSeed: 'f'.repeat(32) }, new Uint8Array(2500))
  expect((bytesUsed() - empty) / 500).toBeGreaterThan(4000)
  clock.advance(RETENTION_MS)
  expect((await store.reap({ limit: 1000 })).expired).toBe(500)
  expect((bytesUsed() - empty) / 500).toBeLessThan(400)
})

it('keeps the references of other rows to a record that becomes a tombstone', async () => {
  const { store, app, clock } = setup()
  app.exec(`CREATE TABLE invoice (record_id TEXT REFERENCES oncekey_record (record_id)
    ON DELETE SET NULL ON UPDATE SET NULL)`)
  const { recordId } = await viewOf(store, await finish(store, refuse))
  app.prepare('INSERT INTO invoice VALUES (?)').run(recordId)
  clock.advance(RETENTION_MS)
  expect((await store.reap({ limit: 10 })).expired).toBe(1)
  expect(app.prepare('SELECT record_id FROM invoice').all()).toEqual([{ record_id: recordId }])
  clock.advance(REFUSE_MS)
  expect((await store.reap({ limit: 10 })).removed).toBe(1)
  expect(app.prepare('SELECT record_id FROM invoice').all()).toEqual([{ record_id: null }])
})

it.each([
  ['a shorter time', 100],
  ['no end', undefined],
])('refuses a key with %s if the last claim asked for that', async (_, refuseForMs) => {
  const { store, clock } = setup()
  await settle(store, releaseOf(await hold(store, refuse)))
  const lease = await hold(store, { afterExpiry: 'refuse', refuseForMs })
  await settle(store, completeOf(lease))
  expect((await viewOf(store, lease)).refuseForMs).toBe(refuseForMs)
  clock.advance(RETENTION_MS)
  expect((await store.reap({ limit: 10 })).expired).toBe(1)
  clock.advance(100)
  expect((await store.reap({ limit: 10 })).removed).toBe(refuseForMs === undefined ? 0 : 1)
})

it('removes tombstones in pieces, after expired records, and not more than the limit', async () => {
  const { store, clock } = setup()
  await completeAll(store, 250, refuse)
  clock.advance(RETENTION_MS)
  expect((await store.reap({ limit: 1000 })).expired).toBe(250)
  await completeAll(store, 3, { operation: 'POST /refunds' })
  clock.advance(RETENTION_MS)
  expect(await store.reap({ limit: 240 })).toEqual({ removed: 240, expired: 0, abandoned: 0 })
  expect(await store.list({ state: 'completed', limit: 10 })).toEqual([])
  expect(await store.reap({ limit: 240 })).toEqual({ removed: 13, expired: 0, abandoned: 0 })
})

it('makes a tombstone of a record whose result is larger than one transaction may be', async () => {
  const { store, clock } = setup({ synchronous: 'normal' })
  const results = [new Uint8Array(5 * 1024 * 1024), new Uint8Array(5 * 1024 * 1024), bytes('')]
  for (const [n, result] of results.entries()) {
    await finish(store, { ...refuse, key: `key-${n}` }, result)
  }
  clock.advance(RETENTION_MS)
  expect((await store.reap({ limit: 10 })).expired).toBe(3)
  clock.advance(REFUSE_MS)
  expect((await store.reap({ limit: 10 })).removed).toBe(3)
})

it('takes a tombstone with a time neither for lapsed, nor for due or unknown work', async () => {
  const { store, app, clock } = setup()
  const lease = await hold(store, { ...refuse, onLapse: 'resume' })
  const { phases, operator } = store.durable
  const step = { operation: operationOf(), phase: transactionOf() }
  ofKind(await phases.record(lease, step), 'advanced')
  ofKind(await settle(store, completeOf(lease)), 'settled')
  clock.advance(RETENTION_MS)
  expect((await store.reap({ limit: 10 })).expired).toBe(1)
  for (const table of ['oncekey_record_operation', 'oncekey_record_phase']) {
    expect(app.prepare(`SELECT count(*) AS count FROM ${table}`).get()).toEqual({ count: 0 })
  }
  const before = await viewOf(store, lease)
  clock.advance(REFUSE_MS)
  expect(await store.sweep({ limit: 10 })).toEqual([])
  expect(await operator.takeUnknown({ limit: 10, againMs: 1 })).toEqual([])
  expect(await phases.due({ operations: [{ name: 'pay', version: 1 }], limit: 10 })).toEqual([])
  expect(await phases.orphans({ operations: [], limit: 10 })).toEqual([])
  expect(await viewOf(store, lease)).toEqual(before)
  expect((await store.reap({ limit: 10 })).removed).toBe(1)
})

/** The indexes that sweep, reap, due and takeUnknown walk. */
const WALKED = 'lease expiry pending tombstone due due_turn unknown unknown_turn'.split(' ')

// Each of these calls walks its index from the start, so an entry in it would cost time for ever.
it('keeps tombstones without a time out of the indexes that upkeep and workers walk', async () => {
  const { store, app, clock } = setup()
  await completeAll(store, 300, { afterExpiry: 'refuse' })
  clock.advance(RETENTION_MS)
  expect((await store.reap({ limit: 1000 })).expired).toBe(300)
  const entries = app.prepare('SELECT coalesce(sum(ncell), 0) AS count FROM dbstat WHERE name = ?')
  expect(entries.get('oncekey_record_identity')).toEqual({ count: 300 })
  for (const name of WALKED) {
    expect([name, entries.get(`oncekey_record_${name}`)]).toEqual([name, { count: 0 }])
  }
  clock.advance(1000 * RETENTION_MS)
  expect(await store.reap({ limit: 10 })).toEqual(NOTHING)
})

// A foreign key forbids the removal of the operation, so the transaction fails after the update.
it('makes no tombstone of a record whose operation cannot be removed', async () => {
  const { store, app, clock } = setup({ history: true })
  app.exec('CREATE TABLE note (id TEXT REFERENCES oncekey_record_operation (record_id))')
  const lease = await hold(store, { ...refuse, onLapse: 'resume' })
  ofKind(await store.durable.phases.record(lease, { operation: operationOf() }), 'advanced')
  ofKind(await settle(store, completeOf(lease)), 'settled')
  const before = await viewOf(store, lease)
  app.prepare('INSERT INTO note VALUES (?)').run(before.recordId)
  clock.advance(RETENTION_MS)
  await expect(store.reap({ limit: 10 })).rejects.toMatchObject({ failure: 'rejected' })
  expect(await viewOf(store, lease)).toEqual(before)
  expect(await store.history!({ ref: { identity: lease.identity }, limit: 1 })).toEqual([])
})
