import type { DurableStore } from '../core/durable-store.ts'
import type { Engine } from '../core/engine-contract.ts'
import { InvalidOptionsError } from '../core/errors.ts'
import { describe, rejectUnknownOptions, wholeNumber } from '../core/options.ts'
import type { RecordView } from '../core/store.ts'
import type { KnownOperation } from './desk.ts'
import { durableOf } from './durable-engine.ts'
import { resolvePlaces, type PlaceLimits } from './place-options.ts'
import {
  resolveSchedule,
  type ReconcileSchedule,
  type ResolvedSchedule,
} from './reconcile-schedule.ts'

export interface ReconcilerOptions {
  engine: Engine

  /**
   * The operations whose effects can be asked for here: by the `reconcile` of each effect. Give
   * every node the same ones, and keep old versions as long as records of them may be open.
   *
   * @default none
   */
  operations?: readonly KnownOperation[]

  /**
   * What can be found out about records without an operation, by the operation of their scope:
   * `'POST /payments'`, or the name that the route was given.
   *
   * @default none
   */
  handlers?: Readonly<Record<string, ReconcileHandler>>

  /** When a record is looked into, and how often. */
  schedule?: ReconcileSchedule

  /**
   * How long one answer may take. Then its `signal` aborts, and the look has found nothing out.
   *
   * @default 30_000
   */
  timeoutMs?: number

  /**
   * How many records are looked into at the same time. Beside these, `reserve` has a few places for
   * operations and tenants that have none.
   *
   * @default 8
   */
  concurrency?: number

  /**
   * Places beside `concurrency`: half of them for tenants of which nothing is looked into here, the
   * rest for operations of which nothing is looked into here. A provider that hangs holds up the
   * records of its own operation alone. 0 where no more than `concurrency` may ever be asked.
   *
   * @default 40 % of `concurrency`, at least 2
   */
  reserve?: number

  /**
   * How many records one `runOnce()` looks into at the most.
   *
   * @default 1_000
   */
  recordsMax?: number

  /**
   * How often `run` looks for records that are due.
   *
   * @default 5_000
   */
  pollMs?: number
}

/** Finds out what became of a record without an operation. It must change nothing. */
export type ReconcileHandler = (asked: {
  readonly record: RecordView
  /** Aborts when the answer is no longer waited for. */
  readonly signal: AbortSignal
}) => HandlerVerdict | Promise<HandlerVerdict>

export type HandlerVerdict =
  /** It took effect, or failed for good: retries get these bytes. `encodeHttpReply` makes them. */
  | { readonly kind: 'completed'; readonly result: Uint8Array }
  /** It provably had no effect: the next request with its key may run it. */
  | { readonly kind: 'failed_retryable' }
  /** Nobody can know yet. */
  | { readonly kind: 'pending' }

export interface ResolvedReconcilerOptions {
  readonly engine: Engine
  readonly durable: DurableStore
  readonly operations: readonly KnownOperation[]
  readonly handlers: ReadonlyMap<string, ReconcileHandler>
  readonly schedule: ResolvedSchedule
  readonly timeoutMs: number
  readonly places: PlaceLimits
  readonly recordsMax: number
  readonly pollMs: number
}

const KNOWN = [
  'engine',
  'operations',
  'handlers',
  'schedule',
  'timeoutMs',
  'concurrency',
  'reserve',
  'recordsMax',
  'pollMs',
] as const satisfies readonly (keyof ReconcilerOptions)[]

const HOUR_MS = 3_600_000

export function resolveReconcilerOptions(options: ReconcilerOptions): ResolvedReconcilerOptions {
  rejectUnknownOptions('createReconciler', options, KNOWN)
  const whole = (name: 'timeoutMs' | 'recordsMax' | 'pollMs', fallback: number, max: number) =>
    wholeNumber(`createReconciler.${name}`, options[name], { fallback, min: 1, max })
  const { engine, operations = [], handlers = {}, concurrency, reserve } = options
  const given = { concurrency, reserve, perGroup: undefined, perTenant: undefined }
  const bounds = { fallback: 8, max: 1_000, perGroup: 'perOperation' }
  return Object.freeze({
    engine,
    durable: durableOf('createReconciler', engine),
    operations: checkOperations('createReconciler', operations),
    handlers: checkHandlers(handlers),
    schedule: resolveSchedule('createReconciler.schedule', options.schedule),
    timeoutMs: whole('timeoutMs', 30_000, HOUR_MS),
    places: resolvePlaces('createReconciler', given, bounds),
    recordsMax: whole('recordsMax', 1_000, 100_000),
    pollMs: whole('pollMs', 5_000, HOUR_MS),
  })
}

export function checkOperations(
  where: string,
  operations: readonly KnownOperation[],
): readonly KnownOperation[] {
  const isList: boolean = Array.isArray(operations)
  if (!isList) {
    throw new InvalidOptionsError(
      `${where}.operations must be an array of operations, got ${describe(operations)}`,
    )
  }
  const seen = new Set<string>()
  for (const given of operations as readonly (KnownOperation | null)[]) {
    const { name, version, effects } = given ?? {}
    const isOperation =
      typeof name === 'string' && Number.isSafeInteger(version) && typeof effects === 'object'
    if (!isOperation) {
      throw new InvalidOptionsError(
        `${where}.operations must hold what operation() returns, got ${describe(given)}`,
      )
    }
    const about = `${version} ${name}`
    if (seen.has(about)) {
      throw new InvalidOptionsError(
        `${where}.operations has version ${version} of "${name}" twice: nobody could tell which ` +
          'one is asked',
      )
    }
    seen.add(about)
  }
  return operations
}

function checkHandlers(
  handlers: Readonly<Record<string, ReconcileHandler>>,
): ReadonlyMap<string, ReconcileHandler> {
  if (handlers === null || typeof handlers !== 'object') {
    throw new InvalidOptionsError(
      'createReconciler.handlers must be an object of functions, by operation, got ' +
        describe(handlers),
    )
  }
  for (const [name, handler] of Object.entries(handlers)) {
    if (typeof handler === 'function') continue
    throw new InvalidOptionsError(
      `createReconciler.handlers["${name}"] must be a function, got ${describe(handler)}`,
    )
  }
  return new Map(Object.entries(handlers))
}
