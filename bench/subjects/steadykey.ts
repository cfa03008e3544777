/**
 * steadykey, set up as in its README: a manager with a TTL of a day; the key of the client, the
 * request as the payload, and the tenant as the namespace.
 *
 * Left out: on completion it reads the record, compares its holder and then writes, as separate
 * statements, so a holder that lost its key in between still overwrites. One statement for every
 * call, none of them prepared.
 */
import type { Places } from '../run/contract.ts'
import type { Counter, Subject } from '../run/subject.ts'
import { REPLY, REQUEST } from '../run/work.ts'
import { loadPeer, openNodeRedis } from './load-peer.ts'
import { addressOf, openPool } from './stores.ts'

export type SteadykeyStore = 'memory' | 'redis' | 'postgres'

export interface SteadykeyManager {
  execute(
    payload: unknown,
    operation: () => Promise<unknown>,
    options: { idempotencyKey: string; namespace: string },
  ): Promise<{ value: unknown; fromCache: boolean }>
}

interface Steadykey {
  readonly IdempotencyManager: new (
    store: unknown,
    options: { keyPrefix: string; defaultTtlSeconds: number },
  ) => SteadykeyManager
  readonly InMemoryIdempotencyStore: new () => unknown
  readonly RedisIdempotencyStore: new (client: unknown) => unknown
  readonly PostgresIdempotencyStore: new (client: unknown) => { readonly ready: Promise<void> }
}

export interface OpenManager {
  /** A new one after a reset. */
  readonly manager: SteadykeyManager
  readonly reset?: () => Promise<void>
  readonly close: () => Promise<void>
}

export const DAY_SECONDS = 86_400

export async function openManager(store: SteadykeyStore, places: Places): Promise<OpenManager> {
  const steadykey = await loadPeer<Steadykey>('steadykey')
  const manage = (kept: unknown) =>
    new steadykey.IdempotencyManager(kept, {
      keyPrefix: 'bench',
      defaultTtlSeconds: DAY_SECONDS,
    })
  switch (store) {
    case 'memory': {
      let manager = manage(new steadykey.InMemoryIdempotencyStore())
      return {
        get manager() {
          return manager
        },
        reset: async () => void (manager = manage(new steadykey.InMemoryIdempotencyStore())),
        close: async () => undefined,
      }
    }
    case 'redis': {
      const client = await openNodeRedis('redis', addressOf(places, 'redis'))
      return {
        manager: manage(new steadykey.RedisIdempotencyStore(client)),
        reset: async () => void (await client.flushDb()),
        close: async () => void (await client.quit()),
      }
    }
    case 'postgres': {
      const pool = openPool(places)
      const kept = new steadykey.PostgresIdempotencyStore(pool)
      await kept.ready
      return { manager: manage(kept), close: () => pool.end() }
    }
  }
}

export async function openSteadykey(
  store: SteadykeyStore,
  places: Places,
  counter: Counter,
): Promise<Subject> {
  const opened = await openManager(store, places)
  const work = async () => {
    counter.runs++
    return REPLY
  }
  return {
    async run(key) {
      const options = { idempotencyKey: key, namespace: 'bench' }
      return (await opened.manager.execute(REQUEST, work, options)).value
    },
    ...(opened.reset === undefined ? {} : { reset: opened.reset }),
    close: opened.close,
  }
}
