/** Which throttled and lost claims the store reports as unwritten, and the calls that follow. */
import { expect, it } from 'vitest'
import { createEngine } from '../../../src/core/engine/engine.ts'
import type { EngineEvent } from '../../../src/core/events.ts'
import { FakeClock } from '../../../src/testing/fake-clock.ts'
import { bytes, claim, claimRequests } from '../../../src/testing/store-cases/store-case.ts'
import { around, faultyProxy, useDynamodb, type WireFate } from './setup.ts'

const setup = useDynamodb({ private: true, returnsItems: true })

const CLAIMS = 200
const LEASE_MS = 60_000

/** An engine behind a network with faults that the test decides, and the calls that it makes. */
async function stormySetup(fateOf: (target: string, body: string) => WireFate) {
  const { connect, open, server, items } = await setup()
  const endpoint = await faultyProxy(server.endpoint, fateOf)
  const clock = new FakeClock()
  const calls: string[] = []
  let underWay = 0
  const counted = around(connect({ endpoint, maxAttempts: 3 }), async ({ name, go }) => {
    calls.push(name)
    underWay++
    try {
      return await go()
    } finally {
      underWay--
    }
  })
  const store = open({ client: counted, clock })
  const events: EngineEvent[] = []
  const engine = createEngine({
    store,
    clock,
    breaker: false,
    sweepEveryMs: 0,
    reapEveryMs: 0,
    onEvent: (event) => events.push(event),
  })
  const run = (key: string) => {
    const scope = { tenant: 'tenant-1', operation: 'POST /payments' }
    return engine.run({ scope, key, fingerprint: 'f' }, () => bytes(key)).catch(() => undefined)
  }
  const runAll = (name: string, count: number) =>
    Promise.all(Array.from({ length: count }, (_, n) => run(`${name}-${n}`)))
  return {
    calls,
    runAll,
    /** Advances the clock in steps, and waits for the calls of each step before the next. */
    pass: async (ms: number, stepMs = 100) => {
      for (let passed = 0; passed < ms; passed += stepMs) {
        await clock.advanceAsync(stepMs)
        await expect.poll(() => underWay, { timeout: 30_000, interval: 1 }).toBe(0)
      }
    },
    states: async () =>
      Object.groupBy(
        (await items()).filter(({ item }) => item === 'record'),
        ({ state }) => String(state),
      ),
    close: () => engine.close(),
  }
}

it('makes no further call for claims that were throttled', { timeout: 60_000 }, async () => {
  let isThrottling = true
  const { calls, runAll, pass, close } = await stormySetup(() =>
    isThrottling ? 'throttled' : 'pass',
  )
  expect((await runAll('storm', CLAIMS)).every((outcome) => outcome === undefined)).toBe(true)
  isThrottling = false
  calls.length = 0
  await pass(5_000)
  await pass(LEASE_MS, 5_000)
  expect(calls).toEqual([])
  expect((await runAll('new', 20)).every((outcome) => outcome?.kind === 'ran')).toBe(true)
  // One call for each claim and one for each result.
  expect(calls).toHaveLength(40)
  await close()
})

// The write takes effect and its answer is lost. The SDK tries again, and is throttled.
it('releases a claim that took effect before it was throttled', async () => {
  const seen = new Set<string>()
  let isStorm = true
  const fateOf = (target: string, body: string) => {
    const isClaim = target === 'PutItem' && body.includes('"in_progress"')
    if (!isStorm || !isClaim) return 'pass'
    if (seen.has(body)) return 'throttled'
    seen.add(body)
    return 'answer lost'
  }
  const { runAll, pass, states, close } = await stormySetup(fateOf)
  await runAll('storm', 20)
  isStorm = false
  expect(seen.size).toBe(20)
  await pass(1_000)
  expect((await states())['failed_retryable']).toHaveLength(20)
  await close()
})

it('bounds the calls for claims that may have taken effect', { timeout: 120_000 }, async () => {
  let isStorm = true
  const { calls, runAll, pass, states, close } = await stormySetup((target) =>
    isStorm && target === 'PutItem' ? 'request lost' : 'pass',
  )
  await runAll('storm', CLAIMS)
  isStorm = false
  calls.length = 0
  await pass(5_000)
  // At most 50 a second, and 16 at once. Each claim has been looked for at least once.
  expect(calls.length).toBeLessThanOrEqual(5 * 50 + 16)
  expect(calls.length).toBeGreaterThanOrEqual(CLAIMS)
  expect((await runAll('new', 20)).every((outcome) => outcome?.kind === 'ran')).toBe(true)
  await pass(LEASE_MS, 500)
  // Six reads for each claim.
  expect(calls.length).toBeLessThanOrEqual(6 * CLAIMS + 40)
  expect(calls.filter((name) => name !== 'getItem')).toHaveLength(40)
  expect(Object.keys(await states())).toEqual(['completed'])
  await close()
})

it('reports that nothing was written for a single claim, and never for a batch', async () => {
  const { connect, open, server } = await setup()
  const endpoint = await faultyProxy(server.endpoint, (target) =>
    target === 'PutItem' ? 'throttled' : 'pass',
  )
  const store = open({ client: connect({ endpoint, maxAttempts: 2 }), clock: new FakeClock() })
  const failure = { failure: 'unavailable', store: 'dynamodb' }
  await expect(claim(store)).rejects.toMatchObject({ ...failure, wroteNothing: true })
  const several = store.claim(claimRequests(2))
  await expect(several).rejects.toMatchObject({ ...failure, wroteNothing: false })
  const gone = open({ client: connect({ endpoint: 'http://127.0.0.1:1', maxAttempts: 2 }) })
  await expect(claim(gone)).rejects.toMatchObject({ ...failure, wroteNothing: true })
})
