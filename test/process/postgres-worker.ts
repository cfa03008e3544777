/**
 * A process that works on one PostgreSQL database until it is done or killed. It writes one line
 * for every fact that it knows to be recorded, immediately.
 */
import { once } from 'node:events'
import { writeSync } from 'node:fs'
import pg from 'pg'
import { postgresStore, type PostgresStore } from '../../src/stores/postgres/index.ts'
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

/** Claims all keys concurrently with the other processes, and completes those that it wins. */
async function race(store: PostgresStore, count: number): Promise<void> {
  await store.migrate()
  report('ready')
  await once(process.stdin, 'data')
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

/** Claims new keys and pays for each in a transaction, until it is killed. */
async function loop(store: PostgresStore, seed: number): Promise<void> {
  report('ready')
  for (let n = 0; ; n++) {
    const request = claimRequest({ key: `${seed}-${n}`, leaseMs: LEASE_MS })
    const { lease } = ofKind(only(await store.claim([request])), 'claimed')
    const outcome = await store.transaction<pg.Client>(lease, async (tx) => {
      await tx.query('INSERT INTO payment VALUES ($1)', [request.key])
      await tx.query('INSERT INTO payment VALUES ($1)', [`${request.key} again`])
      return { result: bytes('paid'), retentionMs: RETENTION_MS }
    })
    ofKind(outcome, 'settled')
    report(request.key)
  }
}

const [mode, url, number, behind] = process.argv.slice(2)
const pool = new pg.Pool({ connectionString: url, max: 3 })
const store = postgresStore({ pool, prepare: behind !== 'pgbouncer' })
if (mode === 'race') await race(store, Number(number))
else await loop(store, Number(number))
await pool.end()
process.stdin.destroy()
