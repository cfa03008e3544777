import type { PhaseStore } from '../core/durable-store.ts'
import type { Engine } from '../core/engine.ts'
import { InvalidOptionsError } from '../core/errors.ts'
import { describe, rejectUnknownOptions, wholeNumber } from '../core/options.ts'
import { resumable, type Policy, type PolicyOptions } from '../core/policy.ts'
import { durableOf } from './durable-engine.ts'
import type { Operation } from './operation.ts'
import { resolvePlaces, type PlaceLimits } from './place-options.ts'

export interface WorkerOptions {
  engine: Engine

  /** What it can run. Of others it says that they are orphans, and leaves them alone. */
  operations: readonly Operation<never>[]

  /**
   * How many operations run at the same time. Beside these, `reserve` has a few places for tenants
   * and operations that have none.
   *
   * @default 10
   */
  concurrency?: number

  /**
   * How many places one operation may have. Lower it for an operation whose provider is slow, so
   * that it leaves more of `concurrency` to the others.
   *
   * @default no limit beside `concurrency` and `reserve`
   */
  perOperation?: number

  /**
   * How many places one tenant may have. A lower limit leaves more room for other tenants, and
   * leaves places empty while only one tenant has work.
   *
   * @default no limit beside `concurrency` and `reserve`
   */
  perTenant?: number

  /**
   * Places beside `concurrency`: half of them for tenants of which nothing runs here, the rest for
   * operations of which nothing runs here. Work of one tenant, or of one operation, that takes long
   * cannot keep the others waiting. 0 where no more than `concurrency` may ever run.
   *
   * @default 40 % of `concurrency`, at least 2
   */
  reserve?: number

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

export interface ResolvedWorkerOptions {
  readonly engine: Engine
  readonly phases: PhaseStore
  readonly operations: readonly Operation<never>[]
  readonly places: PlaceLimits
  readonly pollMs: number
  readonly policy: Policy
}

const KNOWN = [
  'engine',
  'operations',
  'concurrency',
  'perOperation',
  'perTenant',
  'reserve',
  'pollMs',
  'policy',
] as const satisfies readonly (keyof WorkerOptions)[]

/** The rest is about requests, of which a worker has none. */
const POLICY_NAMES = [
  'leaseMs',
  'retentionMs',
  'maxRunMs',
  'maxAttempts',
  'settleTimeoutMs',
] as const satisfies readonly (keyof NonNullable<WorkerOptions['policy']>)[]

export function resolveWorkerOptions(options: WorkerOptions): ResolvedWorkerOptions {
  const where = 'createWorker'
  rejectUnknownOptions(where, options, KNOWN)
  const { engine, operations, policy = {} } = options
  const { concurrency, perOperation: perGroup, perTenant, reserve, pollMs } = options
  const { phases } = durableOf(where, engine)
  rejectUnknownOptions(`${where}.policy`, policy, POLICY_NAMES)
  const given = { concurrency, perGroup, perTenant, reserve }
  const bounds = { fallback: 10, max: 1_000, perGroup: 'perOperation' }
  return Object.freeze({
    engine,
    phases,
    operations: checkOperations(operations),
    places: resolvePlaces(where, given, bounds),
    pollMs: wholeNumber(`${where}.pollMs`, pollMs, { fallback: 1_000, min: 1, max: 3_600_000 }),
    policy: operationPolicy(engine, policy),
  })
}

/** The policy under which `engine.run` can run an operation: `pay.work(input)`. */
export function operationPolicy(engine: Engine, options: PolicyOptions = {}): Policy {
  return resumable(engine.policy(options))
}

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
