/** A payment provider with its own ledger. A charge is permanent. */
import { NotExecutedError } from '../../../src/core/errors.ts'
import { NEVER } from '../process.ts'
import type { EffectKind } from './payment.ts'
import { TIMES } from './times.ts'
import type { World } from './world.ts'

export interface Charge {
  readonly id: string
  readonly key: string
  readonly status: 'succeeded' | 'declined'
}

/** The fate of one charge request. */
export const FAULTS = [
  'declined',
  /** Makes the charge a little later, and answers then. */
  'slow',
  /** Fails without a charge, and the answer does not say so. */
  'error_before',
  /** Refuses without a charge, and the answer says so. */
  'refused',
  'effect_lost',
  'garbage',
  'silent',
  /** The request arrives long after its sender saw the connection break. */
  'late',
  'silent_late',
  /** A 500 that is repeated while the key is remembered, or until the world has healed. */
  'stored_500',
] as const

export type Fault = (typeof FAULTS)[number] | 'ok'

/** The fate of one query. */
export type QueryFate = 'ok' | 'pending' | 'fails' | 'silent'

interface Remembered {
  readonly untilMs: number
  isBroken: boolean
}

export class Provider {
  readonly ledger: Charge[] = []
  readonly #world: World
  readonly #keys = new Map<string, Remembered>()

  constructor(world: World) {
    this.#world = world
  }

  /** Takes a request as its sender sends it. The answer may never arrive. */
  async charge(kind: EffectKind, key: string): Promise<unknown> {
    const fault = this.#world.next('faults') ?? this.#world.hostile?.nextFault() ?? 'ok'
    // A refused request leaves no entry.
    if (fault === 'refused') throw new NotExecutedError('the provider takes nothing now')
    if (kind === 'repeatable' || kind === 'both') {
      const remembered = this.#remember(key)
      if (remembered.isBroken && !this.#world.healed) throw serverError()
      if (fault === 'stored_500') remembered.isBroken = true
      const known = this.find(key)
      if (known !== undefined) return known
    }
    switch (fault) {
      case 'ok':
        return this.#make(key)
      case 'declined':
        return this.#make(key, 'declined')
      case 'slow':
        return this.#after(TIMES.slowMs, () => this.#arrive(kind, key))
      case 'error_before':
        throw lost()
      case 'effect_lost':
        this.#make(key)
        throw lost()
      case 'garbage':
        this.#make(key)
        return '<html>502</html>'
      case 'silent':
        this.#make(key)
        return NEVER
      case 'late':
        void this.#after(TIMES.arrivesMs, () => this.#arrive(kind, key))
        throw lost()
      case 'silent_late':
        void this.#after(TIMES.arrivesMs, () => this.#arrive(kind, key))
        return NEVER
      case 'stored_500':
        throw serverError()
    }
  }

  /** The query API. */
  async ask(key: string): Promise<Charge | 'pending' | undefined> {
    switch (this.#world.next('asked') ?? this.#world.hostile?.nextAsked() ?? 'ok') {
      case 'ok':
        return this.find(key)
      case 'pending':
        return 'pending'
      case 'fails':
        throw lost()
      case 'silent':
        return NEVER
    }
  }

  find(key: string): Charge | undefined {
    return this.ledger.find((charge) => charge.key === key)
  }

  #remember(key: string): Remembered {
    const nowMs = this.#world.clock.monotonicMs()
    const known = this.#keys.get(key)
    if (known !== undefined && known.untilMs > nowMs) return known
    if (known !== undefined && this.find(key) !== undefined) {
      this.#world.violate('a key was sent again after the provider dropped it')
    }
    const fresh = { untilMs: nowMs + TIMES.rememberedMs, isBroken: false }
    this.#keys.set(key, fresh)
    return fresh
  }

  /** A delayed request arrives. If the key is known by then, returns the existing charge. */
  #arrive(kind: EffectKind, key: string): Charge {
    const isKnown = kind === 'repeatable' || kind === 'both'
    return (isKnown ? this.find(key) : undefined) ?? this.#make(key)
  }

  #make(key: string, status: Charge['status'] = 'succeeded'): Charge {
    if (this.find(key) !== undefined) this.#world.violate(`${key} was charged twice`)
    const charge = { id: `ch_${this.ledger.length + 1}`, key, status }
    this.ledger.push(charge)
    return charge
  }

  #after<Result>(ms: number, run: () => Result): Promise<Result> {
    return new Promise((resolve) => {
      this.#world.clock.after(ms, () => resolve(run()))
    })
  }
}

function lost(): Error {
  return Object.assign(new Error('socket hang up'), { code: 'ECONNRESET' })
}

function serverError(): Error {
  return new Error('500 from the provider')
}
