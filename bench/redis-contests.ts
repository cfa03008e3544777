import { randomUUID } from 'node:crypto'
import { createEngine } from '../src/core/engine.ts'
import { cachedStore, redisCache } from '../src/stores/cached/index.ts'
import {
  FINGERPRINT,
  IN_FLIGHT,
  pairsPerSecond,
  perSecond,
  replaysPerSecond,
  RESULT,
  type Contest,
} from './contest.ts'
import type { Servers } from './servers.ts'

/** What a hand-written guard does that neither fences nor records who holds the key. */
export function bareRedis({ redis, redisClient }: Servers): Contest {
  return {
    name: `Redis, ${IN_FLIGHT} in flight: pairs/s against a bare SET NX and SET`,
    target: { atLeast: 0.8 },
    ours: (ms) => pairsPerSecond(redis, ms),
    theirs: (ms) =>
      perSecond(ms, async () => {
        const key = `bare:${randomUUID()}`
        const taken = await redisClient.set(key, FINGERPRINT, 'PX', 60_000, 'NX')
        if (taken !== 'OK') throw new Error(`expected OK, got ${taken}`)
        await redisClient.set(key, Buffer.from(RESULT), 'PX', 86_400_000)
      }),
  }
}

export function throughCache({ postgres, redisClient }: Servers): Contest {
  const cached = createEngine({
    store: cachedStore({ durable: postgres.store, cache: redisCache({ client: redisClient }) }),
  })
  return {
    name: `PostgreSQL with a cache in front, ${IN_FLIGHT} in flight: replays/s against without`,
    ours: (ms) => replaysPerSecond(cached, ms),
    theirs: (ms) => replaysPerSecond(postgres, ms),
  }
}

/** The lock in Redis, the record in PostgreSQL: what the durable claim makes unnecessary. */
export function lockSplit({ postgres, redisClient }: Servers): Contest {
  const scope = { tenant: 'bench', operation: 'POST /payments' }
  const locked = async () => {
    const key = randomUUID()
    const token = randomUUID()
    const lock = `lock:${key}`
    const taken = await redisClient.set(lock, token, 'PX', 60_000, 'NX')
    if (taken !== 'OK') throw new Error(`expected OK, got ${taken}`)
    await postgres.run({ scope, key, fingerprint: FINGERPRINT }, () => RESULT)
    await redisClient.eval(UNLOCK, 1, lock, token)
  }
  return {
    name: `PostgreSQL alone against a lock in Redis before it, ${IN_FLIGHT} in flight: pairs/s`,
    ours: (ms) => pairsPerSecond(postgres, ms),
    theirs: (ms) => perSecond(ms, locked),
  }
}

const UNLOCK = `
  if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
  return 0`
