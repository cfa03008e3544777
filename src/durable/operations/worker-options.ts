import type { PhaseStore } from '../../core/store/durable-store.ts'
import type { Engine } from '../../core/engine/engine-contract.ts'
import { InvalidOptionsError } from '../../core/errors.ts'
import { describe, rejectUnknownOptions, wholeNumber } from '../../core/options.ts'
import { resumePolicyOf, type Policy, type PolicyOptions } from '../../core/engine/policy.ts'
import { durableOf } from '../durable-engine.ts'
import type { Operation } from './operation.ts'
import { resolvePlaces, type PlaceLimits } from '../places/place-options.ts'

export interface WorkerOptions {
  /** The engine of the records. Its store must keep operations: SQLite, PostgreSQL or MySQL. */
  engine: Engine

  /**
   * The operations that the worker runs. It emits `operation_orphaned` for due operations of other
   * names or versions, and leaves them to other workers.
   */
  operations: readonly Operation<never>[]

  /**
   * How many operations run at the same time. More finish a backlog sooner and use more connections
   * and provider calls at once. `reserve` comes on top. From 1 to 1_000.
   *
   * @default 10
   */
  concurrency?: number

  /**
   * How many runs of one operation may be in progress. Lower it for an operation whose provider is
   * slow, so that more of `concurrency` is left for the others. From 1 to 1_000, or to the default
   * if that is larger.
   *
   * @default `concurrency` + `reserve`
   */
  perOperation?: number

  /**
   * How many operations of one tenant may be in progress. A lower limit leaves more room for other
   * tenants, and leaves places empty while only one tenant has work. From 1 to 1_000, or to the
   * default if that is larger.
   *
   * @default `concurrency` + `reserve`
   */
  perTenant?: number

  /**
   * Places in addition to `concurrency`: half of them for tenants without a run in progress here,
   * the rest for operations without one. With it, slow work of one tenant or one operation does not
   * delay the others. 0 makes `concurrency` a hard limit. From 0 to 1_000.
   *
   * @default 40 % of `concurrency`, at least 2
   */
  reserve?: number

  /**
   * How often the worker queries the store for due operations. Operations that this process accepts
   * are started at once. Shorter finds the others sooner and costs more queries. From 1 to
   * 3_600_000 (one hour).
   *
   * @default 1_000
   */
  pollMs?: number

  /**
   * The policy of the operations that the worker runs: `leaseMs`, `retentionMs`, `runTimeoutMs`,
   * `maxLapses` and `settleTimeoutMs`.
   *
   * @default the engine's
   */
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

/** The other policy options are about HTTP requests, which a worker does not have. */
const POLICY_NAMES = [
  'leaseMs',
  'retentionMs',
  'runTimeoutMs',
  'maxLapses',
  'settleTimeoutMs',
] as const satisfies readonly (keyof NonNullable<WorkerOptions['policy']>)[]

export function resolveWorkerOptions(options: WorkerOptions): ResolvedWorkerOptions {
  const where = 'createWorker'
  rejectUnknownOptions(where, options, KNOWN)
  const { engine, operations, policy = {} } = options
  const { concurrency, perOperation: perGroup, perTenant, reserve, pollMs } = options
  const { phases } = durableOf(where, engine)
  rejectUnknownOptions(`${where}.policy`, policy, POLICY_NAMES)
  const placeOptions = { concurrency, perGroup, perTenant, reserve }
  const bounds = { fallback: 10, max: 1_000, perGroup: 'perOperation' }
  return Object.freeze({
    engine,
    phases,
    operations: checkOperations(operations),
    places: resolvePlaces(where, placeOptions, bounds),
    pollMs: wholeNumber(`${where}.pollMs`, pollMs, { fallback: 1_000, min: 1, max: 3_600_000 }),
    policy: operationPolicy(engine, policy),
  })
}

/**
 * The policy with which `engine.run` runs an operation: `engine.run({ policy, ... },
 * pay.work(input))`.
 */
export function operationPolicy(engine: Engine, options: PolicyOptions = {}): Policy {
  return resumePolicyOf(engine.policy(options))
}

function checkOperations(operations: unknown): readonly Operation<never>[] {
  const list = Array.isArray(operations) ? (operations as readonly Partial<Operation<never>>[]) : []
  if (list.length === 0 || list.some((one) => typeof one?.resume !== 'function')) {
    throw new InvalidOptionsError(
      `createWorker.operations must be an array of operations, got ${describe(operations)}`,
    )
  }
  const names = list.map(({ name, version }) => `${name} version ${version}`)
  const twice = names.find((name, index) => names.indexOf(name) !== index)
  if (twice !== undefined) {
    throw new InvalidOptionsError(
      `createWorker.operations has operation ${twice} twice; pass each version once`,
    )
  }
  return list as readonly Operation<never>[]
}
