import { expect, it } from 'vitest'
import type { RelayMessage } from '../../../src/durable/index.ts'
import { fairFixture } from '../places/fair-fixture.ts'
import { quick, start, untilAborted, watchClaims } from './fair-relay.ts'

it('relays a fifth topic within a second while four topics hang', async () => {
  const fixture = fairFixture()
  const { clock, add } = fixture
  const good = quick()
  const hung = { a: untilAborted, b: untilAborted, c: untilAborted, d: untilAborted }
  await add('a', undefined, 500)
  const { relay } = start(fixture, { topics: { ...hung, good: good.handler } })
  await clock.advanceAsync(1_000)
  for (const topic of ['b', 'c', 'd']) {
    await add(topic, undefined, 100)
    await clock.advanceAsync(1_000)
  }
  expect(relay.stats().running).toBe(53)
  await add('good', undefined, 100)
  await clock.advanceAsync(1_000)
  expect(good.handled.length).toBe(100)
})

it('relays for a fifth tenant within a second while receivers of four tenants hang', async () => {
  const fixture = fairFixture()
  const { clock, add } = fixture
  const good = quick()
  const hook = (message: RelayMessage) =>
    message.tenant === 'good' ? good.handler(message) : untilAborted(message)
  await add('hook', 'a', 500)
  start(fixture, { topics: { hook } })
  await clock.advanceAsync(1_000)
  for (const tenant of ['b', 'c', 'd']) {
    await add('hook', tenant, 100)
    await clock.advanceAsync(1_000)
  }
  await add('hook', 'good', 100)
  await clock.advanceAsync(1_000)
  expect(good.handled.length).toBe(100)
})

it('returns messages of the reserve that cannot start within a second', async () => {
  const fixture = fairFixture()
  const { clock, add } = fixture
  await add('a', undefined, 200)
  const { relay } = start(fixture, { topics: { a: untilAborted, b: untilAborted } })
  await clock.advanceAsync(1_000)
  await add('b', undefined, 100)
  await clock.advanceAsync(1_000)
  // Another relay may have room for the messages of `b`.
  expect(relay.stats()).toMatchObject({ running: 51, waiting: 50 })
})

it('relays other topics when a quick receiver becomes slow', async () => {
  const fixture = fairFixture()
  const { clock, add } = fixture
  watchClaims(fixture, 10)
  const good = quick()
  let handled = 0
  const bad = (message: RelayMessage) => (++handled > 600 ? untilAborted(message) : undefined)
  await add('bad', undefined, 1_500)
  const { relay } = start(fixture, { topics: { bad, good: good.handler } })
  await clock.advanceAsync(2_000)
  // More messages wait than a slow receiver may have in advance.
  expect(relay.stats().waiting).toBeGreaterThan(100)
  await add('good', undefined, 20)
  await clock.advanceAsync(2_000)
  expect(good.handled.length).toBe(20)
})
