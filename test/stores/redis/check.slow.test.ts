import { afterEach, expect, it, vi } from 'vitest'
import { createEngine } from '../../../src/core/engine/engine.ts'
import type { StoreFailedError } from '../../../src/core/errors.ts'
import { redisStore } from '../../../src/stores/redis/index.ts'
import {
  claim,
  claimRequest,
  completeOf,
  hold,
  ofKind,
  settle,
} from '../../../src/testing/store-cases/store-case.ts'
import { replicaOf, startRedis, startRedisCluster } from '../../servers/redis.ts'
import { connectIoRedis, connectNodeRedis, CONNECT } from './setup.ts'

const closes: (() => Promise<void>)[] = []

afterEach(async () => {
  vi.restoreAllMocks()
  for (const close of closes.splice(0).toReversed()) await close()
})

async function start(...settings: string[]) {
  const server = await startRedis(settings)
  closes.push(server.close)
  return server
}

const kindsOf = (findings: readonly { kind: string }[]) => findings.map(({ kind }) => kind)

const EVICTING = ['--maxmemory', '64mb', '--maxmemory-policy']
const DURABLE = ['--appendonly', 'yes', '--appendfsync', 'always']

it.each(Object.keys(CONNECT) as (keyof typeof CONNECT)[])(
  'rejects claims while the server evicts, and claims after noeviction is set: %s',
  async (driver) => {
    const server = await start(...EVICTING, 'volatile-lru', ...DURABLE)
    const client = await CONNECT[driver](server.url)
    const store = redisStore({ client })
    const check = await store.check()
    expect([check.usable, kindsOf(check.findings)]).toEqual([false, ['evicts']])
    await expect(claim(store)).rejects.toMatchObject({
      failure: 'rejected',
      message: expect.stringMatching(/volatile-lru.*Set maxmemory-policy noeviction/),
    })
    const admin = connectIoRedis(server.url)
    expect(await admin.dbsize()).toBe(0)

    const engine = createEngine({ store })
    const scope = { tenant: 't', operation: 'o' }
    const run = vi.fn<() => Uint8Array>(() => new Uint8Array())
    const refused = engine.run({ scope, key: 'k', fingerprint: 'f' }, run)
    await expect(refused).rejects.toMatchObject({ code: 'STORE_FAILED' })
    expect(run).not.toHaveBeenCalled()

    await admin.config('SET', 'maxmemory-policy', 'noeviction')
    // The result of the check is kept for 5 s, so that many claims check the server once.
    await expect(claim(store)).rejects.toThrow('evicts')
    const later = performance.now() + 10_000
    vi.spyOn(performance, 'now').mockImplementation(() => later)
    ofKind(await claim(store), 'claimed')
    await engine.close()
  },
)

it('claims on a server that evicts if allowEviction is set', async () => {
  const server = await start(...EVICTING, 'allkeys-lru', ...DURABLE)
  const store = redisStore({ client: connectIoRedis(server.url), allowEviction: true })
  ofKind(await settle(store, completeOf(await hold(store))), 'settled')
  const { usable, findings } = await store.check()
  expect([usable, kindsOf(findings)]).toEqual([true, ['evicts']])
})

it('reports which data a server does not keep', async () => {
  const kinds = async (...settings: string[]) => {
    const server = await start(...settings)
    const io = redisStore({ client: connectIoRedis(server.url) })
    const node = redisStore({ client: await connectNodeRedis(server.url) })
    const check = await io.check()
    expect(await node.check()).toEqual(check)
    expect(check.usable).toBe(true)
    return check.findings
  }
  expect(kindsOf(await kinds(...DURABLE))).toEqual([])
  const [nothing] = await kinds()
  expect(nothing).toMatchObject({ kind: 'not_persistent', message: /keeps nothing on disk/ })
  const [snapshots] = await kinds('--save', '3600 1')
  expect(snapshots).toMatchObject({ kind: 'not_persistent', message: /at most snapshots/ })
  const [late] = await kinds('--appendonly', 'yes', '--appendfsync', 'everysec')
  expect(late).toMatchObject({ kind: 'persists_late', message: /appendfsync everysec/ })
  const mayEvict = await kinds('--maxmemory-policy', 'allkeys-lru', ...DURABLE)
  expect(kindsOf(mayEvict)).toEqual(['may_evict'])
})

it('warns once about data that the server does not keep, at the first claim', async () => {
  const server = await start()
  const warnings: string[] = []
  const listen = ({ message, name }: Error) => {
    if (name === 'OncekeyWarning') warnings.push(message)
  }
  process.on('warning', listen)
  try {
    const client = connectIoRedis(server.url)
    for (const prefix of ['one', 'two']) {
      const store = redisStore({ client, prefix })
      await Promise.all([claim(store), claim(store), claim(store, { key: 'key-2' })])
    }
    await new Promise((resolve) => setImmediate(resolve))
    expect(warnings).toEqual([expect.stringMatching(/keeps nothing on disk/)])
  } finally {
    process.removeListener('warning', listen)
  }
})

it('reports replicates_late if the server has replicas and waitReplicas is not set', async () => {
  const server = await start(...DURABLE)
  const replica = await replicaOf(server)
  closes.push(replica.close)
  const client = connectIoRedis(server.url)
  const unaware = await redisStore({ client }).check()
  expect(kindsOf(unaware.findings)).toEqual(['replicates_late'])
  const waiting = redisStore({ client, waitReplicas: { count: 1 } })
  expect((await waiting.check()).findings).toEqual([])
  await waiting.close()
})

it('claims without the right to INFO and CONFIG, and reports unchecked', async () => {
  const server = await start()
  const admin = connectIoRedis(server.url)
  await admin.call('ACL', 'SETUSER', 'app', 'on', 'nopass', '~*', '+@all', '-info', '-config')
  const client = connectIoRedis(server.url, {
    username: 'app',
    password: 'x',
    enableReadyCheck: false,
  })
  const store = redisStore({ client })
  expect(kindsOf((await store.check()).findings)).toEqual(['unchecked'])
  ofKind(await claim(store), 'claimed')
})

it('takes only errors about missing rights as a reason to skip the check', async () => {
  const server = await start(...EVICTING, 'allkeys-lru')
  const client = connectIoRedis(server.url)
  const answers = vi.spyOn(client, 'callBuffer')
  for (const message of ['ERR max number of clients reached', 'LOADING', 'ERR syntax error']) {
    answers.mockImplementationOnce(() => Promise.reject(new Error(message)))
    const store = redisStore({ client })
    await expect(claim(store)).rejects.toMatchObject({ failure: 'unavailable' })
    await expect(claim(store)).rejects.toThrow('evicts')
  }
  for (const message of [
    "ERR unknown command 'INFO', with args beginning with: ",
    'ERR command is not allowed',
    "NOPERM this user has no permissions to run the 'info' command",
  ]) {
    answers.mockImplementationOnce(() => Promise.reject(new Error(message)))
    const { usable, findings } = await redisStore({ client }).check()
    expect([message, usable, kindsOf(findings)]).toEqual([message, true, ['unchecked']])
  }
})

it('checks the server again when the first check got no answer', async () => {
  const server = await start()
  const client = connectIoRedis(server.url, { maxRetriesPerRequest: 0 })
  const store = redisStore({ client })
  await server.kill()
  await expect(claim(store)).rejects.toMatchObject({ failure: 'unavailable' })
  await server.start()
  await expect.poll(() => client.status, { timeout: 10_000 }).toBe('ready')
  ofKind((await store.claim([claimRequest()]))[0]!, 'claimed')
})

it('checks every master of a cluster, and rejects claims only where one evicts', async () => {
  const cluster = await startRedisCluster()
  closes.push(cluster.close)
  const last = connectIoRedis(cluster.nodes[2]!.url)
  await last.config('SET', 'maxmemory', '64mb')
  await last.config('SET', 'maxmemory-policy', 'allkeys-random')
  const { Cluster } = await import('ioredis')
  const { createCluster } = await import('redis')
  const io = new Cluster(cluster.nodes.map(({ port }) => ({ host: '127.0.0.1', port })))
  const node = createCluster({ rootNodes: cluster.nodes.map(({ url }) => ({ url })) })
  await node.connect()
  closes.push(async () => {
    io.disconnect()
    node.destroy()
  })
  for (const client of [io, node]) {
    const { usable, findings } = await redisStore({ client }).check()
    expect(usable).toBe(false)
    expect(kindsOf(findings)).toContain('evicts')
  }

  // Each bucket depends on its own server. The first byte of the identity chooses the bucket.
  for (const client of [io, node]) {
    const store = redisStore({ client, prefix: `test-${crypto.randomUUID()}` })
    const ends = Array.from({ length: 64 }, async (_, bucket) => {
      const identity = bucket.toString(16).padStart(2, '0').padEnd(32, 'f')
      return store.claim([claimRequest({ identity })]).then(
        ([outcome]) => outcome!.kind,
        (error: unknown) => (error as StoreFailedError).failure,
      )
    })
    // The last of three masters has the last third of the slots, and so the last buckets.
    const kinds = await Promise.all(ends)
    expect(new Set(kinds.slice(0, 42))).toEqual(new Set(['claimed']))
    expect(new Set(kinds.slice(43))).toEqual(new Set(['rejected']))
  }
})

it('claims on a cluster without the right to INFO', async () => {
  const cluster = await startRedisCluster()
  closes.push(cluster.close)
  for (const { url } of cluster.nodes) {
    const admin = connectIoRedis(url)
    await admin.call('ACL', 'SETUSER', 'app', 'on', 'nopass', '~*', '+@all', '-info', '-config')
  }
  const { createCluster } = await import('redis')
  const rootNodes = cluster.nodes.map(({ url }) => ({ url }))
  const defaults = { username: 'app', password: 'x' }
  const client = createCluster({ rootNodes, defaults })
  await client.connect()
  closes.push(async () => client.destroy())
  const store = redisStore({ client })
  expect(kindsOf((await store.check()).findings)).toEqual(['unchecked'])
  ofKind(await claim(store), 'claimed')
})
