import { Socket } from 'node:net'
import pg from 'pg'
import postgres from 'postgres'
import { expect, it, onTestFinished, vi } from 'vitest'
import { postgresStore, type PostgresPool } from '../../../../src/stores/postgres/index.ts'
import { usePostgres } from '../setup.ts'

const setup = usePostgres()

/** The warnings when a store is created with this pool. Each is emitted once in a process. */
function warningsOf(pool: PostgresPool): string {
  const emitWarning = vi.spyOn(process, 'emitWarning').mockImplementation(() => undefined)
  onTestFinished(() => emitWarning.mockRestore())
  postgresStore({ pool })
  return emitWarning.mock.calls.map(([message]) => String(message)).join('\n')
}

it('warns about a Pool without connectionTimeoutMillis, and about no other Pool', () => {
  expect(warningsOf(new pg.Pool({ connectionTimeoutMillis: 3_000 }))).toBe('')
  expect(warningsOf(new pg.Pool())).toContain('connectionTimeoutMillis')
})

it('warns about a sql of postgres.js with a long connect_timeout or with fetch_types', () => {
  const good = { connect_timeout: 3, fetch_types: false }
  expect(warningsOf(postgres(good))).toBe('')
  expect(warningsOf(postgres({ ...good, connect_timeout: 30 }))).toContain('connect_timeout')
  expect(warningsOf(postgres({ ...good, fetch_types: true }))).toContain('fetch_types')
})

it('warns about a sql that has connected before, and sockets without byte counts', async () => {
  const { url } = await setup()
  const good = { connect_timeout: 3, fetch_types: false }
  const sql = postgres(url, good)
  onTestFinished(() => sql.end({ timeout: 1 }))
  await sql`SELECT 1`
  expect(warningsOf(sql)).toContain('create the store before the first query')

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

it('calls the socket function of the application, with postgres.js', async () => {
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
