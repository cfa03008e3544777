/** Which failed claims certainly wrote nothing, however the client is wrapped. */
import { AsyncResource } from 'node:async_hooks'
import type { DynamoDB } from '@aws-sdk/client-dynamodb'
import { expect, it } from 'vitest'
import { FakeClock } from '../../src/testing/fake-clock.ts'
import { claim, claimRequests } from '../../src/testing/store-cases/store-case.ts'
import { around, faultyProxy, useDynamodb, type Around, type WireFate } from './dynamodb-setup.ts'

const setup = useDynamodb({ private: true, returnsItems: true })

/** A store whose client stands behind `stand`; the attempts to write meet these fates in turn. */
async function wrappedSetup(fates: readonly WireFate[], stand: (client: DynamoDB) => Around) {
  const { connect, open, server, items } = await setup()
  let writes = 0
  const endpoint = await faultyProxy(server.endpoint, (target) =>
    target === 'PutItem' ? fates[Math.min(writes++, fates.length - 1)]! : 'pass',
  )
  const client = connect({ endpoint, maxAttempts: 2 })
  const store = open({ client: around(client, stand(client)), clock: new FakeClock() })
  return { store, written: async () => (await items()).length }
}

const UNCLEAR = { failure: 'unavailable', wroteNothing: false }
const NOTHING = { failure: 'unavailable', wroteNothing: true }

// The write is on its way · the wrapper gives up · the write lands.
it('does not say so of a write that a wrapper of the client gave up waiting for', async () => {
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

// The first attempt is refused · the wrapper gives up · the second attempt lands.
it('does not say so of a write that a wrapper gave up between two attempts', async () => {
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

it('hears of attempts that are made in another async context', async () => {
  const elsewhere = new AsyncResource('a wrapper of the client')
  const stand: Around = ({ go }) => elsewhere.runInAsyncScope(go)
  const lost = await wrappedSetup(['answer lost', 'throttled'], () => stand)
  await expect(claim(lost.store)).rejects.toMatchObject(UNCLEAR)
  expect(await lost.written()).toBe(1)
  const throttled = await wrappedSetup(['throttled'], () => stand)
  await expect(claim(throttled.store)).rejects.toMatchObject(NOTHING)
})

it('does not say so where it heard of no attempt', async () => {
  const { store } = await wrappedSetup(['pass'], () => ({ name, go }) => {
    const refusal = Object.assign(new Error('slow down'), { name: 'ThrottlingException' })
    return name === 'putItem' ? Promise.reject(refusal) : go()
  })
  await expect(claim(store)).rejects.toMatchObject(UNCLEAR)
})

it('tells claims apart that were given up for one reason', async () => {
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
