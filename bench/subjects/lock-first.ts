/** A lock in Redis before the claim in PostgreSQL, which the durable claim makes unnecessary. */
import { randomUUID } from 'node:crypto'
import { Redis } from 'ioredis'
import type { Places } from '../run/contract.ts'
import type { Counter, Subject } from '../run/subject.ts'
import { openOwn } from './own.ts'
import { addressOf } from './stores.ts'

const LEASE_MS = 60_000

const UNLOCK = `
  if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
  return 0`

export async function openLockFirst(places: Places, counter: Counter): Promise<Subject> {
  const own = await openOwn({ store: 'postgres', places }, counter)
  const client = new Redis(addressOf(places, 'redis'))
  return {
    async run(key) {
      const token = randomUUID()
      const taken = await client.set(`lock:${key}`, token, 'PX', LEASE_MS, 'NX')
      if (taken !== 'OK') throw new Error(`expected OK, got ${taken}`)
      const reply = await own.run(key)
      await client.eval(UNLOCK, 1, `lock:${key}`, token)
      return reply
    },
    async close() {
      await client.quit()
      await own.close()
    },
  }
}
