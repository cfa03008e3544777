import { expect, it } from 'vitest'
import type { RelayMessage } from '../../../src/durable/index.ts'
import { fairFixture } from '../places/fair-fixture.ts'
import { hanging, quick, start } from './fair-relay.ts'

it('relays another topic while a hundred handlers of one topic never end', async () => {
  const fixture = fairFixture()
  const { clock, add, engine, ofKind } = fixture
  const hung = hanging()
  const good = quick()
  await add('bad', undefined, 200)
  const topics = { bad: hung.handler, good: good.handler }
  const { relay, stop, ended } = start(fixture, { topics, handlerTimeoutMs: 5_000 })
  await clock.advanceAsync(1_000)
  expect(hung.begun.length).toBe(50)
  await add('good', undefined, 300)
  await clock.advanceAsync(3_000)
  // Before a handler reaches its time limit and loses its place.
  expect(good.handled.length).toBe(300)

  await clock.advanceAsync(25_000)
  const overdue = hung.begun.length
  expect(overdue).toBeLessThanOrEqual(100)
  const stats = { running: 0, waiting: 0, overdue }
  expect(relay.stats()).toMatchObject({ ...stats, paused: [{ name: 'bad', overdue }] })
  expect(ofKind('work_paused')).toMatchObject([{ part: 'relay', name: 'bad' }])
  const paused = [{ part: 'relay', name: 'bad' }]
  expect(await engine.health()).toMatchObject({ status: 'degraded', paused })
  await add('good', undefined, 300)
  await clock.advanceAsync(2_000)
  expect(good.handled.length).toBe(600)
  expect(hung.begun.length).toBe(overdue)

  // close ends although the handlers never do.
  stop()
  await clock.advanceAsync(10_000)
  await ended
})

it('relays another topic after one of many handlers that hang has ended', async () => {
  const fixture = fairFixture()
  const { clock, add } = fixture
  const hung = hanging()
  const good = quick()
  await add('bad', 'crowd', 200)
  const topics = { bad: hung.handler, good: good.handler }
  const { relay, stop, ended } = start(fixture, { topics, handlerTimeoutMs: 60_000 })
  await clock.advanceAsync(1_000)
  expect(relay.stats()).toMatchObject({ running: 50, waiting: 50 })
  // There is room for one message: less than an ordinary claim waits for, but not none.
  hung.ends[0]!()
  await add('good', 'other', 1)
  await clock.advanceAsync(2_000)
  expect(good.handled).toEqual(['other'])
  stop()
  await clock.advanceAsync(70_000)
  await ended
})

it('relays messages of other tenants while the receivers of one tenant hang', async () => {
  const fixture = fairFixture()
  const { clock, add } = fixture
  const good = quick()
  const hung = hanging()
  const webhook = (message: RelayMessage) =>
    message.tenant === 'crowd' ? hung.handler(message) : good.handler(message)
  await add('webhook', 'crowd', 500)
  const { stop, ended } = start(fixture, { topics: { webhook }, handlerTimeoutMs: 60_000 })
  await clock.advanceAsync(1_000)
  expect(hung.begun.length).toBe(50)
  for (let n = 0; n < 20; n++) await add('webhook', `t${n}`, 1)
  await clock.advanceAsync(3_000)
  expect(good.handled.length).toBe(20)
  stop()
  await clock.advanceAsync(70_000)
  await ended
})

it('relays the messages of a topic in turns of its tenants', async () => {
  const fixture = fairFixture()
  const { clock, add } = fixture
  const { handler, handled } = quick()
  await add('mail', 'crowd', 300)
  for (const tenant of ['a', 'b', 'c']) await add('mail', tenant, 2)
  const options = { concurrency: 2, batchSize: 4, reserve: 0 }
  const { stop, ended } = start(fixture, { topics: { mail: handler }, ...options })
  await clock.advanceAsync(1_000)
  const last = handled.findLastIndex((tenant) => tenant !== 'crowd')
  expect(last).toBeLessThan(20)
  expect(handled.length).toBe(306)
  stop()
  await ended
})

it('runs no more handlers of one topic and one tenant than perTopic and perTenant', async () => {
  const fixture = fairFixture()
  const { clock, add } = fixture
  const first = hanging()
  const second = hanging()
  for (const tenant of ['a', 'b', 'c']) await add('first', tenant, 20)
  for (const tenant of ['a', 'd', 'e']) await add('second', tenant, 20)
  const topics = { first: first.handler, second: second.handler }
  const limits = { concurrency: 10, perTopic: 4, perTenant: 2, reserve: 0 }
  const { relay, stop, ended } = start(fixture, { topics, ...limits, handlerTimeoutMs: 60_000 })
  await clock.advanceAsync(5_000)
  expect(first.begun.length).toBe(4)
  expect(second.begun.length).toBe(4)
  expect([...first.begun, ...second.begun].filter((tenant) => tenant === 'a').length).toBe(2)
  // Each handler that ends makes room for the next message, even if nothing else is due.
  for (const end of [...first.ends]) end()
  await clock.advanceAsync(1_000)
  expect(first.begun.length).toBe(8)
  expect(relay.stats().running).toBe(8)
  stop()
  await clock.advanceAsync(70_000)
  await ended
})

it('resumes a paused topic when a handler has ended', async () => {
  const fixture = fairFixture()
  const { clock, add, ofKind } = fixture
  const hung = hanging()
  await add('bad', undefined, 40)
  const options = { concurrency: 10, handlerTimeoutMs: 1_000, maxAttempts: 1 }
  const { relay, stop, ended } = start(fixture, { topics: { bad: hung.handler }, ...options })
  await clock.advanceAsync(10_000)
  const before = hung.begun.length
  expect(relay.stats().paused.length).toBe(1)
  for (const end of [...hung.ends]) end()
  await clock.advanceAsync(500)
  expect(ofKind('work_resumed').length).toBe(1)
  expect(hung.begun.length).toBeGreaterThan(before)
  stop()
  await clock.advanceAsync(10_000)
  await ended
})

it('resumes a paused topic whose handlers never end after a trial that ends in time', async () => {
  const fixture = fairFixture()
  const { clock, add, ofKind } = fixture
  const hung = hanging()
  let isDown = true
  const handled: unknown[] = []
  const topics = {
    bad: (message: RelayMessage) => {
      if (isDown) return hung.handler(message)
      handled.push(message.id)
      return undefined
    },
  }
  await add('bad', undefined, 40)
  const options = { concurrency: 10, handlerTimeoutMs: 1_000, maxAttempts: 1 }
  const { relay } = start(fixture, { topics, ...options })
  await clock.advanceAsync(10_000)
  const before = hung.begun.length
  expect(relay.stats().paused.length).toBe(1)
  // Each trial that hangs adds one more handler.
  await clock.advanceAsync(600_000)
  expect(hung.begun.length).toBe(before + 2)
  isDown = false
  await clock.advanceAsync(300_000)
  expect(ofKind('work_resumed').length).toBe(1)
  expect(handled.length).toBe(40 - before - 2)
  expect(relay.stats()).toMatchObject({ overdue: before + 2, paused: [] })
})

it('leaves health ready after the relay is closed', async () => {
  const fixture = fairFixture()
  const { clock, add, engine } = fixture
  await add('bad', undefined, 40)
  const options = { concurrency: 10, handlerTimeoutMs: 1_000 }
  const { relay, ended } = start(fixture, { topics: { bad: hanging().handler }, ...options })
  await clock.advanceAsync(10_000)
  expect((await engine.health()).status).toBe('degraded')
  const closing = relay.close({ graceMs: 100 })
  await clock.advanceAsync(10_000)
  await Promise.all([closing, ended])
  expect(await engine.health()).toMatchObject({ status: 'ready', paused: [] })
})
