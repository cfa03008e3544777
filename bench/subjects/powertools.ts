/**
 * @aws-lambda-powertools/idempotency on Redis, wrapped around a function as in its documentation:
 * the cache layer on a connected client, the key from the event, and the context of the
 * invocation, from which it takes the remaining time.
 *
 * Left out: it compares no fingerprint (its cache layer drops the hash on completion, so payload
 * validation would refuse every replay), and it has no fence: every completion overwrites. Records
 * are kept for a day, as in all subjects; its default is an hour.
 */
import type { Places } from '../run/contract.ts'
import type { Counter, Subject } from '../run/subject.ts'
import { REPLY, REQUEST } from '../run/work.ts'
import { loadPeer, openNodeRedis } from './load-peer.ts'
import { DAY_SECONDS } from './steadykey.ts'
import { addressOf } from './stores.ts'

type Event = typeof REQUEST & { readonly key: string }
type LambdaHandler = (event: Event, context: unknown) => Promise<unknown>

interface Powertools {
  readonly IdempotencyConfig: new (options: {
    eventKeyJmesPath: string
    expiresAfterSeconds: number
  }) => unknown
  readonly makeIdempotent: (
    handler: LambdaHandler,
    options: { persistenceStore: unknown; config: unknown },
  ) => LambdaHandler
}

const CONTEXT = { getRemainingTimeInMillis: () => 60_000 }

export async function openPowertools(places: Places, counter: Counter): Promise<Subject> {
  const { IdempotencyConfig, makeIdempotent } = await loadPeer<Powertools>(
    '@aws-lambda-powertools/idempotency',
  )
  const { CachePersistenceLayer } = await loadPeer<{
    CachePersistenceLayer: new (options: { client: unknown }) => unknown
  }>('@aws-lambda-powertools/idempotency/cache')
  const client = await openNodeRedis('@redis/client', addressOf(places, 'redis'))
  const pay: LambdaHandler = async () => {
    counter.runs++
    return REPLY
  }
  const payOnce = makeIdempotent(pay, {
    persistenceStore: new CachePersistenceLayer({ client }),
    config: new IdempotencyConfig({ eventKeyJmesPath: 'key', expiresAfterSeconds: DAY_SECONDS }),
  })
  return {
    run: (key) => payOnce({ ...REQUEST, key }, CONTEXT),
    reset: async () => void (await client.flushDb()),
    close: async () => void (await client.quit()),
  }
}
