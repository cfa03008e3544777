/**
 * A process that competes with others for the same keys in one Redis. It writes one line for each
 * key that it has won and completed.
 */
import { once } from 'node:events'
import { writeSync } from 'node:fs'
import { Redis } from 'ioredis'
import { createClient } from 'redis'
import { redisStore, type RedisStore } from '../../src/stores/redis/index.ts'
import { claimRequests, completeOf, ofKind } from '../../src/testing/store-cases/store-case.ts'

/** Longer than any test: only the winner matters, not the speed of the machine. */
const LEASE_MS = 60_000
const BATCH = 50

const report = (line: string) => writeSync(1, `${line}\n`)

/** Claims all keys concurrently with the other processes, and completes those that it wins. */
async function race(store: RedisStore, count: number): Promise<void> {
  // Loads the scripts that every claim needs before the start.
  await store.now()
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

const [driver, url, count] = process.argv.slice(2)
if (driver === 'ioredis') {
  const client = new Redis(url!)
  await race(redisStore({ client }), Number(count))
  client.disconnect()
} else {
  const client = createClient({ url: url! })
  await client.connect()
  await race(redisStore({ client }), Number(count))
  client.destroy()
}
process.stdin.destroy()
