import { Breaker, type BreakerState } from '../core/breaker.ts'
import type { DueUnknown, UnknownOperation, UnknownRequest } from '../core/durable-store.ts'
import type { Engine } from '../core/engine-contract.ts'
import { notePaused } from '../core/paused-work.ts'
import { Places, type Ask, type PlacesStats } from './places.ts'
import type { PlaceLimits } from './place-options.ts'

/** What to take from the store. */
export interface LookAsk extends Pick<UnknownRequest, 'limit'> {
  readonly withoutOperations: readonly UnknownOperation[]
  readonly withoutTenants: readonly string[]
}

/** One look at a provider. */
export interface Look {
  end(isTimeout: boolean): void
  /** The provider's code runs on although its time limit is over, until `ended` resolves. */
  overdue(ended: Promise<unknown>): void
}

export interface LookPlacesOptions {
  readonly engine: Engine
  readonly places: PlaceLimits
  /** How long one answer may take. */
  readonly timeoutMs: number
}

/** Timeouts in a row after which an operation is left alone for a while. */
const TIMEOUTS_MAX = 3
/** The longest time for which it is left alone. */
const BREAK_MS_MAX = 300_000
/** Operations with timeouts that are remembered. */
const BREAKERS_MAX = 1_000
/** Stands for all operations of which nothing is known here. */
const OTHERS = ''

interface Group {
  readonly operation: UnknownOperation
  looks: number
  breaker: Breaker | undefined
}

/**
 * The places of a reconciler, divided by operation and tenant. An operation whose looks time out
 * backs off as a whole: one look at a time finds out whether its provider answers again.
 */
export class LookPlaces {
  readonly #options: LookPlacesOptions
  readonly #places: Places
  /** Operations that are looked into, or whose looks have timed out. */
  readonly #groups = new Map<string, Group>()

  constructor(options: LookPlacesOptions) {
    this.#options = options
    const { engine, places } = options
    const { clock, store } = engine
    const emit = engine.emit.bind(engine)
    this.#places = new Places({ part: 'reconciler', clock, store, emit, ...places })
  }

  get free(): number {
    return this.#places.free
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

  /** One record of each operation that was left alone for long enough. */
  askTrials(): LookAsk[] {
    const broken = [...this.#groups].filter(
      ([name, { breaker }]) => isBroken(breaker) && !this.#places.pauses.isPaused(name),
    )
    const due = broken.filter(([, { breaker }]) => breaker!.mayTry())
    return due.map(([name]) => {
      const others = [...this.#groups].filter(([other]) => other !== name)
      return {
        limit: 1,
        withoutOperations: others.map(([, { operation }]) => operation),
        withoutTenants: [],
      }
    })
  }

  /** A record that was taken from the store gets its place, also where that is one too many. */
  begin({ record, operation: stored }: DueUnknown): Look {
    const operation: UnknownOperation = stored ?? { name: record.operation, version: undefined }
    const name = nameOf(operation)
    const group = this.#groups.get(name) ?? { operation, looks: 0, breaker: undefined }
    this.#groups.set(name, group)
    group.looks++
    const place = this.#places.take({ group: name, tenant: record.tenant })
    return {
      end: (isTimeout) => {
        place?.end()
        group.looks--
        this.#note(name, group, isTimeout)
        if (group.looks === 0 && group.breaker === undefined) this.#groups.delete(name)
      },
      overdue: (ended) => {
        void ended.then(this.#places.pauses.countOverdue(name, record.recordId))
      },
    }
  }

  #names(): string[] {
    const known = [...this.#groups].filter(([, { breaker }]) => !isBroken(breaker))
    return [OTHERS, ...known.map(([name]) => name)]
  }

  #toAsk({ limit, groups, withoutTenants }: Ask): LookAsk {
    const without = [...this.#groups].filter(([name]) => !groups.includes(name))
    return {
      limit,
      withoutOperations: without.map(([, { operation }]) => operation),
      withoutTenants,
    }
  }

  #note(name: string, group: Group, isTimeout: boolean): void {
    if (isTimeout) {
      group.breaker ??= this.#newBreaker(name)
      group.breaker?.failed()
    } else if (group.breaker !== undefined) {
      group.breaker.succeeded()
      group.breaker = undefined
    }
  }

  #newBreaker(name: string): Breaker | undefined {
    const broken = [...this.#groups.values()].filter(({ breaker }) => breaker !== undefined)
    if (broken.length >= BREAKERS_MAX) return undefined
    const { engine, timeoutMs } = this.#options
    const part = 'reconciler'
    let unnote: () => void = () => undefined
    const onChange = (from: BreakerState, to: BreakerState) => {
      if (from === 'closed') {
        const { overdue } = this.#places.stats()
        unnote = notePaused(engine.store, { part, name, overdue })
        engine.emit({ kind: 'work_paused', part, name, overdue })
      } else if (to === 'closed') {
        unnote()
        engine.emit({ kind: 'work_resumed', part, name })
      }
    }
    const breakMs = (number: number) =>
      Math.min(BREAK_MS_MAX, timeoutMs * 2 ** Math.min(number, 20))
    return new Breaker(engine.clock, { failuresMax: TIMEOUTS_MAX, breakMs, onChange })
  }
}

function isBroken(breaker: Breaker | undefined): boolean {
  return breaker !== undefined && breaker.state !== 'closed'
}

function nameOf({ name, version }: UnknownOperation): string {
  return version === undefined ? name : `${name} version ${version}`
}
