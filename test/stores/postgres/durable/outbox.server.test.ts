import pg from 'pg'
import { describe, expect, it, onTestFinished } from 'vitest'
import type { HeldMessage, MessageSettlement } from '../../../../src/core/store/durable-store.ts'
import { newToken } from '../../../../src/core/record/identity.ts'
import { postgresStore, type PostgresStore } from '../../../../src/stores/postgres/index.ts'
import { channelOf } from '../../../../src/stores/postgres/sql.ts'
import { BY, messageOf } from '../../../../src/testing/durable-cases/durable-case.ts'
import { FakeClock } from '../../../../src/testing/fake-clock.ts'
import { bytes, hold, LEASE_MS, ofKind } from '../../../../src/testing/store-cases/store-case.ts'
import { TOOLS } from '../caller-transaction/tools.ts'
import { usePostgres } from '../setup.ts'

const setup = usePostgres()

const CHANNEL = channelOf({ schema: 'public', table: 'oncekey_record' })

const take = (store: PostgresStore, more: { topics?: string[]; limit?: number } = {}) =>
  store.durable.outbox.claim({
    topics: ['receipts'],
    limit: 100,
    leaseMs: LEASE_MS,
    token: newToken(),
    ...more,
  })

const end = (store: PostgresStore, { id, token }: HeldMessage, more: object = {}) => {
  const done = { id, token, kind: 'done', providerId: undefined, ...more } as MessageSettlement
  return store.durable.outbox.settle([done])
}

const ready = async (store: PostgresStore) =>
  (await store.durable.outbox.list({ state: 'ready', limit: 1000 })).map(({ id }) => id)

async function inTransaction<Result>(
  pool: pg.Pool,
  work: (client: pg.PoolClient) => Promise<Result>,
): Promise<Result> {
  const client = await pool.connect()
  try {
    await client.query('BEGIN')
    const result = await work(client)
    await client.query('COMMIT')
    return result
  } catch (error) {
    await client.query('ROLLBACK')
    throw error
  } finally {
    client.release()
  }
}

const add = (store: PostgresStore, pool: pg.Pool, message = messageOf()) =>
  inTransaction(pool, async (client) => {
    await store.durable.outbox.add(client, message)
    return message.id
  })

describe.each(Object.entries(TOOLS))('in a transaction of %s', (_name, openTool) => {
  it('adds a message together with the rows, or not at all', async () => {
    const database = await setup()
    const store = await database.open()
    const tool = openTool(database)
    const { outbox } = store.durable
    const odd = { key: `it's ? $1 :x "é\\`, partition: '%s', payload: Buffer.from([0, 255]) }
    const kept = messageOf({ ...odd, delayMs: 0 })
    await tool.transact(async ({ tx, pay }) => {
      await pay('kept')
      await outbox.add(tx, kept)
      await outbox.add(tx, messageOf({ topic: 'other' }))
    })
    const lost = tool.transact(async ({ tx, pay }) => {
      await pay('lost')
      await outbox.add(tx, messageOf())
      throw new Error('declined')
    })
    await expect(lost).rejects.toThrow('declined')
    expect(await database.paid()).toEqual(['kept'])
    const [message, ...others] = await take(store)
    expect(others).toEqual([])
    expect(message).toMatchObject({ id: kept.id, topic: 'receipts', attempt: 1, ...odd })
  })

  it('rejects a pool in place of a transaction', async () => {
    const database = await setup()
    const store = await database.open()
    const tool = openTool(database)
    const refused = store.durable.outbox.add(tool.mistake, messageOf())
    await expect(refused).rejects.toMatchObject({ code: 'INVALID_OPTIONS' })
    await expect(refused).rejects.toThrow('outbox.add was given')
    expect(await ready(store)).toEqual([])
  })
})

it('rejects an object that is no transaction, and a value that cannot be stored', async () => {
  const { open, app } = await setup()
  const store = await open()
  const { outbox } = store.durable
  for (const tx of [undefined, null, 7, {}]) {
    await expect(outbox.add(tx, messageOf())).rejects.toThrow(
      'outbox.add takes an open transaction',
    )
  }
  for (const bad of [{ id: 'no uuid' }, { topic: '\ud800' }, { key: 'nul\0' }, { delayMs: NaN }]) {
    const adding = add(store, app, messageOf(bad))
    await expect(adding).rejects.toMatchObject({ code: 'STORE_FAILED', failure: 'rejected' })
  }
})

it('adds nothing through a transaction of the store that has ended', async () => {
  const { open } = await setup()
  const store = await open()
  let leaked: unknown
  const { outbox, phases } = store.durable
  const lease = { identity: '00', token: 'none', attempt: 1 }
  expect(await phases.advance(lease, (tx) => ((leaked = tx), {}))).toMatchObject({ kind: 'fenced' })
  expect(leaked).toBeUndefined()
  await phases.advance(await hold(store), (tx) => ((leaked = tx), {}))
  await expect(outbox.add(leaked, messageOf())).rejects.toThrow('the transaction has ended')
  expect(await ready(store)).toEqual([])
})

it.each(['read committed', 'repeatable read', 'serializable'])(
  'keeps the order of commits within a partition, under %s',
  async (level) => {
    const { open, connect } = await setup()
    const store = await open()
    const pool = connect()
    const [first, second] = [messageOf({ partition: 'p' }), messageOf({ partition: 'p' })]
    await add(store, pool, messageOf({ partition: 'p' }))
    const [a, b] = [await pool.connect(), await pool.connect()]
    await a.query(`BEGIN ISOLATION LEVEL ${level}; SELECT 1`)
    await b.query(`BEGIN ISOLATION LEVEL ${level}; SELECT count(*) FROM oncekey_record_message`)
    await store.durable.outbox.add(a, first)
    let isAdded = false
    const adding = Promise.resolve(store.durable.outbox.add(b, second)).then(() => (isAdded = true))
    const waits = `SELECT count(*)::int AS n FROM pg_stat_activity WHERE wait_event_type = 'Lock'`
    await expect.poll(async () => (await pool.query(waits)).rows[0].n).toBe(1)
    expect(isAdded).toBe(false)
    await a.query('COMMIT')
    await adding
    await b.query('COMMIT')
    a.release()
    b.release()
    const order = await pool.query('SELECT id FROM oncekey_record_message ORDER BY number')
    expect(order.rows.slice(1).map(({ id }) => id)).toEqual([first.id, second.id])
  },
)

// A transaction gets its numbers while it is open: another one may get later numbers and commit
// first. Without a partition, that order does not matter.
it('does not block adding to other partitions, or without a partition', async () => {
  const { open, connect } = await setup()
  const store = await open()
  const pool = connect()
  await inTransaction(pool, async (client) => {
    await store.durable.outbox.add(client, messageOf({ partition: 'p' }))
    await add(store, pool, messageOf({ partition: 'q' }))
    await add(store, pool, messageOf({ partition: 'p', topic: 'other' }))
    await add(store, pool)
    expect((await take(store)).length).toBe(2)
  })
  expect((await take(store)).length).toBe(1)
})

it('never holds two messages of a partition, not even after an operator retried one', async () => {
  const { open, app } = await setup()
  const clock = new FakeClock()
  const store = await open({ clock })
  const ids = [
    await add(store, app, messageOf({ partition: 'p' })),
    await add(store, app, messageOf({ partition: 'p' })),
  ]
  const [dead] = await take(store)
  await end(store, dead!, { kind: 'dead', error: 'x', blocks: false })
  const [held] = await take(store)
  expect([dead?.id, held?.id]).toEqual(ids)
  const revive = { kind: 'retry_message', messageId: dead!.id } as const
  ofKind(await store.durable.operator.act(revive, BY), 'done')
  expect(await take(store)).toEqual([])
  // The lease of the holder lapses: the retried message goes first, and the other one waits.
  clock.advance(LEASE_MS)
  const [revived, ...others] = await take(store)
  expect([revived?.id, others]).toEqual([dead?.id, []])
  expect(await end(store, held!)).toEqual([false])
  await end(store, revived!)
  expect((await take(store)).map(({ id }) => id)).toEqual([held?.id])
  const both = app.query(`UPDATE oncekey_record_message SET state = 'held', partition = 'p'`)
  await expect(both).rejects.toMatchObject({ code: '23505' })
})

it('claims from every partition in turn, however many messages wait before it', async () => {
  const { open, app } = await setup()
  const store = await open()
  await app.query(`INSERT INTO oncekey_record_message
      (id, topic, partition, payload, created_at, due_at)
    SELECT gen_random_uuid(), 'receipts', 'lane ' || to_char(n, 'FM0000'), '', now(),
      now() + CASE WHEN n % 4500 = 0 THEN interval '0' ELSE interval '1 day' END
    FROM generate_series(1, 9000) n`)
  const taken: string[] = []
  for (let claims = 0; claims < 4; claims++) {
    taken.push(...(await take(store, { limit: 1 })).map(({ partition }) => partition ?? ''))
  }
  expect(new Set(taken)).toEqual(new Set(['lane 4500', 'lane 9000']))
})

it('removes the row of a partition with its last message, and inserts it again', async () => {
  const { open, app, column } = await setup()
  const store = await open()
  const partitions = () => column('SELECT partition FROM oncekey_record_partition ORDER BY 1')
  for (const partition of ['done', 'open']) await add(store, app, messageOf({ partition }))
  for (const message of await take(store)) await end(store, message)
  await add(store, app, messageOf({ partition: 'open' }))
  expect(await partitions()).toEqual(['done', 'open'])
  // A transaction is adding to the partition, so its row must stay locked until the commit.
  await inTransaction(app, async (client) => {
    await store.durable.outbox.add(client, messageOf({ partition: 'open' }))
    expect(await store.durable.outbox.prune({ limit: 10, olderThanMs: -1000 })).toBe(2)
  })
  expect(await partitions()).toEqual(['open'])
  await add(store, app, messageOf({ partition: 'done' }))
  expect(await partitions()).toEqual(['done', 'open'])
})

/** All notifications on the channel of the table. */
async function listening(url: string) {
  const client = new pg.Client({ connectionString: url })
  await client.connect()
  onTestFinished(() => client.end())
  const heard: (string | undefined)[] = []
  client.on('notification', ({ payload }) => heard.push(payload))
  await client.query(`LISTEN "${CHANNEL}"`)
  // Notifications of earlier commits arrive before the answer to this statement.
  return async () => {
    await client.query('SELECT 1')
    return heard.splice(0)
  }
}

describe.each(['pg', 'postgres.js'] as const)('a waiting relay, with %s', (driver) => {
  async function setupRelay() {
    const fixture = await setup()
    const pool = driver === 'pg' ? fixture.connect() : fixture.connectJs()
    const store = await fixture.open({ pool })
    onTestFinished(() => store.close())
    const heard = await listening(fixture.url)
    let woken = Promise.withResolvers<void>()
    let wakes = 0
    const stop = store.durable.outbox.watch!(() => {
      wakes++
      woken.resolve()
    })
    const nextWake = async () => {
      await woken.promise
      woken = Promise.withResolvers()
    }
    /** Claims until the database has noted that the relay waits. */
    const settle = async () => {
      await nextWake()
      expect(await take(store)).toEqual([])
      await nextWake()
      expect(await take(store)).toEqual([])
    }
    return { ...fixture, store, heard, nextWake, settle, stop, wakes: () => wakes }
  }

  it('is woken by commits with messages, and by nothing else', async () => {
    const { store, app, heard, settle, nextWake, wakes } = await setupRelay()
    await settle()
    const before = wakes()
    await expect(
      inTransaction(app, async (client) => {
        await store.durable.outbox.add(client, messageOf())
        throw new Error('declined')
      }),
    ).rejects.toThrow('declined')
    await add(store, app, messageOf({ delayMs: 60_000 }))
    expect(await heard()).toEqual([])
    expect(wakes()).toBe(before)
    await inTransaction(app, async (client) => {
      await store.durable.outbox.add(client, messageOf())
      await store.durable.outbox.add(client, messageOf())
    })
    await nextWake()
    expect(await heard()).toEqual(['messages'])
    expect((await take(store)).length).toBe(2)
  })

  it('causes no NOTIFY while it works or after it has stopped waiting', async () => {
    const { store, app, heard, settle, nextWake, stop, column } = await setupRelay()
    await settle()
    const waits = () => column('SELECT until > clock_timestamp() FROM oncekey_record_waiting')
    expect(await waits()).toEqual([true])
    await add(store, app)
    await nextWake()
    expect((await take(store)).length).toBe(1)
    expect(await waits()).toEqual([false])
    await heard()
    await add(store, app)
    expect(await heard()).toEqual([])
    stop()
    expect((await take(store)).length).toBe(1)
    expect(await take(store)).toEqual([])
    expect(await waits()).toEqual([false])
  })

  // The message was added before the relay began to wait, and commits after its claim.
  it('is woken by a transaction that was open when it began to wait', async () => {
    const { store, app, settle, nextWake } = await setupRelay()
    await inTransaction(app, async (client) => {
      await store.durable.outbox.add(client, messageOf())
      await settle()
    })
    await nextWake()
    expect((await take(store)).length).toBe(1)
  })

  it('is woken by an operator who retries a message or drops the one that blocks', async () => {
    const { store, app, settle, nextWake } = await setupRelay()
    await add(store, app, messageOf({ partition: 'p' }))
    const [dead] = await take(store)
    await end(store, dead!, { kind: 'dead', error: 'x', blocks: true })
    await add(store, app, messageOf({ partition: 'p' }))
    await settle()
    const drop = { kind: 'drop_message', messageId: dead!.id } as const
    ofKind(await store.durable.operator.act(drop, BY), 'done')
    await nextWake()
    expect((await take(store)).length).toBe(1)
  })
})

it('has no watch if the store cannot listen', async () => {
  const { connect } = await setup()
  expect(postgresStore({ pool: connect(), prepare: false }).durable.outbox.watch).toBeUndefined()
  expect(postgresStore({ pool: connect(), listen: false }).durable.outbox.watch).toBeUndefined()
})

it('stores errors with characters that no column can hold', async () => {
  const { open, app } = await setup()
  const store = await open()
  const id = await add(store, app)
  const [message] = await take(store)
  await end(store, message!, {
    kind: 'retry',
    error: `\0 and \ud800${'x'.repeat(600)}`,
    delayMs: 0,
  })
  const [error] = (await store.durable.outbox.read(id))!.errors
  expect(error?.error).toMatch(/^\uFFFD and \uFFFDx+$/)
  expect(error?.error.length).toBe(500)
})

it('returns payload bytes unchanged, with either driver', async () => {
  const { open, connectJs, app } = await setup()
  const stores = [await open(), await open({ pool: connectJs() })]
  for (const store of stores) {
    const payload = bytes('é\0\\x')
    await add(store, app, messageOf({ payload }))
    const [message] = await take(store)
    expect(Buffer.from(message!.payload)).toEqual(Buffer.from(payload))
  }
})
