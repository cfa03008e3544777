import { EventEmitter } from 'node:events'
import { connect, type ConfirmChannel } from 'amqplib'
import { afterAll, beforeAll, expect, it, onTestFinished } from 'vitest'
import { downstreamKeyOf } from '../../../../src/core/record/identity.ts'
import { rabbitmqTarget } from '../../../../src/durable/outbox/targets/rabbitmq-target.ts'
import { startRabbitmq, type RabbitmqServer } from '../../../servers/rabbitmq.ts'
import { setup as setupOutbox, settled, TOPIC } from '../relay-fixture.ts'

/** A channel whose broker never answers. */
const SILENT = { publish: () => true, on: () => undefined, waitForConfirms: () => undefined }

let shared: RabbitmqServer
beforeAll(async () => {
  shared = await startRabbitmq()
}, 120_000)
afterAll(() => shared.close())

async function open(url: string): Promise<ConfirmChannel> {
  const connection = await connect(url)
  // Every user needs this listener: a lost connection would end the process without it.
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

it('publishes to an exchange with the topic as routing key, and bytes unchanged', async () => {
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

it('fails only the attempt of a message that no queue accepts', async () => {
  const { add, relay, read, channel, queue } = await setup()
  const lost = add('nowhere', { key: 'no-queue' })
  const kept = add('somewhere', { key: queue })
  const target = rabbitmqTarget({ channel, exchange: '', routingKey: ({ key = '' }) => key })
  expect(await relay(target).runOnce()).toMatchObject({ relayed: 1, retried: 1 })
  expect((await read(lost)).errors[0]?.error).toMatch(/returned the message: NO_ROUTE \(312\)/)
  expect((await read(kept)).state).toBe('done')
})

it('fails unconfirmed messages when the channel closes, and opens another one', async () => {
  const { add, relay, read, queue, channel, clock } = await setup()
  const connection = await connect(shared.url)
  onTestFinished(() => connection.close())
  const ids = [add('lost', { key: 'no-queue' }), add('lost too', { key: 'no-queue' })]
  // The broker closes a channel after a publish to an exchange that does not exist.
  const missing = rabbitmqTarget({ connection, exchange: `none-${crypto.randomUUID()}` })
  expect((await relay(missing).runOnce()).retried).toBe(2)
  for (const id of ids) expect((await read(id)).errors[0]?.error).toMatch(/NOT_FOUND - no exchange/)
  clock.advance(60_000)
  const found = rabbitmqTarget({ connection, exchange: '', routingKey: queue })
  expect((await relay(found).runOnce()).relayed).toBe(2)
  expect((await received(channel, queue)).length).toBe(2)
})

it('opens another channel if one closed before its close event could be handled', async () => {
  const { add, relay, queue, channel, clock, read } = await setup()
  const connection = await connect(shared.url)
  onTestFinished(() => connection.close())
  const channels: ConfirmChannel[] = []
  const createConfirmChannel = async () => {
    const opened = await connection.createConfirmChannel()
    channels.push(opened)
    // Like a broker that ends right after it has opened the channel.
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

it('opens one channel although an earlier one emits close several times', async () => {
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

it('does not fail messages of another target when the broker closes a channel', async () => {
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

it('does not wait for a connection after the time limit of the handler', async () => {
  const connection = { createConfirmChannel: () => new Promise<never>(() => {}) }
  const target = rabbitmqTarget({ connection, exchange: '' })
  const signal = AbortSignal.abort(new Error('its time is over'))
  await expect(target({ signal } as never)).rejects.toThrow('its time is over')
})

it('fails an attempt if the channel of the option is closed', async () => {
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
])('waits for a broker that %s at most for handlerTimeoutMs', async (_, where) => {
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
  // Two attempts ran, so the handler of the first one has ended.
  const late = 'Error: the handler of "receipt.send" took longer than 1000 ms'
  expect((await read(id)).errors.map(({ error }) => error)).toEqual([late, late])
})

it('rejects a channel without confirms', async () => {
  const { relay, add, read } = setupOutbox()
  const plain = { publish: () => true, on: () => undefined } as never
  expect(() => rabbitmqTarget({ channel: plain, exchange: '' })).toThrow(
    'must be an amqplib confirm channel',
  )
  expect(() => rabbitmqTarget({ channel: () => plain } as never)).toThrow('rabbitmqTarget.exchange')
  expect(() => rabbitmqTarget({ exchange: '' })).toThrow('either connection or channel')
  expect(() => rabbitmqTarget({ connection: plain, exchange: '' })).toThrow('an amqplib connection')
  const id = add('x')
  await relay(rabbitmqTarget({ channel: () => plain, exchange: '' })).runOnce()
  expect((await read(id)).errors[0]?.error).toMatch(/must be an amqplib confirm channel/)
})

it('loses no message when the broker is restarted, and repeats have the same id', async () => {
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
  const options = { batchSize: 20, concurrency: 20, maxAttempts: 1_000 }
  let published = 0
  const made = relay((message) => {
    // During a batch: some messages are confirmed, some are sent, some are not sent.
    if (++published === 70) void server.kill()
    return target(message)
  }, options)
  const counts = { relayed: 0, retried: 0, passes: 0 }
  const pass = async () => {
    const { relayed, retried } = await made.runOnce()
    counts.relayed += relayed
    counts.retried += retried
    clock.advance(1_000_000)
    // The client reconnects without an event, and needs a pause to do so.
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
