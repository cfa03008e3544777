import { Breaker, type BreakerState } from '../core/breaker.ts'
import type { DueUnknown, UnknownOperation, UnknownRequest } from '../core/durable-store.ts'
import type { Engine } from '../core/engine-contract.ts'
import { Places, type Ask, type PlacesStats } from './places.ts'
import type { PlaceLimits } from './place-options.ts'

/** What to take from the store. */
export interface LookAsk extends Pick<UnknownRequest, 'limit'> {
  readonly withoutOperations: readonly UnknownOperation[]
  readonly withoutTenants: readonly string[]
}

/** `not_asked`: the look says nothing of the provider. */
export type LookOutcome = 'answered' | 'timeout' | 'not_asked'

/** One look into a record. */
export interface Look {
  /** The provider is asked now. */
  ask(): void
  end(outcome: LookOutcome): void
  /** The provider's code runs on although its time limit is over, until `ended` resolves. */
  overdue(ended: Promise<unknown>): void
}

export interface LookPlacesOptions {
  readonly engine: Engine
  readonly places: PlaceLimits
  /** The operations that can be looked into here. */
  readonly known: readonly UnknownOperation[]
  /** How long one answer may take. */
  readonly timeoutMs: number
}

/** Timeouts in a row after which an operation is left alone for a while. */
const TIMEOUTS_MAX = 3
/** The longest time for which it is left alone. */
const BREAK_MS_MAX = 300_000
/** Stands for all operations of which nothing is known here. */
const OTHERS = ''

interface Group {
  readonly operation: UnknownOperation
  /** Absent for operations that cannot be looked into here: their providers are never asked. */
  readonly breaker: Breaker | undefined
  looks: number
}

/**
 * The places of a reconciler, divided by operation and tenant. An operation whose looks time out
 * backs off as a whole: one look at a time finds out whether its provider answers again.
 */
export class LookPlaces {
  readonly #options: LookPlacesOptions
  readonly #places: Places
  /** The known operations, and those of others while one of their records is looked into. */
  readonly #groups = new Map<string, Group>()

  constructor(options: LookPlacesOptions) {
    this.#options = options
    const { engine, places, known } = options
    const { clock, store } = engine
    const emit = engine.emit.bind(engine)
    this.#places = new Places({ part: 'reconciler', clock, store, emit, ...places })
    for (const operation of known) {
      const name = nameOf(operation)
      this.#groups.set(name, { operation, breaker: this.#newBreaker(name), looks: 0 })
    }
  }

  get free(): number {
    return this.#places.free
  }

  /** While it works, health is told what is paused. Returns what ends that. */
  use(): () => void {
    return this.#places.pauses.use()
  }

  stats(): PlacesStats {
    return this.#places.stats()
  }

  /** For the ordinary places; `undefined` where none is free. */
  ask(limit: number): LookAsk | undefined {
    const ask = this.#places.ask(this.#names())
    return ask && this.#toAsk({ ...ask, limit: Math.min(ask.limit, limit) })
  }

  /** One record for each place of the reserve, since what is taken must find a place. */
  askReserve(): LookAsk[] {
    return this.#places.askReserve(this.#names()).map((ask) => this.#toAsk({ ...ask, limit: 1 }))
  }

  /** One record of each paused operation that was left alone for long enough. */
  askTries(): LookAsk[] {
    const rested = [...this.#groups].filter(([, { breaker }]) => {
      return breaker !== undefined && (breaker.state === 'closed' || breaker.leftMs === 0)
    })
    return this.#places.askTries(rested.map(([name]) => name)).map((ask) => this.#toAsk(ask))
  }

  /** A record that was taken from the store gets its place, also where that is one too many. */
  begin({ record, operation: stored }: DueUnknown): Look {
    const operation: UnknownOperation = stored ?? { name: record.operation, version: undefined }
    const name = nameOf(operation)
    const group = this.#groups.get(name) ?? { operation, breaker: undefined, looks: 0 }
    this.#groups.set(name, group)
    group.looks++
    const place = this.#places.take({ group: name, tenant: record.tenant })
    return {
      // Not before: a look that asks no provider must not use up the try of a break.
      ask: () => void group.breaker?.mayTry(),
      end: (outcome) => {
        place?.end(outcome === 'not_asked' ? 'not_run' : 'ran')
        if (outcome === 'answered') group.breaker?.succeeded()
        if (outcome === 'timeout') group.breaker?.failed()
        group.looks--
        if (group.looks === 0 && group.breaker === undefined) this.#groups.delete(name)
      },
      overdue: (ended) => {
        void ended.then(this.#places.pauses.countOverdue(name, record.recordId))
      },
    }
  }

  #names(): string[] {
    return [OTHERS, ...this.#groups.keys()]
  }

  #toAsk({ limit, groups, withoutTenants }: Ask): LookAsk {
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
      Math.min(BREAK_MS_MAX, timeoutMs * 2 ** Math.min(number, 20))
    return new Breaker(engine.clock, { failuresMax: TIMEOUTS_MAX, breakMs, onChange })
  }
}

function nameOf({ name, version }: UnknownOperation): string {
  return version === undefined ? name : `${name} version ${version}`
}
