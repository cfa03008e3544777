import { sleep } from '../../core/time/clock.ts'
import { spread } from '../../core/time/retry.ts'
import { withTimeLimit } from '../../core/time/time-limit.ts'
import type { Completion } from '../../core/store/store.ts'
import { timedOutReply } from '../../http/reply/abandoned-reply.ts'
import { askStore } from '../durable-engine.ts'
import {
  resolveMaintenanceOptions,
  type MaintenanceOptions,
  type MaintenancePart,
  type ResolvedMaintenanceOptions,
} from './maintenance-options.ts'
import { emitUnrelayed } from '../outbox/unrelayed.ts'

export interface Maintenance {
  /**
   * Runs every task at its own interval until `signal` aborts, and then waits for running tasks, at
   * most for `graceMs`. Never rejects: a failure is emitted as `maintenance_failed`, and the task
   * is tried again. No task starts after the engine is closed.
   */
  run(signal: AbortSignal): Promise<void>

  /** Runs every task once, all at the same time. For your own scheduler. Never rejects. */
  runOnce(): Promise<MaintenanceReport>
}

/**
 * Results by task: `sweep`, `reap`, `prune`, `unrelayed`, `complete`, `reconcile`, `relay`, `ledger
 * …`.
 */
export type MaintenanceReport = Readonly<Record<string, TaskResult>>

export type TaskResult =
  | { readonly kind: 'done'; readonly value: unknown }
  | { readonly kind: 'failed'; readonly error: unknown }

/**
 * Runs all background tasks of an engine. Any number of nodes may run it: the store gives each
 * piece of work to one of them.
 */
export function createMaintenance(options: MaintenanceOptions): Maintenance {
  return new TaskMaintenance(resolveMaintenanceOptions(options))
}

const JITTER = 0.1
/** The first pass comes after a random time up to this: nodes of one deploy do not start as one. */
const FIRST_MS_MAX = 1_000
/** The pause before a part whose `run` has ended or failed is started again. */
const RESTART_MS = 5_000
/**
 * Messages in one delete: enough to be worth a commit, few enough to hold locks for a short time.
 */
const PRUNE_BATCH = 1_000
/** Messages in one pass. */
const PRUNE_MAX = 100_000

interface Task {
  readonly name: string
  readonly everyMs: number
  readonly once: () => Promise<unknown>
  /** Used in place of `once` if the part has it. */
  readonly run?: ((signal: AbortSignal) => Promise<unknown>) | undefined
}

/** One call of `run`. After it, no timer of a pass may keep the process alive. */
interface Run {
  readonly signal: AbortSignal
  isOver: boolean
}

class TaskMaintenance implements Maintenance {
  readonly #options: ResolvedMaintenanceOptions
  readonly #tasks: readonly Task[]
  /** Tasks with a running pass. */
  readonly #busy = new Set<Task>()

  constructor(options: ResolvedMaintenanceOptions) {
    this.#options = options
    this.#tasks = this.#listTasks()
  }

  async run(signal: AbortSignal): Promise<void> {
    const { engine, graceMs } = this.#options
    const running = new Map<Task, Promise<void>>()
    const run: Run = { signal, isOver: false }
    for (const task of this.#tasks) {
      const loop =
        task.run === undefined ? this.#runPasses(task, run) : this.#keepRunning(task, signal)
      running.set(
        task,
        loop.finally(() => running.delete(task)),
      )
    }
    const patience = new AbortController()
    const ended = Promise.all(running.values()).finally(() => patience.abort())
    await Promise.race([ended, aborted(signal)])
    await Promise.race([ended, sleep(engine.clock, graceMs, patience.signal)])
    for (const { name } of running.keys()) {
      this.#emitFailure(name, new Error(`the task still runs ${graceMs} ms after shutdown began`))
    }
    run.isOver = true
  }

  async runOnce(): Promise<MaintenanceReport> {
    const ends = this.#tasks.map(async (task) => [task.name, await this.#pass(task)] as const)
    return Object.fromEntries(await Promise.all(ends))
  }

  #listTasks(): Task[] {
    const { engine, durable, every, worker, reconciler, relay, ledgers } = this.#options
    return [
      { name: 'sweep', everyMs: every.sweepMs, once: () => engine.sweep() },
      { name: 'reap', everyMs: every.reapMs, once: () => this.#reap() },
      { name: 'prune', everyMs: every.pruneMs, once: () => this.#prune() },
      {
        name: 'unrelayed',
        everyMs: every.unrelayedMs,
        once: () => emitUnrelayed(engine, durable.outbox),
      },
      ...taskOf('complete', every.completeMs, worker),
      ...taskOf('reconcile', every.reconcileMs, reconciler),
      ...taskOf('relay', every.relayMs, relay),
      ...ledgers.flatMap((job) => taskOf(`ledger ${job.name}`, every.ledgerMs, job)),
    ]
  }

  async #runPasses(task: Task, run: Run): Promise<void> {
    const { signal } = run
    const { engine } = this.#options
    const { clock } = engine
    const firstMs = Math.min(task.everyMs, FIRST_MS_MAX)
    await sleep(clock, Math.floor(Math.random() * firstMs), signal)
    while (this.#mayStart(signal)) {
      await engine.untilStoreAnswers(signal)
      if (!this.#mayStart(signal)) return
      await this.#pass(task, run)
      await sleep(clock, spread(task.everyMs, JITTER), signal)
    }
  }

  /** Runs a part by its own `run`, and starts it again if that ends. */
  async #keepRunning(task: Task, signal: AbortSignal): Promise<void> {
    while (this.#mayStart(signal)) {
      try {
        await task.run!(signal)
        if (this.#mayStart(signal))
          this.#emitFailure(
            task.name,
            new Error('run() ended before its signal aborted; it is started again'),
          )
      } catch (error) {
        this.#emitFailure(task.name, error)
      }
      if (!this.#mayStart(signal)) return
      await sleep(this.#options.engine.clock, spread(RESTART_MS, JITTER), signal)
    }
  }

  #mayStart(signal: AbortSignal): boolean {
    return !signal.aborted && !this.#options.engine.isClosed
  }

  /** Never rejects. A pass that hangs is reported, and delays only its own task. */
  async #pass(task: Task, run?: Run): Promise<TaskResult> {
    const { engine, passTimeoutMs } = this.#options
    try {
      if (this.#busy.has(task)) throw new Error('the previous pass of the task still runs')
      this.#busy.add(task)
      const pass = new Promise((resolve) => resolve(task.once()))
      const over = pass.finally(() => this.#busy.delete(task))
      const limit = {
        clock: engine.clock,
        limitMs: passTimeoutMs,
        background: run !== undefined,
        reason: () => new Error(`the pass still runs after ${passTimeoutMs} ms`),
        onLimit: (reason: Error) => {
          // `run` has reported the task already.
          if (run?.isOver === true) return over
          throw reason
        },
      }
      return { kind: 'done', value: await withTimeLimit(limit, () => over) }
    } catch (error) {
      this.#emitFailure(task.name, error)
      return { kind: 'failed', error }
    }
  }

  #emitFailure(task: string, error: unknown): void {
    this.#options.engine.emit({ kind: 'maintenance_failed', task, error })
  }

  async #reap(): Promise<number> {
    const { engine, abandonedReply } = this.#options
    if (abandonedReply === false) return engine.reap()
    const { retentionMs } = engine.policy({})
    const result = abandonedReply ?? timedOutReply()
    const abandoned: Completion = { result, retentionMs }
    return engine.reap({ abandoned })
  }

  async #prune(): Promise<number> {
    const { engine, durable, keepMessagesMs: olderThanMs } = this.#options
    let count = 0
    while (count < PRUNE_MAX) {
      const pruned = await askStore(engine, 'prune', (signal) =>
        durable.outbox.prune({ limit: PRUNE_BATCH, olderThanMs }, signal),
      )
      count += pruned
      if (pruned < PRUNE_BATCH) break
    }
    if (count > 0) engine.emit({ kind: 'outbox_pruned', count })
    return count
  }
}

function taskOf(name: string, everyMs: number, part: MaintenancePart | undefined): Task[] {
  if (part === undefined) return []
  const run = part.run === undefined ? undefined : (signal: AbortSignal) => part.run!(signal)
  return [{ name, everyMs, once: () => part.runOnce(), run }]
}

function aborted(signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    if (signal.aborted) resolve()
    else signal.addEventListener('abort', () => resolve(), { once: true })
  })
}
