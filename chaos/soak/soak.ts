/** Runs clients of every kind in turns for a given time, and samples the cost. */
import { mkdirSync } from 'node:fs'
import { join } from 'node:path'
import { createDice } from './dice.ts'
import { startFlood } from './flood.ts'
import { startGoodClients } from './good-clients.ts'
import { startHostileClients } from './hostile-clients.ts'
import { judgeMemory, type MemoryVerdict } from './judge-memory.ts'
import type { SoakOptions } from './options.ts'
import type { Probe } from './probe.ts'
import { startSystem, type SoakSystem } from './system.ts'
import { watchTenant, type Latencies } from './watched-tenant.ts'

/** The clients beside the good clients, in turns. */
const TURNS = ['good only', 'hostile', 'flood'] as const

export type Turn = (typeof TURNS)[number]

export interface SoakSample extends Probe {
  /** Milliseconds since the start. */
  readonly atMs: number
  readonly turn: Turn
  readonly requestsPerSecond: number
  readonly watched: Latencies
  readonly rows: number
}

export interface SoakReport {
  readonly store: string
  readonly seconds: number
  readonly seed: number
  readonly rate: number
  readonly startedAt: string
  readonly requests: number
  readonly samples: readonly SoakSample[]
  readonly memory: MemoryVerdict
  /** Wrong answers, by the kind of client. */
  readonly faults: Readonly<Record<'watched' | 'good' | 'hostile', readonly string[]>>
  readonly exitCode: number | null
}

const SAMPLES_MAX = 1_000
const SAMPLE_MS = 10_000
/** The minimum number of samples of a short run. */
const SAMPLES_MIN = 8

export async function soak(
  options: SoakOptions,
  onSample: (sample: SoakSample) => void,
): Promise<SoakReport> {
  const startedAt = new Date().toISOString()
  const system = await startSystem(options, options.rate)
  let exitCode: number | null | undefined
  try {
    const crowd = startCrowd(system.service.port, options.seed)
    const samples = await watch(system, { crowd, options, onSample }).catch(
      async (error: unknown) => {
        await crowd.stop()
        throw error
      },
    )
    const faults = await crowd.stop()
    exitCode = await system.close()
    const { store, seconds, seed, rate } = options
    const memory = judgeMemory(samples)
    const requests = crowd.requests()
    return { store, seconds, seed, rate, startedAt, requests, samples, memory, faults, exitCode }
  } finally {
    if (exitCode === undefined) await system.close()
  }
}

type Crowd = ReturnType<typeof startCrowd>

/** Starts all clients. */
function startCrowd(port: number, seed: number) {
  const dice = createDice(seed)
  const watched = watchTenant(port)
  const good = startGoodClients(port, dice)
  const hostileFaults: string[] = []
  let others = 0
  const kinds: Record<Turn, () => Promise<() => Promise<void>>> = {
    'good only': async () => async () => undefined,
    hostile: async () => {
      const clients = startHostileClients(port, dice)
      return async () => {
        await clients.stop()
        others += clients.requests()
        hostileFaults.push(...clients.faults.slice(0, FAULTS_MAX - hostileFaults.length))
      }
    },
    flood: async () => {
      const flood = await startFlood(port)
      return async () => {
        others += (await flood.stop()).sent
      }
    },
  }
  let watchedRequests = 0
  return {
    begin: (turn: Turn) => kinds[turn](),
    takeLatencies: () => {
      const latencies = watched.take()
      watchedRequests += latencies.count
      return latencies
    },
    requests: () => good.requests() + others + watchedRequests,
    stop: async () => {
      await Promise.all([watched.stop(), good.stop()])
      return { watched: watched.faults, good: good.faults, hostile: hostileFaults }
    },
  }
}

const FAULTS_MAX = 20

interface Watch {
  readonly crowd: Crowd
  readonly options: SoakOptions
  readonly onSample: (sample: SoakSample) => void
}

/** One turn for each sample, so that a sample belongs to one turn. */
async function watch(
  { service, database }: SoakSystem,
  { crowd, options, onSample }: Watch,
): Promise<SoakSample[]> {
  const { seconds, snapshots, reportFolder } = options
  const sampleMs = Math.min(SAMPLE_MS, (seconds * 1000) / SAMPLES_MIN)
  const startMs = performance.now()
  const samples: SoakSample[] = []
  let lastMs = startMs
  let lastRequests = 0
  // Each kind gets a turn, even if a busy machine exceeds the time.
  const isOver = (n: number) => n >= TURNS.length && lastMs - startMs >= seconds * 1000
  for (let n = 0; !isOver(n) && n < SAMPLES_MAX; n++) {
    const turn = TURNS[n % TURNS.length]!
    const end = await crowd.begin(turn)
    await new Promise((resolve) => setTimeout(resolve, sampleMs))
    const watched = crowd.takeLatencies()
    await end()
    if (!service.isAlive())
      throw new Error(`the service was ended ${service.ending()}: ${service.errors()}`)
    const probe = await service.probe()
    const nowMs = performance.now()
    const requests = crowd.requests()
    const sample: SoakSample = {
      ...probe,
      atMs: nowMs - startMs,
      turn,
      requestsPerSecond: ((requests - lastRequests) * 1000) / (nowMs - lastMs),
      watched,
      rows: await database.countRows(),
    }
    lastMs = nowMs
    lastRequests = requests
    samples.push(sample)
    onSample(sample)
    if (snapshots && (n === 5 || lastMs - startMs >= seconds * 1000)) {
      mkdirSync(reportFolder, { recursive: true })
      await service.snapshot(join(reportFolder, `heap-${process.pid}-${n}.heapsnapshot`))
    }
  }
  return samples
}
