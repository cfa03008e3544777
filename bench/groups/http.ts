/** Our adapters against the bare route of the same framework. */
import type { Framework, HttpConfig } from '../programs/http.ts'
import type { Group } from '../report/results.ts'
import { inParallel, sleeperOf, type Context, type Line } from '../run/context.ts'
import { HttpSubject } from '../run/http-subject.ts'
import type { ServerName } from '../run/servers.ts'
import type { StoreName } from '../subjects/stores.ts'
import { SERVERS_OF, STORE_TITLES } from './engine.ts'
import { WHAT_TITLES, type What } from './subject-lines.ts'

const CONNECTIONS = 64

/** A framework is fully compiled only after thousands of requests. */
const WARM_UP = 2

/** All lines that are compared with each other, ours and those of peers. */
export const FAMILY = 'express, fastify, hono'

const FRAMEWORK_TITLES: Readonly<Record<Framework, string>> = {
  express: 'Express',
  fastify: 'Fastify',
  hono: 'Hono',
}

/** Peers are mounted in Express on the stores that they support, so ours use the same ones. */
const STORES: Readonly<Record<Framework, readonly (StoreName | 'bare')[]>> = {
  express: ['bare', 'memory', 'sqlite-full', 'postgres', 'redis', 'cached'],
  fastify: ['bare', 'sqlite-full', 'postgres'],
  hono: ['bare', 'sqlite-full', 'postgres'],
}

export interface HttpEntry {
  readonly group: Group
  readonly id: string
  readonly subject: string
  readonly config: HttpConfig
  readonly servers: readonly ServerName[]
  readonly connections: readonly number[]
  readonly isBare: boolean
  /** The id of the line for comparison, by what is measured. */
  readonly base?: (what: What, connections: number) => string
  readonly note?: string
}

export async function httpLines(context: Context): Promise<Line[]> {
  const entries = (['express', 'fastify', 'hono'] as const).flatMap((framework) =>
    STORES[framework].map((store) => ownEntry(framework, store)),
  )
  const lines = await inParallel(entries, (entry) => linesOf(context, entry))
  return lines.flat()
}

function ownEntry(framework: Framework, store: StoreName | 'bare'): HttpEntry {
  const isBare = store === 'bare'
  // Also with one connection, where a target limits the latency of a single request.
  const isAlsoSingle = framework === 'express' && (isBare || store === 'postgres')
  return {
    group: 'http',
    id: `http.${framework}.${store}`,
    subject: `${FRAMEWORK_TITLES[framework]}, ${isBare ? 'bare' : STORE_TITLES[store]}`,
    config: { kind: 'own', framework, store },
    servers: isBare ? [] : SERVERS_OF[store],
    connections: isAlsoSingle ? [1, CONNECTIONS] : [CONNECTIONS],
    isBare,
    ...(isBare ? {} : { base: (_, connections) => bareOf(framework, connections) }),
  }
}

function bareOf(framework: Framework, connections: number): string {
  return `http.${framework}.bare.first.${connections}`
}

/** Starts the server, checks that it works, and names its lines. */
export async function linesOf(context: Context, entry: HttpEntry): Promise<Line[]> {
  const { group, id, subject, config, servers, isBare, base, note } = entry
  const places = await context.servers.places(...servers)
  const title = `${group}: ${subject}`
  const server = new HttpSubject(await context.start('http', { ...config, places }, title))
  await server.prove(isBare).catch((error: unknown) => {
    throw new Error(`${title} failed the check before the measurement`, { cause: error })
  })
  const { warmMs, serverWakeMs } = context.scale
  const sleeper = sleeperOf(serverWakeMs, (ms) =>
    server.first({ connections: CONNECTIONS, ms, warmMs: 0 }),
  )
  const whats: readonly What[] = isBare
    ? ['first']
    : group === 'http'
      ? ['first', 'replay', 'hot']
      : ['first', 'replay']
  return whats.flatMap((what) =>
    entry.connections.map((connections): Line => {
      return {
        id: `${id}.${what}.${connections}`,
        group,
        subject,
        what: isBare ? 'requests' : WHAT_TITLES[what],
        load: connections === 1 ? '1 connection' : `${connections} connections`,
        ...(base === undefined ? {} : { base: base(what, connections) }),
        ...(note === undefined ? {} : { note }),
        measure: (ms) => server[what]({ connections, ms, warmMs }),
        warmUp: WARM_UP,
        sleeper,
        family: FAMILY,
      }
    }),
  )
}
