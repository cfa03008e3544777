import type { Figures } from '../report/results.ts'
import { quantile } from '../report/statistics.ts'
import type { Load } from './contract.ts'

/** `inFlight` callers that each start again at once; how often, how long, and at what cost. */
export async function measure(once: () => Promise<unknown>, load: Load): Promise<Figures> {
  await callFor(once, load.inFlight, load.warmMs)
  const cpu = process.cpuUsage()
  const started = performance.now()
  const waits = await callFor(once, load.inFlight, load.ms)
  const seconds = (performance.now() - started) / 1000
  const { user, system } = process.cpuUsage(cpu)
  return {
    rate: waits.length / seconds,
    p50: quantile(waits, 0.5),
    p99: quantile(waits, 0.99),
    cpu: (user + system) / waits.length,
  }
}

/** How long each call took, in ms. At least one for each caller. */
export async function callFor(
  once: () => Promise<unknown>,
  inFlight: number,
  ms: number,
): Promise<number[]> {
  const waits: number[] = []
  const broken = new AbortController()
  const caller = async (): Promise<void> => {
    let now = performance.now()
    const until = now + ms
    do {
      await once()
      const end = performance.now()
      waits.push(end - now)
      now = end
    } while (now < until && !broken.signal.aborted)
  }
  try {
    await Promise.all(Array.from({ length: inFlight }, caller))
  } catch (error) {
    // The others must not go on behind the back of whoever hears of it.
    broken.abort()
    throw error
  }
  return waits
}
