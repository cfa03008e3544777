import { Socket } from 'node:net'
import pg from 'pg'
import postgres from 'postgres'
import { expect, it, onTestFinished, vi } from 'vitest'
import { postgresStore, type PostgresPool } from '../../src/stores/postgres/index.ts'
import { usePostgres } from './postgres-setup.ts'

const setup = usePostgres()

/** What is warned of when a store is made of this. Each warning comes once in a process. */
function warningsOf(pool: PostgresPool): string {
  const emitWarning = vi.spyOn(process, 'emitWarning').mockImplementation(() => undefined)
  onTestFinished(() => emitWarning.mockRestore())
  postgresStore({ pool })
  return emitWarning.mock.calls.map(([message]) => String(message)).join('\n')
}

it('warns of a Pool that may wait for a connection for ever, and of no other', () => {
  expect(warningsOf(new pg.Pool({ connectionTimeoutMillis: 3_000 }))).toBe('')
  expect(warningsOf(new pg.Pool())).toContain('connectionTimeoutMillis')
})

it('warns of a sql of postgres.js that opens connections too slowly, or fetches types', () => {
  const good = { connect_timeout: 3, fetch_types: false }
  expect(warningsOf(postgres(good))).toBe('')
  expect(warningsOf(postgres({ ...good, connect_timeout: 30 }))).toContain('connect_timeout')
  expect(warningsOf(postgres({ ...good, fetch_types: true }))).toContain('fetch_types')
})

it('warns of a sql that has connected before, and of streams without counts', async () => {
  const { url } = await setup()
  const good = { connect_timeout: 3, fetch_types: false }
  const sql = postgres(url, good)
  onTestFinished(() => sql.end({ timeout: 1 }))
  await sql`SELECT 1`
  expect(warningsOf(sql)).toContain('make the store before the first query')

  const { hostname, port } = new URL(url)
  const uncounted = postgres(url, {
    ...good,
    socket: () => {
      const socket = new Socket().connect(Number(port), hostname)
      return new Proxy(socket, {
        has: (target, name) => name !== 'bytesRead' && name in target,
        get: (target, name) => {
          const value: unknown = Reflect.get(target, name)
          return typeof value === 'function' ? value.bind(target) : value
        },
      })
    },
  } as postgres.Options<Record<string, never>>)
  onTestFinished(() => uncounted.end({ timeout: 1 }))
  warningsOf(uncounted)
  await uncounted`SELECT 1`
  const messages = vi.mocked(process.emitWarning).mock.calls.map(([message]) => String(message))
  expect(messages.join('\n')).toContain('return a net.Socket')
})

it('keeps a socket function of the application, with postgres.js', async () => {
  const { url } = await setup()
  const { hostname, port } = new URL(url)
  let opened = 0
  const sql = postgres(url, {
    connect_timeout: 3,
    fetch_types: false,
    onnotice: () => undefined,
    socket: () => {
      opened++
      return new Socket().connect(Number(port), hostname)
    },
  } as postgres.Options<Record<string, never>>)
  onTestFinished(() => sql.end({ timeout: 1 }))
  await postgresStore({ pool: sql }).migrate()
  expect(opened).toBeGreaterThan(0)
})
