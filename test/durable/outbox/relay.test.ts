import { expect, it } from 'vitest'
import { downstreamKeyOf } from '../../../src/core/record/identity.ts'
import type { MessageHandler, RelayMessage } from '../../../src/durable/outbox/relay-contract.ts'
import { bytes, hold, RETENTION_MS } from '../../../src/testing/store-cases/store-case.ts'
import { held, setup, settled, TOPIC } from './relay-fixture.ts'

it('delivers a message, and records its end with the provider id', async () => {
  const { add, relay, read, clock, eventsOf } = setup()
  const createdAt = new Date(clock.nowMs())
  const id = add({ to: 'a@example.com' }, { key: 'order-1', partition: 'account-1' })
  const seen: RelayMessage[] = []
  const once = await relay((message) => {
    seen.push(message)
    return { providerId: 'mail-1' }
  }).runOnce()
  expect(once).toEqual({ relayed: 1, retried: 0, dead: 0, lost: 0 })
  expect(seen).toMatchObject([
    {
      id,
      topic: TOPIC,
      key: 'order-1',
      partition: 'account-1',
      payload: { to: 'a@example.com' },
      attempt: 1,
      providerId: undefined,
      downstreamKey: downstreamKeyOf(id, 'message'),
      createdAt,
    },
  ])
  expect(seen[0]!.signal.aborted).toBe(false)
  expect(seen[0]).not.toHaveProperty('token')
  expect(await read(id)).toMatchObject({ state: 'done', providerId: 'mail-1' })
  expect(eventsOf('message_relayed')).toEqual([
    { kind: 'message_relayed', topic: TOPIC, messageId: id },
  ])
})

it.each([[null], [[1, 'two', { three: 3 }]], ['text'], [undefined], [new Uint8Array([0, 255, 7])]])(
  'gives the payload %j back as it was',
  async (payload) => {
    const { add, relay } = setup()
    add(payload)
    const seen: unknown[] = []
    await relay((message) => void seen.push(message.payload)).runOnce()
    expect(seen).toEqual([payload])
  },
)

it('tries a failed message again after a jittered pause that doubles', async () => {
  const { add, relay, read, clock, eventsOf } = setup()
  const id = add()
  const attempts: number[] = []
  const keys = new Set<string>()
  const flaky = relay(
    ({ attempt, downstreamKey }) => {
      attempts.push(attempt)
      keys.add(downstreamKey)
      if (attempt < 4) throw new TypeError(`attempt ${attempt}`)
    },
    { backoff: { firstMs: 1_000, maxMs: 3_000 }, random: () => 0.5 },
  )
  for (const pauseMs of [500, 1_000, 1_500]) {
    expect((await flaky.runOnce()).retried).toBe(1)
    expect((await read(id)).dueAt).toEqual(new Date(clock.nowMs() + pauseMs))
    clock.advance(pauseMs - 1)
    expect(await flaky.runOnce()).toEqual({ relayed: 0, retried: 0, dead: 0, lost: 0 })
    clock.advance(1)
  }
  expect((await flaky.runOnce()).relayed).toBe(1)
  expect(attempts).toEqual([1, 2, 3, 4])
  expect(keys.size).toBe(1)
  expect(eventsOf('message_retried')).toMatchObject([
    { messageId: id, attempt: 1, error: new TypeError('attempt 1') },
    { attempt: 2 },
    { attempt: 3 },
  ])
})

it('makes a message a dead letter after its last attempt, with all its errors', async () => {
  const { add, relay, read, clock, eventsOf } = setup()
  const id = add()
  const failing = relay(() => Promise.reject(new Error('no route')), { maxAttempts: 3 })
  expect((await failing.runOnce()).retried).toBe(1)
  clock.advance(60_000)
  expect((await failing.runOnce()).retried).toBe(1)
  clock.advance(60_000)
  expect((await failing.runOnce()).dead).toBe(1)
  clock.advance(60_000)
  expect(await failing.runOnce()).toEqual({ relayed: 0, retried: 0, dead: 0, lost: 0 })
  const view = await read(id)
  expect(view.state).toBe('dead')
  expect(view.errors.map(({ attempt, error }) => [attempt, error])).toEqual([
    [1, 'Error: no route'],
    [2, 'Error: no route'],
    [3, 'Error: no route'],
  ])
  expect(eventsOf('message_dead')).toMatchObject([{ messageId: id, error: new Error('no route') }])
})

it('makes a message a dead letter at once if its handler returns dead_letter', async () => {
  const { add, relay, read, eventsOf } = setup()
  const id = add()
  const error = 'the address does not exist'
  expect((await relay(() => ({ kind: 'dead_letter', error })).runOnce()).dead).toBe(1)
  expect((await read(id)).errors).toMatchObject([{ attempt: 1, error }])
  expect(eventsOf('message_dead')).toMatchObject([{ error }])
})

// If such an error ended the process or counted as done, the message would be lost.
it.each([
  ['Error: null', { message: null }],
  ['Error: an object', { message: Object.create(null) as string }],
  ['an object: x', { name: {}, message: 'x' }],
  ['Error: Symbol(why)', { message: Symbol('why') }],
])('records "%s" for an error with unusual fields', async (text, fields) => {
  const { add, relay, read } = setup()
  const id = add()
  const failing = relay(() => {
    throw Object.assign(new Error('as usual'), fields)
  })
  expect(await failing.runOnce()).toMatchObject({ retried: 1 })
  expect((await read(id)).errors).toMatchObject([{ error: text }])
})

it('treats an unknown return value as a failure', async () => {
  const { add, relay, read } = setup()
  const id = add()
  const misspelt = (() => ({ kind: 'dead' })) as unknown as MessageHandler
  expect((await relay(misspelt).runOnce()).retried).toBe(1)
  expect((await read(id)).errors[0]?.error).toMatch(/must return nothing.*got the kind "dead"/)
})

it('does not deliver a message twice because of an invalid provider id', async () => {
  const { add, relay, read } = setup()
  const id = add()
  expect((await relay(() => ({ providerId: 'a\0b' })).runOnce()).relayed).toBe(1)
  expect(await read(id)).toMatchObject({ state: 'done', providerId: undefined })
})

it('leaves messages of other topics alone', async () => {
  const { add, relay, read } = setup()
  const id = add('x', { topic: 'invoice.send' })
  expect((await relay(() => undefined).runOnce()).relayed).toBe(0)
  expect(await read(id)).toMatchObject({ state: 'ready', attempt: 0 })
})

it('relays one message of a partition at a time, and partitions in parallel', async () => {
  const { add, relay } = setup()
  for (let n = 1; n <= 3; n++) {
    add(`a${n}`, { partition: 'a' })
    add(`b${n}`, { partition: 'b' })
  }
  const { handler, calls, called } = held()
  const running = relay(handler)
  const stop = new AbortController()
  const ended = running.run(stop.signal)
  const order: unknown[] = []
  for (let n = 0; n < 3; n++) {
    await called(2 * n + 2)
    await settled()
    expect(calls.length).toBe(2 * n + 2)
    const pair = calls.slice(-2)
    order.push(pair.map(({ message }) => String(message.payload)).toSorted())
    for (const { finish } of pair) finish()
  }
  expect(order).toEqual([
    ['a1', 'b1'],
    ['a2', 'b2'],
    ['a3', 'b3'],
  ])
  stop.abort()
  await ended
})

it.each(['block', 'skip'] as const)(
  'lets a dead letter %s its partition with onDeadLetter',
  async (onDeadLetter) => {
    const { add, relay } = setup()
    add('poison', { partition: 'a' })
    add('behind', { partition: 'a' })
    add('beside', { partition: 'b' })
    const seen: unknown[] = []
    const made = relay(
      ({ payload }) => {
        seen.push(payload)
        if (payload === 'poison') throw new Error('poison')
      },
      { maxAttempts: 1, onDeadLetter },
    )
    await made.runOnce()
    await made.runOnce()
    const behind = onDeadLetter === 'skip' ? ['behind'] : []
    expect(seen).toEqual(['poison', 'beside', ...behind])
  },
)

it('runs at most concurrency handlers, and claims as many messages in advance', async () => {
  const { add, relay, own } = setup()
  for (let n = 0; n < 20; n++) add(n)
  const { handler, calls, called } = held()
  const stop = new AbortController()
  const ended = relay(handler, { concurrency: 3 }).run(stop.signal)
  await called(3)
  await settled()
  expect(calls.length).toBe(3)
  expect((await own.list({ state: 'held', limit: 100 })).length).toBe(6)
  for (let n = 0; n < 20; n++) {
    await called(n + 1)
    expect(calls.length).toBeLessThanOrEqual(n + 3)
    calls[n]!.finish()
  }
  stop.abort()
  await ended
  expect((await own.list({ state: 'done', limit: 100 })).length).toBe(20)
})

it('stores a noted provider id before the end, for the attempt after a crash', async () => {
  const { add, relay, read, clock, claim } = setup()
  const id = add()
  const { called, calls, handler } = held()
  const first = relay(handler).runOnce()
  await called(1)
  await calls[0]!.message.note('mail-1')
  expect(await read(id)).toMatchObject({ state: 'held', providerId: 'mail-1' })
  calls[0]!.fail(new Error('died here'))
  await first

  clock.advance(60_000)
  const seen: unknown[] = []
  await relay(({ providerId }) => void seen.push(providerId)).runOnce()
  expect(seen).toEqual(['mail-1'])
  expect(await read(id)).toMatchObject({ state: 'done', providerId: 'mail-1' })
  expect(await claim()).toEqual([])
})

it('rejects a note with an invalid id, and a note after the lease was lost', async () => {
  const { add, relay, clock, claim, eventsOf } = setup()
  add()
  const { called, calls, handler } = held()
  const once = relay(handler, { leaseMs: 1_000 }).runOnce()
  await called(1)
  const { note, signal } = calls[0]!.message
  await expect(note('')).rejects.toThrow('the provider id of a message must not be empty')
  // Only the clock of the store advances, and another relay claims the message.
  clock.jumpWallTime(2_000)
  expect((await claim()).length).toBe(1)
  await expect(note('mail-1')).rejects.toMatchObject({ code: 'LEASE_LOST' })
  expect(signal.aborted).toBe(true)
  calls[0]!.finish()
  expect((await once).lost).toBe(1)
  expect(eventsOf('message_lost').length).toBe(1)
})

it('reacts to commits that the store reports, and polls for the others', async () => {
  const { add, relay, clock, store, outbox } = setup()
  const seen: unknown[] = []
  const stop = new AbortController()
  const ended = relay(({ payload }) => void seen.push(payload), { pollMs: 30_000 }).run(stop.signal)
  await settled()

  const lease = await hold(store)
  await store.transaction(lease, (tx) => {
    void outbox.add(tx, TOPIC, 'told of')
    return { result: bytes('done'), retentionMs: RETENTION_MS }
  })
  await settled()
  expect(seen).toEqual(['told of'])

  // The store does not see a transaction on a connection of the application.
  await clock.advanceAsync(90_000)
  add('looked for')
  await clock.advanceAsync(20)
  expect(seen).toEqual(['told of', 'looked for'])

  add('due later', { delayMs: 400 })
  await clock.advanceAsync(399)
  expect(seen.length).toBe(2)
  await clock.advanceAsync(30_000)
  expect(seen.length).toBe(3)
  stop.abort()
  await ended
  expect(clock.pendingTimers).toBe(0)
})

it('claims at growing intervals after a message was added here, up to pollMs', async () => {
  let claims = 0
  const counted = setup((own) => ({
    claim: (request) => {
      claims++
      return own.claim(request)
    },
  }))
  const { relay, clock, app, outbox } = counted
  const stop = new AbortController()
  const ended = relay(() => undefined, { pollMs: 1_000 }).run(stop.signal)
  await clock.advanceAsync(10_000)
  expect(claims).toBe(11)
  claims = 0
  app.exec('BEGIN')
  void outbox.add(app, TOPIC, 'not committed')
  await clock.advanceAsync(1_000)
  expect(claims).toBeLessThan(10)
  app.exec('ROLLBACK')
  await clock.advanceAsync(1_000)
  claims = 0
  await clock.advanceAsync(10_000)
  expect(claims).toBe(10)
  stop.abort()
  await ended
})
