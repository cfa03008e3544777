/**
 * Private Redis servers for one test file, on free ports, in a scratch folder. Tests may kill, stop
 * and start them, add replicas, and create a cluster of three or six nodes.
 */
import { execFileSync, spawn, type ChildProcess } from 'node:child_process'
import { once } from 'node:events'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { Redis } from 'ioredis'
import { findPrograms, freePort, untilAnswering } from './programs.ts'

export interface RedisServer {
  readonly url: string
  readonly port: number
  /** Kills the server. */
  readonly kill: () => Promise<void>
  readonly start: () => Promise<void>
  /** Stops the process, or continues it. */
  readonly signal: (signal: 'SIGSTOP' | 'SIGCONT') => void
  /** Ends the server and removes its folder. */
  readonly close: () => Promise<void>
}

export interface RedisClusterServers {
  readonly nodes: readonly RedisServer[]
  readonly close: () => Promise<void>
}

const HOW_TO =
  'install Redis (Debian: apt-get install redis-server; macOS: brew install redis), also where ' +
  'ONCEKEY_TEST_REDIS_URL names a server, because some tests stop theirs'

/** A cluster bus listens on the port plus this offset. */
const BUS_OFFSET = 10_000
const PORT_MAX = 65_535

/** By default without persistence and eviction, and with fast replication. */
const DEFAULTS = [
  ...['--save', '', '--appendonly', 'no', '--maxmemory-policy', 'noeviction'],
  ...['--repl-diskless-sync-delay', '0'],
]

/** The URL of a server that is not stopped: that of the environment, or a private one. */
export async function startSharedRedis(): Promise<Pick<RedisServer, 'url' | 'close'>> {
  const url = process.env['ONCEKEY_TEST_REDIS_URL']
  if (url === undefined) return startRedis()
  return { url, close: () => removeKeys(url) }
}

/** The key prefix of every store on a shared server, by which its keys are removed. */
export function newTestPrefix(): string {
  return `${TEST_PREFIX}${crypto.randomUUID()}`
}

const TEST_PREFIX = 'oncekey-test-'

async function removeKeys(url: string): Promise<void> {
  const client = new Redis(url)
  try {
    for await (const keys of client.scanStream({ match: `*${TEST_PREFIX}*`, count: 1000 })) {
      if (keys.length > 0) await client.unlink(...(keys as string[]))
    }
  } finally {
    client.disconnect()
  }
}

/** A private server. `settings` as in its configuration file: `['--appendonly', 'yes']`. */
export async function startRedis(settings: readonly string[] = []): Promise<RedisServer> {
  return startOn(await freePort(), settings)
}

async function startOn(port: number, settings: readonly string[]): Promise<RedisServer> {
  const program = join(findBinaries(), 'redis-server')
  const folder = mkdtempSync(join(tmpdir(), 'oncekey-redis-'))
  const args = [
    '--port',
    `${port}`,
    '--bind',
    '127.0.0.1',
    '--dir',
    folder,
    '--loglevel',
    'warning',
  ]
  let server: ChildProcess | undefined

  const start = async () => {
    const started = spawn(program, [...args, ...DEFAULTS, ...settings], { stdio: 'ignore' })
    server = started
    await untilAnswering(() => ping(port), started)
  }
  const kill = async () => {
    if (server === undefined || server.exitCode !== null || server.signalCode !== null) return
    const ended = once(server, 'exit')
    server.kill('SIGKILL')
    await ended
  }
  const leave = () => void server?.kill('SIGKILL')
  process.once('exit', leave)
  await start()
  return {
    url: `redis://127.0.0.1:${port}`,
    port,
    start,
    kill,
    signal: (signal) => void server?.kill(signal),
    async close() {
      await kill()
      process.removeListener('exit', leave)
      rmSync(folder, { recursive: true, force: true })
    },
  }
}

export interface ClusterOptions {
  /** Replicas per master. @default 0 */
  readonly replicas?: number
  /** How long a node may be silent before the others mark it as failed. @default 5_000 */
  readonly nodeTimeoutMs?: number
}

/**
 * Three masters, each with a third of the slots, followed by their replicas. The slots of an ended
 * node are unavailable, and the others stay available.
 */
export async function startRedisCluster({
  replicas = 0,
  nodeTimeoutMs = 5_000,
}: ClusterOptions = {}): Promise<RedisClusterServers> {
  const settings = [
    ...['--cluster-enabled', 'yes', '--cluster-node-timeout', '5000'],
    ...['--cluster-require-full-coverage', 'no'],
  ]
  const count = 3 * (1 + replicas)
  const nodes: RedisServer[] = []
  const close = async () => {
    for (const node of nodes) await node.close()
  }
  try {
    for (let n = 0; n < count; n++) nodes.push(await startOn(await portWithBus(), settings))
    const addresses = nodes.map(({ port }) => `127.0.0.1:${port}`)
    const create = ['--cluster', 'create', ...addresses, '--cluster-yes']
    const withReplicas = ['--cluster-replicas', `${replicas}`]
    execFileSync(join(findBinaries(), 'redis-cli'), [...create, ...withReplicas], { stdio: 'pipe' })
    for (const { port } of nodes) {
      await untilAnswering(() => knowsAll(port, { masters: 3, replicas: count - 3 }), {
        exitCode: null,
      })
    }
    // Set afterwards: a longer timeout makes the nodes exchange their state less often.
    for (const { port } of nodes) {
      await ask(port, (client) => client.config('SET', 'cluster-node-timeout', nodeTimeoutMs))
    }
  } catch (error) {
    await close()
    throw error
  }
  return { nodes, close }
}

/** A free port whose bus port is valid and probably free. */
async function portWithBus(): Promise<number> {
  for (let tries = 0; tries < 100; tries++) {
    const port = await freePort()
    if (port + BUS_OFFSET <= PORT_MAX) return port
  }
  throw new Error('no free port found for the bus of a cluster')
}

/** Resolves when the replica has all data of its master. */
export async function replicaOf(master: RedisServer): Promise<RedisServer> {
  const replica = await startRedis(['--replicaof', '127.0.0.1', `${master.port}`])
  const isLinked = () =>
    ask(replica.port, async (client) => {
      const info = await client.info('replication')
      if (!info.includes('master_link_status:up')) throw new Error('the replica is not linked yet')
    })
  await untilAnswering(isLinked, { exitCode: null })
  return replica
}

export function findBinaries(): string {
  return findPrograms({
    names: ['redis-server', 'redis-cli'],
    debianPackage: 'redis-server',
    howTo: HOW_TO,
  })
}

async function ping(port: number): Promise<void> {
  await ask(port, (client) => client.ping())
}

async function knowsAll(
  port: number,
  { masters, replicas }: { readonly masters: number; readonly replicas: number },
): Promise<void> {
  await ask(port, async (client) => {
    const info = String(await client.call('CLUSTER', 'INFO'))
    const nodes = String(await client.call('CLUSTER', 'NODES'))
    const known = {
      masters: nodes.match(/ connected \d+-\d+$/gm)?.length ?? 0,
      replicas: nodes.match(/slave [0-9a-f]{40} .* connected$/gm)?.length ?? 0,
    }
    const isWhole = known.masters === masters && known.replicas === replicas
    if (isWhole && info.includes('cluster_state:ok')) return
    throw new Error(`the cluster is not complete yet: ${info}\n${nodes}`)
  })
}

async function ask(port: number, run: (client: Redis) => Promise<unknown>): Promise<void> {
  const client = new Redis(port, '127.0.0.1', { lazyConnect: true, retryStrategy: () => null })
  client.on('error', () => undefined)
  try {
    await client.connect()
    await run(client)
  } finally {
    client.disconnect()
  }
}
