/** Which failed claims the store reports as unwritten when the client is wrapped. */
import { AsyncResource } from 'node:async_hooks'
import type { DynamoDB } from '@aws-sdk/client-dynamodb'
import { expect, it } from 'vitest'
import { FakeClock } from '../../../src/testing/fake-clock.ts'
import { claim, claimRequests } from '../../../src/testing/store-cases/store-case.ts'
import { around, faultyProxy, useDynamodb, type Around, type WireFate } from './setup.ts'

const setup = useDynamodb({ private: true, returnsItems: true })

/** A store whose client is wrapped by `wrap`. The attempts to write meet these fates in order. */
async function wrappedSetup(fates: readonly WireFate[], wrap: (client: DynamoDB) => Around) {
  const { connect, open, server, items } = await setup()
  let writes = 0
  const endpoint = await faultyProxy(server.endpoint, (target) =>
    target === 'PutItem' ? fates[Math.min(writes++, fates.length - 1)]! : 'pass',
  )
  const client = connect({ endpoint, maxAttempts: 2 })
  const store = open({ client: around(client, wrap(client)), clock: new FakeClock() })
  return { store, written: async () => (await items()).length }
}

const UNCLEAR = { failure: 'unavailable', wroteNothing: false }
const NOTHING = { failure: 'unavailable', wroteNothing: true }

// The write is sent · the wrapper times out · the write takes effect.
it('does not report a write as unwritten when a wrapper stopped waiting for it', async () => {
  const writes: Promise<unknown>[] = []
  const { store, written } = await wrappedSetup(['pass'], () => ({ name, go }) => {
    if (name !== 'putItem') return go()
    writes.push(go())
    return Promise.reject(new Error('Promise timed out'))
  })
  await expect(claim(store)).rejects.toMatchObject(UNCLEAR)
  await Promise.all(writes)
  expect(await written()).toBe(1)
})

// The first attempt is refused · the wrapper times out · the second attempt takes effect.
it('does not report a write as unwritten when a wrapper stopped between two attempts', async () => {
  const writes: Promise<unknown>[] = []
  const { store, written } = await wrappedSetup(['throttled', 'pass'], (client) => {
    const refused = Promise.withResolvers<never>()
    client.middlewareStack.add(
      (next) => (attempt) =>
        next(attempt).catch((error: unknown) => {
          refused.reject(new Error('Promise timed out'))
          throw error
        }),
      { step: 'finalizeRequest', priority: 'low' },
    )
    return ({ name, go }) => {
      if (name !== 'putItem') return go()
      const answer = go()
      writes.push(answer)
      return Promise.race([answer, refused.promise])
    }
  })
  await expect(claim(store)).rejects.toMatchObject(UNCLEAR)
  await Promise.all(writes)
  expect(await written()).toBe(1)
})

it('observes attempts that are made in another async context', async () => {
  const elsewhere = new AsyncResource('a wrapper of the client')
  const wrap: Around = ({ go }) => elsewhere.runInAsyncScope(go)
  const lost = await wrappedSetup(['answer lost', 'throttled'], () => wrap)
  await expect(claim(lost.store)).rejects.toMatchObject(UNCLEAR)
  expect(await lost.written()).toBe(1)
  const throttled = await wrappedSetup(['throttled'], () => wrap)
  await expect(claim(throttled.store)).rejects.toMatchObject(NOTHING)
})

it('does not report a write as unwritten when it observed no attempt', async () => {
  const { store } = await wrappedSetup(['pass'], () => ({ name, go }) => {
    const refusal = Object.assign(new Error('slow down'), { name: 'ThrottlingException' })
    return name === 'putItem' ? Promise.reject(refusal) : go()
  })
  await expect(claim(store)).rejects.toMatchObject(UNCLEAR)
})

it('distinguishes an unsent claim from a sent one that failed with the same error', async () => {
  const reason = new Error('no answer')
  const { store } = await wrappedSetup(['pass'], () => async ({ name, go }) => {
    const answer = await go()
    if (name === 'putItem') throw reason
    return answer
  })
  const unsent = store.claim(claimRequests(1), AbortSignal.abort(reason))
  await expect(unsent).rejects.toMatchObject(NOTHING)
  await expect(claim(store)).rejects.toMatchObject(UNCLEAR)
})
