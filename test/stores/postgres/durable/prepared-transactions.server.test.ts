import pg from 'pg'
import { expect, it, onTestFinished } from 'vitest'
import { newToken } from '../../../../src/core/record/identity.ts'
import type { PostgresStore } from '../../../../src/stores/postgres/index.ts'
import { messageOf } from '../../../../src/testing/durable-cases/durable-case.ts'
import { hold, LEASE_MS } from '../../../../src/testing/store-cases/store-case.ts'
import { completion, usePostgres } from '../setup.ts'

// Messages that are added in a prepared transaction (PREPARE TRANSACTION).

const setupServer = usePostgres({ private: true })

const take = (store: PostgresStore) =>
  store.durable.outbox.claim({
    topics: ['receipts'],
    limit: 10,
    leaseMs: LEASE_MS,
    token: newToken(),
  })

/** A store with a waiting relay, so that commits with messages are announced. */
async function setup() {
  const fixture = await setupServer()
  const { app, server, url } = fixture
  const [max] = await fixture.column('SHOW max_prepared_transactions')
  if (max === '0') {
    await app.query('ALTER SYSTEM SET max_prepared_transactions = 10')
    await server.stopAtOnce()
    await server.start()
  }
  const store = await fixture.open()
  onTestFinished(() => store.close())
  let wakes = 0
  let woken = Promise.withResolvers<void>()
  const stop = store.durable.outbox.watch!(() => {
    wakes++
    woken.resolve()
  })
  onTestFinished(stop)
  const nextWake = async () => {
    await woken.promise
    woken = Promise.withResolvers()
  }
  await nextWake()
  expect(await take(store)).toEqual([])
  await nextWake()
  expect(await fixture.column('SELECT until > now() FROM oncekey_record_waiting')).toEqual([true])
  const client = new pg.Client({ connectionString: url })
  await client.connect()
  onTestFinished(() => client.end())
  return { ...fixture, store, client, nextWake, wakes: () => wakes }
}

it.each([
  ['as the only statement', ["PREPARE TRANSACTION 'payment'"]],
  ['in lower case with a comment', ["/* two phases */ prepare\n  transaction 'payment'"]],
  [
    'in one message with other statements',
    ["INSERT INTO payment VALUES ('x'); PREPARE TRANSACTION 'payment'"],
  ],
  [
    'after SET CONSTRAINTS ALL IMMEDIATE',
    [
      "SET LOCAL oncekey.announce = 'off'",
      'SET CONSTRAINTS ALL IMMEDIATE',
      "PREPARE TRANSACTION 'payment'",
    ],
  ],
])(
  'relays a message of a prepared transaction while a relay waits, PREPARE sent %s',
  async (_, ends) => {
    const { store, client, column } = await setup()
    const message = messageOf({ partition: 'p' })
    await client.query('BEGIN')
    await store.durable.outbox.add(client, message)
    for (const statement of ends) await client.query(statement)
    expect(await column('SELECT count(*)::int FROM pg_prepared_xacts')).toEqual([1])
    expect(await take(store)).toEqual([])
    await client.query("COMMIT PREPARED 'payment'")
    expect((await take(store)).map(({ id }) => id)).toEqual([message.id])
  },
)

it('prepares a transaction with a message through the extended protocol', async () => {
  const { store, client } = await setup()
  const message = messageOf()
  await client.query('BEGIN')
  await store.durable.outbox.add(client, message)
  await client.query({ name: 'prepare', text: "PREPARE TRANSACTION 'payment'" })
  await client.query("COMMIT PREPARED 'payment'")
  expect((await take(store)).map(({ id }) => id)).toEqual([message.id])
})

// The guide documents this: the result would be announced before the transaction ends.
it('fails to prepare a transaction with a result for which another process waits', async () => {
  const { store, client, app } = await setup()
  const lease = await hold(store)
  await app.query('UPDATE oncekey_record SET watched = true')
  await client.query('BEGIN')
  await store.settleIn(client, lease, completion())
  await expect(client.query("PREPARE TRANSACTION 'payment'")).rejects.toThrow('cannot PREPARE')
})

it('adds no message if the prepared transaction is rolled back', async () => {
  const { store, client } = await setup()
  await client.query('BEGIN')
  await store.durable.outbox.add(client, messageOf())
  await client.query("PREPARE TRANSACTION 'payment'")
  await client.query("ROLLBACK PREPARED 'payment'")
  expect(await take(store)).toEqual([])
})

it('announces a message that is committed in one phase', async () => {
  const { store, client, nextWake } = await setup()
  await client.query('BEGIN')
  await store.durable.outbox.add(client, messageOf())
  await client.query('COMMIT')
  await nextWake()
  expect(await take(store)).toHaveLength(1)
})

it('announces no message of a transaction that has set oncekey.announce to off', async () => {
  const { store, client, wakes } = await setup()
  const before = wakes()
  await client.query("BEGIN; SET LOCAL oncekey.announce = 'off'")
  await store.durable.outbox.add(client, messageOf())
  await client.query('COMMIT')
  expect(await take(store)).toHaveLength(1)
  expect(wakes()).toBe(before)
})
