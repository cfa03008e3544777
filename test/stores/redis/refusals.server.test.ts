/** The failed claims that certainly wrote nothing. The engine does not have to release these. */
import { connect, createServer, type AddressInfo, type Socket } from 'node:net'
import { Cluster, Redis } from 'ioredis'
import { createCluster } from 'redis'
import { expect, it, onTestFinished } from 'vitest'
import type { Store } from '../../../src/core/store/store.ts'
import { Buckets } from '../../../src/stores/redis/buckets.ts'
import { Calls } from '../../../src/stores/redis/calls.ts'
import type { Argument, Driver } from '../../../src/stores/redis/client.ts'
import { redisStore } from '../../../src/stores/redis/index.ts'
import { markRefusals } from '../../../src/stores/redis/refusals.ts'
import { CLAIM_PACKING } from '../../../src/stores/redis/scripts/requests.ts'
import { CLAIM } from '../../../src/stores/redis/scripts/scripts.ts'
import { claim, claimRequests, ofKind, only } from '../../../src/testing/store-cases/store-case.ts'
import { startRedis, startRedisCluster } from '../../servers/redis.ts'
import { CONNECT, connectIoRedis } from './setup.ts'

const KINDS = ['ioredis', 'node-redis'] as const

const NOTHING = { failure: 'unavailable', wroteNothing: true }

async function startServer() {
  const server = await startRedis()
  onTestFinished(() => server.close())
  return { server, admin: connectIoRedis(server.url) }
}

it.each(KINDS)(
  'reports wroteNothing for a claim that a full or read-only server refuses (%s)',
  async (kind) => {
    const { server, admin } = await startServer()
    const store = redisStore({ client: await CONNECT[kind](server.url) })
    ofKind(await claim(store, { key: 'before' }), 'claimed')
    await admin.config('SET', 'maxmemory', '1')
    await expect(claim(store)).rejects.toMatchObject(NOTHING)
    await expect(claim(store)).rejects.toThrow('OOM')
    await admin.config('SET', 'maxmemory', '0')
    await admin.replicaof('127.0.0.1', '1')
    await expect(claim(store)).rejects.toMatchObject(NOTHING)
    await expect(claim(store)).rejects.toThrow('READONLY')
    await admin.replicaof('NO', 'ONE')
    ofKind(await claim(store), 'claimed')
  },
)

/**
 * Starts a proxy before a server. Each step of `arm` is for one of the next scripts: `pass` passes
 * it on, `cut` cuts the connection instead of passing the answer on, and a step with `-` is the
 * answer of the proxy itself.
 */
async function refusingProxy(port: number) {
  let plan: readonly string[] = []
  const sockets = new Set<Socket>()
  const proxy = createServer((client) => {
    const upstream = connect(port, '127.0.0.1')
    let isCut = false
    const end = () => {
      client.destroy()
      upstream.destroy()
    }
    for (const socket of [client, upstream]) {
      sockets.add(socket)
      socket.on('error', end).on('close', end)
    }
    client.on('data', (chunk: Buffer) => {
      const isScript = chunk.toString('latin1').includes('EVAL')
      const [step = 'pass', ...rest] = isScript ? plan : []
      if (isScript) plan = rest
      if (step.startsWith('-')) return void client.write(`${step}\r\n`)
      if (step === 'cut') isCut = true
      upstream.write(chunk)
    })
    upstream.on('data', (chunk: Buffer) => (isCut ? end() : client.write(chunk)))
  })
  await new Promise<void>((resolve) => {
    proxy.listen(0, '127.0.0.1', resolve)
  })
  onTestFinished(() => {
    for (const socket of sockets) socket.destroy()
    proxy.close()
  })
  const { port: own } = proxy.address() as AddressInfo
  const arm = (...steps: readonly string[]) => (plan = steps)
  return { url: `redis://127.0.0.1:${own}`, arm }
}

const UNCLEAR = { failure: 'unavailable', wroteNothing: false }
const LOADING = '-LOADING Redis is loading the dataset in memory'

// The claim runs, its answer is lost, the client sends it again, and the server refuses the copy.
it.each([
  ['is refused', []],
  ['misses its script and is then refused', ['-NOSCRIPT No matching script.']],
  ['is late and is then refused with a new deadline', [`-LATE ${Date.now()} ms`]],
])('does not report wroteNothing for a claim that ran if its copy %s', async (_, answers) => {
  const { server, admin } = await startServer()
  const proxy = await refusingProxy(server.port)
  const store = redisStore({ client: connectIoRedis(proxy.url) })
  ofKind(await claim(store, { key: 'before' }), 'claimed')
  proxy.arm('cut', ...answers, LOADING)
  const error = await claim(store).catch((failure: unknown) => failure)
  expect(String(error)).toContain('LOADING')
  expect(error).toMatchObject(UNCLEAR)
  const held = await redisStore({ client: admin }).list({ state: 'in_progress', limit: 10 })
  expect(held).toHaveLength(2)
})

it('reports wroteNothing for a claim whose script is missing and then refused', async () => {
  const { server } = await startServer()
  const proxy = await refusingProxy(server.port)
  const store = redisStore({ client: connectIoRedis(proxy.url) })
  ofKind(await claim(store, { key: 'before' }), 'claimed')
  proxy.arm('-NOSCRIPT No matching script.', LOADING)
  await expect(claim(store)).rejects.toMatchObject(NOTHING)
})

it('reports wroteNothing for a claim that never got a connection', async () => {
  const client = new Redis({ port: 1, maxRetriesPerRequest: 0 })
  client.on('error', () => undefined)
  onTestFinished(() => client.disconnect())
  await expect(claim(redisStore({ client }))).rejects.toMatchObject(NOTHING)
})

it('reports wroteNothing for a claim if the connection for replicas cannot open', async () => {
  const { server } = await startServer()
  const client = await CONNECT['node-redis'](server.url)
  const store = redisStore({ client, waitReplicas: { count: 1, timeoutMs: 1 } })
  onTestFinished(() => store.close())
  await expect(claim(store)).rejects.toMatchObject(UNCLEAR)
  await server.close()
  // The first claim may use the connection before the client notices its end.
  await claim(store).catch(() => undefined)
  await expect(claim(store)).rejects.toMatchObject(NOTHING)
})

// No replica has the claim, and the server refuses its release.
it('does not report wroteNothing for a claim that cannot be released', async () => {
  const { server, admin } = await startServer()
  const proxy = await refusingProxy(server.port)
  const client = connectIoRedis(proxy.url)
  const store = redisStore({ client, waitReplicas: { count: 1, timeoutMs: 1 } })
  onTestFinished(() => store.close())
  await expect(claim(store, { key: 'before' })).rejects.toThrow('0 of 1 replicas')
  proxy.arm('pass', LOADING)
  await expect(claim(store)).rejects.toMatchObject(UNCLEAR)
  const held = await redisStore({ client: admin }).list({ state: 'in_progress', limit: 10 })
  expect(held).toHaveLength(1)
})

// The script of one bucket runs. For the other bucket, reading the time of its server fails.
it('does not report wroteNothing for a batch if the script of one bucket ran', async () => {
  const buckets = new Buckets('oncekey')
  const requests = claimRequests(2)
  const [one, two] = requests.map(({ identity }) => buckets.of(identity))
  expect(one).not.toBe(two)
  let down: readonly unknown[] = [two]
  const send = async (args: readonly Argument[], key: string) => {
    const bucket = key.startsWith(one!.base) ? one : two
    if (down.includes(bucket)) throw new Error('CLUSTERDOWN Hash slot not served')
    return args.length === 4 ? '1000' : [Buffer.from('1'), Buffer.from('1000')]
  }
  const driver: Driver = {
    isCluster: true,
    send: (args, key) =>
      markRefusals(
        () => [],
        () => send(args, key),
      ),
    askMasters: () => Promise.resolve([]),
  }
  const claimAll = () =>
    new Calls(driver, buckets, undefined).run({
      operation: 'claim',
      script: CLAIM,
      requests,
      identityOf: ({ identity }) => identity,
      packing: CLAIM_PACKING,
      now: '',
      deadline: { startedMs: performance.now(), withinMs: 60_000 },
    })
  await expect(claimAll()).rejects.toMatchObject(UNCLEAR)
  down = [one, two]
  await expect(claimAll()).rejects.toMatchObject(NOTHING)
})

const CLUSTER_CLIENTS = {
  ioredis: (urls: readonly string[]) => {
    const client = new Cluster([...urls], { maxRedirections: 3 })
    onTestFinished(() => client.disconnect())
    return Promise.resolve(client)
  },
  'node-redis': async (urls: readonly string[]) => {
    const client = createCluster({ rootNodes: urls.map((url) => ({ url })) })
    client.on('error', () => undefined)
    await client.connect()
    onTestFinished(() => client.destroy())
    return client
  },
} as const

it.each(KINDS)('reports wroteNothing for a claim in a slot without a master (%s)', async (kind) => {
  const cluster = await startRedisCluster()
  onTestFinished(() => cluster.close())
  const urls = cluster.nodes.map(({ url }) => url)
  const store: Store = redisStore({ client: await CLUSTER_CLIENTS[kind](urls) })
  const requests = claimRequests(20)
  for (const request of requests) ofKind(only(await store.claim([request])), 'claimed')
  const [first, ...others] = claimRequests(20, { recordId: requests[0]!.recordId })
  const slot = slotOf(first!.identity)
  const admins = urls.map((url) => connectIoRedis(url))
  for (const admin of admins) await admin.config('SET', 'cluster-require-full-coverage', 'no')
  for (const admin of admins) await admin.cluster('DELSLOTS', await slot(admin))
  await expect(store.claim([first!])).rejects.toMatchObject(NOTHING)
  // The scripts of the other buckets of the same call have run.
  const several = store.claim([first!, ...others])
  await expect(several).rejects.toMatchObject(UNCLEAR)
})

function slotOf(identity: string) {
  const { base } = new Buckets('oncekey').of(identity)
  return async (admin: Redis) => Number(await admin.call('CLUSTER', 'KEYSLOT', base + identity))
}
