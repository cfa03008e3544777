// Takes about 8 s.
import { getEventListeners } from 'node:events'
import type { Agent } from 'node:http'
import { DynamoDB } from '@aws-sdk/client-dynamodb'
import { expect, it, onTestFinished, vi } from 'vitest'
import { createEngine } from '../../../src/core/engine/engine.ts'
import type { Store } from '../../../src/core/store/store.ts'
import { systemClock, type Clock } from '../../../src/core/time/clock.ts'
import { dynamodbStore } from '../../../src/stores/dynamodb/index.ts'
import { FakeClock } from '../../../src/testing/fake-clock.ts'
import { claimRequests, completeOf } from '../../../src/testing/store-cases/store-case.ts'
import { clientConfig } from '../../servers/dynalite.ts'
import { startTcpProxy } from '../../servers/tcp-proxy.ts'
import { useDynamodb } from './setup.ts'

const open = useDynamodb()
const TIMEOUT_MS = 800
/** Shorter than the 10 s after which the store ends a call by itself. */
const WAIT = { timeout: 8_000 }
const bytes = (text: string) => new TextEncoder().encode(text)

/** An engine that reaches the table through a network that can go silent. */
async function setup(clock: Clock = systemClock) {
  const { server, table } = await open()
  const { hostname, port } = new URL(server.endpoint)
  const proxy = await startTcpProxy({ host: hostname, port: Number(port) })
  onTestFinished(() => proxy.close())
  const client = new DynamoDB(clientConfig(proxy.through(server.endpoint)))
  onTestFinished(() => client.destroy())
  const store = dynamodbStore({ client, table })
  const engine = createEngine({
    store,
    clock,
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

/**
 * The engine's clock stands still until all claims are sent. On the system clock a busy machine can
 * take longer than the timeout to send 30 claims, one in each turn of the event loop, and the
 * engine then reports the unsent claims as `overloaded`.
 */
it('leaks no connection in six silent outages in a row', async () => {
  const clock = new FakeClock()
  const { proxy, client, engine, store, run } = await setup(clock)
  const claims = countCalls(store, 'claim')
  const releases = countCalls(store, 'settle')
  await run('warm')
  for (let loss = 0; loss < 6; loss++) {
    proxy.silence()
    const lost = settled(Array.from({ length: 30 }, (_, n) => run(`lost-${loss}-${n}`)))
    await vi.waitUntil(() => claims.underWay === 30, WAIT)
    clock.advance(TIMEOUT_MS)
    expect(new Set(await lost)).toEqual(new Set(['unavailable']))
    // Only the releases of the lost claims may still use a connection.
    await vi.waitUntil(() => claims.underWay === 0, WAIT)
    await vi.waitUntil(() => requestsOf(client) <= releases.underWay, WAIT)
    proxy.resume('dead')
    expect(await run(`after-${loss}`)).toMatchObject({ kind: 'ran' })
  }
  await engine.close({ graceMs: 0 })
})

/** Counts the calls that the engine makes and the store has not answered. */
function countCalls(store: Store, name: 'claim' | 'settle') {
  const calls = { underWay: 0 }
  const call = store[name].bind(store) as (...args: unknown[]) => Promise<never>
  vi.spyOn(store, name).mockImplementation((...args: unknown[]) => {
    calls.underWay++
    return call(...args).finally(() => calls.underWay--)
  })
  return calls
}

it('makes no further call to the service after the engine has aborted the call', async () => {
  const { proxy, store } = await setup()
  await store.list({ state: 'completed', limit: 1 })
  proxy.silence()
  const aborted = new AbortController()
  const listing = store
    .list({ state: 'completed', limit: 1 }, aborted.signal)
    .catch((error: unknown) => error)
  await new Promise((resolve) => {
    setImmediate(resolve)
  })
  aborted.abort(new Error('no answer'))
  expect(await listing).toMatchObject({ code: 'STORE_FAILED', failure: 'unavailable' })
  await expect(store.read({ identity: '0'.repeat(32) }, aborted.signal)).rejects.toMatchObject({
    code: 'STORE_FAILED',
  })
  proxy.resume('dead')
})

it('fails one call after all idle connections died, not one for each of them', async () => {
  const { proxy, store, run } = await setup()
  // Sent in one turn of the event loop, so that each call opens a connection.
  await Promise.all(Array.from({ length: 30 }, () => store.now!()))
  expect(proxy.connections()).toBeGreaterThan(10)
  proxy.silence()
  proxy.resume('dead')
  expect(await settled([run('lost')])).toEqual(['unavailable'])
  expect(await run('after')).toMatchObject({ kind: 'ran' })
})

it('queues few SDK requests for 1,000 clients, and serves clients after the outage', async () => {
  const { proxy, client, store, run } = await setup()
  await run('warm')
  proxy.silence()
  for (let round = 1; round <= 3; round++) {
    const lost = Array.from({ length: 1_000 }, (_, n) => run(`lost-${round}-${n}`))
    expect(await settled(lost)).not.toContain('answered')
    // Only releases of these claims still wait, at most as many as may run at once.
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

function agentOf(client: DynamoDB): Agent {
  const handler: unknown = client.config.requestHandler
  return (handler as Handler).httpHandlerConfigs().httpAgent
}

/** Requests that wait for a connection of the SDK's agent. */
function pendingIn(client: DynamoDB): number {
  return Object.values(agentOf(client).requests).flat().length
}

/** Requests that use a connection or wait for one. */
function requestsOf(client: DynamoDB): number {
  return pendingIn(client) + Object.values(agentOf(client).sockets).flat().length
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

it.each(Object.keys(CALLS))('%s closes its connections when it is aborted', async (name) => {
  const { proxy, client, table } = await setup()
  const store = dynamodbStore({ client, table, history: true })
  await store.now!()
  proxy.silence()
  const givenUp = new AbortController()
  const call = CALLS[name]!(store, givenUp.signal).catch((error: unknown) => error)
  await expect.poll(() => proxy.connections()).toBeGreaterThan(0)
  // Node warns about a leak if there are more than ten.
  expect(getEventListeners(givenUp.signal, 'abort')).toHaveLength(1)
  givenUp.abort(new Error('no answer'))
  expect(await call).toMatchObject({ code: 'STORE_FAILED', failure: 'unavailable' })
  await expect.poll(() => proxy.connections()).toBe(0)
})
