import { sleep } from '../core/clock.ts'
import type { Completion } from '../core/store.ts'
import { timedOutReply } from '../http/abandoned-reply.ts'
import { askStore } from './durable-engine.ts'
import {
  resolveMaintenanceOptions,
  type MaintenanceOptions,
  type MaintenancePart,
  type ResolvedMaintenanceOptions,
} from './maintenance-options.ts'
import { tellUnrelayed } from './unrelayed.ts'

export interface Maintenance {
  /**
   * Every task by itself, at its own interval, until `signal` aborts; then waits for what still
   * runs, at most `graceMs`. Never rejects: what fails is reported and tried again. Once the engine
   * is closed, nothing more is begun.
   */
  run(signal: AbortSignal): Promise<void>

  /** Every task once, at the same time: for a scheduler of your own. Never rejects. */
  runOnce(): Promise<MaintenanceReport>
}

/** By task: `sweep`, `reap`, `prune`, `unrelayed`, `complete`, `reconcile`, `relay`, `ledger …`. */
export type MaintenanceReport = Readonly<Record<string, TaskEnd>>

export type TaskEnd =
  | { readonly kind: 'done'; readonly value: unknown }
  | { readonly kind: 'failed'; readonly error: unknown }

/**
 * All that has to be done beside the requests, in one place. Safe on every node at once: each
 * task takes from the store what no other node has taken.
 */
export function createMaintenance(options: MaintenanceOptions): Maintenance {
  return new TaskMaintenance(resolveMaintenanceOptions(options))
}

const JITTER = 0.1
/** The first pass comes soon, but not on all nodes of a deploy at once. */
const FIRST_MS_MAX = 1_000
/** A part that has ended, or failed, while it should run on is begun again after this. */
const RESTART_MS = 5_000
/** Messages in one call: enough to be worth a commit, few enough to let others in. */
const PRUNE_BATCH = 1_000
/** Messages in one pass. */
const PRUNE_MAX = 100_000

interface Task {
  readonly name: string
  readonly everyMs: number
  readonly once: () => Promise<unknown>
  /** Where it can run on by itself, it does. */
  readonly run?: ((signal: AbortSignal) => Promise<unknown>) | undefined
}

interface Signals {
  /** Nothing more is begun. */
  readonly signal: AbortSignal
  /** What still runs is waited for no longer. */
  readonly over: AbortSignal
}

class TaskMaintenance implements Maintenance {
  readonly #options: ResolvedMaintenanceOptions
  readonly #tasks: readonly Task[]
  /** The tasks of which a pass has not ended. */
  readonly #busy = new Set<Task>()

  constructor(options: ResolvedMaintenanceOptions) {
    this.#options = options
    this.#tasks = this.#listTasks()
  }

  async run(signal: AbortSignal): Promise<void> {
    const { engine, graceMs } = this.#options
    const running = new Map<Task, Promise<void>>()
    const over = new AbortController()
    for (const task of this.#tasks) {
      const signals = { signal, over: over.signal }
      const loop = task.run === undefined ? this.#passes(task, signals) : this.#kept(task, signal)
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
      this.#failed(name, new Error(`it has not ended ${graceMs} ms after it was told to`))
    }
    over.abort()
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
        once: () => tellUnrelayed(engine, durable.outbox),
      },
      ...taskOf('complete', every.completeMs, worker),
      ...taskOf('reconcile', every.reconcileMs, reconciler),
      ...taskOf('relay', every.relayMs, relay),
      ...ledgers.flatMap((job) => taskOf(`ledger ${job.name}`, every.ledgerMs, job)),
    ]
  }

  async #passes(task: Task, { signal, over }: Signals): Promise<void> {
    const { engine } = this.#options
    const { clock } = engine
    const firstMs = Math.min(task.everyMs, FIRST_MS_MAX)
    await sleep(clock, Math.floor(Math.random() * firstMs), signal)
    while (this.#goesOn(signal)) {
      await engine.untilStoreAnswers(signal)
      if (!this.#goesOn(signal)) return
      await this.#pass(task, over)
      await sleep(clock, jittered(task.everyMs), signal)
    }
  }

  /** A part that runs on by itself; where it does not, it is begun again. */
  async #kept(task: Task, signal: AbortSignal): Promise<void> {
    while (this.#goesOn(signal)) {
      try {
        await task.run!(signal)
        if (this.#goesOn(signal)) this.#failed(task.name, new Error('it has ended by itself'))
      } catch (error) {
        this.#failed(task.name, error)
      }
      if (!this.#goesOn(signal)) return
      await sleep(this.#options.engine.clock, jittered(RESTART_MS), signal)
    }
  }

  #goesOn(signal: AbortSignal): boolean {
    return !signal.aborted && !this.#options.engine.isClosed
  }

  /** Never rejects. A pass that hangs is reported, and holds up nobody but its own task. */
  async #pass(task: Task, ended?: AbortSignal): Promise<TaskEnd> {
    const { engine, passMs } = this.#options
    try {
      if (this.#busy.has(task)) throw new Error('its pass before has not ended')
      this.#busy.add(task)
      const pass = new Promise((resolve) => resolve(task.once()))
      const patience = new AbortController()
      const over = pass.finally(() => {
        this.#busy.delete(task)
        patience.abort()
      })
      // Once `run` has ended, nobody waits for it any more, and no timer may keep the process.
      const forget = () => patience.abort()
      ended?.addEventListener('abort', forget)
      const late = sleep(engine.clock, passMs, patience.signal).then(() => {
        ended?.removeEventListener('abort', forget)
        if (!patience.signal.aborted) throw new Error(`it has not ended after ${passMs} ms`)
        return over
      })
      return { kind: 'done', value: await Promise.race([over, late]) }
    } catch (error) {
      this.#failed(task.name, error)
      return { kind: 'failed', error }
    }
  }

  #failed(task: string, error: unknown): void {
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

/** In whole milliseconds, like every other time. */
function jittered(ms: number): number {
  return Math.round(ms * (1 - JITTER + 2 * JITTER * Math.random()))
}

function aborted(signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    if (signal.aborted) resolve()
    else signal.addEventListener('abort', () => resolve(), { once: true })
  })
}
