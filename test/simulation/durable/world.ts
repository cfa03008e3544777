/**
 * The world of operations: real engines, workers, relays and reconcilers on one store, with a
 * provider and a mailer outside it. A scheduler decides what happens next, and the clock moves only
 * on demand. The world sees the state of every process and stops at the first violated invariant.
 */
import type { Scheduler } from 'fast-check'
import type { DurableStore } from '../../../src/core/store/durable-store.ts'
import type { Lease } from '../../../src/core/store/store.ts'
import { FakeClock } from '../../../src/testing/fake-clock.ts'
import { simulatedStore, type SimulatedStore } from '../../durable/simulated/store.ts'
import { Violation } from '../world.ts'
import { Fairness } from './fairness.ts'
import { Hostile, type HostilePlan } from './hostile.ts'
import { Mailer, type MailFault } from './mailer.ts'
import type { DurableNode } from './node.ts'
import type { Mood } from './payment.ts'
import { Provider, type QueryFate, type Fault } from './provider.ts'
import { TIMES } from './times.ts'

/** The fate of one store call. `lost`, `never` and `late` calls are never answered. */
export type Fate = 'ok' | 'fail_before' | 'fail_after' | 'lost' | 'never' | 'late'

/** The rows that a payment writes in its transactions. */
export interface Row {
  readonly recordId: string
  readonly customer: string
  readonly what: 'recorded' | 'booked'
  readonly chargeId: string | undefined
}

/** Faults, used in order and repeatedly until the world has healed. */
export interface Troubles {
  readonly fates: readonly Fate[]
  readonly faults: readonly Fault[]
  readonly asked: readonly QueryFate[]
  readonly mail: readonly MailFault[]
  readonly moods: readonly Mood[]
}

/** Planted bugs, for tests of the simulation. */
export interface Sabotage {
  /** Replaces `store.durable` for the nodes. */
  readonly durable?: (world: World) => DurableStore
  /** Treats a "not found" as proof at once. */
  readonly trustsNotFound?: boolean
  /** Message handlers end before they have done anything. */
  readonly endsEarly?: boolean
  /** Workers, relays and reconcilers run without a reserve. */
  readonly hasNoReserve?: boolean
  /**
   * Changes code of the package or the store for one run. Returns the function that restores it.
   */
  readonly plant?: () => () => void
}

export class World {
  readonly clock = new FakeClock()
  readonly store: SimulatedStore<Row> = simulatedStore(this.clock)
  /** `store.durable`, as the nodes reach it. */
  readonly durable: DurableStore
  readonly provider: Provider
  readonly mailer: Mailer
  readonly nodes: DurableNode[] = []
  readonly hostile: Hostile | undefined
  readonly fairness: Fairness
  readonly sabotage: Sabotage
  violation: Violation | undefined
  healed = false
  /** Resolves when the world has healed. */
  readonly healing: Promise<void>
  #heal: () => void = () => undefined
  forwardJumps = 0
  /** Number of payments from before the history that left a receipt. */
  earlierPayments = 0
  readonly #scheduler: Scheduler
  readonly #troubles: Troubles
  readonly #used = new Map<keyof Troubles, number>()
  #jumpedMs = 0
  #last: Promise<unknown> = Promise.resolve()
  /** The last claim of each record and message. */
  readonly #holders = new Map<string, Lease>()
  readonly #takers = new Map<string, string>()

  constructor(
    scheduler: Scheduler,
    { troubles, hostile }: { troubles: Troubles; hostile: HostilePlan | undefined },
    sabotage: Sabotage,
  ) {
    this.#scheduler = scheduler
    this.#troubles = troubles
    this.sabotage = sabotage
    this.hostile = hostile && new Hostile(this, hostile)
    this.fairness = new Fairness(this)
    this.healing = new Promise((resolve) => {
      this.#heal = resolve
    })
    this.durable = sabotage.durable?.(this) ?? this.store.durable
    this.provider = new Provider(this)
    this.mailer = new Mailer(this)
  }

  async turn(label: string): Promise<void> {
    await this.#scheduler.schedule(Promise.resolve(), label)
  }

  /** The next fault of this kind, or `undefined` if there is none. */
  next<Kind extends keyof Troubles>(kind: Kind): Troubles[Kind][number] | undefined {
    const list = this.#troubles[kind]
    if (this.healed || list.length === 0) return undefined
    const used = this.#used.get(kind) ?? 0
    this.#used.set(kind, used + 1)
    return list[used % list.length]
  }

  /** Ends all faults. */
  heal(): void {
    this.healed = true
    this.#heal()
  }

  violate(message: string): void {
    this.violation ??= new Violation(message)
  }

  /** Moves only the wall clock, at most by the durations that this world allows for. */
  jump(ms: number): void {
    if (this.#jumpedMs + Math.abs(ms) > TIMES.jumpsMs) return
    this.#jumpedMs += Math.abs(ms)
    if (ms > 0) this.forwardJumps++
    this.clock.jumpWallTime(ms)
  }

  claimed(lease: Lease): void {
    this.#holders.set(lease.identity, lease)
  }

  holderOf(identity: string): Lease | undefined {
    return this.#holders.get(identity)
  }

  holds({ identity, token, attempt }: Lease): boolean {
    const held = this.#holders.get(identity)
    return held?.token === token && held.attempt === attempt
  }

  taken(messageId: string, token: string): void {
    this.#takers.set(messageId, token)
  }

  takerOf(messageId: string): string | undefined {
    return this.#takers.get(messageId)
  }

  /** Runs writes one at a time, so that state before and after a write belongs to that write. */
  alone<Answer>(write: () => Promise<Answer>): Promise<Answer> {
    const answer = this.#last.then(write)
    this.#last = answer.catch(() => undefined)
    return answer
  }
}
