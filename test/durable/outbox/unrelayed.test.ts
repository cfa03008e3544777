/** Relays, maintenance and operators report messages whose topic has no relay. */
import { expect, it, onTestFinished } from 'vitest'
import { createMaintenance } from '../../../src/durable/maintenance/maintenance.ts'
import { createOperator } from '../../../src/durable/operator/operator.ts'
import { setup, settled, TOPIC } from './relay-fixture.ts'

const MINUTE_MS = 60_000
const OTHER = 'invoice.send'
const done = () => undefined

type Setup = ReturnType<typeof setup>

/** Advances the clock in steps that let the relay poll. */
async function pass({ clock }: Setup, ms: number, stepMs = 5_000): Promise<void> {
  for (let left = ms; left > 0; left -= stepMs) {
    clock.advance(Math.min(stepMs, left))
    await settled()
  }
}

function run(fixture: Setup): void {
  const stop = new AbortController()
  const running = fixture.relay(done).run(stop.signal)
  onTestFinished(async () => {
    stop.abort()
    await running
  })
}

it('emits message_unrelayed every minute for each topic without a relay', async () => {
  const fixture = setup()
  const { add, eventsOf, clock } = fixture
  run(fixture)
  await settled()
  const dueAt = new Date(clock.nowMs())
  add('relayed')
  const messageId = add('not relayed', { topic: OTHER })
  await pass(fixture, MINUTE_MS - 5_000)
  expect(eventsOf('message_unrelayed')).toEqual([])
  await pass(fixture, 10_000)
  const event = { kind: 'message_unrelayed', topic: OTHER, messageId, dueAt }
  expect(eventsOf('message_unrelayed')).toEqual([event])
  await pass(fixture, MINUTE_MS)
  expect(eventsOf('message_unrelayed')).toEqual([event, event])
  expect(eventsOf('message_relayed')).toHaveLength(1)
})

it('emits no event for topics of other relays of the process until they are closed', async () => {
  const fixture = setup()
  const { add, eventsOf, own } = fixture
  run(fixture)
  const topics = { [OTHER]: () => new Promise<void>(() => {}) }
  const other = fixture.relay(done, { topics, concurrency: 1 })
  void other.run()
  await settled()
  // The first message hangs, the next is claimed in advance, and the others wait.
  for (const payload of ['a', 'b', 'c', 'd']) add(payload, { topic: OTHER })
  await pass(fixture, 2 * MINUTE_MS + 5_000)
  expect((await own.list({ state: 'ready', limit: 10 })).length).toBeGreaterThan(0)
  expect(eventsOf('message_unrelayed')).toEqual([])
  await other.close({ graceMs: 0 })
  await pass(fixture, MINUTE_MS + 5_000)
  expect(eventsOf('message_unrelayed')).toMatchObject([{ topic: OTHER }])
})

it('keeps relaying while the query hangs, and emits the failure of a query', async () => {
  const looks: PromiseWithResolvers<never>[] = []
  const fixture = setup(() => ({
    unrelayed: () => {
      const look = Promise.withResolvers<never>()
      looks.push(look)
      return look.promise
    },
  }))
  const { add, eventsOf } = fixture
  run(fixture)
  await settled()
  await pass(fixture, MINUTE_MS + 5_000)
  expect(looks).toHaveLength(1)
  add('while the look hangs')
  await pass(fixture, 50, 5)
  expect(eventsOf('message_relayed')).toHaveLength(1)
  looks[0]!.reject(new Error('the database is down'))
  await settled()
  expect(eventsOf('store_error')).toMatchObject([{ call: 'find unrelayed messages' }])
  await pass(fixture, MINUTE_MS + 5_000)
  expect(looks).toHaveLength(2)
})

it('lets maintenance emit message_unrelayed in a process without a relay', async () => {
  const fixture = setup()
  const { add, engine, clock, eventsOf } = fixture
  const messageId = add('x')
  clock.advance(MINUTE_MS)
  const report = await createMaintenance({ engine }).runOnce()
  expect(report['unrelayed']).toEqual({ kind: 'done', value: 1 })
  expect(eventsOf('message_unrelayed')).toMatchObject([{ topic: TOPIC, messageId }])
})

it('lists the topic in deadLetters of an operator until a relay handles it', async () => {
  const fixture = setup()
  const { add, engine, clock } = fixture
  const operator = createOperator({ engine })
  const dueAt = new Date(clock.nowMs())
  const messageId = add('x')
  expect((await operator.deadLetters()).unrelayed).toEqual([])
  clock.advance(MINUTE_MS)
  const { unrelayed } = await operator.deadLetters()
  expect(unrelayed).toEqual([{ topic: TOPIC, messageId, dueAt }])
  run(fixture)
  await settled()
  expect((await operator.deadLetters()).unrelayed).toEqual([])
})

it('skips the query if the outbox of the store has none', async () => {
  const fixture = setup(() => ({ unrelayed: undefined as never }))
  const { add, engine, clock } = fixture
  add('x')
  clock.advance(MINUTE_MS)
  expect((await createOperator({ engine }).deadLetters()).unrelayed).toEqual([])
})
