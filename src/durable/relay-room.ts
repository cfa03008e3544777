import type { MessageClaim } from '../core/durable-store.ts'
import type { MessageRun } from './message-run.ts'
import { Places, type Ask } from './places.ts'
import type { ResolvedRelayOptions } from './relay-options.ts'
import { laneOf, WaitingMessages } from './waiting-messages.ts'

/** What a claim asks the store for. */
export interface RoomAsk extends Pick<MessageClaim, 'topics' | 'limit'> {
  readonly limits: readonly number[]
  readonly withoutTenants: readonly string[]
}

/** Messages that may wait for their end to be recorded, beside those that are handled. */
const UNRECORDED_MAX = 2_000

/**
 * How many messages a relay may take, and of which topics and tenants: for every free place one,
 * and in advance as many again as there are places, or more where handlers are so quick that they
 * would wait for the next claim.
 */
export class RelayRoom {
  readonly places: Places
  readonly waiting = new WaitingMessages()
  /** Messages that would be handled while a claim is under way. */
  pace = 0
  readonly #options: ResolvedRelayOptions
  readonly #topics: readonly string[]

  constructor(options: ResolvedRelayOptions) {
    this.#options = options
    const { engine, handlers, places } = options
    const { clock, store } = engine
    this.#topics = [...handlers.keys()]
    const emit = engine.emit.bind(engine)
    this.places = new Places({ part: 'relay', clock, store, emit, ...places })
  }

  /** The next message that may be handled now. */
  next(): MessageRun | undefined {
    return this.waiting.next((lane) => this.places.mayTake(lane))
  }

  /**
   * Messages that an ordinary claim may take. Those whose end is being recorded (`open`) count too,
   * or a store that is slow to record would be given ever more.
   */
  room(open: number): number {
    const { batchSize, places } = this.#options
    const wanted = this.places.free + this.#inAdvance(places.places) - this.waiting.size
    const recordable = UNRECORDED_MAX + 2 * places.places - open
    return Math.max(0, Math.min(wanted, batchSize, recordable))
  }

  /** An ordinary claim; `undefined` where no topic may have more. */
  ask(open: number): RoomAsk | undefined {
    const limit = this.room(open)
    const topics = this.#topics.filter((topic) => this.topicRoom(topic) > 0)
    if (limit === 0 || topics.length === 0) return undefined
    const limits = topics.map((topic) => Math.min(limit, this.topicRoom(topic)))
    return { topics, limit, limits, withoutTenants: this.#fullTenants() }
  }

  /** A topic or a tenant that is full was left out, or may have only a part of the claim. */
  isNarrow({ topics, limit, limits, withoutTenants }: RoomAsk): boolean {
    const isFull = topics.length < this.#topics.length || withoutTenants.length > 0
    return isFull || limits.some((one) => one < limit)
  }

  /** Claims for the reserve, where there is no room for ordinary ones. */
  askReserve(open: number): RoomAsk[] {
    const { reserve, places } = this.#options.places
    if (this.room(open) > 0 || this.waiting.size >= this.#inAdvance(places) + reserve) return []
    return this.places.askReserve(this.#topics).map((ask) => this.#reserved(ask))
  }

  /** Messages that one topic may have more, here. */
  topicRoom(topic: string): number {
    if (this.places.pauses.isPaused(topic)) return 0
    const { perGroup } = this.#options.places
    const taken = this.places.ofGroup(topic) + this.waiting.ofTopic(topic)
    return Math.max(0, perGroup + this.#inAdvance(perGroup) - taken)
  }

  /** Whether a message may wait here: not where it would only keep others of its topic out. */
  hasRoomFor(run: MessageRun): boolean {
    const { group, tenant } = laneOf(run)
    return !this.places.pauses.isPaused(group) && this.#tenantRoom(tenant) > 0
  }

  /** Whether the topic and the tenant of a message have room for half as many as they may have. */
  isHalfEmptyFor(run: MessageRun): boolean {
    const { perGroup, perTenant } = this.#options.places
    const { group, tenant } = laneOf(run)
    return this.topicRoom(group) * 2 >= perGroup && this.#tenantRoom(tenant) * 2 >= perTenant
  }

  #tenantRoom(tenant: string): number {
    const { perTenant } = this.#options.places
    const taken = this.places.ofTenant(tenant) + (this.waiting.ofTenant.get(tenant) ?? 0)
    return Math.max(0, perTenant + this.#inAdvance(perTenant) - taken)
  }

  #fullTenants(): string[] {
    const known = new Set([...this.places.tenants(), ...this.waiting.ofTenant.keys()])
    return [...known].filter((tenant) => this.#tenantRoom(tenant) === 0)
  }

  #reserved({ limit, groups, withoutTenants }: Ask): RoomAsk {
    const without = withoutTenants.length === 0 ? [] : [...this.waiting.ofTenant.keys()]
    return {
      topics: groups,
      limit,
      limits: groups.map(() => limit),
      withoutTenants: [...new Set([...withoutTenants, ...without])],
    }
  }

  #inAdvance(places: number): number {
    return Math.max(places, Math.min(2 * this.pace, this.#options.batchSize))
  }
}
