import { expect, it, onTestFinished } from 'vitest'
import { createEngine } from '../../src/core/engine.ts'
import type { StoreFailedError } from '../../src/core/errors.ts'
import type { EngineEvent } from '../../src/core/events.ts'
import { identityOf } from '../../src/core/identity.ts'
import type { Store } from '../../src/core/store.ts'
import { bytes } from '../../src/testing/store-cases/store-case.ts'
import { around, useDynamodb } from './dynamodb-setup.ts'

const setup = useDynamodb()

/** `run` gives how a request ended. */
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

/** Whether a call is about one of these records. */
function about(identities: readonly string[]): (input: object) => boolean {
  return (input) => {
    const text = JSON.stringify(input)
    return identities.some((identity) => text.includes(identity))
  }
}

it('serves other tenants while 200 calls of one tenant have no answer', async () => {
  const { client, open } = await setup()
  const keys = Array.from({ length: 200 }, (_, n) => `slow-${n}`)
  const isSlow = about(keys.map((key) => identityOf(scopeOf('slow'), key)))
  const answers = Promise.withResolvers<undefined>()
  let underWay = 0
  const stand = around(client, async ({ input, go }) => {
    if (isSlow(input)) {
      underWay++
      await answers.promise
    }
    return go()
  })
  const { run } = serve(open({ client: stand }))
  const ends: string[] = []
  const slow = keys.map((key) => run('slow', key).then((how) => ends.push(how)))
  for (let n = 0; n < 40; n++) expect(await run('other', `key-${n}`)).toBe('ran')
  // 48 of the 64 calls, and no more, are those of the tenant that is slow.
  expect([ends, underWay]).toEqual([[], 48])
  answers.resolve(undefined)
  await Promise.all(slow)
  expect(new Set(ends)).toEqual(new Set(['ran']))
})

it('serves other keys while every call about one key is throttled', async () => {
  const { client, open } = await setup()
  const hot = identityOf(scopeOf('hot'), 'hot')
  const isHot = about([hot])
  const throttled = Object.assign(new Error('The level of configured throughput was exceeded'), {
    name: 'ProvisionedThroughputExceededException',
  })
  const stand = around(client, ({ input, go }) => (isHot(input) ? Promise.reject(throttled) : go()))
  const { run, events } = serve(open({ client: stand }))
  const laneOf = (identity: string) => Number.parseInt(identity.slice(0, 2), 16) % 64
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
