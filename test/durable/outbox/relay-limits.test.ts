import { expect, it } from 'vitest'
import type { RelayMessage } from '../../../src/durable/index.ts'
import { fairFixture } from '../places/fair-fixture.ts'
import { hanging, quick, start, untilAborted, watchClaims } from './fair-relay.ts'

it('relays messages of other tenants while a tenant at its limit becomes slow', async () => {
  const fixture = fairFixture()
  const { clock, add } = fixture
  watchClaims(fixture, 10)
  const good = quick()
  let handled = 0
  const hook = (message: RelayMessage) => {
    if (message.tenant === 'good') return good.handler(message)
    return ++handled > 500 ? untilAborted(message) : undefined
  }
  await add('hook', 'crowd', 1_500)
  const { relay } = start(fixture, { topics: { hook }, perTenant: 5 })
  await clock.advanceAsync(2_000)
  expect(relay.stats()).toMatchObject({ running: 5, waiting: 5 })
  await add('hook', 'good', 20)
  await clock.advanceAsync(2_000)
  expect(good.handled.length).toBe(20)
})

it('relays other topics while many topics at their limit become slow', async () => {
  const fixture = fairFixture()
  const { clock, add } = fixture
  watchClaims(fixture, 10)
  const good = quick()
  let handled = 0
  const bad = (message: RelayMessage) => (++handled > 500 ? untilAborted(message) : undefined)
  for (const topic of ['a', 'b', 'c', 'd']) await add(topic, undefined, 500)
  const topics = { a: bad, b: bad, c: bad, d: bad, good: good.handler }
  const { relay } = start(fixture, { topics, perTopic: 10 })
  await clock.advanceAsync(3_000)
  expect(relay.stats()).toMatchObject({ running: 40, waiting: 40 })
  await add('good', undefined, 20)
  await clock.advanceAsync(2_000)
  expect(good.handled.length).toBe(20)
})

it('uses a free place although many messages wait for full topics and full tenants', async () => {
  const fixture = fairFixture()
  const { clock, add } = fixture
  const { handler } = hanging()
  const good = quick()
  const topics = { first: handler, second: handler, third: handler, good: good.handler }
  const limits = { concurrency: 9, perTopic: 4, perTenant: 2, reserve: 0 }
  const { relay } = start(fixture, { topics, ...limits })
  const addEach = async (topic: string, tenants: readonly string[]) => {
    for (const tenant of tenants) await add(topic, tenant, 2)
    await clock.advanceAsync(2_000)
  }
  await addEach('first', ['a', 'b'])
  await addEach('second', ['c', 'd'])
  // The first messages wait for their topics, and the next ones for their tenants.
  await addEach('first', ['e', 'f'])
  await addEach('second', ['g', 'h'])
  await addEach('third', ['a', 'b', 'c', 'd'])
  expect(relay.stats()).toMatchObject({ running: 8, waiting: 16 })
  await addEach('good', ['i', 'j', 'k'])
  expect(good.handled.length).toBe(6)
})

it('claims about as many messages as it handles for a tenant at its limit', async () => {
  const fixture = fairFixture()
  const { clock, add } = fixture
  const count = watchClaims(fixture)
  let handled = 0
  const hook = () =>
    new Promise<void>((resolve) => {
      clock.after(100, () => {
        handled++
        resolve()
      })
    })
  const good = quick()
  await add('hook', 'crowd', 800)
  start(fixture, { topics: { hook, good: good.handler }, perTenant: 2 })
  await clock.advanceAsync(5_050)
  expect(handled).toBe(100)
  // Only the first claim can show that all messages belong to one tenant.
  expect(count.messages).toBeLessThanOrEqual(handled + 120)
  expect(count.claims).toBeLessThanOrEqual(handled + 20)
  // Other tenants do not wait during the catch-up claims.
  await add('good', 'other', 50)
  await clock.advanceAsync(1_000)
  expect(good.handled.length).toBe(50)
})

it('gives a tenant at its limit all of its places while it has messages', async () => {
  const fixture = fairFixture()
  const { clock, add } = fixture
  const hung = hanging()
  await add('hook', 'a', 30)
  await add('hook', 'b', 30)
  const { relay } = start(fixture, { topics: { hook: hung.handler }, perTenant: 3 })
  await clock.advanceAsync(1_000)
  for (let round = 0; round < 9; round++) {
    expect(relay.stats().running).toBe(6)
    for (const end of hung.ends.splice(0)) end()
    await clock.advanceAsync(100)
  }
  expect(hung.begun.length).toBe(60)
})

it('sends no catch-up claim while the topic is paused', async () => {
  const fixture = fairFixture()
  const { clock, add } = fixture
  const count = watchClaims(fixture)
  const hung = hanging()
  await add('hook', 'a', 60)
  const options = { concurrency: 10, perTenant: 5, handlerTimeoutMs: 1_000 }
  const { relay } = start(fixture, { topics: { hook: hung.handler }, ...options })
  await clock.advanceAsync(10_000)
  expect(relay.stats()).toMatchObject({ running: 0, waiting: 0, paused: [{ name: 'hook' }] })
  const before = count.claims
  await clock.advanceAsync(60_000)
  expect(count.claims).toBe(before)
  for (const end of hung.ends) end()
  await clock.advanceAsync(100)
  expect(relay.stats().running).toBe(5)
})

// Counted before topics and tenants had limits: more claims would reduce the throughput.
it.each([
  { claimMs: 0, handlerMs: 0, claimsMax: 11 },
  { claimMs: 10, handlerMs: 0, claimsMax: 8 },
  { claimMs: 10, handlerMs: 1, claimsMax: 12 },
])('relays 1,000 messages in $claimsMax claims of $claimMs ms', async (one) => {
  const fixture = fairFixture()
  const { clock, add } = fixture
  const count = watchClaims(fixture, one.claimMs)
  const { handler, handled } = quick()
  const mail = async (message: RelayMessage) => {
    const wait = new Promise<void>((resolve) => void clock.after(one.handlerMs, resolve))
    if (one.handlerMs > 0) await wait
    handler(message)
  }
  await add('mail', undefined, 1_000)
  start(fixture, { topics: { mail } })
  for (let ms = 0; handled.length < 1_000 && ms < 1_000; ms++) await clock.advanceAsync(1)
  expect(handled.length).toBe(1_000)
  expect(count.claims).toBeLessThanOrEqual(one.claimsMax)
})
