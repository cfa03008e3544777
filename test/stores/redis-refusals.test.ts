/** Which failed claims certainly took nothing: those are not looked for afterwards. */
import { connect, createServer, type AddressInfo, type Socket } from 'node:net'
import { Cluster, type Redis } from 'ioredis'
import { createCluster } from 'redis'
import { expect, it, onTestFinished } from 'vitest'
import type { Store } from '../../src/core/store.ts'
import { Buckets } from '../../src/stores/redis/buckets.ts'
import { redisStore } from '../../src/stores/redis/index.ts'
import { claim, claimRequests, ofKind, only } from '../../src/testing/store-cases/store-case.ts'
import { startRedis, startRedisCluster } from '../servers/redis.ts'
import { CONNECT, connectIoRedis } from './redis-setup.ts'

const KINDS = ['ioredis', 'node-redis'] as const

const NOTHING = { failure: 'unavailable', wroteNothing: true }

async function startServer() {
  const server = await startRedis()
  onTestFinished(() => server.close())
  return { server, admin: connectIoRedis(server.url) }
}

it.each(KINDS)(
  'says so of a claim that a full or a read-only server refuses (%s)',
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
 * Stands before a server. Once armed, it cuts the connection of the next script when that is
 * answered, and refuses the script that follows.
 */
async function refusingProxy(port: number) {
  let next: 'pass' | 'cut' | 'refuse' = 'pass'
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
      const isScript = chunk.toString('latin1').includes('EVALSHA')
      if (isScript && next === 'refuse') {
        next = 'pass'
        client.write('-LOADING Redis is loading the dataset in memory\r\n')
        return
      }
      if (isScript && next === 'cut') {
        isCut = true
        next = 'refuse'
      }
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
  return { url: `redis://127.0.0.1:${own}`, arm: () => (next = 'cut') }
}

// The claim runs · its answer is lost · the client sends it again · the server refuses that.
it('does not say so of a claim that ran before it was sent again and refused', async () => {
  const { server, admin } = await startServer()
  const proxy = await refusingProxy(server.port)
  const store = redisStore({ client: connectIoRedis(proxy.url) })
  ofKind(await claim(store, { key: 'before' }), 'claimed')
  proxy.arm()
  const error = await claim(store).catch((failure: unknown) => failure)
  expect(String(error)).toContain('LOADING')
  expect(error).toMatchObject({ failure: 'unavailable', wroteNothing: false })
  const held = await redisStore({ client: admin }).list({ state: 'in_progress', limit: 10 })
  expect(held).toHaveLength(2)
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

it.each(KINDS)('says so of a claim for a slot that no master serves (%s)', async (kind) => {
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
  // The other buckets of the same call have run.
  const several = store.claim([first!, ...others])
  await expect(several).rejects.toMatchObject({ failure: 'unavailable', wroteNothing: false })
})

function slotOf(identity: string) {
  const { base } = new Buckets('oncekey').of(identity)
  return async (admin: Redis) => Number(await admin.call('CLUSTER', 'KEYSLOT', base + identity))
}
