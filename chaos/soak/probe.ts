/**
 * Loaded into the service before its own code (`--import`): says over the channel to its parent
 * how much memory is in use once garbage is collected. The service knows nothing of it.
 */
import { monitorEventLoopDelay } from 'node:perf_hooks'
import { writeHeapSnapshot } from 'node:v8'

export interface Probe {
  /** After a collection: what is really held. */
  readonly heapUsedBytes: number
  readonly externalBytes: number
  readonly rssBytes: number
  /** Sockets, timers, files: whatever keeps the event loop alive. */
  readonly handles: number
  /** How late the event loop was, since the last time it was asked. */
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
/** The histogram counts from one tick to the next; what is above the tick is lateness. */
const TICK_MS = 10

const delay = monitorEventLoopDelay({ resolution: TICK_MS })
delay.enable()

process.on('message', (request: ProbeRequest) => {
  if (request.kind === 'snapshot') writeHeapSnapshot(request.path)
  process.send?.({ id: request.id, probe: look() } satisfies ProbeAnswer)
})
// Listening must not keep a process alive that is done.
process.channel?.unref()

function look(): Probe {
  const lagP99Ms = Math.max(0, delay.percentile(99) / NS_PER_MS - TICK_MS)
  const lagMaxMs = Math.max(0, delay.max / NS_PER_MS - TICK_MS)
  globalThis.gc?.()
  // Finalisers of the first round let go of what the second can collect.
  globalThis.gc?.()
  const { heapUsed, external, rss } = process.memoryUsage()
  // Without the pause of the collection itself.
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
