/** What the durable cases cannot see of discarded replies: rows, sizes, crashes. */
import { renameSync } from 'node:fs'
import { expect, it } from 'vitest'
import type { Act } from '../../../../src/core/store/operator-store.ts'
import type { SqliteStore } from '../../../../src/stores/sqlite/index.ts'
import {
  BY,
  operationOf,
  transactionOf,
} from '../../../../src/testing/durable-cases/durable-case.ts'
import {
  bytes,
  claim,
  completeOf,
  finish,
  hold,
  ofKind,
  only,
  settle,
  viewOf,
} from '../../../../src/testing/store-cases/store-case.ts'
import { setup } from '../setup.ts'

const SEED = '0123456789abcdef0123456789abcdef'

function discardOf(recordId: string): Act {
  return { kind: 'discard_reply', ref: { recordId }, attempt: 1, despiteEffects: false }
}

/** Completes an operation with one phase. */
async function completedOperation(store: SqliteStore, size = 10): Promise<string> {
  const lease = await hold(store, { onLapse: 'resume', idSeed: SEED })
  const operation = operationOf({ input: new Uint8Array(size) })
  const phase = transactionOf({ result: new Uint8Array(size) })
  ofKind(await store.durable.phases.record(lease, { operation, phase }), 'advanced')
  ofKind(await settle(store, completeOf(lease, new Uint8Array(size))), 'settled')
  return (await viewOf(store, lease)).recordId
}

it('keeps a discarded reply with its scope, and removes its operation and phases', async () => {
  const { store, app, clock } = setup()
  const recordId = await completedOperation(store)
  const { identity } = await ofRecord(store, recordId)
  ofKind(await store.durable.operator.act(discardOf(recordId), BY), 'done')
  const columns = 'hex(identity) AS id, record_id, tenant, operation, attempt, discarded_at_ms'
  expect(app.prepare(`SELECT ${columns} FROM oncekey_record_discarded`).all()).toEqual([
    {
      ...{ id: identity.toUpperCase(), record_id: recordId, tenant: 'tenant-1' },
      ...{ operation: 'POST /payments', attempt: 1, discarded_at_ms: clock.nowMs() },
    },
  ])
  expect(app.prepare('SELECT run_name, run_version, result FROM oncekey_record').get()).toEqual({
    ...{ run_name: null, run_version: null, result: null },
  })
  for (const table of ['oncekey_record_operation', 'oncekey_record_phase']) {
    expect(app.prepare(`SELECT count(*) AS count FROM ${table}`).get()).toEqual({ count: 0 })
  }
})

it('keeps no entry in the history for a discard: the record has not expired', async () => {
  const { store } = setup({ history: true })
  const { recordId, identity } = await viewOf(store, await finish(store))
  ofKind(await store.durable.operator.act(discardOf(recordId), BY), 'done')
  expect(await store.history!({ ref: { identity }, limit: 10 })).toEqual([])
})

it('keeps a discarded reply of 8 MB, with an operation of 16 MB', async () => {
  const { store } = setup({ synchronous: 'normal' })
  const size = 8 * 1024 * 1024
  const recordId = await completedOperation(store, size)
  const { operator } = store.durable
  ofKind(await operator.act(discardOf(recordId), BY), 'done')
  const kept = only(await operator.discarded({ recordId, limit: 10 }))
  const phase = only(kept.operation!.phases)
  const sizes = [kept.result, kept.operation!.input, phase.result!].map((one) => one.byteLength)
  expect(sizes).toEqual([size, size, size])
})

it.each([
  ['audit line', 'INSERT ON oncekey_record_audit'],
  ['discarded reply', 'INSERT ON oncekey_record_discarded'],
  ['removal of the operation', 'DELETE ON oncekey_record_operation'],
])('changes nothing by a discard whose %s cannot be written', async (_, event) => {
  const { store, app } = setup()
  const recordId = await completedOperation(store)
  const [record, operation] = await bothOf(store, recordId)
  app.exec(`CREATE TRIGGER refusal BEFORE ${event} BEGIN SELECT RAISE(ABORT, 'refused'); END`)
  const { operator } = store.durable
  await expect(operator.act(discardOf(recordId), BY)).rejects.toMatchObject({ failure: 'rejected' })
  expect(await bothOf(store, recordId)).toEqual([record, operation])
  expect(await operator.discarded({ recordId, limit: 10 })).toEqual([])
  expect(await operator.audit({ limit: 10 })).toEqual([])
  app.exec('DROP TRIGGER refusal')
  ofKind(await operator.act(discardOf(recordId), BY), 'done')
})

// The file is moved before the commit and back after it, so the act commits and its call fails.
it('answers already after a discard whose answer was lost, and has written it once', async () => {
  const { store, path, folder } = setup()
  const recordId = await completedOperation(store)
  const { operator } = store.durable
  renameSync(path, folder.file('moved.db'))
  await expect(operator.act(discardOf(recordId), BY)).rejects.toThrow('was deleted or moved')
  renameSync(folder.file('moved.db'), path)
  ofKind(await operator.act(discardOf(recordId), BY), 'already')
  only(await operator.discarded({ recordId, limit: 10 }))
  only(await operator.audit({ subject: recordId, limit: 10 }))
  expect(ofKind(await claim(store, { onLapse: 'resume' }), 'claimed').idSeed).toBe(SEED)
})

it('discards the reply of a record that an older node has completed', async () => {
  const { store, app } = setup()
  const { recordId, identity } = await viewOf(store, await finish(store, {}, bytes('old')))
  app.exec('UPDATE oncekey_record SET id_seed = NULL, refuse_for_ms = NULL')
  const fresh = { ...discardOf(recordId), idSeed: SEED } as Act
  ofKind(await store.durable.operator.act(fresh, BY), 'done')
  expect((await viewOf(store, { identity })).idSeed).toBe(SEED)
})

async function ofRecord(store: SqliteStore, recordId: string) {
  const record = await store.read({ recordId })
  expect(record).toBeDefined()
  return record!
}

function bothOf(store: SqliteStore, recordId: string) {
  return Promise.all([store.read({ recordId }), store.durable.phases.load(recordId)])
}
