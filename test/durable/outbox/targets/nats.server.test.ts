import { jetstream, jetstreamManager, type JetStreamManager } from '@nats-io/jetstream'
import { connect, headers } from '@nats-io/transport-node'
import { afterAll, beforeAll, expect, it, onTestFinished } from 'vitest'
import { downstreamKeyOf } from '../../../../src/core/record/identity.ts'
import { natsTarget } from '../../../../src/durable/outbox/targets/nats-target.ts'
import { startNats, type NatsServer } from '../../../servers/nats.ts'
import { setup as setupOutbox, settled, TOPIC } from '../relay-fixture.ts'

let shared: NatsServer
beforeAll(async () => {
  shared = await startNats()
}, 120_000)
afterAll(() => shared.close())

async function setup(server: NatsServer = shared) {
  const connection = await connect({
    servers: server.url,
    reconnectTimeWait: 50,
    maxReconnectAttempts: -1,
  })
  onTestFinished(() => connection.close())
  const manager = await jetstreamManager(connection)
  const stream = `S${crypto.randomUUID().slice(0, 8)}`
  const subject = `${stream}.receipts`
  await manager.streams.add({ name: stream, subjects: [`${stream}.>`] })
  return { ...setupOutbox(), manager, stream, subject, client: jetstream(connection) }
}

async function stored(manager: JetStreamManager, stream: string) {
  const { state } = await manager.streams.info(stream)
  const messages = []
  for (let seq = 1; seq <= state.last_seq; seq++) {
    const message = await manager.streams.getMessage(stream, { seq })
    if (message !== null) messages.push(message)
  }
  return messages
}

it('publishes a message with its downstream key as id, and records its sequence', async () => {
  const { add, relay, read, client, manager, stream, subject } = await setup()
  const id = add({ to: 'a@example.com' }, { key: 'order-1' })
  const target = natsTarget({
    jetstream: client,
    subject,
    headers: ({ key = '' }) => {
      const own = headers()
      own.set('Order', key)
      return own
    },
  })
  expect((await relay(target).runOnce()).relayed).toBe(1)
  expect(await read(id)).toMatchObject({ state: 'done', providerId: `${stream}:1` })
  const [message] = await stored(manager, stream)
  expect(message!.subject).toBe(subject)
  expect(message!.json()).toEqual({ to: 'a@example.com' })
  expect(message!.header.get('Nats-Msg-Id')).toBe(downstreamKeyOf(id, 'message'))
  expect(message!.header.get('Order')).toBe('order-1')
})

it('publishes to the topic without the subject option, and bytes unchanged', async () => {
  const { add, relay, client, manager, stream } = await setup()
  const topic = `${stream}.shipped`
  const payload = new Uint8Array([0, 255, 7])
  add(payload, { topic })
  const target = natsTarget({ jetstream: client })
  expect((await relay(target, { topics: { [topic]: target } }).runOnce()).relayed).toBe(1)
  const [message] = await stored(manager, stream)
  expect([message!.subject, new Uint8Array(message!.data)]).toEqual([topic, payload])
})

// The relay crashes between the acknowledgement of the stream and its own commit.
it('publishes a repeated message once, and gets its first sequence number', async () => {
  const { add, relay, read, client, manager, stream, subject, own, claim, clock } = await setup()
  const id = add('once')
  const target = natsTarget({ jetstream: client, subject })
  const dying = relay(async (message) => {
    await target(message)
    throw new Error('died before the commit')
  })
  expect((await dying.runOnce()).retried).toBe(1)
  clock.advance(60_000)
  expect((await relay(target).runOnce()).relayed).toBe(1)
  expect(await read(id)).toMatchObject({ state: 'done', attempt: 2, providerId: `${stream}:1` })
  expect((await stored(manager, stream)).length).toBe(1)
  expect(await claim()).toEqual([])
  expect(await own.list({ state: 'ready', limit: 10 })).toEqual([])
})

it('fails an attempt if no stream accepts the message', async () => {
  const { add, relay, read, client } = await setup()
  const id = add('nowhere')
  const target = natsTarget({ jetstream: client, subject: 'no.stream' })
  expect((await relay(target).runOnce()).retried).toBe(1)
  expect((await read(id)).errors[0]?.error).toMatch(/jetstream|no responders/i)
})

it('waits for a stream at most for handlerTimeoutMs', async () => {
  const { add, relay, clock, read } = setupOutbox()
  const id = add('x')
  const silent = { publish: () => new Promise<never>(() => {}) }
  const target = natsTarget({ jetstream: silent, timeoutMs: 3_600_000 })
  const made = relay(target, { handlerTimeoutMs: 1_000 })
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

it('rejects a value that is no JetStream client', () => {
  expect(() => natsTarget({ jetstream: {} as never })).toThrow('must be a JetStream client')
  const client = { publish: () => Promise.reject(new Error('unused')) }
  expect(() => natsTarget({ jetstream: client, subject: 7 as never })).toThrow('natsTarget.subject')
  expect(() => natsTarget({ jetstream: client, timeoutMs: 0 })).toThrow('natsTarget.timeoutMs')
  expect(() => natsTarget({ jetstream: client, stream: TOPIC } as never)).toThrow(
    'natsTarget has no option "stream"',
  )
})

it('loses and repeats no message when the server is killed and restarted', async () => {
  const server = shared.isPrivate ? shared : await startNats({ private: true })
  onTestFinished(() => server.close())
  const { add, relay, client, manager, stream, subject, clock, own } = await setup(server)
  const ids = Array.from({ length: 200 }, (_, n) => add(n))
  const target = natsTarget({ jetstream: client, subject, timeoutMs: 300 })
  const made = relay(target, { batchSize: 20, concurrency: 20, maxAttempts: 1_000 })
  let relayed = 0
  let failed = 0
  for (let pass = 0; relayed < ids.length; pass++) {
    if (pass === 3) await server.kill()
    const { relayed: done, retried } = await made.runOnce()
    relayed += done
    failed += retried
    if (failed > 0 && pass === 4) await server.start()
    clock.advance(1_000_000)
    expect(pass).toBeLessThan(100)
  }
  expect(failed).toBeGreaterThan(0)
  expect((await own.list({ state: 'done', limit: 1_000 })).length).toBe(ids.length)
  const keys = (await stored(manager, stream)).map((message) => message.header.get('Nats-Msg-Id'))
  expect(keys.toSorted()).toEqual(ids.map((id) => downstreamKeyOf(id, 'message')).toSorted())
}, 60_000)
