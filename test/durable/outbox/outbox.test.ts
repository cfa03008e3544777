import { expect, it } from 'vitest'
import { createEngine } from '../../../src/core/engine/engine.ts'
import { createOutbox } from '../../../src/durable/outbox/outbox.ts'
import { createRelay } from '../../../src/durable/outbox/relay.ts'
import { VALUE_BYTES_MAX } from '../../../src/durable/values.ts'
import { memoryStore } from '../../../src/stores/memory/store.ts'
import { setup, TOPIC } from './relay-fixture.ts'

it('commits a message with the rows of its transaction, or rolls back both', async () => {
  const { app, outbox, read, own } = setup()
  app.exec('CREATE TABLE payment (amount INTEGER)')
  app.exec('BEGIN')
  app.exec('INSERT INTO payment VALUES (5)')
  const lost = outbox.add(app, TOPIC, { amount: 5 })
  app.exec('ROLLBACK')
  expect(await own.read(lost.id)).toBe(undefined)

  app.exec('BEGIN')
  app.exec('INSERT INTO payment VALUES (7)')
  const kept = outbox.add(app, TOPIC, { amount: 7 })
  app.exec('COMMIT')
  expect(await kept).toBe(kept.id)
  expect(await read(kept.id)).toMatchObject({ state: 'ready', topic: TOPIC, attempt: 0 })
  expect(app.prepare('SELECT amount FROM payment').all()).toEqual([{ amount: 7 }])
})

// node:sqlite is synchronous, so a transaction callback that never awaits must work.
it('writes the message before add returns on SQLite, and throws if that fails', () => {
  const { app, outbox } = setup()
  expect(() => outbox.add(app, TOPIC, 1)).toThrow(/no transaction is open/)
  app.exec('BEGIN')
  const { id } = outbox.add(app, TOPIC, 1)
  const count = () => app.prepare('SELECT count(*) AS n FROM oncekey_record_message').get()?.['n']
  expect(count()).toBe(1)
  expect(() => outbox.add(app, TOPIC, 1, { id })).toThrow(/failed to add a message/)
  app.exec('ROLLBACK')
  expect(count()).toBe(0)
})

it('stores the key, the partition, the delay and the id of the caller', async () => {
  const { add, read, clock } = setup()
  const id = '01890a5d-ac96-8b4f-8bcd-1234567890ab'
  expect(add('x', { id, key: 'order-1', partition: 'account-1', delayMs: 5_000 })).toBe(id)
  expect(await read(id)).toMatchObject({
    key: 'order-1',
    partition: 'account-1',
    dueAt: new Date(clock.nowMs() + 5_000),
  })
})

it('rejects values that a database would reject or change', () => {
  const { app, outbox } = setup()
  app.exec('BEGIN')
  const add = (topic: unknown, payload: unknown, options?: object) => () =>
    outbox.add(app, topic as string, payload, options)
  expect(add('', 1)).toThrow('the topic of a message must not be empty')
  expect(add(7, 1)).toThrow('the topic of a message must be a string, got 7')
  expect(add('x'.repeat(256), 1)).toThrow('has 256 characters; at most 255')
  expect(add('a\0b', 1)).toThrow('must not contain NUL')
  expect(add(TOPIC, 1, { key: '\uD800' })).toThrow('the key of a message contains half')
  expect(add(TOPIC, 1, { partition: '' })).toThrow('the partition of a message must not be empty')
  expect(add(TOPIC, 1, { id: 'order-1' })).toThrow('must be a UUID in lower case, got "order-1"')
  expect(add(TOPIC, 1, { delayMs: -1 })).toThrow('outbox.add.delayMs must be a whole number')
  expect(add(TOPIC, 1, { partion: 'x' })).toThrow('outbox.add has no option "partion"')
  expect(add(TOPIC, () => 1)).toThrow('cannot be stored as JSON')
  expect(add(TOPIC, new Uint8Array(VALUE_BYTES_MAX + 1))).toThrow('at most 1048576 are allowed')
  app.exec('ROLLBACK')
})

it('names the stores with an outbox when the store has none', () => {
  const engine = createEngine({ store: memoryStore(), sweepEveryMs: 0, reapEveryMs: 0 })
  const which = /the memory store does not have; use sqliteStore, postgresStore or mysqlStore/
  expect(() => createOutbox({ engine })).toThrow(which)
  expect(() => createRelay({ engine, topics: { x: () => undefined } })).toThrow(which)
  expect(() => createOutbox({} as never)).toThrow('createOutbox.engine must be an engine')
})
