import { EventEmitter } from 'node:events'
import { connect, type ConfirmChannel } from 'amqplib'
import { afterAll, beforeAll, expect, it, onTestFinished } from 'vitest'
import { downstreamKeyOf } from '../../src/core/identity.ts'
import { rabbitmqTarget } from '../../src/durable/rabbitmq-target.ts'
import { startRabbitmq, type RabbitmqServer } from '../servers/rabbitmq.ts'
import { setup as setupOutbox, settled, TOPIC } from './relay-fixture.ts'

/** A channel whose broker never answers. */
const SILENT = { publish: () => true, on: () => undefined, waitForConfirms: () => undefined }

let shared: RabbitmqServer
beforeAll(async () => {
  shared = await startRabbitmq()
}, 120_000)
afterAll(() => shared.close())

async function open(url: string): Promise<ConfirmChannel> {
  const connection = await connect(url)
  // As every user must: a connection that is cut would otherwise end the process.
  connection.on('error', () => undefined)
  const channel = await connection.createConfirmChannel()
  channel.on('error', () => undefined)
  onTestFinished(() => connection.close().catch(() => undefined))
  return channel
}

async function setup() {
  const channel = await open(shared.url)
  const queue = `oncekey-${crypto.randomUUID()}`
  await channel.assertQueue(queue, { durable: true })
  onTestFinished(async () => {
    const cleaning = await open(shared.url)
    await cleaning.deleteQueue(queue)
  })
  return { ...setupOutbox(), channel, queue }
}

async function received(channel: ConfirmChannel, queue: string) {
  const messages = []
  for (;;) {
    const message = await channel.get(queue, { noAck: true })
    if (message === false) return messages
    messages.push(message)
  }
}

it('publishes a message persistently, with its downstream key as id', async () => {
  const { add, relay, read, channel, queue, clock } = await setup()
  const id = add({ to: 'a@example.com' }, { key: 'order-1' })
  const target = rabbitmqTarget({
    channel,
    exchange: '',
    routingKey: queue,
    properties: ({ key }) => ({ headers: { order: key }, messageId: 'not theirs to choose' }),
  })
  expect((await relay(target).runOnce()).relayed).toBe(1)
  expect((await read(id)).state).toBe('done')
  const [message] = await received(channel, queue)
  expect(JSON.parse(message!.content.toString())).toEqual({ to: 'a@example.com' })
  expect(message!.properties).toMatchObject({
    messageId: downstreamKeyOf(id, 'message'),
    deliveryMode: 2,
    contentType: 'application/json',
    type: TOPIC,
    timestamp: clock.nowMs() / 1000,
    headers: { order: 'order-1' },
  })
})

it('publishes through an exchange under the topic, and bytes as they are', async () => {
  const { add, relay, channel, queue } = await setup()
  const exchange = `oncekey-${crypto.randomUUID()}`
  await channel.assertExchange(exchange, 'topic', { autoDelete: true })
  await channel.bindQueue(queue, exchange, 'receipt.*')
  const payload = new Uint8Array([0, 255, 7])
  add(payload)
  expect((await relay(rabbitmqTarget({ channel, exchange })).runOnce()).relayed).toBe(1)
  const [message] = await received(channel, queue)
  expect(new Uint8Array(message!.content)).toEqual(payload)
  expect(message!.properties.contentType).toBe('application/octet-stream')
})

it('fails an attempt where no queue takes the message, and only that one', async () => {
  const { add, relay, read, channel, queue } = await setup()
  const lost = add('nowhere', { key: 'nobody-listens' })
  const kept = add('somewhere', { key: queue })
  const target = rabbitmqTarget({ channel, exchange: '', routingKey: ({ key = '' }) => key })
  expect(await relay(target).runOnce()).toMatchObject({ relayed: 1, retried: 1 })
  expect((await read(lost)).errors[0]?.error).toMatch(/gave the message back: NO_ROUTE \(312\)/)
  expect((await read(kept)).state).toBe('done')
})

it('fails what is on its way when its channel is closed, and opens another', async () => {
  const { add, relay, read, queue, channel, clock } = await setup()
  const connection = await connect(shared.url)
  onTestFinished(() => connection.close())
  const ids = [add('lost', { key: 'nobody' }), add('lost too', { key: 'nobody' })]
  // The broker closes a channel on which somebody publishes to an exchange that is not there.
  const missing = rabbitmqTarget({ connection, exchange: `none-${crypto.randomUUID()}` })
  expect((await relay(missing).runOnce()).retried).toBe(2)
  for (const id of ids) expect((await read(id)).errors[0]?.error).toMatch(/NOT_FOUND - no exchange/)
  clock.advance(60_000)
  const found = rabbitmqTarget({ connection, exchange: '', routingKey: queue })
  expect((await relay(found).runOnce()).relayed).toBe(2)
  expect((await received(channel, queue)).length).toBe(2)
})

it('opens another channel where one was closed before anything could listen to it', async () => {
  const { add, relay, queue, channel, clock, read } = await setup()
  const connection = await connect(shared.url)
  onTestFinished(() => connection.close())
  const channels: ConfirmChannel[] = []
  const createConfirmChannel = async () => {
    const opened = await connection.createConfirmChannel()
    channels.push(opened)
    // As by a broker that ends right after it has opened the channel.
    if (channels.length === 1) await opened.close()
    return opened
  }
  const id = add('late')
  const target = rabbitmqTarget({
    connection: { createConfirmChannel },
    exchange: '',
    routingKey: queue,
  })
  expect((await relay(target).runOnce()).retried).toBe(1)
  expect((await read(id)).errors[0]?.error).toMatch(/Channel clos/)
  clock.advance(60_000)
  expect((await relay(target).runOnce()).relayed).toBe(1)
  expect((await received(channel, queue)).length).toBe(1)
})

it('opens one channel where an earlier one is reported as closed again and again', async () => {
  const events = new EventEmitter()
  const closed = {
    ...SILENT,
    on: (event: string, listener: () => void) => events.on(event, listener),
    publish() {
      throw Object.assign(new Error('Channel closed'), { name: 'IllegalOperationError' })
    },
  }
  let opened = 0
  const createConfirmChannel = () => {
    opened++
    return opened === 1 ? Promise.resolve(closed) : new Promise<never>(() => {})
  }
  const target = rabbitmqTarget({ connection: { createConfirmChannel }, exchange: '' })
  const { add, relay } = setupOutbox()
  for (let n = 0; n < 3; n++) add(n)
  expect((await relay(target).runOnce()).retried).toBe(3)
  const message = { signal: new AbortController().signal } as never
  void target(message)
  events.emit('close')
  void target(message)
  expect(opened).toBe(2)
})

it('fails nothing of another target when the broker closes a channel', async () => {
  const { add, relay, queue, channel, eventsOf } = await setup()
  const connection = await connect(shared.url)
  onTestFinished(() => connection.close())
  const topics = {
    missing: rabbitmqTarget({ connection, exchange: `none-${crypto.randomUUID()}` }),
    [TOPIC]: rabbitmqTarget({ connection, exchange: '', routingKey: queue }),
  }
  add('lost', { topic: 'missing' })
  for (let n = 0; n < 20; n++) add(n)
  const once = relay(() => undefined, { topics }).runOnce()
  expect(await once).toMatchObject({ relayed: 20, retried: 1 })
  expect(eventsOf('message_retried')).toMatchObject([{ topic: 'missing' }])
  expect((await received(channel, queue)).length).toBe(20)
})

it('waits for no connection on behalf of a handler whose time is over', async () => {
  const connection = { createConfirmChannel: () => new Promise<never>(() => {}) }
  const target = rabbitmqTarget({ connection, exchange: '' })
  const signal = AbortSignal.abort(new Error('its time is over'))
  await expect(target({ signal } as never)).rejects.toThrow('its time is over')
})

it('fails an attempt where a channel that it was given is closed', async () => {
  const { add, relay, read, channel, queue } = await setup()
  const id = add('late')
  await channel.close()
  await relay(rabbitmqTarget({ channel, exchange: '', routingKey: queue })).runOnce()
  expect((await read(id)).errors[0]?.error).toMatch(/Channel clos/)
})

it.each([
  ['confirms nothing', { channel: () => SILENT }],
  [
    'cannot be reached',
    { connection: { createConfirmChannel: () => new Promise<never>(() => {}) } },
  ],
])('waits no longer for a broker that %s than a handler may', async (_, where) => {
  const { add, relay, clock, read } = setupOutbox()
  const id = add('x')
  const made = relay(rabbitmqTarget({ ...where, exchange: '' }), { handlerTimeoutMs: 1_000 })
  for (let attempt = 1; attempt <= 2; attempt++) {
    const once = made.runOnce()
    await settled()
    await clock.advanceAsync(1_000)
    expect((await once).retried).toBe(1)
    clock.advance(60_000)
  }
  // Both times: the handler of the first attempt has ended.
  const late = 'Error: the handler of "receipt.send" took longer than 1000 ms'
  expect((await read(id)).errors.map(({ error }) => error)).toEqual([late, late])
})

it('refuses a channel that confirms nothing', async () => {
  const { relay, add, read } = setupOutbox()
  const plain = { publish: () => true, on: () => undefined } as never
  expect(() => rabbitmqTarget({ channel: plain, exchange: '' })).toThrow(
    'must be a confirm channel',
  )
  expect(() => rabbitmqTarget({ channel: () => plain } as never)).toThrow('rabbitmqTarget.exchange')
  expect(() => rabbitmqTarget({ exchange: '' })).toThrow('either a connection or a channel')
  expect(() => rabbitmqTarget({ connection: plain, exchange: '' })).toThrow('connection of amqplib')
  const id = add('x')
  await relay(rabbitmqTarget({ channel: () => plain, exchange: '' })).runOnce()
  expect((await read(id)).errors[0]?.error).toMatch(/must be a confirm channel/)
})

it('loses nothing when the broker is killed and comes back; repeats have the same id', async () => {
  const server = shared.isPrivate ? shared : await startRabbitmq({ private: true })
  onTestFinished(async () => {
    if (server !== shared) await server.close()
  })
  const { add, relay, clock, own } = setupOutbox()
  const connection = await connect(server.url, { recovery: { maxDelay: 500 } })
  connection.on('error', () => undefined)
  onTestFinished(() => connection.close())
  const queue = 'receipts'
  const declaring = await connection.createChannel()
  await declaring.assertQueue(queue, { durable: true })
  await server.writeQueues()
  const ids = Array.from({ length: 200 }, (_, n) => add(n))
  const target = rabbitmqTarget({ connection, exchange: '', routingKey: queue })
  const options = { batchSize: 20, concurrency: 20, attemptsMax: 1_000 }
  let published = 0
  const made = relay((message) => {
    // In the middle of a batch: some are confirmed, some on their way, some not sent.
    if (++published === 70) void server.kill()
    return target(message)
  }, options)
  const counts = { relayed: 0, retried: 0, passes: 0 }
  const pass = async () => {
    const { relayed, retried } = await made.runOnce()
    counts.relayed += relayed
    counts.retried += retried
    clock.advance(1_000_000)
    // The client comes back by itself and tells nobody; without a pause it would get no chance to.
    if (relayed === 0) await new Promise((resolve) => setTimeout(resolve, 50))
    expect(++counts.passes, 'passes').toBeLessThan(1_000)
  }
  while (counts.retried === 0) await pass()
  await server.kill()
  await server.start()
  while (counts.relayed < ids.length) await pass()

  expect((await own.list({ state: 'done', limit: 1_000 })).length).toBe(ids.length)
  const messages = await received(await open(server.url), queue)
  const keys = new Set(messages.map(({ properties }) => String(properties.messageId)))
  expect([...keys].toSorted()).toEqual(ids.map((id) => downstreamKeyOf(id, 'message')).toSorted())
  expect(messages.length).toBeGreaterThanOrEqual(ids.length)
}, 120_000)
