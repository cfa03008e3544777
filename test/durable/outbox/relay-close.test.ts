import { expect, it } from 'vitest'
import { createRelay } from '../../../src/durable/outbox/relay.ts'
import { held, setup, settled, TOPIC } from './relay-fixture.ts'

it('close returns waiting messages, awaits running handlers and claims no more', async () => {
  const { add, relay, own, read } = setup()
  const ids = Array.from({ length: 5 }, (_, n) => add(n))
  const { handler, calls, called } = held()
  const made = relay(handler, { concurrency: 2 })
  const ended = made.run()
  await called(2)
  await settled()
  const closed = made.close()
  await settled()
  // The handler was not called, so the attempt does not count.
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

it('stops in the same way when the signal of run aborts, and can run again', async () => {
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

it('returns the messages of a claim that ends after the stop', async () => {
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

it('close waits at most for graceMs, and then lets the lease lapse', async () => {
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

it('ends its run when the engine is closed', async () => {
  const { relay, engine, clock } = setup()
  const ended = relay(() => undefined).run()
  await engine.close()
  await clock.advanceAsync(1_000)
  await ended
})

it('rejects a second run while one is in progress', async () => {
  const { relay } = setup()
  const made = relay(() => undefined)
  const stop = new AbortController()
  const ended = made.run(stop.signal)
  await expect(made.runOnce()).rejects.toThrow('run() of this relay has not ended')
  await expect(made.run()).rejects.toMatchObject({ code: 'INVALID_OPTIONS' })
  stop.abort()
  await ended
})

it('runOnce rejects if the claim fails', async () => {
  const { relay, eventsOf } = setup(() => ({ claim: () => Promise.reject(new Error('down')) }))
  await expect(relay(() => undefined).runOnce()).rejects.toMatchObject({ code: 'STORE_FAILED' })
  expect(eventsOf('store_error')).toMatchObject([{ call: 'claim messages' }])
})

it('rejects unknown and invalid options', () => {
  const { engine } = setup()
  const make = (options: object) => () =>
    createRelay({ engine, topics: { [TOPIC]: () => undefined }, ...options })
  expect(make({ topics: {} })).toThrow('must have 1 to 1000 topics, got 0')
  expect(make({ topics: undefined })).toThrow('must be an object of handlers, got undefined')
  expect(make({ topics: { '': () => undefined } })).toThrow('must not be empty')
  expect(make({ topics: { x: 'y' } })).toThrow('createRelay.topics["x"] must be a function')
  expect(make({ concurency: 3 })).toThrow('createRelay has no option "concurency"')
  expect(make({ concurrency: 0 })).toThrow('createRelay.concurrency must be a whole number from 1')
  expect(make({ leaseMs: 99 })).toThrow('createRelay.leaseMs')
  expect(make({ onDeadLetter: 'drop' })).toThrow("must be 'block' or 'skip'")
  expect(make({ backoff: { firstMs: 10, maxMs: 5 } })).toThrow('maxMs (5) must not be less than')
  expect(make({ backoff: { first: 10 } })).toThrow('createRelay.backoff has no option "first"')
  expect(make({ random: 0.5 })).toThrow('createRelay.random must be a function')
})
