/** Measures how the flood of one tenant affects another, with and without a limit. */
import { startFlood, type FloodCount } from './flood.ts'
import type { SoakOptions } from './options.ts'
import { startSystem } from './system.ts'
import { watchTenant, type Latencies } from './watched-tenant.ts'

export interface FloodMeasure {
  /** Requests per second that a tenant may send; 0 means no limit. */
  readonly rate: number
  readonly quiet: Latencies
  readonly flooded: Latencies
  /** The factor by which the flood extends the 99th percentile. */
  readonly ratio: number
  readonly flood: FloodCount
  readonly floodPerSecond: number
  /** Wrong answers to the watched tenant. */
  readonly faults: readonly string[]
}

const WARM_UP_MS = 2_000

/** Starts a service, and measures a tenant without the flood and with it. */
export async function measureFlood(
  options: Pick<SoakOptions, 'store' | 'root'>,
  { rate, ms }: { readonly rate: number; readonly ms: number },
): Promise<FloodMeasure> {
  const system = await startSystem(options, rate)
  const { port } = system.service
  const watched = watchTenant(port)
  try {
    await sleep(Math.min(WARM_UP_MS, ms))
    watched.take()
    await sleep(ms)
    const quiet = watched.take()
    const running = await startFlood(port)
    await sleep(ms)
    const flooded = watched.take()
    const flood = await running.stop()
    await watched.stop()
    const ratio = flooded.p99Ms / quiet.p99Ms
    const floodPerSecond = (flood.sent * 1000) / ms
    return { rate, quiet, flooded, ratio, flood, floodPerSecond, faults: watched.faults }
  } finally {
    await watched.stop()
    await system.close()
  }
}

export function describeFlood(measure: FloodMeasure): string {
  const { rate, quiet, flooded, ratio, flood, floodPerSecond, faults } = measure
  const limit = rate === 0 ? 'no limit' : `${rate}/s a tenant`
  const statuses = Object.entries(flood.statuses)
    .map(([status, count]) => `${count} × ${status}`)
    .join(', ')
  return [
    `${limit}: tenant-b p50 ${ms(quiet.p50Ms)} → ${ms(flooded.p50Ms)}, ` +
      `p99 ${ms(quiet.p99Ms)} → ${ms(flooded.p99Ms)} (× ${ratio.toFixed(1)}), ` +
      `wrong answers ${faults.length}`,
    `  flood of tenant-a: ${floodPerSecond.toFixed(0)} requests/s; answered ${statuses || 'none'}`,
  ].join('\n')
}

const ms = (value: number): string => `${value.toFixed(1)} ms`
const sleep = (forMs: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, forMs))
