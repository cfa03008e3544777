/**
 * A process that works on one MariaDB database until it is done or killed. It writes one line for
 * every fact that it knows to be recorded, immediately.
 */
import { once } from 'node:events'
import { writeSync } from 'node:fs'
import mysql, { type Pool, type PoolConnection } from 'mysql2/promise'
import type { MysqlPoolConnection, MysqlPromisePool } from '../../src/stores/mysql/client.ts'
import { mysqlStore, type MysqlStore } from '../../src/stores/mysql/index.ts'
import {
  bytes,
  claimRequest,
  claimRequests,
  completeOf,
  ofKind,
  only,
  RETENTION_MS,
} from '../../src/testing/store-cases/store-case.ts'

/** Longer than any test: only the kill matters, not the speed of the machine. */
const LEASE_MS = 60_000
const BATCH = 50

const report = (line: string) => writeSync(1, `${line}\n`)

/** Migrates, claims all keys concurrently with the other processes, and completes its wins. */
async function race(store: MysqlStore, count: number): Promise<void> {
  report('ready')
  await once(process.stdin, 'data')
  await store.migrate()
  const requests = claimRequests(count, { leaseMs: LEASE_MS })
  for (let at = 0; at < count; at += BATCH) {
    const outcomes = await store.claim(requests.slice(at, at + BATCH))
    const leases = outcomes.flatMap((one) => (one.kind === 'claimed' ? [one.lease] : []))
    const settled = await store.settle(leases.map((lease) => completeOf(lease)))
    for (const outcome of settled) ofKind(outcome, 'settled')
    for (const [n, outcome] of outcomes.entries()) {
      if (outcome.kind === 'claimed') report(requests[at + n]!.key)
    }
  }
}

/** Pays for one key in a transaction. */
async function pay(store: MysqlStore, key: string): Promise<void> {
  const request = claimRequest({ key, leaseMs: LEASE_MS })
  const { lease } = ofKind(only(await store.claim([request])), 'claimed')
  const outcome = await store.transaction<PoolConnection>(lease, async (tx) => {
    await tx.query('INSERT INTO payment VALUES (?)', [key])
    await tx.query('INSERT INTO payment VALUES (?)', [`${key} again`])
    return { result: bytes('paid'), retentionMs: RETENTION_MS }
  })
  ofKind(outcome, 'settled')
  report(key)
}

/** A pool whose process dies at a statement: before it is sent, or right after. */
function killingPool(real: Pool, step: number, when: string): MysqlPromisePool {
  let sent = 0
  const die = () => process.kill(process.pid, 'SIGKILL')
  return {
    pool: real.pool,
    getConnection: async (): Promise<MysqlPoolConnection> => {
      const connection = await real.getConnection()
      return new Proxy(connection, {
        get(target, name) {
          const value: unknown = Reflect.get(target, name, target)
          if (typeof value !== 'function') return value
          return (...values: unknown[]): unknown => {
            const isLast = name === 'query' && ++sent === step
            if (isLast && when === 'before') die()
            const answer: unknown = Reflect.apply(value, target, values)
            if (isLast) setImmediate(die)
            return answer
          }
        },
      })
    },
  }
}

const [mode, url, number, when] = process.argv.slice(2)
const pool = mysql.createPool({ uri: url!, connectionLimit: 3 })
const store = mysqlStore({
  pool: mode === 'die' ? killingPool(pool, Number(number), when!) : pool,
})
if (mode === 'race') await race(store, Number(number))
else if (mode === 'die') await pay(store, `${when} ${number}`)
else for (let n = 0; ; n++) await pay(store, `${number}-${n}`)
await pool.end()
process.stdin.destroy()
