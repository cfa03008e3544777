import { describe, expect, it, onTestFinished } from 'vitest'
import type { Act } from '../../../../src/core/store/operator-store.ts'
import { postgresStore, type PostgresStore } from '../../../../src/stores/postgres/index.ts'
import {
  BY,
  intentOf,
  operationOf,
  transactionOf,
} from '../../../../src/testing/durable-cases/durable-case.ts'
import { FakeClock } from '../../../../src/testing/fake-clock.ts'
import {
  bytes,
  claim,
  completeOf,
  finish,
  hold,
  ofKind,
  RETENTION_MS,
  settle,
  tally,
  viewOf,
} from '../../../../src/testing/store-cases/store-case.ts'
import { startTcpProxy } from '../../../servers/tcp-proxy.ts'
import { countingPool } from '../counting.ts'
import { planner } from '../planner.ts'
import { usePostgres } from '../setup.ts'

const setup = usePostgres()

const discardOf = (recordId: string, attempt = 1): Act => {
  return { kind: 'discard_reply', ref: { recordId }, attempt, despiteEffects: true }
}

const discard = (store: PostgresStore, recordId: string, attempt = 1) =>
  store.durable.operator.act(discardOf(recordId, attempt), BY)

const discardedOf = (store: PostgresStore, recordId: string) =>
  store.durable.operator.discarded({ recordId, limit: 10 })

/** Completes an operation with two phases. */
async function completed(store: PostgresStore): Promise<string> {
  const lease = await hold(store, { onLapse: 'resume' })
  const { phases } = store.durable
  const first = { operation: operationOf(), phase: transactionOf() }
  ofKind(await phases.record(lease, first), 'advanced')
  ofKind(await phases.record(lease, { phase: intentOf({ number: 2 }) }), 'advanced')
  ofKind(await settle(store, completeOf(lease, bytes('reply'))), 'settled')
  return (await viewOf(store, lease)).recordId
}

describe('a network that loses messages of a discard', () => {
  async function setupProxy() {
    const { open, url, connect, column } = await setup()
    const straight = await open()
    const { hostname: host, port } = new URL(url)
    const proxy = await startTcpProxy({ host, port: Number(port) })
    onTestFinished(() => proxy.close())
    const pool = connect({ connectionString: proxy.through(url) })
    const store = postgresStore({ pool, prepare: false })
    const recordId = await completed(straight)
    const expectDiscardedOnce = async () => {
      const [kept, ...more] = await discardedOf(straight, recordId)
      expect([more.length, kept?.operation?.phases.length]).toEqual([0, 2])
      const rows = `SELECT count(*)::int FROM oncekey_record_operation
        UNION ALL SELECT count(*)::int FROM oncekey_record_phase
        UNION ALL SELECT count(*)::int FROM oncekey_record_audit`
      expect(await column(rows)).toEqual([0, 0, 1])
      expect(ofKind(await claim(straight), 'claimed').recoveryPoint).toBeUndefined()
    }
    return { proxy, store, straight, recordId, expectDiscardedOnce }
  }

  it.each(['_act_write', 'commit\0'])('changes nothing if %j never arrived', async (text) => {
    const { proxy, store, straight, recordId, expectDiscardedOnce } = await setupProxy()
    const before = await straight.read({ recordId })
    const cut = proxy.once('request lost', text)
    await expect(discard(store, recordId)).rejects.toMatchObject({ code: 'STORE_FAILED' })
    await cut
    expect(await straight.read({ recordId })).toEqual(before)
    expect(await discardedOf(straight, recordId)).toEqual([])
    expect((await straight.durable.phases.load(recordId))?.phases.length).toBe(2)
    expect(await straight.durable.operator.audit({ limit: 10 })).toEqual([])
    ofKind(await discard(straight, recordId), 'done')
    await expectDiscardedOnce()
  })

  it('answers already to the repetition if the answer to COMMIT was lost', async () => {
    const { proxy, store, straight, recordId, expectDiscardedOnce } = await setupProxy()
    const cut = proxy.once('answer lost', 'commit\0')
    await expect(discard(store, recordId)).rejects.toMatchObject({ code: 'STORE_FAILED' })
    await cut
    ofKind(await discard(straight, recordId), 'already')
    await expectDiscardedOnce()
  })
})

it('repeats a discard after a conflict, and keeps one copy of the reply', async () => {
  const { open, url } = await setup()
  const recordId = await completed(await open())
  const { pool, sent } = countingPool(url, { failOnce: '_act_write' })
  const store = postgresStore({ pool })
  ofKind(await discard(store, recordId), 'done')
  expect(sent().filter((sql) => sql.includes('_act_write_4'))).toHaveLength(2)
  expect((await discardedOf(store, recordId)).length).toBe(1)
})

it('discards once if many operators discard at the same time', async () => {
  const { open } = await setup()
  const store = await open()
  const recordId = await completed(store)
  const outcomes = await Promise.all(Array.from({ length: 8 }, () => discard(store, recordId)))
  expect(tally(outcomes)).toEqual({ done: 1, already: 7 })
  expect((await discardedOf(store, recordId)).length).toBe(1)
  expect((await store.durable.operator.audit({ limit: 10 })).length).toBe(1)
})

it('keeps a large reply and a large operation, byte for byte', async () => {
  const { open } = await setup()
  const store = await open()
  const large = Uint8Array.from({ length: 4 * 1024 * 1024 }, (_, n) => (n * 7919) % 251)
  const lease = await hold(store, { onLapse: 'resume' })
  const { phases } = store.durable
  const operation = operationOf({ input: large })
  const phase = transactionOf({ result: large })
  ofKind(await phases.record(lease, { operation, phase }), 'advanced')
  ofKind(await settle(store, completeOf(lease, large)), 'settled')
  const { recordId } = await viewOf(store, lease)
  ofKind(await discard(store, recordId), 'done')
  const [kept] = await discardedOf(store, recordId)
  const found = [kept?.result, kept?.operation?.input, kept?.operation?.phases[0]?.result]
  expect(found.map((value) => Buffer.from(large).equals(value!))).toEqual([true, true, true])
})

// A record is accepted again after the discard, no worker takes it, and reap completes it.
it('keeps both replies of one attempt, the newest first', async () => {
  const { open, column } = await setup()
  const clock = new FakeClock()
  const store = await open({ clock })
  const { identity } = await finish(store, {}, bytes('first'))
  const { recordId } = await viewOf(store, { identity })
  ofKind(await discard(store, recordId), 'done')
  ofKind(await claim(store, { mode: 'accept' }), 'pending')
  clock.advance(RETENTION_MS)
  const abandoned = { result: bytes('second'), retentionMs: RETENTION_MS }
  expect(await store.reap({ limit: 10, abandoned })).toMatchObject({ abandoned: 1 })
  ofKind(await discard(store, recordId), 'done')
  const replies = await discardedOf(store, recordId)
  expect(replies.map(({ attempt, result }) => [attempt, Buffer.from(result).toString()])).toEqual([
    [1, 'second'],
    [1, 'first'],
  ])
  const subjects = `SELECT encode(identity, 'hex') || ' ' || tenant FROM oncekey_record_discarded`
  expect(await column(subjects)).toEqual([`${identity} tenant-1`, `${identity} tenant-1`])
})

it('fences the holder of a discarded reply in every later call', async () => {
  const { open } = await setup()
  const store = await open()
  const lease = await hold(store, { onLapse: 'resume' })
  ofKind(await store.durable.phases.record(lease, { operation: operationOf() }), 'advanced')
  ofKind(await settle(store, completeOf(lease)), 'settled')
  const { recordId } = await viewOf(store, lease)
  ofKind(await discard(store, recordId), 'done')
  const fenced = { kind: 'fenced', own: false, state: 'failed_retryable' }
  expect(await settle(store, completeOf(lease))).toEqual(fenced)
  expect(await store.durable.phases.record(lease, { phase: transactionOf() })).toEqual(fenced)
  expect(await store.renew([{ ...lease, leaseMs: 1_000 }])).toEqual([false])
  expect(await store.durable.phases.load(recordId)).toBeUndefined()
})

const MANY = 5_000

it('finds discarded replies by the record id, and old ones by their time', async () => {
  const { open, app, url } = await setup()
  const store = await open()
  const recordId = await completed(store)
  ofKind(await discard(store, recordId), 'done')
  await app.query(`INSERT INTO oncekey_record_discarded
      (record_id, identity, attempt, discarded_at, tenant, result)
    SELECT gen_random_uuid(), '', 1, now() - n * interval '1 s', 't', ''
    FROM generate_series(1, ${MANY}) AS n; ANALYZE oncekey_record_discarded`)
  const planOf = await planner(url, { onlyRun: true })
  const listed = await planOf(async (other) => {
    expect((await discardedOf(other, recordId)).length).toBe(1)
  })
  expect([[...listed.indexes], listed.rowsMax]).toEqual([['oncekey_record_discarded_pkey'], 1])
  const oldest = await planOf((_, client) =>
    client.query('SELECT number FROM oncekey_record_discarded ORDER BY discarded_at LIMIT 10'),
  )
  expect([[...oldest.indexes], oldest.rowsMax]).toEqual([['oncekey_record_discarded_at'], 10])
})
