/**
 * Decides which records a reconciler may start.
 *
 * Tests: test/durable/reconciliation/reconciler-fairness.test.ts, reconciler-pauses.test.ts.
 */
import { backoffMs } from '../../core/time/retry.ts'
import { Breaker, type BreakerState } from '../../core/health/breaker.ts'
import type {
  DueUnknown,
  UnknownOperation,
  UnknownRequest,
} from '../../core/store/operator-store.ts'
import type { Engine } from '../../core/engine/engine-contract.ts'
import { MINUTE_MS } from '../../core/time/durations.ts'
import { Places, type PlacesStats, type WorkQuery } from '../places/places.ts'
import type { PlaceLimits } from '../places/place-options.ts'

/** The records to take from the store. */
export interface RecordQuery extends Pick<UnknownRequest, 'limit'> {
  readonly withoutOperations: readonly UnknownOperation[]
  readonly withoutTenants: readonly string[]
}

/** `not_asked`: the provider was not called, so its health is not affected. */
export type ProviderOutcome = 'answered' | 'timeout' | 'not_asked'

/** The place of one record while it is reconciled. */
export interface RecordPlace {
  /** The provider is about to be called. */
  ask(): void
  end(outcome: ProviderOutcome): void
  /** The provider's code still runs after its time limit; `ended` resolves when it stops. */
  overdue(ended: Promise<unknown>): void
}

export interface ReconcilePlacesOptions {
  readonly engine: Engine
  readonly places: PlaceLimits
  /** The operations that this process can reconcile. */
  readonly known: readonly UnknownOperation[]
  /** How long one answer may take. */
  readonly timeoutMs: number
}

/** Consecutive timeouts after which an operation is paused. */
const TIMEOUTS_MAX = 3
/** The longest pause of an operation whose provider times out. */
const BREAK_MS_MAX = 5 * MINUTE_MS
/** Group name that stands for all operations this process does not know. */
const OTHERS = ''

interface Group {
  readonly operation: UnknownOperation
  /** Absent for an operation that this process cannot reconcile: its provider is never called. */
  readonly breaker: Breaker | undefined
  running: number
}

/**
 * Divides the places of a reconciler by operation and tenant. An operation whose provider times out
 * is paused as a whole; single trials find out whether the provider answers again.
 */
export class ReconcilePlaces {
  readonly #options: ReconcilePlacesOptions
  readonly #places: Places
  /** The known operations, and any other operation while one of its records is reconciled. */
  readonly #groups = new Map<string, Group>()

  constructor(options: ReconcilePlacesOptions) {
    this.#options = options
    const { engine, places, known } = options
    const { clock, store } = engine
    const emit = engine.emit.bind(engine)
    this.#places = new Places({ part: 'reconciler', clock, store, emit, ...places })
    for (const operation of known) {
      const name = nameOf(operation)
      this.#groups.set(name, { operation, breaker: this.#newBreaker(name), running: 0 })
    }
  }

  get free(): number {
    return this.#places.free
  }

  /** Lists paused operations in `engine.health()` until the returned function is called. */
  use(): () => void {
    return this.#places.pauses.use()
  }

  stats(): PlacesStats {
    return this.#places.stats()
  }

  /** Records for the ordinary places; `undefined` if none is free. */
  query(limit: number): RecordQuery | undefined {
    const query = this.#places.query(this.#names())
    return query && this.#toRecordQuery({ ...query, limit: Math.min(query.limit, limit) })
  }

  /** One record for each part of the reserve: every record that is taken must find a place. */
  reserveQueries(): RecordQuery[] {
    const queries = this.#places.reserveQueries(this.#names())
    return queries.map((query) => this.#toRecordQuery({ ...query, limit: 1 }))
  }

  /** One record of each paused operation whose trial is due. */
  trialQueries(): RecordQuery[] {
    const rested = [...this.#groups].filter(([, { breaker }]) => {
      return breaker !== undefined && (breaker.state === 'closed' || breaker.leftMs === 0)
    })
    const queries = this.#places.trialQueries(rested.map(([name]) => name))
    return queries.map((query) => this.#toRecordQuery(query))
  }

  /** Starts a record that was taken from the store, even if that is one more than the limit. */
  begin({ record, operation: stored }: DueUnknown): RecordPlace {
    const operation: UnknownOperation = stored ?? { name: record.operation, version: undefined }
    const name = nameOf(operation)
    const group = this.#groups.get(name) ?? { operation, breaker: undefined, running: 0 }
    this.#groups.set(name, group)
    group.running++
    const place = this.#places.take({ group: name, tenant: record.tenant })
    return {
      // A separate step, so that a record whose provider is not called leaves the breaker's trial.
      ask: () => void group.breaker?.mayTry(),
      end: (outcome) => {
        place?.end(outcome === 'not_asked' ? 'not_run' : 'ran')
        if (outcome === 'answered') group.breaker?.succeeded()
        if (outcome === 'timeout') group.breaker?.failed()
        group.running--
        if (group.running === 0 && group.breaker === undefined) this.#groups.delete(name)
      },
      overdue: (ended) => {
        void ended.then(this.#places.pauses.countOverdue(name, record.recordId))
      },
    }
  }

  #names(): string[] {
    return [OTHERS, ...this.#groups.keys()]
  }

  #toRecordQuery({ limit, groups, withoutTenants }: WorkQuery): RecordQuery {
    const without = [...this.#groups].filter(([name]) => !groups.includes(name))
    return {
      limit,
      withoutOperations: without.map(([, { operation }]) => operation),
      withoutTenants,
    }
  }

  #newBreaker(name: string): Breaker {
    const { engine, timeoutMs } = this.#options
    let release: () => void = () => undefined
    const onChange = (from: BreakerState, to: BreakerState) => {
      if (from === 'closed') release = this.#places.pauses.hold(name)
      else if (to === 'closed') release()
    }
    const breakMs = (number: number) =>
      backoffMs({ firstMs: 2 * timeoutMs, maxMs: BREAK_MS_MAX }, number)
    return new Breaker(engine.clock, { failuresMax: TIMEOUTS_MAX, breakMs, onChange })
  }
}

function nameOf({ name, version }: UnknownOperation): string {
  return version === undefined ? name : `${name} version ${version}`
}
