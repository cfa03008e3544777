import { expect, it } from 'vitest'
import { createRelay } from '../../src/durable/relay.ts'
import { backoffMs } from '../../src/durable/backoff.ts'
import { held, setup, settled, TOPIC } from './relay-fixture.ts'

it('gives back what it has not begun, finishes what runs, and takes nothing new', async () => {
  const { add, relay, own, read } = setup()
  const ids = Array.from({ length: 5 }, (_, n) => add(n))
  const { handler, calls, called } = held()
  const made = relay(handler, { concurrency: 2 })
  const ended = made.run()
  await called(2)
  await settled()
  const closed = made.close()
  await settled()
  // Unused: the attempt does not count.
  expect(await own.list({ state: 'ready', limit: 10 })).toMatchObject([
    { id: ids[2], attempt: 0 },
    { id: ids[3], attempt: 0 },
    { id: ids[4], attempt: 0 },
  ])
  for (const { finish } of calls) finish()
  expect(await closed).toEqual({ abandoned: 0 })
  await ended
  expect(calls.length).toBe(2)
  expect((await read(ids[0]!)).state).toBe('done')
  expect(await made.runOnce()).toEqual({ relayed: 0, retried: 0, dead: 0, lost: 0 })
  await made.run()
  expect(calls.length).toBe(2)
})

it('does the same when the signal of its run aborts, and may then run again', async () => {
  const { add, relay, own } = setup()
  for (let n = 0; n < 4; n++) add(n)
  const { handler, calls, called } = held()
  const made = relay(handler, { concurrency: 1 })
  const stop = new AbortController()
  const ended = made.run(stop.signal)
  await called(1)
  await settled()
  stop.abort()
  await settled()
  expect((await own.list({ state: 'ready', limit: 10 })).length).toBe(3)
  calls[0]!.finish()
  await ended
  expect(calls.length).toBe(1)

  const again = new AbortController()
  const second = made.run(again.signal)
  for (let n = 1; n < 4; n++) {
    await called(n + 1)
    calls[n]!.finish()
  }
  again.abort()
  await second
  expect((await own.list({ state: 'done', limit: 10 })).length).toBe(4)
})

it('gives back what a claim brings after it was told to stop', async () => {
  const answer = Promise.withResolvers<void>()
  const { add, relay, read } = setup((own) => ({
    claim: async (request) => {
      const messages = await own.claim(request)
      await answer.promise
      return messages
    },
  }))
  const id = add()
  const { handler, calls } = held()
  const made = relay(handler)
  const ended = made.run()
  await settled()
  expect((await read(id)).state).toBe('held')
  const closed = made.close()
  answer.resolve()
  expect(await closed).toEqual({ abandoned: 0 })
  await ended
  expect(calls).toEqual([])
  expect(await read(id)).toMatchObject({ state: 'ready', attempt: 0 })
})

it('waits no longer than its grace, and then lets the lease lapse', async () => {
  const { add, relay, clock, claim, read } = setup()
  const id = add()
  const { handler, calls, called } = held()
  const made = relay(handler)
  const ended = made.run()
  await called(1)
  const closed = made.close({ graceMs: 5_000 })
  await clock.advanceAsync(4_999)
  expect(calls[0]!.message.signal.aborted).toBe(false)
  await clock.advanceAsync(1)
  expect(await closed).toEqual({ abandoned: 1 })
  await ended
  expect(calls[0]!.message.signal.aborted).toBe(true)
  expect(clock.pendingTimers).toBe(0)
  await clock.advanceAsync(30_000)
  expect(await claim()).toMatchObject([{ id, attempt: 2 }])
  calls[0]!.finish()
  await settled()
  expect((await read(id)).state).toBe('held')
})

it('ends with its engine', async () => {
  const { relay, engine, clock } = setup()
  const ended = relay(() => undefined).run()
  await engine.close()
  await clock.advanceAsync(1_000)
  await ended
})

it('does one thing at a time', async () => {
  const { relay } = setup()
  const made = relay(() => undefined)
  const stop = new AbortController()
  const ended = made.run(stop.signal)
  await expect(made.runOnce()).rejects.toThrow('this relay is in use already (run)')
  await expect(made.run()).rejects.toMatchObject({ code: 'INVALID_OPTIONS' })
  stop.abort()
  await ended
})

it('rejects a single pass where the store cannot be asked', async () => {
  const { relay, eventsOf } = setup(() => ({ claim: () => Promise.reject(new Error('down')) }))
  await expect(relay(() => undefined).runOnce()).rejects.toMatchObject({ code: 'STORE_FAILED' })
  expect(eventsOf('store_error')).toMatchObject([{ call: 'claim messages' }])
})

it('refuses options that it does not know or that make no sense', () => {
  const { engine } = setup()
  const make = (options: object) => () =>
    createRelay({ engine, topics: { [TOPIC]: () => undefined }, ...options })
  expect(make({ topics: {} })).toThrow('must name from 1 to 1000 topics, got 0')
  expect(make({ topics: undefined })).toThrow('must be an object of handlers, got undefined')
  expect(make({ topics: { '': () => undefined } })).toThrow('must not be empty')
  expect(make({ topics: { x: 'y' } })).toThrow('createRelay.topics["x"] must be a function')
  expect(make({ concurency: 3 })).toThrow('createRelay has no option "concurency"')
  expect(make({ concurrency: 0 })).toThrow('createRelay.concurrency must be a whole number from 1')
  expect(make({ leaseMs: 99 })).toThrow('createRelay.leaseMs')
  expect(make({ onDeadLetter: 'drop' })).toThrow("must be 'block' or 'skip'")
  expect(make({ backoff: { firstMs: 10, maxMs: 5 } })).toThrow('maxMs (5) must not be below')
  expect(make({ backoff: { first: 10 } })).toThrow('createRelay.backoff has no option "first"')
  expect(make({ random: 0.5 })).toThrow('createRelay.random must be a function')
})

it('backs off up to the longest pause, however many attempts there were', () => {
  const backoff = { firstMs: 100, maxMs: 5_000 }
  const longest = (attempt: number) => backoffMs(backoff, attempt, () => 1 - Number.EPSILON)
  expect([1, 2, 3, 6, 7, 1_000].map(longest)).toEqual([99, 199, 399, 3_199, 4_999, 4_999])
  expect(backoffMs(backoff, 5, () => 0)).toBe(0)
})
