import { sleep } from '../core/clock.ts'
import type { DueOperation, PhaseStore } from '../core/durable-store.ts'
import type { Engine } from '../core/engine.ts'
import { InvalidOptionsError, LeaseLostError, hasCode } from '../core/errors.ts'
import { describe, rejectUnknownOptions, wholeNumber } from '../core/options.ts'
import { resumable, type Policy, type PolicyOptions } from '../core/policy.ts'
import { askStore, durableOf } from './durable-engine.ts'
import { onNudge } from './nudge.ts'
import type { Operation } from './operation.ts'

export interface WorkerOptions {
  engine: Engine

  /** What it can run. Of others it says that they are orphans, and leaves them alone. */
  operations: readonly Operation<never>[]

  /** How many operations run at the same time. @default 10 */
  concurrency?: number

  /**
   * How often it looks for operations that are due. What is accepted in the same process is taken
   * at once.
   *
   * @default 1_000
   */
  pollMs?: number

  /** Lease, retention and time limits of what it runs. @default those of the engine */
  policy?: Omit<PolicyOptions, 'onLapse' | 'onError' | 'whileInProgress' | 'afterExpiry'>
}

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
}

/**
 * Runs operations without their clients: those that were accepted, and those that were left behind
 * by a client that never came back or a process that died. Any number of workers may run.
 */
export function createWorker(options: WorkerOptions): Worker {
  return new OperationWorker(options)
}

/** The policy under which `engine.run` can run an operation: `pay.work(input)`. */
export function operationPolicy(engine: Engine, options: PolicyOptions = {}): Policy {
  return resumable(engine.policy(options))
}

/** The rest is about requests, of which a worker has none. */
const POLICY_NAMES = [
  'leaseMs',
  'retentionMs',
  'maxRunMs',
  'maxAttempts',
  'settleTimeoutMs',
] as const satisfies readonly (keyof NonNullable<WorkerOptions['policy']>)[]

const ORPHANS_EVERY_MS = 60_000
const ORPHANS_SHOWN = 10
/** After a store failure, so that a store that is down is not hammered. */
const AFTER_FAILURE_MS = 1_000

type Outcome = keyof WorkerPass

class OperationWorker implements Worker {
  readonly #engine: Engine
  readonly #phases: PhaseStore
  readonly #operations: readonly Operation<never>[]
  readonly #policy: Policy
  readonly #concurrency: number
  readonly #pollMs: number
  /** What runs here, by record id. */
  readonly #running = new Map<string, Promise<Outcome>>()
  /** What could not be taken, by record id, until when it is left alone. */
  readonly #missed = new Map<string, number>()
  #orphansAtMs = Number.NEGATIVE_INFINITY
  /** Ends the pause: by a nudge, by the end of something that runs, by the signal. */
  #awake = new AbortController()

  constructor(options: WorkerOptions) {
    rejectUnknownOptions('createWorker', options, [
      'engine',
      'operations',
      'concurrency',
      'pollMs',
      'policy',
    ])
    const { engine, operations, policy = {} } = options
    this.#phases = durableOf('createWorker', engine).phases
    this.#engine = engine
    this.#operations = checkOperations(operations)
    const { concurrency, pollMs } = options
    this.#concurrency = wholeNumber('createWorker.concurrency', concurrency, {
      fallback: 10,
      min: 1,
      max: 1_000,
    })
    this.#pollMs = wholeNumber('createWorker.pollMs', pollMs, {
      fallback: 1_000,
      min: 1,
      max: 3_600_000,
    })
    rejectUnknownOptions('createWorker.policy', policy, POLICY_NAMES)
    this.#policy = operationPolicy(engine, policy)
  }

  async run(signal: AbortSignal): Promise<void> {
    const wake = () => this.#awake.abort()
    const stopListening = onNudge(this.#engine.store, wake)
    signal.addEventListener('abort', wake)
    while (!signal.aborted && !this.#engine.isClosed) {
      await this.#engine.untilStoreAnswers(signal)
      if (signal.aborted) break
      // Before it looks: what happens while it looks must not be slept over.
      this.#awake = new AbortController()
      const started = await this.#start().catch((error: unknown) => {
        this.#engine.emit({ kind: 'maintenance_failed', task: 'worker', error })
        return 0
      })
      if (started > 0 && this.#running.size < this.#concurrency) continue
      await sleep(this.#engine.clock, this.#pollMs, this.#awake.signal)
    }
    stopListening()
    signal.removeEventListener('abort', wake)
    await Promise.all(this.#running.values())
  }

  async runOnce(): Promise<WorkerPass> {
    const before = new Set(this.#running.keys())
    await this.#start()
    const mine = [...this.#running].filter(([recordId]) => !before.has(recordId))
    const outcomes = await Promise.all(mine.map(([, outcome]) => outcome))
    const count = (kind: Outcome) => outcomes.filter((outcome) => outcome === kind).length
    return { completed: count('completed'), failed: count('failed'), missed: count('missed') }
  }

  /** Starts as many of the due as there is room for. */
  async #start(): Promise<number> {
    const room = this.#concurrency - this.#running.size
    if (room <= 0 || this.#engine.isClosed) return 0
    await this.#tellOrphans()
    const operations = this.#operations.map(({ name, version }) => ({ name, version }))
    const due = await askStore(this.#engine, 'due', (signal) =>
      this.#phases.due({ operations, limit: room }, signal),
    )
    const fresh = due.filter(({ record }) => this.#isFree(record.recordId))
    for (const one of fresh) {
      const { recordId } = one.record
      const ended = this.#resume(one).then((outcome) => {
        this.#running.delete(recordId)
        this.#awake.abort()
        if (outcome === 'missed') this.#missed.set(recordId, this.#nowMs + this.#pollMs)
        return outcome
      })
      this.#running.set(recordId, ended)
    }
    return fresh.length
  }

  /** Not what runs here, nor what was out of reach a moment ago: it would be asked for ever. */
  #isFree(recordId: string): boolean {
    for (const [missed, untilMs] of this.#missed) {
      if (untilMs <= this.#nowMs) this.#missed.delete(missed)
    }
    return !this.#running.has(recordId) && !this.#missed.has(recordId)
  }

  get #nowMs(): number {
    return this.#engine.clock.monotonicMs()
  }

  async #resume({ record, name, version }: DueOperation): Promise<Outcome> {
    const operation = this.#operations.find(
      (known) => known.name === name && known.version === version,
    )
    if (operation === undefined) return 'missed'
    const { identity, tenant, operation: scope, recordId } = record
    const subject = { identity, tenant, operation: scope, recordId }
    let { attempt } = record
    let isEntered = false
    try {
      const outcome = await this.#engine.resume(
        record,
        async (context) => {
          attempt = context.attempt
          isEntered = true
          this.#engine.emit({ kind: 'operation_resumed', ...subject, name, attempt })
          await operation.resume(context)
          return NO_BYTES
        },
        this.#policy,
      )
      if (!isEntered) return 'missed'
      if (outcome.kind === 'ran' || outcome.kind === 'replayed') return 'completed'
      // It has run too long, and its lease is renewed no more.
      throw new LeaseLostError(recordId)
    } catch (error) {
      this.#engine.emit({ kind: 'operation_failed', ...subject, name, attempt, error })
      // A store that is down fails everything at once: give it a moment.
      if (hasCode(error, 'STORE_FAILED')) await sleep(this.#engine.clock, AFTER_FAILURE_MS)
      return 'failed'
    }
  }

  async #tellOrphans(): Promise<void> {
    if (this.#nowMs - this.#orphansAtMs < ORPHANS_EVERY_MS) return
    this.#orphansAtMs = this.#nowMs
    const operations = this.#operations.map(({ name, version }) => ({ name, version }))
    const orphans = await askStore(this.#engine, 'orphans', (signal) =>
      this.#phases.orphans({ operations, limit: ORPHANS_SHOWN }, signal),
    )
    for (const orphan of orphans) this.#engine.emit({ kind: 'operation_orphaned', ...orphan })
  }
}

const NO_BYTES = new Uint8Array(0)

function checkOperations(operations: unknown): readonly Operation<never>[] {
  const list = Array.isArray(operations) ? (operations as readonly Partial<Operation<never>>[]) : []
  if (list.length === 0 || list.some((one) => typeof one?.resume !== 'function')) {
    throw new InvalidOptionsError(
      `createWorker.operations must be a list of operations, got ${describe(operations)}`,
    )
  }
  const names = list.map(({ name, version }) => `${name} version ${version}`)
  const twice = names.find((name, index) => names.indexOf(name) !== index)
  if (twice !== undefined) {
    throw new InvalidOptionsError(`createWorker.operations has operation ${twice} twice`)
  }
  return list as readonly Operation<never>[]
}
