import type pg from 'pg'
import { expect, it } from 'vitest'
import type {
  HeldMessage,
  MessageClaim,
  NewMessage,
} from '../../../../src/core/store/durable-store.ts'
import { newToken } from '../../../../src/core/record/identity.ts'
import { postgresStore, type PostgresStore } from '../../../../src/stores/postgres/index.ts'
import { MessageTurns } from '../../../../src/stores/postgres/turns/messages.ts'
import { messageOf } from '../../../../src/testing/durable-cases/durable-case.ts'
import { LEASE_MS } from '../../../../src/testing/store-cases/store-case.ts'
import { countingPool } from '../counting.ts'
import { usePostgres } from '../setup.ts'

const setup = usePostgres()

const take = (store: PostgresStore, more: Partial<MessageClaim> = {}) =>
  store.durable.outbox.claim({
    topics: ['receipts'],
    limit: 100,
    leaseMs: LEASE_MS,
    token: newToken(),
    ...more,
  })

const done = (store: PostgresStore, held: readonly HeldMessage[]) =>
  store.durable.outbox.settle(
    held.map(({ id, token }) => ({ id, token, kind: 'done', providerId: undefined }) as const),
  )

async function add(store: PostgresStore, pool: pg.Pool, messages: readonly Partial<NewMessage>[]) {
  const client = await pool.connect()
  await client.query('BEGIN')
  for (const message of messages) await store.durable.outbox.add(client, messageOf(message))
  await client.query('COMMIT')
  client.release()
}

/** `count` messages for each of these tenants; those of the first tenant are due longest. */
const flood = (tenants: readonly string[], count: number, partition = 'NULL') => `
  INSERT INTO oncekey_record_message (id, topic, tenant, partition, payload, created_at, due_at)
  SELECT gen_random_uuid(), 'receipts', tenant, ${partition}, '', now(),
    now() - interval '1 day' + n * interval '1 ms'
  FROM generate_series(1, ${count}) n, unnest(ARRAY[${tenants.map((one) => `'${one}'`).join()}])
    AS tenant`

/** Records of operation `pay` in a state, each with a tenant that is an SQL expression of `n`. */
const records = (
  state: string,
  tenant: string,
  count: number,
  more: { at?: string; attempt?: number; due?: string; name?: string } = {},
) => `
  INSERT INTO oncekey_record (identity, record_id, tenant, operation, key, fingerprint, state,
      attempt, lapses, token, lease_until, on_lapse, after_expiry, created_at, last_run_at,
      expires_at, reconcile_at, recovery_point, run_name, run_version)
    SELECT decode(md5(random()::text), 'hex'), gen_random_uuid(), ${tenant}, 'o', n::text, 'f',
      '${state}', ${more.attempt ?? 1}, 0, '', now(), 'resume', 'new', now(), now(),
      ${more.at ?? 'now()'}, ${more.due ?? `now() - interval '1 day' + n * interval '1 ms'`},
      'started', ${more.name ?? `'pay'`}, 1
    FROM generate_series(1, ${count}) n`

const PAY = [{ name: 'pay', version: 1 }]

it('takes partitions of one tenant in turns, beside another tenant', async () => {
  const { open, app } = await setup()
  const store = await open()
  await app.query(flood(['a'], 400, `'lane ' || n % 40`))
  await app.query(flood(['b'], 80))
  const lanes = new Map<string, number>()
  for (let call = 0; call < 60; call++) {
    const held = await take(store, { limit: 2 })
    expect(new Set(held.map(({ tenant }) => tenant))).toEqual(new Set(['a', 'b']))
    for (const { partition = '' } of held) lanes.set(partition, (lanes.get(partition) ?? 0) + 1)
    await done(store, held)
  }
  lanes.delete('')
  expect(lanes.size).toBe(40)
  expect(Math.max(...lanes.values())).toBeLessThanOrEqual(3)
})

it('reaches a tenant although more tenants have older work than one claim takes', async () => {
  const { open, app } = await setup()
  const store = await open()
  const floods = Array.from({ length: 20 }, (_, n) => `flood ${n}`)
  await app.query(flood(floods, 200))
  await add(store, app, [{ tenant: 'zz' }])
  // Every second claim takes turns and reaches ten of the 21 tenants.
  for (let calls = 1, isReached = false; !isReached; calls++) {
    expect(calls).toBeLessThanOrEqual(5)
    const held = await take(store, { limit: 10 })
    isReached = held.some(({ tenant }) => tenant === 'zz')
    await done(store, held)
  }
})

it('reaches a tenant behind 60 tenants that flood within three calls', async () => {
  const { open, app } = await setup()
  const store = await open()
  await app.query(records('failed_retryable', `'flood ' || n % 60`, 6000))
  await app.query(records('failed_retryable', `'zz'`, 1, { due: 'now()' }))
  for (let calls = 1, isReached = false; !isReached; calls++) {
    expect(calls).toBeLessThanOrEqual(3)
    const due = await store.durable.phases.due({ operations: PAY, limit: 50 })
    isReached = due.some(({ record }) => record.tenant === 'zz')
    const ids = due.map(({ record }) => record.recordId)
    await app.query('DELETE FROM oncekey_record WHERE record_id = ANY ($1)', [ids])
  }
})

it('takes messages in turns if their numbers exceed an integer', async () => {
  const { open, app } = await setup()
  const store = await open()
  await app.query('ALTER TABLE oncekey_record_message ALTER COLUMN number RESTART WITH 3000000000')
  const partition = 'p'
  await add(store, app, [{ tenant: 'a' }, { tenant: 'a' }, { tenant: 'b' }, { partition }])
  const tenants = new Set<string | undefined>()
  for (let call = 0; call < 4; call++) {
    for (const { tenant } of await take(store, { limit: 1 })) tenants.add(tenant)
  }
  expect(tenants).toEqual(new Set(['a', 'b', undefined]))
})

it('fills the limit with tenants that are not excluded, however much the others have', async () => {
  const { open, app } = await setup()
  const store = await open()
  const without = { limit: 10, withoutTenants: ['a'] }
  await app.query(flood(['a'], 3000))
  await app.query(flood(['b'], 100).replaceAll('1 day', '1 hour'))
  expect((await take(store, without)).map(({ tenant }) => tenant)).toEqual(Array(10).fill('b'))
  const tenant = `CASE WHEN n <= 3000 THEN 'a' ELSE 'b' END`
  for (const state of ['failed_retryable', 'unknown']) {
    await app.query(records(state, tenant, 3100))
  }
  const due = await store.durable.phases.due({ operations: PAY, ...without })
  expect(due.map(({ record }) => record.tenant)).toEqual(Array(10).fill('b'))
  const unknown = await store.durable.operator.takeUnknown({ againMs: 1000, ...without })
  expect(unknown.map(({ record }) => record.tenant)).toEqual(Array(10).fill('b'))
})

const LATER = { due: `now() + interval '1 hour'` }
const NOW = { due: 'now()' }

// A walk visits 64 tenants: of 128, the second walk ends with the last tenant.
it('begins with the first tenant after a walk that ended with the last', async () => {
  const { open, app } = await setup()
  const store = await open()
  const name = (n: string) => `'g' || lpad((${n})::text, 3, '0')`
  for (const state of ['failed_retryable', 'unknown']) {
    await app.query(records(state, `'f'`, 500))
    await app.query(records(state, name('n'), 127, LATER))
  }
  const more = { limit: 10, againMs: 3_600_000 }
  const calls = [
    () => store.durable.phases.due({ operations: PAY, ...more }),
    () => store.durable.operator.takeUnknown(more),
  ]
  for (const call of calls) await call()
  for (const state of ['failed_retryable', 'unknown'])
    await app.query(records(state, `'a'`, 1, NOW))
  for (const call of calls) {
    const tenants = new Set<string>()
    for (let n = 0; n < 4; n++) for (const { record } of await call()) tenants.add(record.tenant)
    expect(tenants).toEqual(new Set(['a', 'f']))
  }
})

// Two statements: one walk visits 4,000 tenants.
it('finds due records beside an excluded flood in a few statements', async () => {
  const { open, app, url } = await setup()
  await open()
  const operations = ['pay', 'refund', 'z'].map((name) => ({ name, version: 1 }))
  for (const state of ['failed_retryable', 'unknown']) {
    for (const { name } of operations) {
      await app.query(records(state, `'flood'`, 50, { name: `'${name}'` }))
      await app.query(records(state, `'t' || n`, 1800, { ...LATER, name: `'${name}'` }))
    }
    await app.query(records(state, `'zz'`, 1, { ...NOW, name: `'z'` }))
  }
  const { pool, sent } = countingPool(url)
  const store = postgresStore({ pool })
  const count = (name: string) => sent().filter((sql) => sql.includes(name)).length
  const without = { limit: 10, withoutTenants: ['flood'] }
  const due = await store.durable.phases.due({ operations, ...without })
  expect(due.map(({ record }) => record.tenant)).toEqual(['zz'])
  expect(count('_due_4')).toBe(2)
  const unknown = await store.durable.operator.takeUnknown({ againMs: 1000, ...without })
  expect(unknown.map(({ record }) => record.tenant)).toEqual(['zz'])
  expect(count('_take_unknown_4')).toBeLessThanOrEqual(2)
  // Nothing is due beside the excluded tenants: the number of statements is still bounded.
  const none = { limit: 10, withoutTenants: ['flood', 'zz'] }
  expect(await store.durable.phases.due({ operations, ...none })).toEqual([])
  expect(count('_due_4')).toBe(2 + 8)
})

it('skips expired records that never ran, in the turn of their tenant', async () => {
  const { open, app } = await setup()
  const store = await open()
  const never = { at: `now() - interval '1 s'`, attempt: 0 }
  await app.query(records('pending', `'a'`, 50, never))
  await app.query(records('pending', `'a'`, 1, { at: `now() + interval '1 h'`, attempt: 0 }))
  await app.query(records('failed_retryable', `'b'`, 30))
  const due = await store.durable.phases.due({ operations: PAY, limit: 2 })
  expect(due.map(({ record }) => record.tenant).toSorted()).toEqual(['a', 'b'])
})

it('takes messages of older nodes in turns, and older nodes take those of new ones', async () => {
  const { open, app, column } = await setup()
  const store = await open()
  const oldAdd = `SELECT oncekey_record_message_add(NULL, gen_random_uuid(), 'receipts', NULL,
    $1, '', 0)`
  await app.query(oldAdd, ['p'])
  await app.query(oldAdd, [null])
  await add(store, app, [{ tenant: 'b', partition: 'p' }, { tenant: 'b' }])
  // The head of the partition is the message of the older node.
  const held = await take(store)
  expect(
    held.map(({ tenant = '', partition = '' }) => `${tenant}/${partition}`).toSorted(),
  ).toEqual(['/', '/p', 'b/'])
  await done(store, held)
  const oldClaim = `SELECT out_partition FROM oncekey_record_message_claim(NULL, '{receipts}',
    '{NULL}', 10, 60000, 'token', NULL) WHERE out_kind = 'held'`
  expect(await column(oldClaim)).toEqual(['p'])
})

// Each store claims, settles or abandons messages; some exclude tenants, and topics have limits.
it('takes no message twice and no two of a partition at once, with many stores', async () => {
  const { open, app, column } = await setup()
  const stores = await Promise.all(Array.from({ length: 6 }, () => open()))
  await app.query(flood(['a', 'b', 'c'], 60, `CASE WHEN n % 3 = 0 THEN 'p' || n % 9 END`))
  const inside = new Set<string>()
  const seen: string[] = []
  const relay = async (store: PostgresStore, number: number) => {
    for (let round = 0; round < 200; round++) {
      const withoutTenants = round % 3 === 0 ? ['abc'[number % 3]!] : []
      const held = await take(store, { limit: 1 + ((round + number) % 7), withoutTenants })
      if (held.length === 0 && withoutTenants.length === 0) break
      for (const { partition } of held) {
        if (partition === undefined) continue
        expect(inside.has(partition)).toBe(false)
        inside.add(partition)
      }
      seen.push(...held.map(({ id }) => id))
      await store.durable.outbox.renew(held, LEASE_MS)
      for (const { partition } of held) if (partition !== undefined) inside.delete(partition)
      expect(await done(store, held)).toEqual(held.map(() => true))
      if (round % 10 === 0) await store.durable.outbox.prune({ limit: 10, olderThanMs: 1000 })
    }
  }
  await Promise.all(stores.map(relay))
  const rest = await take(stores[0]!)
  seen.push(...rest.map(({ id }) => id))
  expect(new Set(seen).size).toBe(seen.length)
  expect(
    await column(`SELECT count(*)::int FROM oncekey_record_message WHERE state = 'ready'`),
  ).toEqual([180 - seen.length])
})

it('takes each unknown record once, with many stores at once', async () => {
  const { open, app } = await setup()
  const stores = await Promise.all(Array.from({ length: 6 }, () => open()))
  await app.query(records('unknown', `'t' || n % 7`, 200))
  const taken = await Promise.all(
    stores.map(async (store) => {
      const ids: string[] = []
      for (let round = 0; round < 40; round++) {
        const some = await store.durable.operator.takeUnknown({ limit: 9, againMs: 3_600_000 })
        if (some.length === 0) break
        ids.push(...some.map(({ record }) => record.recordId))
      }
      return ids
    }),
  )
  expect(taken.flat().length).toBe(200)
  expect(new Set(taken.flat()).size).toBe(200)
})

it('sends the last partitions of the next tenants, and forgets the oldest tenants', () => {
  const turns = new MessageTurns()
  const request = { topics: ['t'], limit: 10, leaseMs: 1, token: 'x' }
  const name = (n: number) => `tenant ${String(n).padStart(5, '0')}`
  for (let n = 0; n < 5000; n++) {
    turns.stop(request, { kind: 'partition', topic: 't', tenant: name(n), partition: 'p' })
  }
  turns.stop(request, { kind: 'tenant', topic: 't', tenant: name(4000) })
  const sent = () => {
    const json = turns.values(request).find((value) => String(value).startsWith('{"t":'))
    return Object.keys((JSON.parse(String(json)) as { t: object }).t)
  }
  expect(sent()).toEqual(Array.from({ length: 256 }, (_, n) => name(4001 + n)))
  turns.stop(request, { kind: 'tenant', topic: 't', tenant: name(4999) })
  // The first 904 tenants are forgotten, because 4,096 are kept.
  expect(sent()[0]).toBe(name(904))
})
