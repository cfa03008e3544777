import { afterAll, beforeAll, expect, it, onTestFinished } from 'vitest'
import { createEngine } from '../../src/core/engine.ts'
import { redisStore, type RedisClient } from '../../src/stores/redis/index.ts'
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
} from '../../src/testing/store-cases/store-case.ts'
import { replicaOf, startRedis, type RedisServer } from '../servers/redis.ts'
import { connectIoRedis, CONNECT, startProxy } from './redis-setup.ts'

/** A replica that is stopped does not answer, and need not be waited for long. */
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

/** The replica is stopped until the test ends, or `goOn` is called. */
function stopReplica() {
  replica.signal('SIGSTOP')
  const goOn = () => replica.signal('SIGCONT')
  onTestFinished(goOn)
  return goOn
}

function open(client: RedisClient, timeoutMs = WAIT_MS) {
  const prefix = `test-${crypto.randomUUID()}`
  const store = redisStore({ client, prefix, waitReplicas: { count: 1, timeoutMs } })
  onTestFinished(() => store.close())
  return { store, prefix, plain: redisStore({ client, prefix }) }
}

const DRIVERS = Object.keys(CONNECT) as (keyof typeof CONNECT)[]

it.each(DRIVERS)('acknowledges what the replica has: %s', async (driver) => {
  const { store, prefix } = open(await CONNECT[driver](master.url), 20_000)
  const result = Uint8Array.from({ length: 256 }, (_, n) => n)
  await finish(store, {}, result)
  assertBytes(ofKind(await claim(store), 'completed').result, result)
  const lease = await hold(store, { key: 'key-2' })
  expect(await store.renew([{ ...lease, leaseMs: LEASE_MS }])).toEqual([true])
  await settle(store, doubtOf(lease))
  const copy = connectIoRedis(replica.url)
  for (const { identity } of [claimRequest(), lease]) {
    expect(await copy.keys(`${prefix}:*${identity}`)).toHaveLength(1)
  }
})

it.each(DRIVERS)(
  'runs nothing while the replica is stopped, and leaves no key in doubt: %s',
  async (driver) => {
    const client = await CONNECT[driver](master.url)
    const { store, plain } = open(client)
    await finish(store, { key: 'warm' })
    const goOn = stopReplica()
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
    // By the store itself, before the claim failed.
    expect([view.state, view.proof]).toEqual(['failed_retryable', 'proven'])
    expect(view.errorCode).toBe('not_replicated')

    goOn()
    await expect.poll(() => run().then(({ kind }) => kind, String), { timeout: 10_000 }).toBe('ran')
    expect(runs).toBe(1)
  },
)

it('acknowledges no result that the replica does not have', async () => {
  const { store, plain } = open(connectIoRedis(master.url))
  const lease = await hold(store)
  const goOn = stopReplica()
  await expect(settle(store, completeOf(lease))).rejects.toThrow('replicas')
  // It is written, and a repeat that finds it so must not be told that all is well.
  expect((await viewOf(plain, lease)).state).toBe('completed')
  await expect(settle(store, completeOf(lease))).rejects.toThrow('replicas')
  goOn()
  const settled = () => settle(store, completeOf(lease)).then(({ kind }) => kind, String)
  await expect.poll(settled, { timeout: 10_000 }).toBe('settled')
})

// Another process has completed the key; its own wait has failed or is still under way.
it('replays no result to anybody that the replica does not have', async () => {
  const client = connectIoRedis(master.url)
  const { store, plain } = open(client)
  const lease = await hold(store)
  const goOn = stopReplica()
  ofKind(await settle(plain, completeOf(lease)), 'settled')
  await expect(claim(store)).rejects.toThrow('replicas')
  goOn()
  const replayed = () => claim(store).then(({ kind }) => kind, String)
  await expect.poll(replayed, { timeout: 10_000 }).toBe('completed')
})

it('holds up nobody else who uses the client while it waits', async () => {
  const client = connectIoRedis(master.url)
  const { store } = open(client, 20_000)
  await finish(store, { key: 'warm' })
  const goOn = stopReplica()
  let isOver = false
  const held = claim(store).finally(() => {
    isOver = true
  })
  for (let n = 0; n < 20; n++) expect(await client.ping()).toBe('PONG')
  expect(isOver).toBe(false)
  goOn()
  ofKind(await held, 'claimed')
})

// On a new connection WAIT would count every replica at once: nothing was written there.
it.each(DRIVERS)('takes no answer from another connection: %s', async (driver) => {
  const proxy = await startProxy(master)
  const client = await CONNECT[driver](proxy.url)
  const { store, plain } = open(client, 20_000)
  await finish(store, { key: 'warm' })
  const goOn = stopReplica()
  // The script is answered, and then the connection ends while the wait is under way.
  proxy.onceAbout(/EVALSHA[^]*WAIT/i, 'answer and cut')
  await expect(claim(store)).rejects.toMatchObject({ failure: 'unavailable' })
  expect(proxy.cuts()).toBe(1)
  goOn()
  const view = await viewOf(plain, claimRequest())
  expect(view.state).toBe('in_progress')
  const next = () => finish(store, { key: 'next' }).then(() => 'done', String)
  await expect.poll(next, { timeout: 10_000 }).toBe('done')
})

it('fails, and does not hang, while it cannot connect', async () => {
  const lonely = await startRedis()
  onTestFinished(() => lonely.close())
  const client = connectIoRedis(lonely.url)
  const { store } = open(client)
  await expect(claim(store)).rejects.toThrow('0 of 1 replicas')
  await lonely.kill()
  const lease = { ...claimRequest(), attempt: 1 }
  const renewal = { ...lease, leaseMs: LEASE_MS, retentionMs: RETENTION_MS }
  await expect(store.renew([renewal])).rejects.toMatchObject({ failure: 'unavailable' })
})
