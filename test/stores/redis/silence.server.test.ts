// Takes about 36 s.
import { getEventListeners, once } from 'node:events'
import { Cluster, Redis, type RedisOptions } from 'ioredis'
import { createClient } from 'redis'
import { afterAll, beforeAll, describe, expect, it, onTestFinished } from 'vitest'
import { createEngine } from '../../../src/core/engine/engine.ts'
import { ABSENT_LEASE } from '../../../src/core/health/store-probe.ts'
import type { Store } from '../../../src/core/store/store.ts'
import { redisStore, type RedisClient, type RedisStore } from '../../../src/stores/redis/index.ts'
import {
  bytes,
  claim,
  claimRequest,
  completeOf,
  RETENTION_MS,
} from '../../../src/testing/store-cases/store-case.ts'
import { replicaOf, startRedis, startRedisCluster, type RedisServer } from '../../servers/redis.ts'
import { startTcpProxy, type TcpProxy } from '../../servers/tcp-proxy.ts'

const TIMEOUT_MS = 800

let server: RedisServer

beforeAll(async () => {
  server = await startRedis()
}, 60_000)
afterAll(() => server.close())

async function startNetwork({ port }: RedisServer = server) {
  const proxy = await startTcpProxy({ host: '127.0.0.1', port })
  onTestFinished(() => proxy.close())
  return { proxy, url: `redis://127.0.0.1:${proxy.port}` }
}

type IoRedisOptions = Pick<RedisOptions, 'connectTimeout' | 'retryStrategy' | 'enableOfflineQueue'>

/** The settings of the guide, with shorter times. */
const IOREDIS: IoRedisOptions = {
  connectTimeout: TIMEOUT_MS / 2,
  retryStrategy: (times) => Math.min(times * 20, 100),
}

function connectIoRedis(url: string, options: IoRedisOptions = IOREDIS): Redis {
  const client = new Redis(url, options)
  client.on('error', () => undefined)
  onTestFinished(() => client.disconnect())
  return client
}

/** `socketTimeout: 0` sets none. By default the client has one, as the guide recommends. */
async function connectNodeRedis(
  url: string,
  { socketTimeout = TIMEOUT_MS / 2, queue = 200 }: { socketTimeout?: number; queue?: number } = {},
) {
  const reconnectStrategy = (retries: number) => Math.min(retries * 20, 100)
  const limit = socketTimeout === 0 ? {} : { socketTimeout }
  const client = createClient({
    url,
    pingInterval: TIMEOUT_MS / 8,
    // The client rejects commands beyond this limit, so a long queue fails the test.
    commandsQueueMaxLength: queue,
    socket: { connectTimeout: TIMEOUT_MS / 2, reconnectStrategy, ...limit },
  })
  client.on('error', () => undefined)
  await client.connect()
  onTestFinished(() => {
    if (client.isOpen) client.destroy()
  })
  return client
}

const CONNECT = {
  ioredis: (url: string): Promise<RedisClient> => Promise.resolve(connectIoRedis(url)),
  'node-redis': (url: string): Promise<RedisClient> => connectNodeRedis(url),
} as const

const DRIVERS = Object.keys(CONNECT) as (keyof typeof CONNECT)[]

const REQUEST = { scope: { tenant: 't', operation: 'pay' }, key: 'k', fingerprint: 'f' }
const RAN = { kind: 'ran' }

function serve(client: RedisClient, storeTimeoutMs = TIMEOUT_MS) {
  const store = redisStore({ client, prefix: `test-${crypto.randomUUID()}` })
  // Without the breaker, every request reaches the client even while the server is silent.
  const engine = createEngine({ store, storeTimeoutMs, breaker: false, onEvent: () => {} })
  onTestFinished(() => void engine.close())
  let number = 0
  const run = () => engine.run({ ...REQUEST, key: `key-${number++}` }, () => bytes('paid'))
  return { store, run }
}

const fails = (running: Promise<unknown>) =>
  expect(running).rejects.toMatchObject({ code: 'STORE_FAILED' })

/** Waits until the client has opened another connection. */
async function untilReopened(proxy: TcpProxy, before: number) {
  await expect.poll(() => proxy.accepted(), { timeout: 20_000 }).toBeGreaterThan(before)
}

describe.each(DRIVERS)('%s', (driver) => {
  it('serves the first request after each of six silent losses', async () => {
    const { proxy, url } = await startNetwork()
    const { run } = serve(await CONNECT[driver](url))
    await run()
    for (let loss = 1; loss <= 6; loss++) {
      const before = proxy.accepted()
      proxy.silence()
      await fails(run())
      // A connection that opens while the network is silent is dead as well.
      await untilReopened(proxy, before)
      proxy.resume('dead')
      expect(await run()).toMatchObject(RAN)
    }
    await expect.poll(() => proxy.connections()).toBe(1)
  })

  it('keeps its queue short while 3,000 requests fail, and serves the next 1,000', async () => {
    const { proxy, url } = await startNetwork()
    const client = await CONNECT[driver](url)
    const { run } = serve(client)
    await run()
    proxy.silence()
    const failures: unknown[] = []
    for (let round = 1; round <= 3; round++) {
      const ended = await Promise.allSettled(Array.from({ length: 1_000 }, () => run()))
      expect(ended.filter(({ status }) => status === 'fulfilled')).toEqual([])
      failures.push(...ended.map((one) => (one.status === 'rejected' ? one.reason : undefined)))
      if (client instanceof Redis) expect(queued(client)).toBeLessThan(200)
    }
    expect(failures.filter((error) => String(error).includes('queue'))).toEqual([])
    proxy.resume('dead')
    expect(await run()).toMatchObject(RAN)
    const { run: patient } = serve(client, 30_000)
    const served = await Promise.all(Array.from({ length: 1_000 }, () => patient()))
    expect(served).toEqual(served.map(() => expect.objectContaining(RAN)))
  })

  it('serves a request on a connection that answers again', async () => {
    const { proxy, url } = await startNetwork()
    const { run } = serve(await CONNECT[driver](url))
    await run()
    proxy.silence()
    const late = run()
    proxy.resume('alive')
    expect(await late).toMatchObject(RAN)
  })

  it.each(Object.keys(CALLS))('ends the silent connection of an aborted call: %s', async (name) => {
    const { proxy, url } = await startNetwork()
    const client =
      driver === 'ioredis' ? connectIoRedis(url) : await connectNodeRedis(url, { socketTimeout: 0 })
    const { store, run } = serve(client)
    await run()
    const before = proxy.accepted()
    proxy.silence()
    const givenUp = new AbortController()
    const call = CALLS[name]!(store, givenUp.signal).catch((error: unknown) => error)
    await new Promise((resolve) => setImmediate(resolve))
    // Node warns about a leak if there are more than ten.
    expect(getEventListeners(givenUp.signal, 'abort').length).toBeLessThanOrEqual(2)
    givenUp.abort(new Error('no answer'))
    expect(await call).toMatchObject({ code: 'STORE_FAILED', cause: { message: 'no answer' } })
    proxy.resume('dead')
    await untilReopened(proxy, before)
    expect(await run()).toMatchObject(RAN)
  })
})

function queued(client: Redis): number {
  const { commandQueue, offlineQueue } = client as unknown as Record<string, { length: number }>
  return commandQueue!.length + offlineQueue!.length
}

type Call = (store: RedisStore, signal: AbortSignal) => Promise<unknown>

const LEASE = { identity: '0'.repeat(32), token: 'token', attempt: 1 }
const ID = '00000000-0000-7000-8000-000000000000'
const verdict = { kind: 'failed_retryable' } as const

const CALLS: Readonly<Record<string, Call>> = {
  claim: (store, signal) => store.claim([claimRequest()], signal),
  settle: (store, signal) => store.settle([completeOf(LEASE)], signal),
  renew: (store, signal) => store.renew([{ ...LEASE, leaseMs: 1 }], signal),
  probe: (store: Store, signal) => store.probe!(ABSENT_LEASE.identity, signal),
  resolve: (store, signal) =>
    store.resolve([{ ref: LEASE, verdict, retentionMs: RETENTION_MS }], signal),
  'resolve by id': (store, signal) =>
    store.resolve([{ ref: { recordId: ID }, verdict, retentionMs: RETENTION_MS }], signal),
  sweep: (store, signal) => store.sweep({ limit: 1 }, signal),
  reap: (store, signal) => store.reap({ limit: 1 }, signal),
  read: (store, signal) => store.read(LEASE, signal),
  'read by id': (store, signal) => store.read({ recordId: ID }, signal),
  list: (store, signal) => store.list({ state: 'unknown', limit: 1 }, signal),
  now: (store: Store, signal) => store.now!(signal),
}

it('does not end a connection that answers the application', async () => {
  const { url } = await startNetwork()
  const client = connectIoRedis(url)
  const { run } = serve(client)
  await run()
  const { stream } = client
  // The server answers five commands in sequence before that of the store. It reads 16 KiB at a
  // time, and answers the commands that it has read before it reads more.
  const padding = 'x'.repeat(64 * 1024)
  const busy = `local from = redis.call('TIME')
    repeat local now = redis.call('TIME')
    until (now[1] - from[1]) * 1000 + (now[2] - from[2]) / 1000 > ${TIMEOUT_MS / 3}`
  const answers = Array.from({ length: 5 }, () => client.eval(busy, 0, padding))
  await fails(run())
  await Promise.all(answers)
  expect(await run()).toMatchObject(RAN)
  expect(client.stream).toBe(stream)
})

it('ends a connection that opens while the server is silent, without a queue', async () => {
  const { proxy, url } = await startNetwork()
  const client = connectIoRedis(url, { ...IOREDIS, enableOfflineQueue: false })
  await once(client, 'ready')
  const { run } = serve(client)
  await run()
  proxy.silence()
  const before = proxy.accepted()
  // The network cut the connection. The store has ended nothing, and no call is waiting.
  proxy.cut()
  await untilReopened(proxy, before)
  await fails(run())
  proxy.resume('dead')
  await once(client, 'ready')
  expect(await run()).toMatchObject(RAN)
})

it('removes an aborted command from the queue of node-redis', async () => {
  const { proxy, url } = await startNetwork()
  const client = await connectNodeRedis(url, { queue: 5 })
  const { store, run } = serve(client)
  await run()
  proxy.silence()
  const before = proxy.accepted()
  proxy.cut()
  await untilReopened(proxy, before)
  for (let n = 0; n < 20; n++) {
    const givenUp = new AbortController()
    const call = store.read(LEASE, givenUp.signal).catch((error: unknown) => error)
    await new Promise((resolve) => setImmediate(resolve))
    givenUp.abort(new Error('no answer'))
    // If commands stayed in the queue of five, it would be full after five rounds.
    expect(await call).toMatchObject({ cause: { message: 'no answer' } })
  }
})

it('reconnects before the long retry pause of the client is over', async () => {
  const { proxy, url } = await startNetwork()
  const client = connectIoRedis(url, { ...IOREDIS, retryStrategy: () => 3_600_000 })
  const { run } = serve(client)
  await run()
  proxy.silence()
  await fails(run())
  proxy.resume('dead')
  expect(await run()).toMatchObject(RAN)
})

describe('the connection that waits for replicas', () => {
  it.each(DRIVERS)('ends the connection of an aborted wait for replicas: %s', async (driver) => {
    const replica = await replicaOf(server)
    onTestFinished(() => replica.close())
    const { proxy, url } = await startNetwork()
    const prefix = `test-${crypto.randomUUID()}`
    const client = await CONNECT[driver](url)
    const store = redisStore({ client, prefix, waitReplicas: { count: 1, timeoutMs: 60_000 } })
    onTestFinished(() => store.close())
    await claim(store)
    for (const loss of ['open', 'opening']) {
      proxy.silence()
      const signal = AbortSignal.timeout(TIMEOUT_MS)
      const lease = { ...LEASE, leaseMs: 1 }
      await expect(store.renew([lease], signal)).rejects.toMatchObject({ code: 'STORE_FAILED' })
      if (loss === 'opening') {
        const again = AbortSignal.timeout(TIMEOUT_MS)
        await expect(store.renew([lease], again)).rejects.toMatchObject({ code: 'STORE_FAILED' })
      }
      proxy.resume('dead')
      // The time limit of the wait itself is a minute.
      expect(await store.renew([lease])).toEqual([false])
    }
  })
})

it('ends only the connection to the silent server of a cluster', async () => {
  const cluster = await startRedisCluster()
  onTestFinished(() => cluster.close())
  const networks = await Promise.all(cluster.nodes.map((node) => startNetwork(node)))
  const natMap = Object.fromEntries(
    cluster.nodes.map(({ port }, n) => {
      return [`127.0.0.1:${port}`, { host: '127.0.0.1', port: networks[n]!.proxy.port }]
    }),
  )
  const seeds = [{ host: '127.0.0.1', port: networks[0]!.proxy.port }]
  // Without a delay, a command is redirected 16 times before the lost connection is open again.
  const client = new Cluster(seeds, { natMap, retryDelayOnMoved: 100 })
  client.on('error', () => undefined)
  onTestFinished(() => client.disconnect())
  const store = redisStore({ client, prefix: `test-${crypto.randomUUID()}` })
  const keys = Array.from({ length: 40 }, (_, n) => `key-${n}`)
  await Promise.all(keys.map((key) => claim(store, { key })))
  const streamOf = ({ port }: TcpProxy) =>
    client.nodes('master').find(({ options }) => options.port === port)?.stream
  const before = networks.map(({ proxy }) => streamOf(proxy))
  const [{ proxy }] = networks as [(typeof networks)[0]]
  proxy.silence()
  const refOf = (key: string) => ({ identity: claimRequest({ key }).identity })
  const read = (key: string) => store.read(refOf(key), AbortSignal.timeout(TIMEOUT_MS))
  const seen = await Promise.allSettled(keys.map(read))
  const lost = keys.filter((_, n) => seen[n]!.status === 'rejected')
  expect(lost.length).toBeGreaterThan(0)
  expect(lost.length).toBeLessThan(keys.length)
  proxy.resume('dead')
  const found = await Promise.all(lost.map((key) => store.read(refOf(key))))
  expect(found).toEqual(lost.map((key) => expect.objectContaining({ key })))
  const isKept = networks.map((network, n) => streamOf(network.proxy) === before[n])
  expect(isKept).toEqual([false, true, true])
})
