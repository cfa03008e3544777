// Takes about 25 s.
import { execFile } from 'node:child_process'
import { randomUUID } from 'node:crypto'
import { DatabaseSync } from 'node:sqlite'
import { promisify } from 'node:util'
import { Redis } from 'ioredis'
import mysql from 'mysql2/promise'
import pg from 'pg'
import { afterAll, beforeAll, describe, expect, it, onTestFinished, vi } from 'vitest'
import { createProvider } from '../../../examples/provider/provider.ts'
import { startRedis } from '../../servers/cache-redis.ts'
import { startMariadb, type MariadbServer } from '../../servers/mariadb.ts'
import { startPostgres, type PostgresServer } from '../../servers/postgres.ts'
import { freePort } from '../../servers/programs.ts'
import { scratchFolder } from '../../stores/scratch-folder.ts'
import { answerFound, startFakeProvider } from '../provider/fake-provider.ts'
import { clientOf, isReplay, keyOf, PAYMENT, type Client } from './client.ts'
import { addressIn, copyPackageTo, startService } from './service.ts'

const scratch = scratchFolder()
const folder = scratch.file('package')
let folders = 0

beforeAll(() => copyPackageTo(folder), 60_000)
afterAll(scratch.remove)

const newDataFolder = () => scratch.file(`data-${folders++}`)
const newKey = () => randomUUID()
const PATIENCE = { timeout: 20_000, interval: 100 }

/** What every node has that is not a demo: callers, and the secret of the provider. */
const SECRETS = {
  TOKENS: 'secret-token-a=tenant-a:ada,secret-token-b=tenant-b:ben',
  WEBHOOK_SECRET: 'a-secret-of-the-provider',
}

async function start(env: Record<string, string>, dataFolder = newDataFolder()) {
  const service = startService({ folder, dataFolder, env: { ...SECRETS, ...env } })
  const printed = await service.started
  const address = addressIn(printed)
  const ready = async () => (await fetch(`${address}/readyz`)).status
  const client = clientOf(address, 'secret-token-a')
  return { ...service, ...client, address, printed, ready }
}

async function startProvider() {
  const provider = await createProvider({ dataFolder: newDataFolder() })
  onTestFinished(() => provider.close())
  const effects = async () => {
    const page = await (await fetch(`${provider.url}/ledger?after=0&limit=100`)).json()
    return (page as { effects: { kind: string; reference: string }[] }).effects
  }
  return { url: provider.url, effects }
}

const TRANSFER = { toAccount: 'acct_1', amountCents: 900, currency: 'USD' } as const

async function untilPaid(client: Client, place: string) {
  return vi.waitUntil(async () => {
    const asked = await client.get(place)
    return isReplay(asked) ? asked : undefined
  }, PATIENCE)
}

/**
 * Migrates from many nodes at once, without the retries of a real node, which would hide a fault.
 */
async function migrateTogether(databaseUrl: string): Promise<void> {
  const program = `
    import { openDatabase } from './examples/payments/database/database.ts'
    const settings = { databaseUrl: process.argv[1], dataFolder: process.argv[2] }
    const databases = await Promise.all(Array.from({ length: 6 }, () => openDatabase(settings)))
    await Promise.all(databases.map((database) => database.migrate()))
    await Promise.all(databases.map((database) => database.migrate()))
    await Promise.all(databases.map((database) => database.close()))`
  const args = ['--input-type=module', '-e', program, databaseUrl, newDataFolder()]
  await promisify(execFile)(process.execPath, args, { cwd: folder })
}

describe('an API node and a worker on one SQLite file', () => {
  it('nodes that start together create the tables of a SQLite file once', async () => {
    await migrateTogether('')
  })

  it('an API node and a worker on one SQLite file share the work', async () => {
    const { url } = await startProvider()
    const dataFolder = newDataFolder()
    const api = await start({ ROLE: 'api', PROVIDER_URL: url }, dataFolder)
    const accepted = await api.post('/transfers', TRANSFER, { key: newKey() })
    const place = accepted.headers.get('location')!
    expect(accepted.status).toBe(202)
    expect((await api.get(place)).status).toBe(202)

    const worker = await start({ ROLE: 'worker', PROVIDER_URL: url }, dataFolder)
    expect(worker.printed).toContain(`worker ready on ${worker.address}`)
    expect(await worker.ready()).toBe(200)
    expect((await worker.post('/payments', PAYMENT, { key: newKey() })).status).toBe(404)
    expect((await untilPaid(api, place)).body).toMatchObject({ status: 'paid' })

    for (const node of [api, worker]) {
      node.signal('SIGTERM')
      expect(await node.ended).toEqual({ code: 0, errors: '' })
    }
  })

  it('a payment completes after its node was killed while the provider charged it', async () => {
    const provider = await startFakeProvider()
    onTestFinished(provider.close)
    const dataFolder = newDataFolder()
    // Long enough for a busy machine: a node that is late by a lease also loses its work.
    const env = { PROVIDER_URL: provider.url, LEASE_MS: '1500', SWEEP_EVERY_MS: '100' }
    const worker = await start({ ...env, ROLE: 'worker' }, dataFolder)
    const api = await start({ ...env, ROLE: 'api' }, dataFolder)

    const charged = new Promise<void>((resolve) => {
      provider.onSend = () => resolve()
    })
    provider.onFind = answerFound
    const lost = api.post('/payments', PAYMENT, { key: keyOf('k') }).catch(() => 'lost')
    await charged
    api.signal('SIGKILL')
    expect(await lost).toBe('lost')

    const again = await start({ ...env, ROLE: 'api' }, dataFolder)
    const paid = await vi.waitUntil(async () => {
      const reply = await again.post('/payments', PAYMENT, { key: keyOf('k') })
      return reply.status === 201 ? reply : undefined
    }, PATIENCE)
    expect(paid.body['chargeId']).toBe(provider.calls[0]!.effect.id)
    expect(provider.calls).toHaveLength(1)
    const db = new DatabaseSync(`${dataFolder}/payments.db`, { readOnly: true, timeout: 5_000 })
    onTestFinished(() => db.close())
    expect(db.prepare('SELECT count(*) AS count FROM entry').get()).toEqual({ count: 1 })
    expect(await worker.ready()).toBe(200)
  })
})

type Rows = (sql: string) => Promise<Record<string, unknown>[]>

/** What a late retry finds on two nodes: no record, the rows of each kind, and shared limits. */
async function expectRowsAnswer(left: Client, right: Client, rows: Rows): Promise<void> {
  const requests = [
    ['/payments', { ...PAYMENT, amountCents: 30 }],
    ['/orders', { customerId: 'c', sku: 'tea', quantity: 2 }],
    ['/transfers', TRANSFER],
  ] as const
  const key = newKey()
  const send = (client: Client) => async (path: string, body: object) =>
    vi.waitUntil(async () => {
      const reply = await client.post(path, body, { key })
      return [202, 409].includes(reply.status) ? undefined : reply
    }, PATIENCE)
  for (const [path, body] of requests) {
    const first = await send(left)(path, body)
    expect(first.status).toBe(201)
    await rows('DELETE FROM oncekey_record')
    const late = await send(right)(path, body)
    expect([late.status, late.text]).toEqual([201, first.text])
  }
  const counted = (await rows('SELECT * FROM rate_limit')).map((row) => String(row['key']))
  for (const limit of [/^new-keys:[0-9a-f]{32}$/, /^look-ups:[0-9a-f]{32}$/]) {
    expect(counted.some((name) => limit.test(name))).toBe(true)
  }
}

describe('on PostgreSQL', () => {
  let server: PostgresServer

  beforeAll(async () => {
    server = await startPostgres({ private: true })
  }, 60_000)
  afterAll(() => server?.close())

  it('nodes that start together create the PostgreSQL tables once', async () => {
    await migrateTogether(await server.database())
  })

  it('one key takes effect once on two API nodes and a worker on PostgreSQL', async () => {
    const { url, effects } = await startProvider()
    const env = { DATABASE_URL: await server.database(), PROVIDER_URL: url }
    const [left, right] = await Promise.all([
      start({ ...env, ROLE: 'api' }),
      start({ ...env, ROLE: 'api' }),
      start({ ...env, ROLE: 'worker' }),
    ])
    const key = newKey()
    const racing = [left, right].map((node) => node.post('/payments', PAYMENT, { key }))
    const statuses = (await Promise.all(racing)).map(({ status }) => status)
    expect(statuses).toContain(201)
    expect(statuses.every((status) => status === 201 || status === 409)).toBe(true)
    const [one, other] = await Promise.all([
      left.post('/payments', PAYMENT, { key }),
      right.post('/payments', PAYMENT, { key }),
    ])
    expect(one.text).toBe(other.text)
    expect((await effects()).filter(({ kind }) => kind === 'charge')).toHaveLength(1)

    const accepted = await left.post('/transfers', TRANSFER, { key: newKey() })
    const paid = await untilPaid(right, accepted.headers.get('location')!)
    expect(paid.body).toMatchObject({ status: 'paid' })
    const path = one.headers.get('location')!
    const refunds = ['40', '60'].map((cents) => {
      const body = { amountCents: Math.floor((990 * Number(cents)) / 100) }
      return (cents === '40' ? left : right).post(`${path}/refunds`, body, { key: newKey() })
    })
    for (const { status } of await Promise.all(refunds)) expect(status).toBe(201)
    expect((await left.get(path)).body).toMatchObject({ status: 'refunded', refundedCents: 990 })
  })

  it('late retries are answered from rows on PostgreSQL, and nodes share limits', async () => {
    const { url } = await startProvider()
    const env = { DATABASE_URL: await server.database(), PROVIDER_URL: url }
    const [left, right] = await Promise.all([start({ ...env, ROLE: 'api' }), start(env)])
    const pool = new pg.Pool({ connectionString: env.DATABASE_URL })
    onTestFinished(() => pool.end())
    await expectRowsAnswer(left, right, async (sql) => (await pool.query(sql)).rows)
  })

  it('a node is not ready while PostgreSQL is down, and recovers automatically', async () => {
    const env = { ...SECRETS, DATABASE_URL: await server.database() }
    const node = await start(env)
    const first = await node.post('/payments', PAYMENT, { key: keyOf('k') })
    expect(first.status).toBe(201)

    await server.stopAtOnce()
    onTestFinished(() => server.start())
    expect(await node.ready()).toBe(503)
    expect((await fetch(`${node.address}/healthz`)).status).toBe(200)
    const shown = await node.get(first.headers.get('location')!)
    expect([shown.status, shown.body['code']]).toEqual([503, 'database_unavailable'])
    const refused = await node.post('/payments', PAYMENT, { key: keyOf('k2') })
    expect(refused.status).toBe(503)

    const waiting = startService({ folder, dataFolder: newDataFolder(), env })
    await server.start()
    await vi.waitUntil(async () => (await node.ready()) === 200, PATIENCE)
    const second = await node.post('/payments', PAYMENT, { key: keyOf('k') })
    expect([isReplay(second), second.text]).toEqual([true, first.text])
    // The node that was started during the outage has waited.
    expect(addressIn(await waiting.started)).toMatch(/^http/)
  })

  it('a node exits with one sentence when PostgreSQL is not available in time', async () => {
    const DATABASE_URL = `postgres://shop:secret@127.0.0.1:${await freePort()}/payments`
    const env = { DATABASE_URL, DATABASE_WAIT_MS: '600' }
    const { code, errors } = await startService({ folder, dataFolder: newDataFolder(), env }).ended
    expect(code).toBe(1)
    expect(errors).toMatch(
      /^The database does not answer: connect ECONNREFUSED .*DATABASE_URL\.\n$/,
    )
    expect(errors).not.toContain('secret')
  })

  it('a node replays from Redis, and works without it', async () => {
    const redis = await startRedis()
    onTestFinished(redis.close)
    const REDIS_URL = `redis://127.0.0.1:${redis.port}`
    const { url: PROVIDER_URL } = await startProvider()
    const DATABASE_URL = await server.database()
    const node = await start({ ROLE: 'api', DATABASE_URL, REDIS_URL, PROVIDER_URL })
    const first = await node.post('/payments', PAYMENT, { key: keyOf('k') })
    expect(isReplay(await node.post('/payments', PAYMENT, { key: keyOf('k') }))).toBe(true)
    const client = new Redis(REDIS_URL)
    onTestFinished(() => client.disconnect())
    const replies = () => client.keys('oncekey*')
    await vi.waitUntil(async () => (await replies()).length === 1, PATIENCE)
    client.disconnect()

    await redis.stop()
    const second = await node.post('/payments', PAYMENT, { key: keyOf('k') })
    expect([isReplay(second), second.text]).toEqual([true, first.text])
    expect((await node.post('/payments', PAYMENT, { key: keyOf('k2') })).status).toBe(201)
    expect(await node.ready()).toBe(200)
  })
})

describe('on MariaDB', () => {
  let server: MariadbServer

  beforeAll(async () => {
    server = await startMariadb()
  }, 60_000)
  afterAll(() => server?.close())

  it('nodes that start together create the MariaDB tables once', async () => {
    await migrateTogether(await server.database())
  })

  it('one key takes effect once on two API nodes and a worker on MariaDB', async () => {
    const env = { DATABASE_URL: await server.database() }
    const { url, effects } = await startProvider()
    const [left, right] = await Promise.all([
      start({ ...env, PROVIDER_URL: url }),
      start({ ...env, PROVIDER_URL: url }),
    ])
    const first = await left.post('/payments', PAYMENT, { key: keyOf('k') })
    const second = await right.post('/payments', PAYMENT, { key: keyOf('k') })
    expect([first.status, isReplay(second), second.text]).toEqual([201, true, first.text])

    const path = first.headers.get('location')!
    const refunds = [left, right].map((node) =>
      node.post(`${path}/refunds`, { amountCents: 495 }, { key: newKey() }),
    )
    for (const { status } of await Promise.all(refunds)) expect(status).toBe(201)
    expect((await right.get(path)).body).toMatchObject({ status: 'refunded', refundedCents: 990 })
    const order = { customerId: 'declined', sku: 'teapot', quantity: 3 }
    expect((await left.post('/orders', order, { key: newKey() })).status).toBe(402)
    const ordered = await right.post('/orders', { ...order, customerId: 'c' }, { key: newKey() })
    expect(ordered.status).toBe(201)
    const accepted = await left.post('/transfers', TRANSFER, { key: newKey() })
    expect((await untilPaid(left, accepted.headers.get('location')!)).status).toBe(201)
    const kinds = (await effects()).map(({ kind }) => kind).toSorted()
    expect(kinds).toEqual(['capture', 'charge', 'hold', 'hold', 'payout', 'refund', 'refund'])
  })

  it('late retries are answered from rows on MariaDB, and nodes share limits', async () => {
    const { url } = await startProvider()
    const env = { DATABASE_URL: await server.database(), PROVIDER_URL: url }
    const [left, right] = await Promise.all([start({ ...env, ROLE: 'api' }), start(env)])
    const connection = await mysql.createConnection(env.DATABASE_URL)
    onTestFinished(() => connection.end())
    await expectRowsAnswer(left, right, async (sql) => {
      const [answer] = await connection.query(sql)
      return Array.isArray(answer) ? (answer as Record<string, unknown>[]) : []
    })
  })
})
