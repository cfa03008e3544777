import { once } from 'node:events'
import { Worker } from 'node:worker_threads'
import { TOKENS } from './draft.ts'
import type { FloodCount, FloodPlan } from './flood-worker.ts'

export type { FloodCount } from './flood-worker.ts'

export interface Flood {
  /** Ends the flood, and returns its counts. */
  readonly stop: () => Promise<FloodCount>
}

let floods = 0

/** One tenant that sends distinct keys without a pause, from a separate thread. */
export async function startFlood(
  port: number,
  { connections = 50, depth = 10 }: { connections?: number; depth?: number } = {},
): Promise<Flood> {
  const name = `flood-${process.pid}-${floods++}`
  const workerData: FloodPlan = { port, token: TOKENS.a, connections, depth, name }
  const worker = new Worker(new URL('flood-worker.ts', import.meta.url), { workerData })
  await once(worker, 'online')
  return {
    stop: async () => {
      const answer = once(worker, 'message')
      // oxlint-disable-next-line unicorn/require-post-message-target-origin -- It is no window.
      worker.postMessage('stop')
      const [count] = (await answer) as [FloodCount]
      await worker.terminate()
      return count
    },
  }
}
