/**
 * The limit on Redis: `SET NX` to take a key, `SET` to complete it, `GET` for a replay. Without a
 * fence, a fingerprint, or a takeover from a dead holder.
 */
import { Redis } from 'ioredis'
import type { Places } from '../run/contract.ts'
import type { Counter, Subject } from '../run/subject.ts'
import { FINGERPRINT, REPLY_BYTES } from '../run/work.ts'
import { addressOf } from './stores.ts'

const LEASE_MS = 60_000
const DAY_MS = 86_400_000

export async function openBareRedis(places: Places, counter: Counter): Promise<Subject> {
  const client = new Redis(addressOf(places, 'redis'))
  const reply = Buffer.from(REPLY_BYTES)
  return {
    async run(key) {
      const taken = await client.set(`bare:${key}`, FINGERPRINT, 'PX', LEASE_MS, 'NX')
      if (taken === null) return client.getBuffer(`bare:${key}`)
      counter.runs++
      await client.set(`bare:${key}`, reply, 'PX', DAY_MS)
      return reply
    },
    reset: async () => void (await client.flushdb()),
    close: async () => void (await client.quit()),
  }
}
