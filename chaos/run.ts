/** One run: starts all processes, disrupts them, waits for recovery, and checks the result. */
import { setTimeout as sleep } from 'node:timers/promises'
import type { ChaosOptions } from './arguments.ts'
import { collect, countOpen, readEntries, readProducts } from './check/collect.ts'
import type { Facts, ProductRow, Violation } from './check/facts.ts'
import { judge, judgeWhileRunning } from './check/judge.ts'
import { sinceAccepted, waitsOfLooks } from './check/waits.ts'
import { crowd, type Crowd } from './clients/crowd.ts'
import { httpClient } from './clients/http-client.ts'
import { disruptions, type Disruptions } from './disruptions/disruptions.ts'
import { neighbours, type Neighbours } from './neighbours/neighbours.ts'
import type { Progress } from './progress.ts'
import type { RunResult } from './report.ts'
import { settingsFor } from './settings.ts'
import { readLooks } from './system/looks.ts'
import { startSystem, type System } from './system/system.ts'

export interface RunParts {
  readonly progress: Progress
  readonly logFolder: string
  /** Aborts the run. */
  readonly signal: AbortSignal
}

const CONCURRENCY = 24
const PROGRESS_EVERY_MS = 1_000
const WATCH_EVERY_MS = 500
const LOOK_EVERY_MS = 200
/** The longest delay of the provider's effects after its faults have ended. */
const LATE_MS = 1_500

export async function runChaos(options: ChaosOptions, parts: RunParts): Promise<RunResult> {
  const settings = settingsFor(options.plant)
  const { store, seed, plant, seconds } = options
  const hasNeighbours = options.neighbours === 'on'
  const { logFolder, signal, progress } = parts
  const company = hasNeighbours ? ' with bad neighbours' : ''
  progress.tell(`${store}, seed ${seed}: starting${company}`)
  const system = await startSystem({ store, seed, settings, plant, hasNeighbours, logFolder })
  const http = httpClient()
  try {
    signal.throwIfAborted()
    const stockBefore = await readProducts(system.database)
    let requests = 0
    const startedMs = performance.now()
    const elapsedMs = () => performance.now() - startedMs
    const startedAtMs = performance.timeOrigin + startedMs
    const nodes = system.members
      .filter(({ role }) => role === 'api')
      .map(({ name, front }) => ({ name, port: front.port }))
    const clients = crowd({
      http,
      nodes,
      seed,
      elapsedMs,
      onSeen: () => requests++,
      skus: stockBefore.map(({ sku }) => sku),
      concurrency: CONCURRENCY,
    })
    const trouble = disruptions(system, seed)
    const { database } = system
    const bad = hasNeighbours ? neighbours({ database, nodes, seed, seconds }) : undefined
    const run = new Run({
      ...{ options, parts, system, clients, bad, trouble, stockBefore },
      ...{ elapsedMs, startedAtMs },
    })
    await system.provider.setFaults(settings.faults)
    const state = () => `${requests} requests, ${clients.finished()} stories finished`
    return { ...(await run.toTheEnd(state)), requests }
  } finally {
    http.close()
    await system.close()
  }
}

interface Stage {
  readonly options: ChaosOptions
  readonly parts: RunParts
  readonly system: System
  readonly clients: Crowd
  readonly bad: Neighbours | undefined
  readonly trouble: Disruptions
  readonly stockBefore: readonly ProductRow[]
  readonly elapsedMs: () => number
  /** When the first story started, by the clock of the machine. */
  readonly startedAtMs: number
}

class Run {
  readonly #stage: Stage
  #phase = 'disruption'

  constructor(stage: Stage) {
    this.#stage = stage
  }

  async toTheEnd(state: () => string): Promise<Omit<RunResult, 'requests'>> {
    const { parts, elapsedMs, trouble, options, system } = this.#stage
    const shown = setInterval(() => {
      const seconds = Math.round(elapsedMs() / 1000)
      parts.progress.say(`${seconds} s ${this.#phase}: ${state()}, ${wordsOf(trouble.counts)}`)
    }, PROGRESS_EVERY_MS)
    try {
      const seen = await this.#disruption()
      const disruptionMs = elapsedMs()
      this.#phase = 'healing'
      // A violation that is already certain needs no recovery.
      if (seen.length === 0) await this.#heal()
      parts.signal.throwIfAborted()
      const facts = await this.#facts()
      const violations = seen.length === 0 ? judge(facts) : seen
      const healing = Math.round((elapsedMs() - disruptionMs) / 1000)
      const seconds = { disruption: Math.round(disruptionMs / 1000), healing }
      const faults = await system.provider.countFaults()
      return { options, violations, facts, seconds, disruption: trouble.counts, faults }
    } finally {
      clearInterval(shown)
    }
  }

  /** Runs until the time is over, or until a violation ends the run. */
  async #disruption(): Promise<Violation[]> {
    const { options, parts, clients, bad, trouble, system } = this.#stage
    const shown = new AbortController()
    const over = AbortSignal.any([
      AbortSignal.timeout(options.seconds * 1000),
      parts.signal,
      shown.signal,
    ])
    const watched = options.untilViolation ? this.#watch(over, shown) : Promise.resolve([])
    const broken = trouble.run(over).catch((error: unknown) => {
      shown.abort()
      // A process that does not start again is reported separately.
      if (system.exits.length === 0) throw error
    })
    await Promise.all([broken, clients.run(over), bad?.run(over)])
    return watched
  }

  async #watch(over: AbortSignal, shown: AbortController): Promise<Violation[]> {
    while (!over.aborted) {
      await sleep(WATCH_EVERY_MS, undefined, { signal: over }).catch(() => undefined)
      const violations = await this.#look()
      if (violations.length === 0) continue
      shown.abort()
      return violations
    }
    return []
  }

  async #look(): Promise<Violation[]> {
    const { system, clients } = this.#stage
    const { exits, provider, database } = system
    const effects = await provider.readLedger()
    // The database may be down now: then there is nothing to check until it is back.
    const entries = await readEntries(database).catch(() => [])
    return judgeWhileRunning({ stories: clients.stories, effects, entries, exits })
  }

  /** After a last silence there are no disruptions: all work must end in time without help. */
  async #heal(): Promise<void> {
    const { options, parts, system, clients, trouble } = this.#stage
    const tooLate = AbortSignal.any([AbortSignal.timeout(options.healSeconds * 1000), parts.signal])
    await system.provider.setFaults({})
    const lateMs = performance.now() + LATE_MS
    for (const { process } of system.members) if (!process.isUp()) await process.start()
    await trouble.forgetConnections(tooLate)
    await clients.finish(tooLate)
    while (!tooLate.aborted) {
      if (performance.now() >= lateMs && (await countOpen(system.database)) === 0) return
      await sleep(LOOK_EVERY_MS, undefined, { signal: tooLate }).catch(() => undefined)
    }
  }

  async #facts(): Promise<Facts> {
    const { system, clients, bad, stockBefore, startedAtMs } = this.#stage
    const accepted = bad?.accepted ?? []
    const effects = await system.provider.readLedger()
    const collected = await collect(system.database)
    const { stories } = clients
    const workers = system.members.filter(({ role }) => role === 'worker')
    const looks = readLooks(
      system.logFolder,
      workers.map(({ name }) => name),
    )
    const heard = sinceAccepted(collected.waits, stories, startedAtMs)
    const waits = [...heard, ...waitsOfLooks(looks, collected.records)]
    return { ...collected, waits, stories, effects, accepted, stockBefore, exits: system.exits }
  }
}

/** `3 kills, 2 cuts, 1 silences, 1 stalls, 0 shifts`, for one line of progress. */
function wordsOf(counts: Disruptions['counts']): string {
  return ['kill', 'cut', 'silence', 'stall', 'shift']
    .map((verb) => {
      const own = Object.entries(counts).filter(([kind]) => kind.startsWith(verb))
      return `${own.reduce((sum, [, count]) => sum + count, 0)} ${verb}s`
    })
    .join(', ')
}
