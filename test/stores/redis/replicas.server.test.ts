import { afterAll, beforeAll, expect, it, onTestFinished } from 'vitest'
import { createEngine } from '../../../src/core/engine/engine.ts'
import { redisStore, type RedisClient } from '../../../src/stores/redis/index.ts'
import {
  assertBytes,
  bytes,
  claim,
  claimRequest,
  completeOf,
  doubtOf,
  finish,
  hold,
  LEASE_MS,
  ofKind,
  RETENTION_MS,
  settle,
  viewOf,
} from '../../../src/testing/store-cases/store-case.ts'
import { replicaOf, startRedis, type RedisServer } from '../../servers/redis.ts'
import { connectIoRedis, CONNECT, startProxy } from './setup.ts'

/** Short, because a stopped replica never answers. */
const WAIT_MS = 200

let master: RedisServer
let replica: RedisServer

beforeAll(async () => {
  master = await startRedis()
  replica = await replicaOf(master)
}, 60_000)

afterAll(async () => {
  await replica.close()
  await master.close()
})

/** Stops the replica until the test ends or calls the result. */
function stopReplica() {
  replica.signal('SIGSTOP')
  const resume = () => replica.signal('SIGCONT')
  onTestFinished(resume)
  return resume
}

function open(client: RedisClient, timeoutMs = WAIT_MS) {
  const prefix = `test-${crypto.randomUUID()}`
  const store = redisStore({ client, prefix, waitReplicas: { count: 1, timeoutMs } })
  onTestFinished(() => store.close())
  return { store, prefix, plain: redisStore({ client, prefix }) }
}

const DRIVERS = Object.keys(CONNECT) as (keyof typeof CONNECT)[]

it.each(DRIVERS)('acknowledges writes that the replica has: %s', async (driver) => {
  const { store, prefix } = open(await CONNECT[driver](master.url), 20_000)
  const result = Uint8Array.from({ length: 256 }, (_, n) => n)
  await finish(store, {}, result)
  assertBytes(ofKind(await claim(store), 'completed').result, result)
  const lease = await hold(store, { key: 'key-2' })
  expect(await store.renew([{ ...lease, leaseMs: LEASE_MS }])).toEqual([true])
  await settle(store, doubtOf(lease))
  const ref = { identity: claimRequest().identity }
  ofKind(await store.discard!({ ref, attempt: 1 }), 'discarded')
  expect(ofKind(await claim(store, { mode: 'find' }), 'free').from).toBe('retry')
  const copy = connectIoRedis(replica.url)
  for (const { identity } of [claimRequest(), lease]) {
    expect(await copy.keys(`${prefix}:*${identity}`)).toHaveLength(1)
  }
})

it.each(DRIVERS)(
  'runs nothing while the replica is stopped, and leaves no record unknown: %s',
  async (driver) => {
    const client = await CONNECT[driver](master.url)
    const { store, plain } = open(client)
    await finish(store, { key: 'warm' })
    const resume = stopReplica()
    const engine = createEngine({ store })
    onTestFinished(async () => void (await engine.close()))
    let runs = 0
    const run = () =>
      engine.run(
        {
          scope: { tenant: 'tenant-1', operation: 'POST /payments' },
          key: 'key-1',
          fingerprint: 'fingerprint-1',
        },
        () => {
          runs++
          return bytes('paid')
        },
      )
    await expect(run()).rejects.toThrow(/0 of 1 replicas within 200 ms/)
    expect(runs).toBe(0)
    const view = await viewOf(plain, claimRequest())
    // The store released the claim before the call failed.
    expect([view.state, view.proof]).toEqual(['failed_retryable', 'proven'])
    expect(view.errorCode).toBe('not_replicated')

    resume()
    await expect.poll(() => run().then(({ kind }) => kind, String), { timeout: 10_000 }).toBe('ran')
    expect(runs).toBe(1)
  },
)

it('does not acknowledge a discard that the replica does not have', async () => {
  const { store } = open(connectIoRedis(master.url))
  const { identity } = await finish(store)
  const resume = stopReplica()
  const discard = () => store.discard!({ ref: { identity }, attempt: 1 })
  await expect(discard()).rejects.toThrow('replicas')
  // The master has the discard, but a repeated call must not succeed because of that.
  await expect(discard()).rejects.toThrow('replicas')
  resume()
  const discarded = () => discard().then(({ kind }) => kind, String)
  await expect.poll(discarded, { timeout: 10_000 }).toBe('discarded')
})

it('does not acknowledge a result that the replica does not have', async () => {
  const { store, plain } = open(connectIoRedis(master.url))
  const lease = await hold(store)
  const resume = stopReplica()
  await expect(settle(store, completeOf(lease))).rejects.toThrow('replicas')
  // The master has the result, but a repeated call must not succeed because of that.
  expect((await viewOf(plain, lease)).state).toBe('completed')
  await expect(settle(store, completeOf(lease))).rejects.toThrow('replicas')
  resume()
  const settled = () => settle(store, completeOf(lease)).then(({ kind }) => kind, String)
  await expect.poll(settled, { timeout: 10_000 }).toBe('settled')
})

// Another process has completed the key, and its own wait has failed or is not over.
it('does not replay a result that the replica does not have', async () => {
  const client = connectIoRedis(master.url)
  const { store, plain } = open(client)
  const lease = await hold(store)
  const resume = stopReplica()
  ofKind(await settle(plain, completeOf(lease)), 'settled')
  await expect(claim(store)).rejects.toThrow('replicas')
  await expect(claim(store, { mode: 'find' })).rejects.toThrow('replicas')
  resume()
  const replayed = () => claim(store).then(({ kind }) => kind, String)
  await expect.poll(replayed, { timeout: 10_000 }).toBe('completed')
})

it('does not delay other commands of the client while it waits for the replica', async () => {
  const client = connectIoRedis(master.url)
  const { store } = open(client, 20_000)
  await finish(store, { key: 'warm' })
  const resume = stopReplica()
  let isOver = false
  const held = claim(store).finally(() => {
    isOver = true
  })
  for (let n = 0; n < 20; n++) expect(await client.ping()).toBe('PONG')
  expect(isOver).toBe(false)
  resume()
  ofKind(await held, 'claimed')
})

// On a new connection WAIT would count every replica at once, because nothing was written there.
it.each(DRIVERS)('fails a claim whose connection is cut during the wait: %s', async (driver) => {
  const proxy = await startProxy(master)
  const client = await CONNECT[driver](proxy.url)
  const { store, plain } = open(client, 20_000)
  await finish(store, { key: 'warm' })
  const resume = stopReplica()
  // The script is answered, and then the connection ends during the wait.
  proxy.onNextMatch(/EVALSHA[^]*WAIT/i, 'answer and cut')
  await expect(claim(store)).rejects.toMatchObject({ failure: 'unavailable' })
  expect(proxy.cuts()).toBe(1)
  resume()
  const view = await viewOf(plain, claimRequest())
  expect(view.state).toBe('in_progress')
  const next = () => finish(store, { key: 'next' }).then(() => 'done', String)
  await expect.poll(next, { timeout: 10_000 }).toBe('done')
})

it('fails a renewal instead of waiting forever while it cannot connect', async () => {
  const server = await startRedis()
  onTestFinished(() => server.close())
  const client = connectIoRedis(server.url)
  const { store } = open(client)
  await expect(claim(store)).rejects.toThrow('0 of 1 replicas')
  await server.kill()
  const lease = { ...claimRequest(), attempt: 1 }
  const renewal = { ...lease, leaseMs: LEASE_MS, retentionMs: RETENTION_MS }
  await expect(store.renew([renewal])).rejects.toMatchObject({ failure: 'unavailable' })
})
