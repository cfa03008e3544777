import pg from 'pg'
import postgres from 'postgres'
import { onTestFinished } from 'vitest'
import { callStore } from '../../../../src/core/store/store-call.ts'
import { systemClock } from '../../../../src/core/time/clock.ts'
import type { ClaimOutcome } from '../../../../src/core/store/store.ts'
import {
  postgresStore,
  type PostgresPool,
  type PostgresStore,
  type PostgresStoreOptions,
} from '../../../../src/stores/postgres/index.ts'
import { claimRequest } from '../../../../src/testing/store-cases/store-case.ts'
import { startTcpProxy } from '../../../servers/tcp-proxy.ts'
import { usePostgres } from '../setup.ts'

/** The time limit of a call, and of opening a connection. */
export const TIMEOUT_MS = 1_000
export const CONNECT_MS = 600

export const MAX = 10

export const DRIVERS = ['pg', 'postgres.js'] as const
export type DriverName = (typeof DRIVERS)[number]

/** Stores behind a network that can become silent, with the settings from the guide. */
export function useSilence() {
  const setupServer = usePostgres()
  return async () => {
    const fixture = await setupServer()
    await fixture.open()
    const { hostname, port } = new URL(fixture.url)
    const proxy = await startTcpProxy({ host: hostname, port: Number(port) })
    onTestFinished(() => proxy.close())
    const url = proxy.through(fixture.url)

    const pgPool = (more: pg.PoolConfig = {}) => {
      const pool = new pg.Pool({
        connectionString: url,
        max: MAX,
        connectionTimeoutMillis: CONNECT_MS,
        ...more,
      })
      pool.on('error', () => undefined)
      onTestFinished(() => pool.end())
      return pool
    }
    const sqlPool = (more: postgres.Options<Record<string, never>> = {}) => {
      const sql = postgres(url, {
        max: MAX,
        connect_timeout: CONNECT_MS / 1000,
        fetch_types: false,
        onnotice: () => undefined,
        ...more,
      })
      onTestFinished(() => sql.end({ timeout: 0 }))
      return sql
    }
    const start = (pool: PostgresPool, more: Partial<PostgresStoreOptions> = {}) => {
      const store = postgresStore({ pool, ...more })
      onTestFinished(() => store.close())
      return store
    }
    const startWith = (driver: DriverName) => start(driver === 'pg' ? pgPool() : sqlPool())
    return { ...fixture, proxy, pgPool, sqlPool, start, startWith }
  }
}

/** A store call with a time limit, as the engine makes it. */
export function ask<Answer>(call: (signal: AbortSignal) => Promise<Answer>): Promise<Answer> {
  return callStore(systemClock, { store: 'postgres', call: 'test', timeoutMs: TIMEOUT_MS }, call)
}

export function claimOnce(store: PostgresStore): Promise<ClaimOutcome[]> {
  const request = claimRequest({ key: crypto.randomUUID() })
  return ask((signal) => store.claim([request], signal))
}

/** Makes one call for each connection at once, so that every connection is used. */
export function claimOnAll(store: PostgresStore): Promise<PromiseSettledResult<unknown>[]> {
  return Promise.allSettled(Array.from({ length: MAX }, () => claimOnce(store)))
}

export function countFailed(results: readonly PromiseSettledResult<unknown>[]): number {
  return results.filter(({ status }) => status === 'rejected').length
}

/** Counts how many consecutive calls fail until one succeeds. */
export async function failuresUntilSuccess(store: PostgresStore, triesMax = 10): Promise<number> {
  for (let failures = 0; failures < triesMax; failures++) {
    const isDone = await claimOnce(store).then(
      () => true,
      () => false,
    )
    if (isDone) return failures
  }
  return triesMax
}
