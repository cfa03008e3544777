import type { Figures } from '../report/results.ts'
import { quantile } from '../report/statistics.ts'
import type { Load } from './contract.ts'

/** Runs `inFlight` concurrent loops of calls. Returns rate, latency and CPU cost. */
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

/** The duration of each call in ms. Makes at least one call per loop. */
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
    // The other loops must stop before the caller gets the error.
    broken.abort()
    throw error
  }
  return waits
}
