import { getEventListeners } from 'node:events'
import type { Agent } from 'node:http'
import { DynamoDB } from '@aws-sdk/client-dynamodb'
import { expect, it, onTestFinished } from 'vitest'
import { createEngine } from '../../src/core/engine.ts'
import type { Store } from '../../src/core/store.ts'
import { dynamodbStore } from '../../src/stores/dynamodb/index.ts'
import { claimRequests, completeOf } from '../../src/testing/store-cases/store-case.ts'
import { clientConfig } from '../servers/dynalite.ts'
import { startTcpProxy } from '../servers/tcp-proxy.ts'
import { useDynamodb } from './dynamodb-setup.ts'

const open = useDynamodb()
const TIMEOUT_MS = 800
const bytes = (text: string) => new TextEncoder().encode(text)

/** An engine on the table by way of a network that can fall silent. */
async function setup() {
  const { server, table } = await open()
  const { hostname, port } = new URL(server.endpoint)
  const proxy = await startTcpProxy({ host: hostname, port: Number(port) })
  onTestFinished(() => proxy.close())
  // As the guide shows it: the SDK by itself would wait for ever.
  const client = new DynamoDB(clientConfig(proxy.through(server.endpoint)))
  onTestFinished(() => client.destroy())
  const store = dynamodbStore({ client, table })
  const engine = createEngine({
    store,
    storeTimeoutMs: TIMEOUT_MS,
    breaker: false,
    sweepEveryMs: 0,
    reapEveryMs: 0,
    onEvent: () => undefined,
  })
  const run = (key: string) =>
    engine.run({ scope: { tenant: 't', operation: 'pay' }, key, fingerprint: 'f' }, () =>
      bytes(key),
    )
  return { proxy, client, table, engine, store, run }
}

const settled = (calls: Promise<unknown>[]) =>
  Promise.all(
    calls.map((call) =>
      call.then(
        () => 'answered',
        (error: unknown) => (error as { failure?: string }).failure,
      ),
    ),
  )

it('leaves no connection behind after six silent losses in a row', async () => {
  const { proxy, engine, run } = await setup()
  await run('warm')
  for (let loss = 0; loss < 6; loss++) {
    proxy.silence()
    const lost = Array.from({ length: 30 }, (_, n) => run(`lost-${loss}-${n}`))
    expect(new Set(await settled(lost))).toEqual(new Set(['unavailable']))
    proxy.resume('dead')
    expect(await run(`after-${loss}`)).toMatchObject({ kind: 'ran' })
  }
  await engine.close()
})

it('makes no further call to the service after the engine has given the call up', async () => {
  const { proxy, store } = await setup()
  await store.list({ state: 'completed', limit: 1 })
  proxy.silence()
  const given = new AbortController()
  const listing = store
    .list({ state: 'completed', limit: 1 }, given.signal)
    .catch((error: unknown) => error)
  await new Promise((resolve) => {
    setImmediate(resolve)
  })
  given.abort(new Error('no answer'))
  expect(await listing).toMatchObject({ code: 'STORE_FAILED', failure: 'unavailable' })
  await expect(store.read({ identity: '0'.repeat(32) }, given.signal)).rejects.toMatchObject({
    code: 'STORE_FAILED',
  })
  proxy.resume('dead')
})

it('gives up one call on idle connections that have died, and not one for each', async () => {
  const { proxy, store, run } = await setup()
  // All sent in one turn, so that each opens a connection.
  await Promise.all(Array.from({ length: 30 }, () => store.now!()))
  expect(proxy.connections()).toBeGreaterThan(10)
  proxy.silence()
  proxy.resume('dead')
  expect(await settled([run('lost')])).toEqual(['unavailable'])
  expect(await run('after')).toMatchObject({ kind: 'ran' })
})

it('keeps 1,000 clients out of memory and serves them when the network is back', async () => {
  const { proxy, client, store, run } = await setup()
  await run('warm')
  proxy.silence()
  for (let round = 1; round <= 3; round++) {
    const lost = Array.from({ length: 1_000 }, (_, n) => run(`lost-${round}-${n}`))
    expect(await settled(lost)).not.toContain('answered')
    // What still waits are releases of these claims, as many as may be under way at once.
    expect(pendingIn(client)).toBeLessThanOrEqual(store.batching!.flushesMax!)
  }
  proxy.resume('dead')
  expect(await run('after')).toMatchObject({ kind: 'ran' })
  const patient = createEngine({ store, storeTimeoutMs: 30_000 })
  onTestFinished(() => void patient.close())
  const scope = { tenant: 't', operation: 'pay' }
  const served = await Promise.all(
    Array.from({ length: 1_000 }, (_, n) =>
      patient.run({ scope, key: `served-${n}`, fingerprint: 'f' }, () => bytes('x')),
    ),
  )
  expect(served).toEqual(served.map(() => expect.objectContaining({ kind: 'ran' })))
})

interface Handler {
  httpHandlerConfigs(): { readonly httpAgent: Agent }
}

/** Requests that wait for a connection of the SDK's agent. */
function pendingIn(client: DynamoDB): number {
  const handler: unknown = client.config.requestHandler
  const { httpAgent } = (handler as Handler).httpHandlerConfigs()
  return Object.values(httpAgent.requests).flat().length
}

type Call = (store: Store, signal: AbortSignal) => Promise<unknown>

const LEASE = { identity: '0'.repeat(32), token: 'token', attempt: 1 }
const ID = '00000000-0000-7000-8000-000000000000'

const CALLS: Readonly<Record<string, Call>> = {
  claim: (store, signal) => store.claim(claimRequests(20), signal),
  settle: (store, signal) => store.settle([completeOf(LEASE)], signal),
  renew: (store, signal) => store.renew([{ ...LEASE, leaseMs: 1 }], signal),
  resolve: (store, signal) =>
    store.resolve(
      [{ ref: { recordId: ID }, verdict: { kind: 'failed_retryable' }, retentionMs: 1 }],
      signal,
    ),
  sweep: (store, signal) => store.sweep({ limit: 1 }, signal),
  reap: (store, signal) => store.reap({ limit: 1 }, signal),
  read: (store, signal) => store.read(LEASE, signal),
  list: (store, signal) => store.list({ state: 'unknown', limit: 1 }, signal),
  now: (store, signal) => store.now!(signal),
  history: (store, signal) => store.history!({ ref: LEASE, limit: 1 }, signal),
}

it.each(Object.keys(CALLS))('%s ends its connections when it is given up', async (name) => {
  const { proxy, client, table } = await setup()
  const store = dynamodbStore({ client, table, history: true })
  await store.now!()
  proxy.silence()
  const givenUp = new AbortController()
  const call = CALLS[name]!(store, givenUp.signal).catch((error: unknown) => error)
  await expect.poll(() => proxy.connections()).toBeGreaterThan(0)
  // Node warns of a leak where there are more than ten.
  expect(getEventListeners(givenUp.signal, 'abort')).toHaveLength(1)
  givenUp.abort(new Error('no answer'))
  expect(await call).toMatchObject({ code: 'STORE_FAILED', failure: 'unavailable' })
  await expect.poll(() => proxy.connections()).toBe(0)
})
