// The act that discards a reply, when it is cut, repeated or large.
import type { Pool, PoolConnection } from 'mysql2/promise'
import { describe, expect, it } from 'vitest'
import type { Act } from '../../../../src/core/store/operator-store.ts'
import { mysqlStore, type MysqlStore } from '../../../../src/stores/mysql/index.ts'
import {
  BY,
  intentOf,
  OPERATION,
  operationOf,
  resultOf,
  transactionOf,
} from '../../../../src/testing/durable-cases/durable-case.ts'
import {
  bytes,
  claim,
  completeOf,
  doubtOf,
  finish,
  hold,
  ofKind,
  releaseOf,
  settle,
  tally,
  viewOf,
} from '../../../../src/testing/store-cases/store-case.ts'
import { begun, intercepting } from './setup.ts'
import { useMariadb } from '../setup.ts'

const setup = useMariadb()

const discardOf = (recordId: string, attempt = 1): Act => {
  return { kind: 'discard_reply', ref: { recordId }, attempt, despiteEffects: true }
}

/** Completes an operation with two phases. */
async function completed(store: MysqlStore) {
  const { lease, recordId } = await begun(store)
  ofKind(await store.durable.phases.record(lease, { phase: transactionOf() }), 'advanced')
  ofKind(await store.durable.phases.record(lease, { phase: resultOf({ number: 2 }) }), 'advanced')
  ofKind(await settle(store, completeOf(lease, bytes('reply'))), 'settled')
  return { lease, recordId }
}

const keptOf = (store: MysqlStore, recordId: string) =>
  store.durable.operator.discarded({ recordId, limit: 10 })

/** The statements of a discard, in their order. */
const CUTS = [
  'ORDER BY r.identity FOR UPDATE',
  `p.kind = 'external'`,
  'LEFT JOIN',
  '_discarded`',
  'UPDATE /*+',
  '_operation` AS t',
  '_phase` AS t',
  '_audit`',
  'COMMIT',
]

describe('a connection that is killed during a discard', () => {
  it.each(CUTS)('changes nothing if it is killed at %s, and can be repeated', async (cut) => {
    const { open, connect, app } = await setup()
    const store = await open()
    const { lease, recordId } = await completed(store)
    const before = [await viewOf(store, lease), await store.durable.phases.load(recordId)]
    let cuts = 0
    const pool = intercepting(connect(), async (sql, send, connection) => {
      if (sql.includes(cut) && cuts++ === 0) {
        await app.query(`KILL CONNECTION ${connection.threadId}`)
      }
      return send()
    })
    const failed = mysqlStore({ pool }).durable.operator.act(discardOf(recordId), BY)
    await expect(failed).rejects.toMatchObject({ code: 'STORE_FAILED', failure: 'unavailable' })
    expect(cuts).toBe(1)
    expect([await viewOf(store, lease), await store.durable.phases.load(recordId)]).toEqual(before)
    expect(await keptOf(store, recordId)).toEqual([])
    expect(await store.durable.operator.audit({ limit: 9 })).toEqual([])

    ofKind(await store.durable.operator.act(discardOf(recordId), BY), 'done')
    expect((await keptOf(store, recordId)).length).toBe(1)
  })
})

it('answers with already if the commit of the discard got no answer, and keeps one', async () => {
  const { open, connect } = await setup()
  const store = await open()
  const { recordId } = await completed(store)
  const pool = intercepting(connect(), async (sql, send, connection) => {
    const answer = await send()
    if (sql !== 'COMMIT') return answer
    connection.destroy()
    throw Object.assign(new Error('cut'), { fatal: true })
  })
  const failed = mysqlStore({ pool }).durable.operator.act(discardOf(recordId), BY)
  await expect(failed).rejects.toMatchObject({ code: 'STORE_FAILED', failure: 'unavailable' })
  const already = { kind: 'already', subject: recordId }
  expect(await store.durable.operator.act(discardOf(recordId), BY)).toEqual(already)
  expect((await keptOf(store, recordId)).length).toBe(1)
  expect((await store.durable.operator.audit({ limit: 9 })).length).toBe(1)
})

it('discards a reply once when many operators do it while requests claim the key', async () => {
  const { open } = await setup()
  const store = await open()
  const { recordId } = await completed(store)
  const acts = Promise.all(
    Array.from({ length: 8 }, () => store.durable.operator.act(discardOf(recordId), BY)),
  )
  const claims = await Promise.all(Array.from({ length: 8 }, () => claim(store)))
  const done = tally(await acts)
  // After a claim the record has another attempt, and an act on the first one is refused.
  expect(done['done']).toBe(1)
  const kinds = tally([...claims, await claim(store)])
  expect(kinds['claimed']).toBe(1)
  expect((await keptOf(store, recordId)).length).toBe(1)
  expect((await store.durable.operator.audit({ limit: 9 })).length).toBe(1)
})

// In hexadecimal digits, the operation has more than twice the bytes of the largest packet.
it('keeps a result and an operation that are larger than the largest packet', async () => {
  const { open, column } = await setup()
  const store = await open()
  const large = (n: number) => new Uint8Array(4_500_000).fill(n)
  const lease = await hold(store, { onLapse: 'resume' })
  const { recordId } = await viewOf(store, lease)
  const { phases } = store.durable
  const first = { operation: operationOf({ input: large(1) }), phase: intentOf() }
  ofKind(await phases.record(lease, first), 'advanced')
  ofKind(await phases.record(lease, { phase: resultOf({ result: large(2) }) }), 'advanced')
  const second = transactionOf({ number: 2, result: large(3) })
  ofKind(await phases.record(lease, { phase: second }), 'advanced')
  ofKind(await settle(store, completeOf(lease, large(4))), 'settled')
  ofKind(await store.durable.operator.act(discardOf(recordId), BY), 'done')
  const [last] = await store.durable.operator.discarded({ recordId, limit: 1 })
  expect(last?.operation?.phases.length).toBe(2)
  const again = await hold(store)
  ofKind(await settle(store, completeOf(again, bytes('small'))), 'settled')
  ofKind(await store.durable.operator.act(discardOf(recordId, 2), BY), 'done')

  const [small, kept, ...more] = await keptOf(store, recordId)
  expect(more).toEqual([])
  expect([small?.attempt, small?.operation]).toEqual([2, undefined])
  expect(kept?.attempt).toBe(1)
  expect(Buffer.from(large(4)).equals(kept!.result)).toBe(true)
  const { input, phases: recorded } = kept!.operation!
  const values = [input, recorded[0]!.result, recorded[1]!.result]
  expect(values.map((one, n) => Buffer.from(large(n + 1)).equals(one!))).toEqual([true, true, true])
  expect((await store.durable.operator.discarded({ recordId, limit: 1 })).length).toBe(1)
  const pieces = 'SELECT COUNT(*) FROM oncekey_record_discarded WHERE piece > 0'
  expect(Number((await column(pieces))[0])).toBeGreaterThan(3)
  expect(await column('SELECT LENGTH(result) FROM oncekey_record')).toEqual([null])
}, 60_000)

it('keeps an empty result as an empty result', async () => {
  const { open, connect } = await setup()
  const lax = connect({}, `SET SESSION sql_mode = 'EMPTY_STRING_IS_NULL'`)
  const store = await open({ pool: lax })
  const { recordId } = await viewOf(store, await finish(store, {}, bytes('')))
  ofKind(await store.durable.operator.act(discardOf(recordId), BY), 'done')
  expect((await keptOf(store, recordId)).map(({ result }) => result.byteLength)).toEqual([0])
})

it('copies tenant and identity of a discarded reply, for a later search by tenant', async () => {
  const { open, column } = await setup()
  const store = await open()
  const lease = await finish(store, { tenant: '租 ' })
  const { recordId } = await viewOf(store, lease)
  ofKind(await store.durable.operator.act(discardOf(recordId), BY), 'done')
  const own = `SELECT CONCAT(HEX(tenant), ' ', HEX(identity)) FROM oncekey_record_discarded`
  const tenant = Buffer.from('租 ').toString('hex')
  expect(await column(own)).toEqual([`${tenant} ${lease.identity}`.toUpperCase()])
})

// The operation of the discarded reply does not decide in which turns the record waits.
it('lets a record wait in the turns of its scope after its operation was discarded', async () => {
  const { open, column } = await setup()
  const store = await open()
  const { recordId } = await completed(store)
  ofKind(await store.durable.operator.act(discardOf(recordId), BY), 'done')
  expect(await column('SELECT run_as FROM oncekey_record')).toEqual([0])
  const again = await hold(store, { onLapse: 'resume' })
  ofKind(await settle(store, doubtOf(again)), 'settled')
  const request = { limit: 9, againMs: 0 }
  const { operator } = store.durable
  const scope = { name: 'POST /payments', version: undefined }
  expect(await operator.takeUnknown({ ...request, withoutOperations: [scope] })).toEqual([])
  const taken = await operator.takeUnknown({ ...request, withoutOperations: [OPERATION] })
  expect(taken.map(({ operation }) => operation)).toEqual([undefined])
})

it('discards the reply of a record at once while an open transaction refers to it', async () => {
  const { open, app, connect } = await setup()
  const store = await open()
  await app.query(`CREATE TABLE invoice (
    record_id CHAR(36) CHARACTER SET ascii COLLATE ascii_bin UNIQUE,
    FOREIGN KEY (record_id) REFERENCES oncekey_record (record_id) ON DELETE SET NULL)`)
  const { recordId } = await completed(store)
  const other = await connect().getConnection()
  await other.beginTransaction()
  await other.query('INSERT INTO invoice VALUES (?)', [recordId])
  ofKind(await store.durable.operator.act(discardOf(recordId), BY), 'done')
  await other.commit()
  other.release()
  expect(ofKind(await claim(store), 'claimed').recordId).toBe(recordId)
})

/** An audit entry and a removed record, as the act `bust` of an earlier version has left them. */
async function bustAsAnOlderNode(app: Pool, recordId: string): Promise<void> {
  await app.query(
    `INSERT INTO oncekey_record_audit (at_ms, act, subject, who, why, detail)
      VALUES (7, 'bust', ?, 'ops', 'before', '{"from":"completed"}')`,
    [recordId],
  )
  await app.query('DELETE FROM oncekey_record')
}

it('lists an act of an earlier version that has removed a completed record', async () => {
  const { open, app } = await setup()
  const store = await open()
  const { recordId } = await viewOf(store, await finish(store))
  await bustAsAnOlderNode(app, recordId)
  const [entry, ...more] = await store.durable.operator.audit({ subject: recordId, limit: 9 })
  expect(more).toEqual([])
  expect(entry).toMatchObject({ act: 'bust', who: 'ops', at: new Date(7) })
  expect(await keptOf(store, recordId)).toEqual([])
  expect(await store.durable.operator.act(discardOf(recordId), BY)).toEqual({ kind: 'not_found' })
})

// An older node continues with the record: it knows neither the discard nor the seed.
it('lets an older node run the work again after a discard', async () => {
  const { open, app } = await setup()
  const store = await open()
  const lease = await finish(store, { idSeed: 'a'.repeat(32) })
  const { recordId } = await viewOf(store, lease)
  const act = { ...discardOf(recordId), idSeed: 'b'.repeat(32) } as Act
  ofKind(await store.durable.operator.act(act, BY), 'done')
  const older = (await app.getConnection()) satisfies PoolConnection
  await older.query(`UPDATE oncekey_record SET state = 'in_progress', attempt = 2, token = 'older',
    proof = NULL, error_code = NULL, lease_until_ms = 9e12, due_at_ms = 9e12`)
  older.release()
  ofKind(await claim(store), 'in_progress')
  const release = releaseOf({ identity: lease.identity, token: 'older', attempt: 2 })
  ofKind(await settle(store, release), 'settled')
  expect(ofKind(await claim(store), 'claimed').idSeed).toBe('b'.repeat(32))
})
