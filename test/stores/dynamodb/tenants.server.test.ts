import { expect, it, onTestFinished } from 'vitest'
import { createEngine } from '../../../src/core/engine/engine.ts'
import type { StoreFailedError } from '../../../src/core/errors.ts'
import type { EngineEvent } from '../../../src/core/events.ts'
import { identityOf } from '../../../src/core/record/identity.ts'
import type { Store } from '../../../src/core/store/store.ts'
import { shardOf } from '../../../src/stores/dynamodb/items.ts'
import { bytes } from '../../../src/testing/store-cases/store-case.ts'
import { around, useDynamodb } from './setup.ts'

const setup = useDynamodb()

/** `run` returns how a request ended. */
function serve(store: Store) {
  const events: EngineEvent[] = []
  const engine = createEngine({
    store,
    sweepEveryMs: 0,
    reapEveryMs: 0,
    storeTimeoutMs: 60_000,
    onEvent: (event) => events.push(event),
  })
  onTestFinished(async () => void (await engine.close({ graceMs: 0 })))
  const run = (tenant: string, key: string): Promise<string> =>
    engine
      .run({ scope: scopeOf(tenant), key, fingerprint: 'f' }, () => bytes('paid'))
      .then(
        ({ kind }) => kind,
        (error: unknown) => (error as StoreFailedError).failure,
      )
  return { events, run }
}

const scopeOf = (tenant: string) => ({ tenant, operation: 'pay' })

/** Whether a call contains the identity of one of these records. */
function about(identities: readonly string[]): (input: object) => boolean {
  return (input) => {
    const text = JSON.stringify(input)
    return identities.some((identity) => text.includes(identity))
  }
}

const throttled = () =>
  Object.assign(new Error('The level of configured throughput was exceeded'), {
    name: 'ProvisionedThroughputExceededException',
  })

it('serves other tenants while 200 calls of one tenant have no answer', async () => {
  const { client, open } = await setup()
  const keys = Array.from({ length: 200 }, (_, n) => `slow-${n}`)
  const isSlow = about(keys.map((key) => identityOf(scopeOf('slow'), key)))
  const answers = Promise.withResolvers<undefined>()
  let underWay = 0
  const slowed = around(client, async ({ input, go }) => {
    if (isSlow(input)) {
      underWay++
      await answers.promise
    }
    return go()
  })
  const { run } = serve(open({ client: slowed }))
  const ends: string[] = []
  const slow = keys.map((key) => run('slow', key).then((how) => ends.push(how)))
  for (let n = 0; n < 40; n++) expect(await run('other', `key-${n}`)).toBe('ran')
  // The slow tenant has exactly 48 of the 64 calls.
  expect([ends, underWay]).toEqual([[], 48])
  answers.resolve(undefined)
  await Promise.all(slow)
  expect(new Set(ends)).toEqual(new Set(['ran']))
})

it('serves other keys while every call for one key is throttled', async () => {
  const { client, open } = await setup()
  const hot = identityOf(scopeOf('hot'), 'hot')
  const isHot = about([hot])
  const throttling = around(client, ({ input, go }) =>
    isHot(input) ? Promise.reject(throttled()) : go(),
  )
  const store = open({ client: throttling })
  const { run, events } = serve(store)
  const laneOf = (identity: string) => store.batching!.lanes!.of(identity)
  const others = Array.from({ length: 100 }, (_, n) => `key-${n}`)
    .filter((key) => laneOf(identityOf(scopeOf('other'), key)) !== laneOf(hot))
    .slice(0, 40)
  for (const key of others) {
    // Ten failures for each success.
    for (let n = 0; n < 10; n++) expect(await run('hot', 'hot')).not.toBe('ran')
    expect(await run('other', key)).toBe('ran')
  }
  expect(events.filter(({ kind }) => kind === 'breaker_changed')).toEqual([])
})

// The service writes the index with the record, so claims fail if their shard has no capacity.
it.each([8, 20])('refuses no key of another shard while one of %s is throttled', async (shards) => {
  const { client, open } = await setup()
  const throttling = around(client, ({ input, go }) => {
    const { stateShard } = (input['Item'] ?? {}) as { stateShard?: { S?: string } }
    return stateShard?.S === 'in_progress#3' ? Promise.reject(throttled()) : go()
  })
  const { run, events } = serve(open({ client: throttling, shards }))
  const ends = { healthy: new Set<string>(), throttled: new Set<string>() }
  for (let wave = 0; wave < 40; wave++) {
    const keys = Array.from({ length: 20 }, (_, n) => `key-${wave}-${n}`)
    await Promise.all(
      keys.map(async (key) => {
        const shard = shardOf(identityOf(scopeOf('t'), key), shards)
        ends[shard === 3 ? 'throttled' : 'healthy'].add(await run('t', key))
      }),
    )
  }
  expect(ends.healthy).toEqual(new Set(['ran']))
  // Only the breakers of the throttled shard's lanes have opened.
  expect(ends.throttled).toEqual(new Set(['unavailable', 'refused']))
  expect(events.filter(({ kind }) => kind === 'breaker_changed')).toEqual([])
})
