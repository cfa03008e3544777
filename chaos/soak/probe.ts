/**
 * Preloaded into the service (`--import`): reports the memory in use after a garbage collection
 * over the channel to its parent. The service is unchanged.
 */
import { monitorEventLoopDelay } from 'node:perf_hooks'
import { writeHeapSnapshot } from 'node:v8'

export interface Probe {
  /** Heap size after a garbage collection. */
  readonly heapUsedBytes: number
  readonly externalBytes: number
  readonly rssBytes: number
  /** Sockets, timers and files that keep the event loop alive. */
  readonly handles: number
  /** The event loop delay since the last request. */
  readonly lagP99Ms: number
  readonly lagMaxMs: number
}

export type ProbeRequest =
  | { readonly kind: 'probe'; readonly id: number }
  | { readonly kind: 'snapshot'; readonly id: number; readonly path: string }

export interface ProbeAnswer {
  readonly id: number
  readonly probe: Probe
}

const NS_PER_MS = 1e6
/** The histogram counts from tick to tick; the time above the tick is the delay. */
const TICK_MS = 10

const delay = monitorEventLoopDelay({ resolution: TICK_MS })
delay.enable()

process.on('message', (request: ProbeRequest) => {
  if (request.kind === 'snapshot') writeHeapSnapshot(request.path)
  process.send?.({ id: request.id, probe: look() } satisfies ProbeAnswer)
})
// The listener must not keep a finished process alive.
process.channel?.unref()

function look(): Probe {
  const lagP99Ms = Math.max(0, delay.percentile(99) / NS_PER_MS - TICK_MS)
  const lagMaxMs = Math.max(0, delay.max / NS_PER_MS - TICK_MS)
  globalThis.gc?.()
  // Finalisers of the first collection release objects that the second can collect.
  globalThis.gc?.()
  const { heapUsed, external, rss } = process.memoryUsage()
  // Excludes the pause of the collection.
  delay.reset()
  return {
    heapUsedBytes: heapUsed,
    externalBytes: external,
    rssBytes: rss,
    handles: process.getActiveResourcesInfo().length,
    lagP99Ms,
    lagMaxMs,
  }
}
