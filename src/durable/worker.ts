import { sleep } from '../core/clock.ts'
import type { DueOperation } from '../core/durable-store.ts'
import { LeaseLostError, hasCode } from '../core/errors.ts'
import { askStore } from './durable-engine.ts'
import { onNudge } from './nudge.ts'
import type { Operation } from './operation.ts'
import { onOverdueCall } from './overdue-calls.ts'
import type { WorkEnd } from './pauses.ts'
import { Places, type Ask, type PlacesStats, type TakenPlace } from './places.ts'
import {
  resolveWorkerOptions,
  type ResolvedWorkerOptions,
  type WorkerOptions,
} from './worker-options.ts'

export interface WorkerPass {
  /** Operations that were run to their end. */
  readonly completed: number
  /** Operations that failed, or are unknown: they are tried again, or looked into. */
  readonly failed: number
  /** Operations that somebody else had by then. */
  readonly missed: number
}

export interface Worker {
  /** Runs what is due until `signal` aborts. What runs then is finished. */
  run(signal: AbortSignal): Promise<void>

  /** One pass over what is due now, at most `concurrency` operations. */
  runOnce(): Promise<WorkerPass>

  /** What runs here, what runs on past its time limit, and which operations are paused. */
  stats(): PlacesStats
}

/**
 * Runs operations without their clients: those that were accepted, and those that were left behind
 * by a client that never came back or a process that died. Any number of workers may run.
 */
export function createWorker(options: WorkerOptions): Worker {
  return new OperationWorker(resolveWorkerOptions(options))
}

const ORPHANS_EVERY_MS = 60_000
const ORPHANS_SHOWN = 10
/** After a store failure, so that a store that is down is not hammered. */
const AFTER_FAILURE_MS = 1_000
/** While all ordinary places are taken: how often it looks for work that may use the reserve. */
const RESERVE_EVERY_MS = 250
/** While operations end within this time, a look finds more of them than can begin at once. */
const QUICK_MS = 100

type Outcome = keyof WorkerPass

class OperationWorker implements Worker {
  readonly #options: ResolvedWorkerOptions
  readonly #places: Places
  /** The names of the operations. */
  readonly #names: readonly string[]
  /** What runs here, by record id. */
  readonly #running = new Map<string, Promise<Outcome>>()
  /** What could not be taken, by record id, until when it is left alone. */
  readonly #missed = new Map<string, number>()
  /** Due operations that begin next. The store has counted their turns, so none is dropped. */
  #found: DueOperation[] = []
  /** How many a look finds beyond the free places. */
  #ahead = 0
  #orphansAtMs = Number.NEGATIVE_INFINITY
  /** When it may look for work for the reserve, and when an ordinary place was free last. */
  #reserveAtMs = Number.NEGATIVE_INFINITY
  #askedAtMs = Number.NEGATIVE_INFINITY
  /** Ends the pause: by a nudge, by the end of something that runs, by the signal. */
  #awake = new AbortController()

  constructor(options: ResolvedWorkerOptions) {
    this.#options = options
    const { engine, operations, places } = options
    const { clock, store } = engine
    this.#names = [...new Set(operations.map(({ name }) => name))]
    const emit = engine.emit.bind(engine)
    this.#places = new Places({ part: 'operation', clock, store, emit, ...places })
  }

  async run(signal: AbortSignal): Promise<void> {
    const { engine } = this.#options
    const wake = () => this.#awake.abort()
    const stop = () => {
      this.#found = []
      wake()
    }
    const stopListening = onNudge(engine.store, wake)
    signal.addEventListener('abort', stop)
    const endUse = this.#use()
    while (!signal.aborted && !engine.isClosed) {
      await engine.untilStoreAnswers(signal)
      if (signal.aborted) break
      // Before it looks: what happens while it looks must not be slept over.
      this.#awake = new AbortController()
      const started = await this.#start({ isAhead: true }).catch((error: unknown) => {
        engine.emit({ kind: 'maintenance_failed', task: 'worker', error })
        return 0
      })
      if (started > 0 && this.#places.free > 0) continue
      await sleep(engine.clock, this.#pauseMs(), this.#awake.signal)
      // Operations that end together make room together: one look finds work for all of them.
      await new Promise<void>((resolve) => engine.clock.soon(resolve))
    }
    this.#found = []
    stopListening()
    signal.removeEventListener('abort', stop)
    await Promise.all(this.#running.values())
    endUse()
  }

  async runOnce(): Promise<WorkerPass> {
    const endUse = this.#use()
    try {
      return await this.#pass()
    } finally {
      endUse()
    }
  }

  async #pass(): Promise<WorkerPass> {
    const before = new Set(this.#running.keys())
    await this.#start({ isAhead: false })
    const mine = [...this.#running].filter(([recordId]) => !before.has(recordId))
    const outcomes = await Promise.all(mine.map(([, outcome]) => outcome))
    const count = (kind: Outcome) => outcomes.filter((outcome) => outcome === kind).length
    return { completed: count('completed'), failed: count('failed'), missed: count('missed') }
  }

  stats(): PlacesStats {
    return this.#places.stats()
  }

  #pauseMs(): number {
    const { pollMs } = this.#options
    if (this.#places.free > 0) return pollMs
    return Math.min(pollMs, Math.max(1, this.#reserveAtMs - this.#nowMs))
  }

  /** While it works: counts the calls that hang, and tells health what is paused. */
  #use(): () => void {
    const { pauses } = this.#places
    const stopListening = onOverdueCall(this.#options.engine.store, {
      has: ({ name, recordId }) => this.#running.has(recordId) || pauses.isOverdue(name, recordId),
      knows: (name) => this.#names.includes(name),
      count: ({ name, recordId, ended }) => {
        const end = pauses.countOverdue(name, recordId)
        void ended.then(() => {
          end()
          this.#awake.abort()
        })
      },
    })
    const endUse = pauses.use()
    return () => {
      stopListening()
      endUse()
    }
  }

  /** Starts as many of the due as there are places for; `isAhead`: and finds the next ones. */
  async #start({ isAhead }: { readonly isAhead: boolean }): Promise<number> {
    if (this.#options.engine.isClosed) return 0
    const tried = await this.#startEach(this.#places.askTries(this.#names))
    const ask = this.#places.ask(this.#names)
    if (ask !== undefined) {
      // While ordinary places become free, turns alone are enough.
      this.#askedAtMs = this.#nowMs
      this.#reserveAtMs = this.#nowMs + RESERVE_EVERY_MS
      await this.#tellOrphans()
      const limit = ask.limit + (isAhead ? this.#ahead : 0)
      const found = await this.#due({ ...ask, limit })
      this.#found.push(...found)
      return tried + this.#startFound()
    }
    if (this.#nowMs < this.#reserveAtMs) return tried
    this.#reserveAtMs = this.#nowMs + RESERVE_EVERY_MS
    return tried + (await this.#startEach(this.#places.askReserve(this.#names)))
  }

  async #startEach(asks: readonly Ask[]): Promise<number> {
    let started = 0
    for (const ask of asks) {
      for (const due of await this.#due(ask)) if (this.#begin(due)) started++
    }
    return started
  }

  async #due({ limit, groups, withoutTenants }: Ask): Promise<DueOperation[]> {
    const { engine, phases } = this.#options
    const operations = this.#options.operations
      .filter(({ name }) => groups.includes(name))
      .map(({ name, version }) => ({ name, version }))
    return askStore(engine, 'due', (signal) =>
      phases.due({ operations, limit, withoutTenants }, signal),
    )
  }

  /** Begins what was found, in its turns, while ordinary places are free. */
  #startFound(): number {
    if (this.#options.engine.isClosed) this.#found = []
    let started = 0
    while (this.#places.free > 0) {
      const next = this.#found.shift()
      if (next === undefined) break
      if (this.#begin(next)) started++
    }
    return started
  }

  /** `false` where it cannot begin now. */
  #begin(due: DueOperation): boolean {
    const { recordId, tenant } = due.record
    const operation = this.#operationOf(due)
    if (operation === undefined || !this.#isFree(recordId)) return false
    const place = this.#places.take({ group: due.name, tenant })
    if (place === undefined) return false
    const beganMs = this.#nowMs
    const ended = this.#resume(due, operation, place).then((outcome) => {
      this.#running.delete(recordId)
      if (outcome === 'missed') this.#missed.set(recordId, this.#nowMs + this.#options.pollMs)
      this.#lookAhead(outcome !== 'missed' && this.#nowMs - beganMs < QUICK_MS)
      this.#fillPlace()
      return outcome
    })
    this.#running.set(recordId, ended)
    return true
  }

  /**
   * Where operations take long, new tenants would wait behind what was found before them. Where
   * one was missed, other workers take what this one finds before it begins.
   */
  #lookAhead(isWorthIt: boolean): void {
    this.#ahead = isWorthIt ? Math.min(this.#options.places.places, this.#ahead + 1) : 0
  }

  /** Something has ended. What was found ahead spares the store a look. */
  #fillPlace(): void {
    // It had a place of the reserve, and the ordinary places are stuck: the next one may begin.
    const isStuck = this.#nowMs - this.#askedAtMs >= RESERVE_EVERY_MS
    if (this.#places.free === 0 && isStuck) this.#reserveAtMs = Number.NEGATIVE_INFINITY
    if (this.#startFound() === 0 || this.#places.free > 0) this.#awake.abort()
  }

  /** Not what runs here, nor what was out of reach a moment ago: it would be asked for ever. */
  #isFree(recordId: string): boolean {
    for (const [missed, untilMs] of this.#missed) {
      if (untilMs <= this.#nowMs) this.#missed.delete(missed)
    }
    return !this.#running.has(recordId) && !this.#missed.has(recordId)
  }

  get #nowMs(): number {
    return this.#options.engine.clock.monotonicMs()
  }

  async #resume(
    { record, name }: DueOperation,
    operation: Operation<never>,
    place: TakenPlace,
  ): Promise<Outcome> {
    const { engine, policy } = this.#options
    const { identity, tenant, operation: scope, recordId } = record
    const subject = { identity, tenant, operation: scope, recordId }
    let { attempt } = record
    let working: Promise<unknown> | undefined
    let isOver = false
    let end: WorkEnd = 'ran'
    try {
      const outcome = await engine.resume(
        record,
        async (context) => {
          attempt = context.attempt
          engine.emit({ kind: 'operation_resumed', ...subject, name, attempt })
          working = operation.resume(context)
          await working.finally(() => (isOver = true))
          return NO_BYTES
        },
        policy,
      )
      if (working === undefined) return 'missed'
      if (outcome.kind === 'ran' || outcome.kind === 'replayed') return 'completed'
      // It has run too long, and its lease is renewed no more.
      throw new LeaseLostError(recordId)
    } catch (error) {
      engine.emit({ kind: 'operation_failed', ...subject, name, attempt, error })
      // A store that is down fails everything at once: give it a moment.
      if (!hasCode(error, 'STORE_FAILED')) return 'failed'
      end = 'not_run'
      await sleep(engine.clock, AFTER_FAILURE_MS)
      return 'failed'
    } finally {
      if (working === undefined) place.end('not_run')
      else if (isOver) place.end(end)
      else this.#leaveOverdue(working, recordId, place)
    }
  }

  /** The operation ignores its signal: other work gets its place, and it counts until it ends. */
  #leaveOverdue(working: Promise<unknown>, recordId: string, place: TakenPlace): void {
    place.overdue(recordId)
    const end = () => {
      place.end()
      this.#awake.abort()
    }
    void working.then(end, end)
  }

  #operationOf({ name, version }: DueOperation): Operation<never> | undefined {
    return this.#options.operations.find(
      (known) => known.name === name && known.version === version,
    )
  }

  async #tellOrphans(): Promise<void> {
    if (this.#nowMs - this.#orphansAtMs < ORPHANS_EVERY_MS) return
    this.#orphansAtMs = this.#nowMs
    const { engine, phases } = this.#options
    const operations = this.#options.operations.map(({ name, version }) => ({ name, version }))
    const orphans = await askStore(engine, 'orphans', (signal) =>
      phases.orphans({ operations, limit: ORPHANS_SHOWN }, signal),
    )
    for (const orphan of orphans) engine.emit({ kind: 'operation_orphaned', ...orphan })
  }
}

const NO_BYTES = new Uint8Array(0)
