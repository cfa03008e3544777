import { DatabaseSync } from 'node:sqlite'
import mysql from 'mysql2/promise'
import pg from 'pg'
import { afterAll, afterEach, beforeAll, expect, it, onTestFinished } from 'vitest'
import { createEngine } from '../../src/core/engine/engine.ts'
import type { EngineOptions } from '../../src/core/engine/engine-contract.ts'
import type { Store } from '../../src/core/store/store.ts'
import { mysqlStore } from '../../src/stores/mysql/index.ts'
import { postgresStore } from '../../src/stores/postgres/index.ts'
import { redisStore } from '../../src/stores/redis/index.ts'
import { sqliteStore } from '../../src/stores/sqlite/index.ts'
import { freePort } from '../servers/programs.ts'
import { startRedis } from '../servers/redis.ts'
import { useMariadb } from './mysql/setup.ts'
import { usePostgres } from './postgres/setup.ts'
import { connectIoRedis } from './redis/setup.ts'
import { scratchFolder } from './scratch-folder.ts'

// The warnings on standard error if the store fails and the application has no event listener.

const postgres = usePostgres()
const mariadb = useMariadb()

const printed: string[] = []
const keep = ({ name, message }: Error) => {
  // `client-options.process.test.ts` covers the warnings about options of clients.
  const isOfClient = /^[a-z]+Store: /.test(message)
  if (name === 'OncekeyWarning' && !isOfClient) printed.push(message)
}
beforeAll(() => void process.on('warning', keep))
afterAll(() => void process.off('warning', keep))
afterEach(() => void printed.splice(0))

const NEVER = 'The store has never answered this process, and every protected request gets 503: '

async function printedBy(store: Store, options: Partial<EngineOptions> = {}): Promise<string[]> {
  const engine = createEngine({ store, breaker: false, ...options })
  const request = { scope: { tenant: 't', operation: 'o' }, key: 'k', fingerprint: 'f' }
  const run = engine.run(request, () => expect.fail('the work must not run'))
  await expect(run).rejects.toMatchObject({ code: 'STORE_FAILED' })
  // Ends the repeated releases of the claim, so that they print nothing in the next test.
  await engine.close()
  await new Promise((resolve) => {
    setImmediate(resolve)
  })
  return [...printed]
}

function onPort(port: number): pg.Pool {
  const pool = new pg.Pool({ host: '127.0.0.1', port, user: 'none', database: 'none' })
  onTestFinished(() => pool.end())
  return pool
}

it('advises to call migrate() on PostgreSQL', async () => {
  const { connect } = await postgres()
  const [warning] = await printedBy(postgresStore({ pool: connect() }))
  expect(warning).toContain(`${NEVER}postgres store failed to claim (unavailable): function `)
  expect(warning).toContain('(call store.migrate() once before the first request)')
})

it('prints the address of a PostgreSQL server that is down', async () => {
  const port = await freePort()
  const [warning] = await printedBy(postgresStore({ pool: onPort(port) }))
  expect(warning).toContain(`${NEVER}postgres store failed to claim (unavailable): connect `)
  expect(warning).toContain(`ECONNREFUSED 127.0.0.1:${port} (check that the server runs`)
})

it('prints the rights that the PostgreSQL user lacks', async () => {
  const { open, app, url, connect } = await postgres()
  await open()
  const role = `weak_${new URL(url).pathname.slice(1)}`
  await app.query(`CREATE ROLE ${role}`)
  onTestFinished(async () => void (await connect().query(`DROP ROLE ${role}`)))
  const pool = connect({ options: `-c role=${role}` })
  const [warning] = await printedBy(postgresStore({ pool }))
  expect(warning).toMatch(/permission denied .*\(give the user of the client USAGE on the schema/)
})

it('advises to call migrate() on MySQL', async () => {
  const { connect } = await mariadb()
  const [warning] = await printedBy(mysqlStore({ pool: connect() }))
  expect(warning).toContain(`${NEVER}mysql store failed to claim (unavailable): Table `)
  expect(warning).toContain('(call store.migrate() once before the first request)')
})

it('prints the address of a MySQL server that is down', async () => {
  const port = await freePort()
  const pool = mysql.createPool({ host: '127.0.0.1', port, user: 'none' })
  const [warning] = await printedBy(mysqlStore({ pool }))
  expect(warning).toContain(`ECONNREFUSED 127.0.0.1:${port} (check that the server runs`)
})

it('advises to check a Redis server that does not answer', async () => {
  const client = connectIoRedis(`redis://127.0.0.1:${await freePort()}`)
  const [warning] = await printedBy(redisStore({ client }), { storeTimeoutMs: 200 })
  expect(warning).toContain(`${NEVER}redis store failed to claim (unavailable): no answer within`)
  expect(warning).toContain('(check that the server is up and reachable')
})

it('advises to set noeviction on a Redis server that evicts', async () => {
  const server = await startRedis(['--maxmemory', '64mb', '--maxmemory-policy', 'allkeys-lru'])
  onTestFinished(() => server.close())
  const warnings = await printedBy(redisStore({ client: connectIoRedis(server.url) }))
  expect(warnings.join('\n')).toContain('Set maxmemory-policy noeviction')
})

it('prints that a table is missing in SQLite', async () => {
  const folder = scratchFolder()
  onTestFinished(folder.remove)
  const path = folder.file('keys.db')
  const store = sqliteStore({ path })
  onTestFinished(() => store.close())
  const other = new DatabaseSync(path)
  other.exec('DROP TABLE oncekey_record')
  other.close()
  const [warning] = await printedBy(store)
  expect(warning).toContain(`${NEVER}sqlite store failed to claim (unavailable): no such table`)
})

it('prints nothing if the application has an event listener', async () => {
  const kinds: string[] = []
  const store = postgresStore({ pool: onPort(await freePort()) })
  expect(await printedBy(store, { onEvent: ({ kind }) => kinds.push(kind) })).toEqual([])
  expect(new Set(kinds)).toEqual(new Set(['store_error']))
})
