/**
 * The service as in production, in small: two API nodes, two workers, a provider and a database,
 * each a separate process, with a proxy on every connection between them.
 */
import { mkdirSync, mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { startTcpProxy, type TcpProxy } from '../../test/servers/tcp-proxy.ts'
import type { StoreName } from '../arguments.ts'
import type { UnexpectedExit } from '../check/facts.ts'
import { TENANTS } from '../clients/story.ts'
import { NEIGHBOURS } from '../neighbours/names.ts'
import type { PlantName } from '../plant/plants.ts'
import type { RunSettings } from '../settings.ts'
import { startDatabase, type Database } from './database.ts'
import { nodeProcess, type NodeProcess } from './node-process.ts'
import { providerControl, type ProviderControl } from './provider-control.ts'

export interface Member {
  readonly name: string
  readonly role: 'api' | 'worker'
  readonly process: NodeProcess
  /** Proxy between clients and the node. Only health checks connect to a worker. */
  readonly front: TcpProxy
  readonly toProvider: TcpProxy
  /** Absent if the database is a file. */
  readonly toDatabase: TcpProxy | undefined
}

export interface System {
  readonly members: readonly Member[]
  readonly database: Database
  readonly provider: ProviderControl
  readonly exits: readonly UnexpectedExit[]
  readonly logFolder: string
  /** Ends all processes, even after a partial start, and removes their files. */
  readonly close: () => Promise<void>
}

export interface SystemOptions {
  readonly store: StoreName
  readonly seed: number
  readonly settings: RunSettings
  readonly plant: PlantName | undefined
  /** Whether bad neighbours share the processes of the service. */
  readonly hasNeighbours: boolean
  readonly logFolder: string
}

const ROOT = join(import.meta.dirname, '..', '..')
const CLOCK_SHIFT = join(import.meta.dirname, 'clock-shift.ts')
const PLANT_PRELOAD = join(ROOT, 'chaos', 'plant', 'plant-preload.ts')
const SERVICE = join(import.meta.dirname, 'service.ts')
const MEMBERS = [
  ['api-1', 'api'],
  ['api-2', 'api'],
  ['worker-1', 'worker'],
  ['worker-2', 'worker'],
] as const

export async function startSystem(options: SystemOptions): Promise<System> {
  const { store, logFolder } = options
  const closing: (() => unknown)[] = []
  const close = async () => {
    for (const end of closing.splice(0).toReversed()) await end()
  }
  try {
    const folder = mkdtempSync(join(tmpdir(), 'oncekey-chaos-'))
    closing.push(() => rmSync(folder, { recursive: true, force: true }))
    mkdirSync(logFolder, { recursive: true })
    const exits: UnexpectedExit[] = []
    const onExit = (exit: UnexpectedExit) => void exits.push(exit)
    const database = await startDatabase(store, folder)
    closing.push(database.close)
    const parts: Parts = { options, folder, database, onExit, closing }

    const fronts = await Promise.all(MEMBERS.map(() => frontOf(parts)))
    const apis = fronts.filter((_, index) => MEMBERS[index]![1] === 'api')
    const provider = await startProvider(parts, apis)
    const members: Member[] = []
    for (const [index, [name, role]] of MEMBERS.entries()) {
      members.push(await makeMember(parts, { name, role, provider, ...fronts[index]! }))
    }
    await Promise.all(members.map((member) => member.process.start()))
    return { members, database, provider, exits, logFolder, close }
  } catch (error) {
    await close()
    throw error
  }
}

interface Parts {
  readonly options: SystemOptions
  readonly folder: string
  readonly database: Database
  readonly onExit: (exit: UnexpectedExit) => void
  readonly closing: (() => unknown)[]
}

interface Front {
  readonly front: TcpProxy
  readonly onAddress: (url: URL | undefined) => void
}

/** A port on which no process listens. */
const NOWHERE = 1

/**
 * A node has a new port after each start, because its old one may be in use. The port of the proxy
 * stays, and it reads its target for every connection.
 */
async function frontOf({ closing }: Parts): Promise<Front> {
  const target = { host: '127.0.0.1', port: NOWHERE }
  const front = await startTcpProxy(target)
  closing.push(front.close)
  const onAddress = (url: URL | undefined) => {
    target.port = url === undefined ? NOWHERE : Number(url.port)
  }
  return { front, onAddress }
}

async function startProvider(parts: Parts, apis: readonly Front[]): Promise<ProviderControl> {
  const { options, folder, onExit, closing } = parts
  const { settings, seed, logFolder } = options
  const dataFolder = join(folder, 'provider')
  mkdirSync(dataFolder)
  const hooks = apis.map(({ front }) => `http://127.0.0.1:${front.port}/webhooks/provider`)
  const process = nodeProcess({
    name: 'provider',
    program: join(ROOT, 'examples', 'provider', 'main.ts'),
    preloads: [CLOCK_SHIFT],
    ready: /listening on (http:\/\/\S+)/,
    logFile: join(logFolder, 'provider.log'),
    onExit,
    env: {
      PORT: '0',
      DATA_DIR: dataFolder,
      WEBHOOK_URLS: hooks.join(','),
      WEBHOOK_SECRET: settings.service['WEBHOOK_SECRET'] ?? '',
      KEY_RETENTION_MS: `${settings.keyRetentionMs}`,
      SEED: `${seed}`,
    },
  })
  closing.push(process.kill)
  return providerControl(await process.start())
}

interface MemberParts extends Front {
  readonly name: string
  readonly role: 'api' | 'worker'
  readonly provider: ProviderControl
}

async function makeMember(parts: Parts, { name, role, provider, ...own }: MemberParts) {
  const { options, database, onExit, closing } = parts
  const { settings, plant, hasNeighbours, logFolder } = options
  const providerUrl = new URL(provider.url)
  const toProvider = await proxyTo(parts, providerUrl)
  const databaseUrl = database.url === '' ? undefined : new URL(database.url)
  const toDatabase = databaseUrl && (await proxyTo(parts, databaseUrl))
  const process = nodeProcess({
    name,
    program: SERVICE,
    preloads: plant === undefined ? [CLOCK_SHIFT] : [CLOCK_SHIFT, PLANT_PRELOAD],
    ready: /(?:listening|ready) on (http:\/\/\S+)/,
    logFile: join(logFolder, `${name}.log`),
    onAddress: own.onAddress,
    onExit,
    env: {
      ...settings.service,
      ROLE: role,
      TOKENS: tokensOf(hasNeighbours ? [...TENANTS, ...NEIGHBOURS] : TENANTS),
      ...(hasNeighbours ? { CHAOS_NEIGHBOURS: 'on' } : {}),
      PORT: '0',
      DATA_DIR: database.dataFolder,
      DATABASE_URL: toDatabase?.through(database.url) ?? '',
      PROVIDER_URL: `http://127.0.0.1:${toProvider.port}`,
      ...(plant === undefined ? {} : { CHAOS_PLANT: plant }),
    },
  })
  closing.push(process.kill)
  return { name, role, process, front: own.front, toProvider, toDatabase }
}

/** The `TOKENS` variable of the service. */
function tokensOf(tenants: readonly { readonly name: string; readonly token: string }[]): string {
  return tenants.map(({ name, token }) => `${token}=${name}`).join(',')
}

async function proxyTo({ closing }: Parts, { hostname, port }: URL): Promise<TcpProxy> {
  const proxy = await startTcpProxy({ host: hostname, port: Number(port) })
  closing.push(proxy.close)
  return proxy
}
