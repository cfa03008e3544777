/** A part of a cluster of six nodes fails. Requests for the other slots must not be affected. */
import { createRequire } from 'node:module'
import { Cluster, Redis } from 'ioredis'
import { createCluster } from 'redis'
import { afterAll, beforeAll, describe, expect, it, onTestFinished } from 'vitest'
import { createEngine } from '../../../src/core/engine/engine.ts'
import type { EngineOptions } from '../../../src/core/engine/engine-contract.ts'
import type { StoreFailedError } from '../../../src/core/errors.ts'
import type { EngineEvent } from '../../../src/core/events.ts'
import { identityOf } from '../../../src/core/record/identity.ts'
import { Buckets, TAGS } from '../../../src/stores/redis/buckets.ts'
import { redisStore, type RedisClient } from '../../../src/stores/redis/index.ts'
import { FakeClock } from '../../../src/testing/fake-clock.ts'
import { bytes } from '../../../src/testing/store-cases/store-case.ts'
import {
  newTestPrefix,
  startRedisCluster,
  type RedisClusterServers,
  type RedisServer,
} from '../../servers/redis.ts'

const isFull = process.env['ONCEKEY_TEST_FULL'] === '1'
/** Requests for each bucket while a part of the cluster fails. */
const WAVES = isFull ? 40 : 6

const slotOf = createRequire(import.meta.resolve('ioredis'))('cluster-key-slot') as (
  key: string,
) => number
const SLOTS = TAGS.map((tag) => slotOf(`{${tag}}`))

let cluster: RedisClusterServers

beforeAll(async () => {
  // Long enough that the cluster does not fail over while a test has stopped a node.
  cluster = await startRedisCluster({ replicas: 1, nodeTimeoutMs: 120_000 })
}, 120_000)
afterAll(() => cluster.close())

const CONNECT = {
  ioredis: async (): Promise<RedisClient> => {
    const nodes = cluster.nodes.map(({ port }) => ({ host: '127.0.0.1', port }))
    // ioredis tries 16 times whether a migrating slot has arrived.
    const client = new Cluster(nodes, { retryDelayOnTryAgain: 10 })
    client.on('error', () => undefined)
    onTestFinished(() => client.disconnect())
    return client
  },
  'node-redis': async (): Promise<RedisClient> => {
    const client = createCluster({ rootNodes: cluster.nodes.map(({ url }) => ({ url })) })
    client.on('error', () => undefined)
    await client.connect()
    onTestFinished(() => client.destroy())
    return client
  },
} as const

const DRIVERS = Object.keys(CONNECT) as (keyof typeof CONNECT)[]

const SCOPE = { tenant: 't', operation: 'pay' }

/** Creates an engine with a new prefix. `run` sends a request with a new key of a bucket. */
function serve(client: RedisClient, options: Partial<EngineOptions> = {}) {
  const prefix = newTestPrefix()
  const events: EngineEvent[] = []
  const engine = createEngine({
    store: redisStore({ client, prefix }),
    sweepEveryMs: 0,
    reapEveryMs: 0,
    onEvent: (event) => events.push(event),
    ...options,
  })
  onTestFinished(async () => void (await engine.close({ graceMs: 0 })))
  const buckets = new Buckets(prefix)
  let number = 0
  const run = (bucket: number): Promise<string> => {
    let key = `${number++}`
    while (buckets.numberOf(identityOf(SCOPE, key)) !== bucket) key = `${number++}`
    return engine
      .run({ scope: SCOPE, key, fingerprint: 'f' }, () => bytes('paid'))
      .then(
        ({ kind }) => kind,
        (error: unknown) => (error as StoreFailedError).failure,
      )
  }
  return { engine, events, run }
}

type Run = (bucket: number) => Promise<string>

/** Sends one request for each bucket at once, `times` times. Returns the outcomes. */
async function load(run: Run, buckets: readonly number[], times: number): Promise<Set<string>> {
  const ends = new Set<string>()
  for (let n = 0; n < times; n++) {
    for (const end of await Promise.all(buckets.map((bucket) => run(bucket)))) ends.add(end)
  }
  return ends
}

const ALL = [...TAGS.keys()]

async function ask(node: RedisServer, ...args: string[]): Promise<string> {
  const client = new Redis(node.port)
  try {
    return String(await client.call(args[0]!, ...args.slice(1)))
  } finally {
    client.disconnect()
  }
}

interface Shard {
  readonly id: string
  readonly master: RedisServer
  readonly replica: RedisServer
  /** The buckets whose slots the shard has. */
  readonly buckets: readonly number[]
}

async function shardsOf({ nodes }: RedisClusterServers): Promise<Shard[]> {
  const lines = (await ask(nodes[0]!, 'CLUSTER', 'NODES')).trim().split('\n')
  const parts = lines.map((line) => line.split(' '))
  const nodeOf = ([, address]: string[]) =>
    nodes.find(({ port }) => address!.includes(`:${port}@`))!
  return parts
    .filter(([, , flags]) => flags!.includes('master'))
    .map((part) => {
      const id = part[0]!
      const [from, to] = part[8]!.split('-').map(Number) as [number, number]
      return {
        id,
        master: nodeOf(part),
        replica: nodeOf(parts.find((other) => other[3] === id)!),
        buckets: ALL.filter((bucket) => SLOTS[bucket]! >= from && SLOTS[bucket]! <= to),
      }
    })
}

/** Puts the slot of a bucket halfway through a migration. The result ends the migration. */
async function halfMigrate(bucket: number): Promise<() => Promise<void>> {
  const shards = await shardsOf(cluster)
  const from = shards.find(({ buckets }) => buckets.includes(bucket))!
  const to = shards.find((shard) => shard !== from)!
  const slot = `${SLOTS[bucket]}`
  await ask(to.master, 'CLUSTER', 'SETSLOT', slot, 'IMPORTING', from.id)
  await ask(from.master, 'CLUSTER', 'SETSLOT', slot, 'MIGRATING', to.id)
  return async () => {
    for (const { master } of [from, to]) await ask(master, 'CLUSTER', 'SETSLOT', slot, 'STABLE')
  }
}

/** Stops a master and its replica. The result resumes them. */
function silence({ master, replica }: Shard): () => void {
  const resume = () => {
    for (const node of [master, replica]) node.signal('SIGCONT')
  }
  onTestFinished(resume)
  for (const node of [master, replica]) node.signal('SIGSTOP')
  return resume
}

const breakerChanges = (events: readonly EngineEvent[]) =>
  events.filter(({ kind }) => kind === 'breaker_changed')

describe.each(DRIVERS)('%s', (driver) => {
  it('serves 63 buckets without a failure while one is half migrated', async () => {
    const sick = 5
    const healthy = ALL.filter((bucket) => bucket !== sick)
    const { run, engine, events } = serve(await CONNECT[driver]())
    expect(await load(run, ALL, 2)).toEqual(new Set(['ran']))
    const end = await halfMigrate(sick)
    onTestFinished(end)
    const ends: string[] = []
    for (let wave = 0; wave < WAVES || !ends.includes('refused'); wave++) {
      expect(wave).toBeLessThan(1_000)
      void run(sick).then((how) => ends.push(how))
      expect(await load(run, healthy, 1)).toEqual(new Set(['ran']))
    }
    expect(new Set(ends)).toEqual(new Set(['unavailable', 'refused']))
    expect(await engine.health()).toMatchObject({ status: 'degraded', breaker: 'closed' })
    expect(breakerChanges(events)).toEqual([])

    await end()
    await expect.poll(() => run(sick), { timeout: 20_000 }).toBe('ran')
  })

  // The stopped servers have 21 or 22 of the buckets. Calls for these get no answer until the end.
  it('serves the other buckets while a master and its replica are silent', async () => {
    const client = await CONNECT[driver]()
    const { run, engine, events } = serve(client, { storeTimeoutMs: 60_000 })
    expect(await load(run, ALL, 2)).toEqual(new Set(['ran']))
    const [shard] = await shardsOf(cluster)
    const healthy = ALL.filter((bucket) => !shard!.buckets.includes(bucket))
    const resume = silence(shard!)
    const ends: string[] = []
    const stuck = shard!.buckets.flatMap((bucket) =>
      [1, 2, 3].map(() => run(bucket).then((how) => ends.push(how))),
    )
    expect(await load(run, healthy, WAVES)).toEqual(new Set(['ran']))
    // The first claims of a new process for healthy buckets are served, too.
    const other = serve(client, { storeTimeoutMs: 60_000 })
    expect(await load(other.run, healthy, 1)).toEqual(new Set(['ran']))
    expect(ends).toEqual([])

    resume()
    await Promise.all(stuck)
    expect(new Set(ends)).toEqual(new Set(['ran']))
    expect((await engine.health()).status).toBe('ready')
    expect(breakerChanges(events)).toEqual([])
  })

  it('refuses claims for silent servers at once, and serves them after their return', async () => {
    // With a fake clock, only the calls to silent servers time out, even on a slow machine.
    const clock = new FakeClock()
    const { run, engine, events } = serve(await CONNECT[driver](), { clock, storeTimeoutMs: 2_000 })
    expect(await load(run, ALL, 2)).toEqual(new Set(['ran']))
    const [, shard] = await shardsOf(cluster)
    const healthy = ALL.filter((bucket) => !shard!.buckets.includes(bucket))
    const resume = silence(shard!)
    const lost = load(run, shard!.buckets, 1)
    expect(await load(run, healthy, 2)).toEqual(new Set(['ran']))
    clock.advance(2_000)
    expect(await lost).toEqual(new Set(['unavailable']))
    expect(await load(run, shard!.buckets, 2)).toEqual(new Set(['refused']))
    expect(await load(run, healthy, 2)).toEqual(new Set(['ran']))
    expect(await engine.health()).toMatchObject({ status: 'degraded', breaker: 'closed' })

    resume()
    const isBack = async () => {
      // Makes the next probe of each bucket due.
      clock.advance(1_000)
      return [...(await load(run, shard!.buckets, 1))]
    }
    await expect.poll(isBack, { timeout: 30_000 }).toEqual(['ran'])
    expect(breakerChanges(events)).toEqual([])
  })

  it('advises to set min-replicas-to-write on a cluster, and not waitReplicas', async () => {
    const store = redisStore({ client: await CONNECT[driver](), prefix: newTestPrefix() })
    const finding = async () =>
      (await store.check()).findings.find(({ kind }) => kind === 'replicates_late')?.message
    expect(await finding()).toMatch(/Set min-replicas-to-write 1/)
    expect(await finding()).not.toContain('waitReplicas')
    const shards = await shardsOf(cluster)
    const set = async (count: string) => {
      for (const { master } of shards)
        await ask(master, 'CONFIG', 'SET', 'min-replicas-to-write', count)
    }
    onTestFinished(() => set('0'))
    await set('1')
    expect(await finding()).toMatch(/min-replicas-to-write limits how many/)
    expect(await finding()).not.toContain('Set')
  })
})
