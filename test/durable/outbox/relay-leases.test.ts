import { expect, it } from 'vitest'
import type { MessageLease, OutboxStore } from '../../../src/core/store/durable-store.ts'
import { createEngine } from '../../../src/core/engine/engine.ts'
import { StoreFailedError } from '../../../src/core/errors.ts'
import type { MessageHandler } from '../../../src/durable/outbox/relay-contract.ts'
import { held, setup, settled, withOutbox } from './relay-fixture.ts'

const LEASE_MS = 30_000

function down(): Promise<never> {
  const cause = new Error('connection refused')
  return Promise.reject(new StoreFailedError({ store: 'sqlite', operation: 'ask', cause }))
}

/** An outbox whose calls can fail before or after they reached the store. */
function faulty() {
  const faults: Partial<Record<'claim' | 'settle' | 'renew', 'before' | 'after'>> = {}
  const calls = { claim: [] as string[], renew: [] as (readonly MessageLease[])[] }
  const through = async <Answer>(
    call: keyof typeof faults,
    ask: () => Promise<Answer>,
  ): Promise<Answer> => {
    const fault = faults[call]
    if (fault === 'before') return down()
    const answer = await ask()
    return fault === 'after' ? down() : answer
  }
  const change = (own: OutboxStore): Partial<OutboxStore> => ({
    claim: (request) => {
      calls.claim.push(request.token)
      return through('claim', () => own.claim(request))
    },
    settle: (settlements) => through('settle', () => own.settle(settlements)),
    renew: (leases, leaseMs) => {
      calls.renew.push(leases)
      return through('renew', () => own.renew(leases, leaseMs))
    },
  })
  return { faults, calls, change }
}

it('renews the leases of all its messages in one call while handlers run', async () => {
  const { change, calls: asked } = faulty()
  const { add, relay, clock, claim, eventsOf } = setup(change)
  for (let n = 0; n < 6; n++) add(n)
  const { handler, calls, called } = held()
  const once = relay(handler, { concurrency: 3, handlerTimeoutMs: 600_000 }).runOnce()
  await called(3)
  await clock.advanceAsync(4 * LEASE_MS)
  // Three messages run and three wait. No other relay gets any of them.
  expect(asked.renew.map((leases) => leases.length)).toEqual(Array.from({ length: 12 }, () => 6))
  expect(await claim()).toEqual([])
  for (let n = 0; n < 6; n++) {
    await called(n + 1)
    calls[n]!.finish()
  }
  expect((await once).relayed).toBe(6)
  expect(eventsOf('message_lost')).toEqual([])
  expect(clock.pendingTimers).toBe(0)
})

it('aborts a handler when a renewal shows that another relay has the message', async () => {
  const { add, relay, clock, claim, read, eventsOf } = setup()
  const id = add()
  const { handler, calls, called } = held()
  const once = relay(handler).runOnce()
  await called(1)
  // Only the clock of the store advances, as if this process had been suspended.
  clock.jumpWallTime(LEASE_MS)
  const [taken] = await claim()
  expect(taken).toMatchObject({ id, attempt: 2 })
  await clock.advanceAsync(LEASE_MS / 3)
  expect(calls[0]!.message.signal.reason).toMatchObject({ code: 'LEASE_LOST' })
  expect(await once).toEqual({ relayed: 0, retried: 0, dead: 0, lost: 1 })
  calls[0]!.finish()
  await settled()
  expect(await read(id)).toMatchObject({ state: 'held', attempt: 2 })
  expect(eventsOf('message_lost')).toMatchObject([{ messageId: id }])
  expect(eventsOf('message_relayed')).toEqual([])
})

it('fences a settlement if the lease was lost before it', async () => {
  const { add, relay, clock, claim, own, eventsOf } = setup()
  const id = add()
  const { handler, calls, called } = held()
  const once = relay(handler).runOnce()
  await called(1)
  clock.jumpWallTime(LEASE_MS)
  const [taken] = await claim()
  calls[0]!.finish()
  expect((await once).lost).toBe(1)
  expect(eventsOf('message_lost')).toMatchObject([{ messageId: id }])
  const done = { ...taken!, kind: 'done', providerId: undefined } as const
  expect(await own.settle([done])).toEqual([true])
})

it('aborts a handler when the lease ends by the clock of the relay', async () => {
  const { change, faults } = faulty()
  const { add, relay, clock, eventsOf, read } = setup(change)
  const id = add()
  const { handler, calls, called } = held()
  const once = relay(handler, { handlerTimeoutMs: 600_000 }).runOnce()
  await called(1)
  faults.renew = 'before'
  await clock.advanceAsync(LEASE_MS - 1)
  const { signal } = calls[0]!.message
  expect(signal.aborted).toBe(false)
  await clock.advanceAsync(1)
  expect(signal.aborted).toBe(true)
  expect((await once).lost).toBe(1)
  // No other relay has claimed the message, so the late end of the handler is recorded.
  calls[0]!.finish()
  await settled()
  expect((await read(id)).state).toBe('done')
  expect(eventsOf('message_relayed').length).toBe(1)
})

it('does not start a message whose lease ended during the claim', async () => {
  const leaseMs = 2_000
  const { add, relay, clock, eventsOf } = setup((own) => ({
    claim: async (request) => {
      const messages = await own.claim(request)
      clock.advance(leaseMs)
      return messages
    },
  }))
  add()
  const { handler, calls } = held()
  expect((await relay(handler, { leaseMs }).runOnce()).lost).toBe(1)
  expect(calls).toEqual([])
  expect(eventsOf('message_lost').length).toBe(1)
})

it('fails an attempt at its time limit, and starts no other while its handler runs', async () => {
  const { add, relay, clock, read, eventsOf } = setup()
  const id = add()
  const { handler, calls, called } = held()
  const stop = new AbortController()
  const options = {
    handlerTimeoutMs: 5_000,
    concurrency: 1,
    backoff: { firstMs: 1_000, maxMs: 1_000 },
  }
  const ended = relay(handler, options).run(stop.signal)
  await called(1)
  await clock.advanceAsync(4_999)
  expect(calls[0]!.message.signal.aborted).toBe(false)
  await clock.advanceAsync(1)
  expect(calls[0]!.message.signal.reason).toMatchObject({
    message: 'the handler of "receipt.send" took longer than 5000 ms',
  })
  expect(eventsOf('message_retried').length).toBe(1)

  await clock.advanceAsync(2_000)
  expect(calls.length).toBe(1)
  const { attempt, errors, dueAt } = await read(id)
  expect([attempt, errors.at(-1)?.error]).toEqual([
    2,
    'Error: the handler of an earlier attempt still runs',
  ])
  expect(dueAt!.getTime()).toBeGreaterThan(clock.nowMs() + LEASE_MS - 2_001)

  // The place is free, and the late end of the handler changes nothing.
  add('beside')
  await clock.advanceAsync(20)
  expect(calls.length).toBe(2)
  calls[1]!.finish()
  calls[0]!.finish()
  await settled()
  expect((await read(id)).state).toBe('ready')
  await clock.advanceAsync(LEASE_MS + 1_000)
  expect(calls[2]!.message).toMatchObject({ id, attempt: 3 })
  calls[2]!.finish()
  await settled()
  expect((await read(id)).state).toBe('done')
  stop.abort()
  await ended
})

it('pauses a topic whose handlers hang, and resumes it when they have ended', async () => {
  const { add, relay, clock, own, eventsOf } = setup()
  for (let n = 0; n < 20; n++) add(n)
  const { handler, calls } = held()
  const stop = new AbortController()
  const made = relay(handler, { handlerTimeoutMs: 1_000, concurrency: 3, maxAttempts: 1 })
  const ended = made.run(stop.signal)
  await clock.advanceAsync(60_000)
  // Three handlers at a time, until ten or more of them hang.
  expect(calls.length).toBe(12)
  const paused = { part: 'relay', name: 'receipt.send', overdue: 12 }
  expect(made.stats()).toEqual({ running: 0, overdue: 12, waiting: 0, paused: [paused] })
  expect(eventsOf('work_paused')).toEqual([{ kind: 'work_paused', ...paused }])
  expect(eventsOf('work_overdue').length).toBe(12)
  // Messages that cannot start are returned for other relays.
  expect((await own.list({ state: 'ready', limit: 100 })).length).toBe(8)
  for (const { finish } of calls.slice(0, 12)) finish()
  await clock.advanceAsync(2_000)
  expect(calls.length).toBeGreaterThan(12)
  expect(eventsOf('work_resumed').length).toBe(1)
  stop.abort()
  await clock.advanceAsync(1_000)
  await ended
})

it('repeats a failed settlement while the lease lasts', async () => {
  const { change, faults } = faulty()
  const { add, relay, clock, read, eventsOf } = setup(change)
  const id = add()
  // The settlement succeeded and its answer was lost: the repeat must succeed, too.
  faults.settle = 'after'
  const once = relay(() => undefined).runOnce()
  await clock.advanceAsync(1_000)
  delete faults.settle
  await clock.advanceAsync(2_000)
  expect((await once).relayed).toBe(1)
  expect((await read(id)).state).toBe('done')
  expect(eventsOf('store_error').length).toBeGreaterThan(1)
  expect(eventsOf('message_lost')).toEqual([])
})

it('stops repeating a settlement after the lease, and the message is delivered again', async () => {
  const { change, faults } = faulty()
  const { add, relay, clock, eventsOf } = setup(change)
  add()
  const seen: number[] = []
  const made = relay(({ attempt }) => void seen.push(attempt))
  faults.settle = 'before'
  const once = made.runOnce()
  await clock.advanceAsync(2 * LEASE_MS)
  expect((await once).lost).toBe(1)
  expect(eventsOf('message_lost').length).toBe(1)
  delete faults.settle
  await clock.advanceAsync(LEASE_MS)
  expect((await made.runOnce()).relayed).toBe(1)
  expect(seen).toEqual([1, 2])
  expect(clock.pendingTimers).toBe(0)
})

it('repeats a claim whose answer was lost, and gets the same messages', async () => {
  const { change, faults, calls: asked } = faulty()
  const { add, relay, clock } = setup(change)
  for (let n = 0; n < 3; n++) add(n)
  faults.claim = 'after'
  const attempts: number[] = []
  const stop = new AbortController()
  const ended = relay(({ attempt }) => void attempts.push(attempt)).run(stop.signal)
  await clock.advanceAsync(1_000)
  expect(attempts).toEqual([])
  delete faults.claim
  await clock.advanceAsync(5_000)
  expect(attempts).toEqual([1, 1, 1])
  const repeats = asked.claim.filter((token) => token === asked.claim[0]).length
  expect(repeats).toBeGreaterThan(2)
  stop.abort()
  await ended
})

it('sends a new claim if the old one had no answer for half of a lease', async () => {
  const { change, faults, calls: asked } = faulty()
  const { add, relay, clock } = setup(change)
  add()
  faults.claim = 'after'
  const attempts: number[] = []
  const stop = new AbortController()
  const ended = relay(({ attempt }) => void attempts.push(attempt)).run(stop.signal)
  await clock.advanceAsync(LEASE_MS / 2 + 5_000)
  expect(new Set(asked.claim).size).toBeGreaterThan(1)
  delete faults.claim
  await clock.advanceAsync(LEASE_MS)
  expect(attempts).toEqual([2])
  stop.abort()
  await ended
})

/** A process that can be killed: no call reaches the store after that. */
function mortal({ store, own, clock }: Pick<ReturnType<typeof setup>, 'store' | 'own' | 'clock'>) {
  let isDead = false
  const alive = <Answer>(ask: () => Promise<Answer>): Promise<Answer> =>
    isDead ? new Promise(() => undefined) : ask()
  const outbox: OutboxStore = {
    ...own,
    claim: (request) => alive(() => own.claim(request)),
    settle: (settlements) => alive(() => own.settle(settlements)),
    renew: (leases, leaseMs) => alive(() => own.renew(leases, leaseMs)),
    read: (id) => alive(() => own.read(id)),
  }
  const engine = createEngine({
    store: withOutbox(store, outbox),
    clock,
    sweepEveryMs: 0,
    reapEveryMs: 0,
  })
  const kill = () => {
    isDead = true
  }
  return { engine, kill, isDead: () => isDead }
}

// Every message in a process that crashes has as many attempts as the one that crashes it.
it('separates a message that crashes its process from the others', async () => {
  const fixture = setup()
  const { add, relay, clock, own } = fixture
  for (let n = 0; n < 12; n++) add(n === 3 ? 'poison' : n)
  let seed = 1
  const random = () => {
    seed = (seed * 16_807) % 2_147_483_647
    return seed / 2_147_483_647
  }
  const open = async () => {
    const lists = [own.list({ state: 'ready', limit: 20 }), own.list({ state: 'held', limit: 20 })]
    return (await Promise.all(lists)).flat().length
  }
  for (let life = 0; life < 60 && (await open()) > 0; life++) {
    const { engine, kill, isDead } = mortal(fixture)
    const handler: MessageHandler = ({ payload }) => {
      if (payload === 'poison') kill()
    }
    const options = { engine, random, leaseMs: 5_000, pollMs: 1_000, maxAttempts: 12 }
    const made = relay(handler, { ...options, backoff: { firstMs: 1_000, maxMs: 20_000 } })
    for (let n = 0; n < 25 && !isDead(); n++) {
      const pass = made.runOnce()
      await clock.advanceAsync(1_000)
      if (!isDead()) await pass
    }
    await made.close({ graceMs: 0 })
    clock.advance(5_000)
  }
  expect((await own.list({ state: 'done', limit: 20 })).length).toBe(11)
  expect((await own.list({ state: 'dead', limit: 20 })).length).toBe(1)
})

it('does not claim a message in a loop if it cannot read its errors', async () => {
  let claims = 0
  const { add, relay, clock, claim, read } = setup((own) => ({
    read: () => down(),
    claim: (request) => {
      claims++
      return own.claim(request)
    },
  }))
  const id = add()
  await claim()
  clock.advance(LEASE_MS)
  const stop = new AbortController()
  const ended = relay(() => undefined, { maxAttempts: 1 }).run(stop.signal)
  await clock.advanceAsync(LEASE_MS)
  // One claim that finds it every few seconds, some soon after that, and then one a second.
  expect(claims).toBeLessThan(100)
  stop.abort()
  await ended
  expect(await read(id)).toMatchObject({ state: 'ready', attempt: 1 })
})

// A message that crashes its process never records a failed attempt.
it('makes a message a dead letter if all of its attempts crashed', async () => {
  const { add, relay, clock, claim, read, store, eventsOf } = setup()
  const id = add()
  for (let n = 0; n < 3; n++) {
    expect((await claim()).length).toBe(1)
    clock.advance(LEASE_MS)
  }
  const { handler, calls } = held()
  const made = relay(handler, { maxAttempts: 3 })
  expect((await made.runOnce()).dead).toBe(1)
  expect(calls).toEqual([])
  expect((await read(id)).errors.at(-1)?.error).toBe(
    'Error: attempt 3 recorded no end: its relay probably crashed',
  )
  expect(eventsOf('message_dead').length).toBe(1)

  // An operator can retry it.
  const retry = { kind: 'retry_message', messageId: id } as const
  await store.durable.operator.act(retry, { who: 'ada', why: 'fixed' })
  const once = made.runOnce()
  await settled()
  expect(calls.length).toBe(1)
  calls[0]!.finish()
  expect((await once).relayed).toBe(1)
})
