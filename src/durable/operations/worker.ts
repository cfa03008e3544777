import { NO_BYTES } from '../../core/bytes.ts'
import { effectiveRule } from '../../core/encryption.ts'
import { prepareEncryption } from '../../core/engine/preparation.ts'
import { sleep } from '../../core/time/clock.ts'
import { MINUTE_MS } from '../../core/time/durations.ts'
import type { DueOperation } from '../../core/store/durable-store.ts'
import { LeaseLostError, hasCode } from '../../core/errors.ts'
import { askStore } from '../durable-engine.ts'
import { onStoreSignal } from '../store-signal.ts'
import type { Operation } from './operation.ts'
import { onOverdueCall } from './overdue-calls.ts'
import type { WorkEnd } from '../places/pauses.ts'
import { Places, type WorkQuery, type PlacesStats, type PlaceHandle } from '../places/places.ts'
import {
  resolveWorkerOptions,
  type ResolvedWorkerOptions,
  type WorkerOptions,
} from './worker-options.ts'

export interface WorkerPass {
  /** Operations that were completed. */
  readonly completed: number
  /** Operations that failed or became `unknown`: they are tried again, or reconciled. */
  readonly failed: number
  /** Operations that another process had taken first. */
  readonly missed: number
}

export interface Worker {
  /** Runs due operations until `signal` aborts, and resolves when those in progress have ended. */
  run(signal: AbortSignal): Promise<void>

  /** Runs the operations that are due now, at most `concurrency` of them and the reserve. */
  runOnce(): Promise<WorkerPass>

  /** Operations in progress, calls past their time limit, and paused operations. */
  stats(): PlacesStats
}

/**
 * Creates a worker, which runs operations without their clients: those that were accepted, and
 * those whose process crashed or whose client did not retry. Any number of workers may run.
 */
export function createWorker(options: WorkerOptions): Worker {
  return new OperationWorker(resolveWorkerOptions(options))
}

const ORPHANS_EVERY_MS = MINUTE_MS
const ORPHANS_SHOWN = 10
/** The pause after a store failure, so that a store that is down is not overloaded. */
const AFTER_FAILURE_MS = 1_000
/** While all ordinary places are taken: how often to query work that may use the reserve. */
const RESERVE_EVERY_MS = 250
/** How long the operations of a tenant wait after their encryption could not be prepared. */
const UNPREPARED_MS = 5_000
/**
 * The most such tenants that a query leaves out. Operations of others are found, and not started.
 */
const UNPREPARED_SENT_MAX = 100
/** While operations end within this time, a query fetches more of them than can start at once. */
const QUICK_MS = 100

type Outcome = keyof WorkerPass

class OperationWorker implements Worker {
  readonly #options: ResolvedWorkerOptions
  readonly #places: Places
  readonly #names: readonly string[]
  /** Operations in progress, by record id. */
  readonly #running = new Map<string, Promise<Outcome>>()
  /** Records that could not be claimed, and until when they are not tried again. */
  readonly #missed = new Map<string, number>()
  /** Tenants whose encryption could not be prepared, and until when it is not tried again. */
  readonly #unprepared = new Map<string, number>()
  /** Due operations that start next. The store has counted their turns, so none is dropped. */
  #queue: DueOperation[] = []
  /** How many operations a query fetches in addition to the free places. */
  #ahead = 0
  #orphansAtMs = Number.NEGATIVE_INFINITY
  /** When the next query for the reserve is due, and when an ordinary place was free last. */
  #reserveAtMs = Number.NEGATIVE_INFINITY
  #queriedAtMs = Number.NEGATIVE_INFINITY
  /** Ends the pause: aborted by a store signal, by the end of an operation, and by shutdown. */
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
      this.#queue = []
      wake()
    }
    const stopListening = onStoreSignal(engine.store, 'operation_due', wake)
    signal.addEventListener('abort', stop)
    const endUse = this.#use()
    while (!signal.aborted && !engine.isClosed) {
      await engine.untilStoreAnswers(signal)
      if (signal.aborted) break
      // Replaced before the query: a wake-up during the query must end the next pause.
      this.#awake = new AbortController()
      const started = await this.#start({ isAhead: true }).catch((error: unknown) => {
        engine.emit({ kind: 'maintenance_failed', task: 'worker', error })
        return 0
      })
      if (started > 0 && this.#places.free > 0) continue
      await sleep(engine.clock, this.#pauseMs(), this.#awake.signal)
      // Operations that end together free their places together: one query fills all of them.
      await new Promise<void>((resolve) => engine.clock.soon(resolve))
    }
    this.#queue = []
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

  /** Counts overdue calls and lists pauses in `engine.health()` while the worker is in use. */
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

  /** Starts due operations while there are places. `isAhead`: and queues the next ones. */
  async #start({ isAhead }: { readonly isAhead: boolean }): Promise<number> {
    if (this.#options.engine.isClosed) return 0
    const trials = await this.#startEach(this.#places.trialQueries(this.#names))
    const query = this.#places.query(this.#names)
    if (query !== undefined) {
      // While ordinary places become free, the reserve is not needed: every tenant gets its turn.
      this.#queriedAtMs = this.#nowMs
      this.#reserveAtMs = this.#nowMs + RESERVE_EVERY_MS
      await this.#emitOrphans()
      const limit = query.limit + (isAhead ? this.#ahead : 0)
      const found = await this.#due({ ...query, limit })
      this.#queue.push(...found)
      return trials + this.#startQueued()
    }
    if (this.#nowMs < this.#reserveAtMs) return trials
    this.#reserveAtMs = this.#nowMs + RESERVE_EVERY_MS
    return trials + (await this.#startEach(this.#places.reserveQueries(this.#names)))
  }

  async #startEach(queries: readonly WorkQuery[]): Promise<number> {
    let started = 0
    for (const query of queries) {
      for (const due of await this.#due(query)) if (this.#begin(due)) started++
    }
    return started
  }

  async #due({ limit, groups, withoutTenants: full }: WorkQuery): Promise<DueOperation[]> {
    const { engine, phases } = this.#options
    const withoutTenants = [...full, ...this.#unpreparedTenants().slice(0, UNPREPARED_SENT_MAX)]
    const operations = this.#options.operations
      .filter(({ name }) => groups.includes(name))
      .map(({ name, version }) => ({ name, version }))
    return askStore(engine, 'due', (signal) =>
      phases.due({ operations, limit, withoutTenants }, signal),
    )
  }

  /** Starts queued operations in their order while ordinary places are free. */
  #startQueued(): number {
    if (this.#options.engine.isClosed) this.#queue = []
    let started = 0
    while (this.#places.free > 0) {
      const next = this.#queue.shift()
      if (next === undefined) break
      if (this.#begin(next)) started++
    }
    return started
  }

  /** Returns `false` if the operation cannot start now. */
  #begin(due: DueOperation): boolean {
    const { recordId, tenant } = due.record
    const operation = this.#operationOf(due)
    if (operation === undefined || !this.#isFree(recordId)) return false
    if (this.#unprepared.has(tenant)) return false
    const place = this.#places.take({ group: due.name, tenant })
    if (place === undefined) return false
    const beganMs = this.#nowMs
    const ended = this.#resume(due, operation, place).then((outcome) => {
      this.#running.delete(recordId)
      if (outcome === 'missed') this.#missed.set(recordId, this.#nowMs + this.#options.pollMs)
      this.#adjustAhead(outcome !== 'missed' && this.#nowMs - beganMs < QUICK_MS)
      this.#fillPlace()
      return outcome
    })
    this.#running.set(recordId, ended)
    return true
  }

  /**
   * Fetches ahead only while operations end quickly. With slow ones, new tenants would wait behind
   * the queue. After a missed one, other workers claim what this one has queued.
   */
  #adjustAhead(isWorthIt: boolean): void {
    this.#ahead = isWorthIt ? Math.min(this.#options.places.places, this.#ahead + 1) : 0
  }

  /** An operation has ended: starts queued ones, or wakes the loop to query for more. */
  #fillPlace(): void {
    // The ordinary places are stuck, so it had one of the reserve: the next one may start at once.
    const isStuck = this.#nowMs - this.#queriedAtMs >= RESERVE_EVERY_MS
    if (this.#places.free === 0 && isStuck) this.#reserveAtMs = Number.NEGATIVE_INFINITY
    if (this.#startQueued() === 0 || this.#places.free > 0) this.#awake.abort()
  }

  /** Whether a record neither runs here nor was missed a moment ago, which would loop. */
  #isFree(recordId: string): boolean {
    for (const [missed, untilMs] of this.#missed) {
      if (untilMs <= this.#nowMs) this.#missed.delete(missed)
    }
    return !this.#running.has(recordId) && !this.#missed.has(recordId)
  }

  #unpreparedTenants(): string[] {
    for (const [tenant, untilMs] of this.#unprepared) {
      if (untilMs <= this.#nowMs) this.#unprepared.delete(tenant)
    }
    return [...this.#unprepared.keys()]
  }

  /** The encryption of this tenant is not prepared: its operations wait, and no attempt counts. */
  #leaveForLater(tenant: string): Outcome {
    this.#unprepared.set(tenant, this.#nowMs + UNPREPARED_MS)
    return 'missed'
  }

  get #nowMs(): number {
    return this.#options.engine.clock.monotonicMs()
  }

  async #resume(
    { record, name }: DueOperation,
    operation: Operation<never>,
    place: PlaceHandle,
  ): Promise<Outcome> {
    const { engine, policy } = this.#options
    const { identity, tenant, operation: scope, recordId } = record
    const subject = { identity, tenant, operation: scope, recordId }
    let { attempt } = record
    let running: Promise<unknown> | undefined
    let hasEnded = false
    let end: WorkEnd = 'ran'
    try {
      const { encryption } = effectiveRule(operation, engine)
      const isReady = prepareEncryption(engine, encryption, record)
      if (isReady !== true && !(await isReady)) return this.#leaveForLater(tenant)
      const outcome = await engine.resume(
        record,
        async (context) => {
          attempt = context.attempt
          engine.emit({ kind: 'operation_resumed', ...subject, name, attempt })
          running = operation.resume(context)
          await running.finally(() => (hasEnded = true))
          return NO_BYTES
        },
        policy,
      )
      if (running === undefined) return 'missed'
      if (outcome.kind === 'ran' || outcome.kind === 'replayed') return 'completed'
      // The operation exceeded its run timeout, so its lease is not renewed any more.
      throw new LeaseLostError(recordId)
    } catch (error) {
      engine.emit({ kind: 'operation_failed', ...subject, name, attempt, error })
      // A store that is down fails every operation: without a pause, all would be retried at once.
      if (!hasCode(error, 'STORE_FAILED')) return 'failed'
      end = 'not_run'
      await sleep(engine.clock, AFTER_FAILURE_MS)
      return 'failed'
    } finally {
      if (running === undefined) place.end('not_run')
      else if (hasEnded) place.end(end)
      else this.#leaveOverdue(running, recordId, place)
    }
  }

  /** The operation ignores its signal: other work gets its place, and it counts as overdue. */
  #leaveOverdue(running: Promise<unknown>, recordId: string, place: PlaceHandle): void {
    place.overdue(recordId)
    const end = () => {
      place.end()
      this.#awake.abort()
    }
    void running.then(end, end)
  }

  #operationOf({ name, version }: DueOperation): Operation<never> | undefined {
    return this.#options.operations.find(
      (known) => known.name === name && known.version === version,
    )
  }

  async #emitOrphans(): Promise<void> {
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
