import type { Pool, PoolConnection, RowDataPacket } from 'mysql2/promise'
import { describe, expect, it } from 'vitest'
import type { HeldMessage } from '../../../../src/core/store/durable-store.ts'
import { newToken } from '../../../../src/core/record/identity.ts'
import { mysqlStore, type MysqlStore } from '../../../../src/stores/mysql/index.ts'
import { BY, messageOf } from '../../../../src/testing/durable-cases/durable-case.ts'
import { hold, ofKind } from '../../../../src/testing/store-cases/store-case.ts'
import { addAll, intercepting, likeMysqlConnection, transact, untilWaiting } from './setup.ts'
import { TOOLS } from '../caller-transaction/tools.ts'
import { completion, telling, useMariadb } from '../setup.ts'

const setup = useMariadb()

const LEASE_MS = 60_000

const claimOf = (limit = 100) => ({
  topics: ['receipts'],
  limit,
  leaseMs: LEASE_MS,
  token: newToken(),
})

const doneOf = ({ id, token }: HeldMessage) =>
  ({ kind: 'done', id, token, providerId: undefined }) as const

const numbered = (count: number, of: object = {}) =>
  Array.from({ length: count }, (_, n) => ({ key: `${n}`, ...of }))

describe.each(Object.entries(TOOLS))('a transaction of %s', (_name, openTool) => {
  it('adds messages together with the rows of the transaction, or rolls back both', async () => {
    const database = await setup()
    const store = await database.open()
    const tool = openTool(database)
    const { outbox } = store.durable
    const declined = new Error('declined')
    const run = (isDeclined: boolean) =>
      tool.transact(async ({ tx, pay }) => {
        await pay(isDeclined ? 'lost' : 'kept')
        const key = `\`'"\\?:$1 租\t${isDeclined}`
        await outbox.add(tx, messageOf({ key, topic: 'receipts ', delayMs: 60_000 }))
        await outbox.add(tx, messageOf({ key, partition: key }))
        if (isDeclined) throw declined
      })
    await expect(run(true)).rejects.toThrow('declined')
    await run(false)
    expect(await database.paid()).toEqual(['kept'])
    const kept = await outbox.list({ state: 'ready', limit: 9 })
    expect(kept.map(({ topic, key }) => [topic, key])).toEqual([
      ['receipts ', `\`'"\\?:$1 租\tfalse`],
      ['receipts', `\`'"\\?:$1 租\tfalse`],
    ])
    const [taken, ...others] = await outbox.claim(claimOf())
    expect([taken?.partition, others.length]).toEqual([`\`'"\\?:$1 租\tfalse`, 0])
  })

  it('rejects the pool of the tool in place of a transaction', async () => {
    const database = await setup()
    const store = await database.open()
    const { mistake } = openTool(database)
    for (const message of [messageOf(), messageOf({ partition: 'p' })]) {
      const refused = store.durable.outbox.add(mistake, message)
      await expect(refused).rejects.toMatchObject({ code: 'INVALID_OPTIONS' })
    }
    expect(await store.durable.outbox.list({ state: 'ready', limit: 9 })).toEqual([])
    expect(await database.column('SELECT * FROM oncekey_record_partition')).toEqual([])
  })
})

it('rejects a connection without a transaction, with advice', async () => {
  const { open, connect } = await setup()
  const store = await open()
  const connection = await connect().getConnection()
  const refused = store.durable.outbox.add(connection, messageOf({ partition: 'p' }))
  await expect(refused).rejects.toThrow('outbox.add was given a connection on which no transaction')
  const unknown = store.durable.outbox.add('tx', messageOf())
  await expect(unknown).rejects.toThrow('outbox.add takes an open transaction')
  expect(await store.durable.outbox.list({ state: 'ready', limit: 9 })).toEqual([])
  connection.release()
})

it('rejects a connection without a transaction on a server that cannot report it', async () => {
  const { open, connect } = await setup()
  const store = await open()
  const connection = await connect().getConnection()
  const tx = likeMysqlConnection(connection)
  const refused = store.durable.outbox.add(tx, messageOf({ partition: 'p' }))
  await expect(refused).rejects.toMatchObject({ code: 'INVALID_OPTIONS' })
  expect(await store.durable.outbox.list({ state: 'ready', limit: 9 })).toEqual([])
  await connection.beginTransaction()
  await store.durable.outbox.add(tx, messageOf({ partition: 'p' }))
  await connection.commit()
  connection.release()
  expect((await store.durable.outbox.list({ state: 'ready', limit: 9 })).length).toBe(1)
})

it('adds no message when its statements do not all reach the same transaction', async () => {
  const { open, connect, column } = await setup()
  const store = await open()
  const pool = connect()
  for (const partition of [undefined, 'p']) {
    await transact(pool, async (connection) => {
      const clients = [connection, pool].values()
      const runSql = async (sql: string) =>
        (await (clients.next().value ?? pool).query(sql))[0] as unknown[]
      const refused = store.durable.outbox.add({ runSql }, messageOf({ partition }))
      await expect(refused).rejects.toMatchObject({ code: 'INVALID_OPTIONS' })
    })
  }
  expect(await store.durable.outbox.list({ state: 'ready', limit: 9 })).toEqual([])
  expect(await column('SELECT * FROM oncekey_record_partition')).toEqual([])
})

it('rejects a message with a value that no column can hold', async () => {
  const { open, app } = await setup()
  const store = await open()
  for (const bad of [
    { id: 'no uuid' },
    { topic: 't'.repeat(256) },
    { topic: 'half \ud800' },
    { partition: 'p'.repeat(256) },
    { tenant: 't'.repeat(256) },
    { tenant: 'half \ud800' },
    { key: '\udc00' },
    { delayMs: Number.NaN },
    { payload: 'text' as never },
  ]) {
    const refused = addAll(app, store, [bad])
    await expect(refused).rejects.toMatchObject({ code: 'STORE_FAILED', failure: 'rejected' })
  }
  const [id] = await addAll(app, store, [{}])
  const twice = addAll(app, store, [{ id: id! }])
  await expect(twice).rejects.toMatchObject({ code: 'STORE_FAILED', failure: 'rejected' })
  expect((await store.durable.outbox.list({ state: 'ready', limit: 9 })).length).toBe(1)
})

it('does not change LAST_INSERT_ID of the caller', async () => {
  const { open, app } = await setup()
  const store = await open()
  await app.query('CREATE TABLE orders (id INT AUTO_INCREMENT PRIMARY KEY) AUTO_INCREMENT = 77')
  const last = await transact(app, async (tx) => {
    await tx.query('INSERT INTO orders VALUES (NULL)')
    for (const partition of [undefined, 'p', 'p']) {
      await store.durable.outbox.add(tx, messageOf({ partition }))
    }
    const [[row]] = await tx.query<RowDataPacket[]>('SELECT LAST_INSERT_ID() AS id')
    return row!['id'] as unknown
  })
  expect(last).toBe(77)
})

it('adds a message to its own transaction with one statement, two for a partition', async () => {
  const { open, connect } = await setup()
  await open()
  const sent: string[] = []
  const store = mysqlStore({ pool: telling(connect(), (sql) => void sent.push(sql)) })
  let leaked: unknown
  const outcome = store.transaction<PoolConnection>(await hold(store), async (tx) => {
    leaked = tx
    sent.length = 0
    await store.durable.outbox.add(tx, messageOf())
    expect(sent.length).toBe(1)
    await store.durable.outbox.add(tx, messageOf({ partition: 'p' }))
    expect(sent.length).toBe(3)
    return completion()
  })
  ofKind(await outcome, 'settled')
  await expect(store.durable.outbox.add(leaked, messageOf())).rejects.toThrow('has ended')
  expect((await store.durable.outbox.list({ state: 'ready', limit: 9 })).length).toBe(2)
})

it('claims with one statement while there are no messages', async () => {
  const { open, connect } = await setup()
  await open()
  const sent: string[] = []
  const store = mysqlStore({ pool: telling(connect(), (sql) => void sent.push(sql)) })
  expect(await store.durable.outbox.claim({ ...claimOf(), topics: ['a', 'b', 'c'] })).toEqual([])
  expect(sent.length).toBe(1)
})

it('closes empty partitions, and opens them again when a message is added', async () => {
  const { open, app, column } = await setup()
  const store = await open()
  const { outbox } = store.durable
  const partitions = Array.from({ length: 30 }, (_, n) => ({ partition: `p${n}` }))
  await addAll(app, store, partitions)
  await outbox.settle((await outbox.claim(claimOf())).map(doneOf))
  const opened = () => column('SELECT COUNT(*) FROM oncekey_record_partition WHERE is_open')
  expect(await opened()).toEqual([30])

  // A partition stays open while a transaction adds to it, and no claim waits for it.
  const adding = await app.getConnection()
  await adding.beginTransaction()
  await outbox.add(adding, messageOf({ partition: 'p7', key: 'late' }))
  expect(await outbox.claim(claimOf())).toEqual([])
  expect(await column('SELECT lane FROM oncekey_record_partition WHERE is_open')).toEqual([
    Buffer.from('/p7'),
  ])
  await adding.commit()
  adding.release()
  expect((await outbox.claim(claimOf())).map(({ key }) => key)).toEqual(['late'])

  const number = `SELECT sequence FROM oncekey_record_partition WHERE lane = '/p9'`
  const [before] = await column(number)
  await addAll(app, store, [{ partition: 'p9', key: 'again' }])
  expect((await outbox.claim(claimOf())).map(({ key }) => key)).toEqual(['again'])
  expect(await column(number)).toEqual([Number(before) + 1])
})

/** One message in each of many partitions. `due` is the due time as SQL. */
async function fillLanes(app: Pool, count: number, due: string): Promise<void> {
  const seq = `(SELECT seq AS n FROM seq_1_to_${count}) AS numbers`
  const lane = `CONCAT('/', LPAD(n, 5, '0'))`
  await app.query(`INSERT INTO oncekey_record_partition (topic, lane, sequence, is_open)
    SELECT 'receipts', ${lane}, 1, 1 FROM ${seq}`)
  await app.query(`INSERT INTO oncekey_record_message (id, topic, lane, place, sequence, state,
      token, attempt, created_at_ms, added_at_us, due_at_ms, \`partition\`, errors, payload)
    SELECT UUID(), 'receipts', ${lane}, 1, 1, 'ready', '', 0, n, n, ${due}, n, '[]', 'x'
    FROM ${seq}`)
}

it('finds the one due head after thousands of partitions that are not due', async () => {
  const { open, app } = await setup()
  const store = await open()
  const { outbox } = store.durable
  await fillLanes(app, 1_600, 'IF(n = 1600, 0, 9e15)')
  const [message] = await outbox.claim(claimOf())
  expect(message?.partition).toBe('1600')
  expect(await outbox.settle([doneOf(message!)])).toEqual([true])
  // The next claim starts in the middle, where the last one ended, and wraps around.
  await app.query(`UPDATE oncekey_record_message SET due_at_ms = 0 WHERE \`partition\` = '1500'`)
  expect((await outbox.claim(claimOf())).map(({ partition }) => partition)).toEqual(['1500'])
  expect(await outbox.claim(claimOf())).toEqual([])
})

it('reaches a partition after 1,299 others whose messages fail repeatedly', async () => {
  const { open, app } = await setup()
  const store = await open()
  const { outbox } = store.durable
  await fillLanes(app, 1_300, '1300 - n')
  const seen = new Set<string>()
  // Every message fails and is due again at once.
  for (let claims = 0; claims < 60 && !seen.has('1300'); claims++) {
    const taken = await outbox.claim(claimOf(20))
    for (const { partition } of taken) seen.add(partition!)
    await outbox.settle(
      taken.map(({ id, token }) => ({ kind: 'retry', id, token, error: 'no', delayMs: -9e11 })),
    )
  }
  expect(seen.has('1300')).toBe(true)
})

/** Number of deadlocks on the server. */
const DEADLOCKS = `SELECT variable_value FROM information_schema.global_status
  WHERE variable_name = 'INNODB_DEADLOCKS'`

class Relays {
  readonly #store: MysqlStore
  readonly #held = new Set<string>()
  readonly handled: string[] = []
  readonly orders = new Map<string, string[]>()
  readonly faults: string[] = []

  constructor(store: MysqlStore) {
    this.#store = store
  }

  /** One relay: claims and renews messages, and retries or completes them by their key. */
  async run(isOver: () => boolean): Promise<void> {
    const { outbox } = this.#store.durable
    while (!isOver()) {
      const taken = await outbox.claim(claimOf(7))
      for (const message of taken) this.#begin(message)
      const renewed = await outbox.renew(taken, LEASE_MS)
      if (renewed.includes(false)) this.faults.push('a lease was lost')
      for (const message of taken) this.#end(message)
      const settled = await outbox.settle(
        taken.map((message) => {
          const { id, token, attempt } = message
          if (attempt === 1 && Number(message.key) % 5 === 0) {
            return { kind: 'retry', id, token, error: 'again', delayMs: 0 } as const
          }
          return doneOf(message)
        }),
      )
      if (settled.includes(false)) this.faults.push('a settlement was lost')
    }
  }

  #begin({ id, partition }: HeldMessage): void {
    const name = partition ?? id
    if (this.#held.has(name)) this.faults.push(`${name} is held twice`)
    this.#held.add(name)
  }

  /** Called before the settlement: after it, other relays may take the next message. */
  #end({ id, partition, key, attempt }: HeldMessage): void {
    this.#held.delete(partition ?? id)
    if (attempt === 1 && Number(key) % 5 === 0) return
    this.handled.push(id)
    if (partition !== undefined) {
      this.orders.set(partition, [...(this.orders.get(partition) ?? []), key!])
    }
  }
}

it('relays each message once and each partition in order, without a deadlock', async () => {
  const { open, connect, column } = await setup()
  const store = await open({ pool: connect({ connectionLimit: 12 }) })
  const app = connect({ connectionLimit: 8 })
  const deadlocks = await column(DEADLOCKS)
  const relays = new Relays(store)
  const added: string[] = []
  const keys = new Map<string, string[]>()
  const add = async (adder: number) => {
    for (let round = 0; round < 20; round++) {
      await transact(app, async (tx) => {
        const partition = `p${(adder + round) % 3}`
        const ordered = messageOf({ partition, key: `${adder * 100 + round}` })
        await store.durable.outbox.add(tx, ordered)
        // No other transaction adds to the partition until the commit.
        keys.set(partition, [...(keys.get(partition) ?? []), ordered.key!])
        const free = messageOf({ key: `${adder * 100 + round}` })
        await store.durable.outbox.add(tx, free)
        added.push(ordered.id, free.id)
      })
    }
  }
  const over = new AbortController()
  const running = Array.from({ length: 4 }, () => relays.run(() => over.signal.aborted))
  const pruning = (async () => {
    while (!over.signal.aborted) await store.durable.outbox.prune({ limit: 50, olderThanMs: 1 })
  })()
  await Promise.all(Array.from({ length: 6 }, (_, adder) => add(adder)))
  await expect.poll(() => relays.handled.length, { timeout: 30_000 }).toBe(added.length)
  over.abort()
  await Promise.all([...running, pruning])
  expect(relays.faults).toEqual([])
  expect(relays.handled.toSorted()).toEqual(added.toSorted())
  expect(relays.orders).toEqual(keys)
  expect(await column(DEADLOCKS)).toEqual(deadlocks)
}, 60_000)

// A claim has found the second message to be the head, and is about to take it.
it('returns a message to its partition after a running claim has taken the head', async () => {
  const { open, connect, column } = await setup()
  const store = await open()
  const { outbox, operator } = store.durable
  const [first, second] = await addAll(connect(), store, numbered(2, { partition: 'p' }))
  const [{ id, token }] = (await outbox.claim(claimOf())) as [HeldMessage]
  await outbox.settle([{ kind: 'dead', id, token, error: 'no', blocks: false }])

  const arrived = Promise.withResolvers<void>()
  const late = Promise.withResolvers<void>()
  const pool = intercepting(connect(), async (sql, send) => {
    if (sql.includes(`SET state = 'held'`)) {
      arrived.resolve()
      await late.promise
    }
    return send()
  })
  const taking = mysqlStore({ pool }).durable.outbox.claim(claimOf())
  await arrived.promise
  const acting = operator.act({ kind: 'retry_message', messageId: first! }, BY)
  await untilWaiting(column, 1)
  expect(await outbox.claim(claimOf())).toEqual([])
  late.resolve()
  const [taken] = await taking
  expect(taken?.id).toBe(second)
  ofKind(await acting, 'done')
  // The first message comes before the held one, but must wait for it.
  expect(await outbox.claim(claimOf())).toEqual([])
  expect(await outbox.settle([doneOf(taken!)])).toEqual([true])
  expect((await outbox.claim(claimOf())).map((one) => one.id)).toEqual([first])
})

// Operators return dead messages to a partition while relays take the messages after them.
it('never holds two messages of a partition while operators return messages to it', async () => {
  const { open, connect, column } = await setup()
  const store = await open({ pool: connect({ connectionLimit: 10 }) })
  const app = connect()
  const { outbox, operator } = store.durable
  const ids = await addAll(app, store, numbered(60, { partition: 'p' }))
  const dead: string[] = []
  for (let n = 0; n < 30; n++) {
    const [{ id, token }] = (await outbox.claim(claimOf())) as [HeldMessage]
    await outbox.settle([{ kind: 'dead', id, token, error: 'no', blocks: false }])
    dead.push(id)
  }
  const handled: string[] = []
  const faults: unknown[] = []
  const relay = async () => {
    for (let idle = 0; idle < 20;) {
      const taken = await outbox.claim(claimOf(3))
      idle = taken.length === 0 ? idle + 1 : 0
      if (taken.length === 0) continue
      const held = await column(`SELECT COUNT(*) FROM oncekey_record_message WHERE state = 'held'`)
      if (Number(held[0]) !== 1) faults.push(held)
      handled.push(...taken.map(({ id }) => id))
      await outbox.settle(taken.map(doneOf))
    }
  }
  const operate = async (mine: readonly string[]) => {
    for (const messageId of mine) {
      ofKind(await operator.act({ kind: 'retry_message', messageId }, BY), 'done')
    }
  }
  await Promise.all([
    relay(),
    relay(),
    relay(),
    operate(dead.slice(0, 15)),
    operate(dead.slice(15)),
  ])
  await relay()
  expect(faults).toEqual([])
  expect(handled.toSorted()).toEqual(ids.toSorted())
  expect((await operator.audit({ limit: 100 })).length).toBe(30)
}, 60_000)
