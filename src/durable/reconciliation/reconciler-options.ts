import type { DurableStore } from '../../core/store/durable-store.ts'
import type { Engine } from '../../core/engine/engine-contract.ts'
import { InvalidOptionsError } from '../../core/errors.ts'
import { describe, rejectUnknownOptions, wholeNumber } from '../../core/options.ts'
import type { RecordView } from '../../core/store/store.ts'
import type { OperationInfo } from '../operator/operator-acts.ts'
import { HOUR_MS } from '../../core/time/durations.ts'
import { durableOf } from '../durable-engine.ts'
import { resolvePlaces, type PlaceLimits } from '../places/place-options.ts'
import {
  resolveSchedule,
  type ReconcileSchedule,
  type ResolvedSchedule,
} from './reconcile-schedule.ts'

export interface ReconcilerOptions {
  /** The engine of the records. Its store must keep operations: SQLite, PostgreSQL or MySQL. */
  engine: Engine

  /**
   * The operations whose effects this process can find out, by the `reconcile` function of each
   * effect. Give every node the same list, and keep old versions while their records may be open.
   *
   * @default none
   */
  operations?: readonly OperationInfo[]

  /**
   * Functions that find out the outcome of records without an operation, by the `operation` of
   * their scope: `'POST /payments'`, or the name of the route. A record without a handler on any
   * node is given up after the last try and waits for an operator.
   *
   * @default none
   */
  handlers?: Readonly<Record<string, ReconcileHandler>>

  /** When and how often a record is tried. @default see each field */
  schedule?: ReconcileSchedule

  /**
   * How long a `reconcile` function or a handler may take. Then its `signal` aborts, and the try
   * counts as open. After three timeouts in a row the operation is paused, at first for two times
   * `timeoutMs` and at most for five minutes. A longer limit lets slow providers answer, but each
   * call that hangs holds its place for as long. From 1 to 3_600_000 (one hour).
   *
   * @default 30_000
   */
  timeoutMs?: number

  /**
   * How many records are tried at the same time. More find out outcomes sooner after an outage and
   * send more requests to providers at once. `reserve` comes on top. From 1 to 1_000.
   *
   * @default 8
   */
  concurrency?: number

  /**
   * Places in addition to `concurrency`: half of them for tenants without a record in progress
   * here, the rest for operations without one. With it, a provider that hangs delays only the
   * records of one operation. 0 makes `concurrency` a hard limit. From 0 to 1_000.
   *
   * @default 40 % of `concurrency`, at least 2
   */
  reserve?: number

  /**
   * The most records that one `runOnce()` tries. It bounds the length of a pass. From 1 to 100_000.
   *
   * @default 1_000
   */
  recordsMax?: number

  /**
   * How often `run` queries the store for due records. Shorter finds them sooner and costs more
   * queries. From 1 to 3_600_000 (one hour).
   *
   * @default 5_000
   */
  pollMs?: number
}

/** Finds out the outcome of a record without an operation. It must not have effects. */
export type ReconcileHandler = (call: {
  readonly record: RecordView
  /** Aborts after `timeoutMs`. A later answer is dropped. */
  readonly signal: AbortSignal
}) => HandlerVerdict | Promise<HandlerVerdict>

export type HandlerVerdict =
  /**
   * The work took effect, or failed for good. Retries get `result`, for example
   * `encodeHttpReply()`.
   */
  | { readonly kind: 'completed'; readonly result: Uint8Array }
  /** The work provably had no effect: the next request with the key may run it. */
  | { readonly kind: 'failed_retryable' }
  /** The outcome is not known yet: the record is tried again later. */
  | { readonly kind: 'pending' }

export interface ResolvedReconcilerOptions {
  readonly engine: Engine
  readonly durable: DurableStore
  readonly operations: readonly OperationInfo[]
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
  operations: readonly OperationInfo[],
): readonly OperationInfo[] {
  const isList: boolean = Array.isArray(operations)
  if (!isList) {
    throw new InvalidOptionsError(
      `${where}.operations must be an array of operations, got ${describe(operations)}`,
    )
  }
  const seen = new Set<string>()
  for (const given of operations as readonly (OperationInfo | null)[]) {
    const { name, version, effects } = given ?? {}
    const isOperation =
      typeof name === 'string' && Number.isSafeInteger(version) && typeof effects === 'object'
    if (!isOperation) {
      throw new InvalidOptionsError(
        `${where}.operations must contain operations from defineOperation(), got ` +
          describe(given),
      )
    }
    const about = `${version} ${name}`
    if (seen.has(about)) {
      throw new InvalidOptionsError(
        `${where}.operations has version ${version} of "${name}" twice; ` +
          'pass each version once',
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
      'createReconciler.handlers must be an object of functions by operation, got ' +
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
