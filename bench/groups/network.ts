/** Databases with a network delay, and keys that many callers retry at once. */
import type { NetworkConfig } from '../programs/network.ts'
import type { Figures } from '../report/results.ts'
import { inParallel, sleeperOf, type Context, type Line } from '../run/context.ts'
import type { Load } from '../run/contract.ts'
import type { ServerName } from '../run/servers.ts'
import { STORE_TITLES } from './engine.ts'

/** Delay in one direction. The round trip takes twice as long. */
export const DISTANCES_MS = [0, 1, 10] as const

export const NETWORK_STORES = ['postgres', 'mariadb'] as const

const IN_FLIGHT = 256

const CALLS = {
  many: 'replays of many keys',
  one: 'replays of one key',
  busyMany: 'retries of many keys in progress',
  busyOne: 'retries of one key in progress',
  besideMany: 'first requests of another tenant, beside replays of many keys',
  besideOne: 'first requests of another tenant, beside replays of one key',
} as const

type Call = keyof typeof CALLS

/** A line about one key is compared with the line about many. */
const BASES: Partial<Record<Call, Call>> = {
  one: 'many',
  busyOne: 'busyMany',
  besideOne: 'besideMany',
}

interface Entry {
  readonly store: (typeof NETWORK_STORES)[number]
  readonly delayMs: number
}

export async function networkLines(context: Context): Promise<Line[]> {
  const entries = NETWORK_STORES.flatMap((store) =>
    DISTANCES_MS.map((delayMs): Entry => ({ store, delayMs })),
  )
  const lines = await inParallel(entries, (entry) => linesOf(context, entry))
  return lines.flat()
}

async function linesOf(context: Context, { store, delayMs }: Entry): Promise<Line[]> {
  const places = await placesAt(context, store, delayMs)
  const subject = `${STORE_TITLES[store]}, ${delayMs} ms away`
  const config: NetworkConfig = { store, places }
  const program = await context.start('network', config, `network: ${subject}`)
  const { warmMs, engineWakeMs } = context.scale
  const call = async (name: Call, ms: number): Promise<Figures> => {
    const load: Load = { inFlight: IN_FLIGHT, ms, warmMs }
    return (await program.call(name, load)) as Figures
  }
  const sleeper = sleeperOf(engineWakeMs, (ms) => call('many', ms))
  const id = `network.${store}.${delayMs}`
  return (Object.keys(CALLS) as Call[]).map((name): Line => {
    const base = BASES[name]
    return {
      id: `${id}.${name}`,
      group: 'network',
      subject,
      what: CALLS[name],
      load: `${IN_FLIGHT} in flight`,
      ...(base === undefined ? {} : { base: `${id}.${base}` }),
      measure: (ms) => call(name, ms),
      sleeper,
      family: id,
    }
  })
}

async function placesAt(context: Context, server: ServerName, delayMs: number) {
  const places = await context.servers.places(server)
  if (delayMs === 0) return places
  const config = { url: places[server], delayMs }
  const proxy = await context.start('proxy', config, `network: ${server}, ${delayMs} ms away`)
  return { ...places, [server]: (proxy.info as { url: string }).url }
}
