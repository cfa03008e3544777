import type { HeldMessage, MessageClaim } from '../core/durable-store.ts'
import type { MessageRun } from './message-run.ts'
import { Places, type Ask } from './places.ts'
import type { ResolvedRelayOptions } from './relay-options.ts'
import { laneOf, WaitingMessages } from './waiting-messages.ts'

/**
 * What a claim is for. `crowd`: tenants that have more due than they have room for. `reserve`:
 * topics and tenants without a place. `try`: one message of a topic that is paused.
 */
export type ClaimKind = 'ordinary' | 'crowd' | 'reserve' | 'try'

/** What a claim asks the store for. */
export interface RoomAsk extends Pick<MessageClaim, 'topics' | 'limit'> {
  readonly kind: ClaimKind
  readonly limits: readonly number[]
  readonly withoutTenants: readonly string[]
}

/** Messages that may wait for their end to be recorded, beside those that are handled. */
const UNRECORDED_MAX = 2_000

/**
 * How many messages a relay may take, and of which topics and tenants: for every free place one,
 * and in advance as many again as there are places, or more where handlers are so quick that they
 * would wait for the next claim. A topic or tenant with a limit of its own has as many in advance
 * as its limit, however quick it is: when it turns slow, it must not hold more.
 */
export class RelayRoom {
  readonly places: Places
  readonly waiting = new WaitingMessages()
  /** Messages that would be handled while a claim is under way. */
  pace = 0
  readonly #options: ResolvedRelayOptions
  readonly #topics: readonly string[]
  /** A topic or a tenant may have fewer places than there are. */
  readonly #hasLimits: boolean
  /** Taken for the reserve, and perhaps not begun. */
  readonly #reserved = new Set<MessageRun>()
  /** Topics and tenants that may have more due than the last claims could take. */
  readonly #topicsBehind = new Set<string>()
  readonly #tenantsBehind = new Set<string>()

  constructor(options: ResolvedRelayOptions) {
    this.#options = options
    const { engine, handlers, places } = options
    const { clock, store } = engine
    this.#topics = [...handlers.keys()]
    this.#hasLimits = this.#isLimit(places.perGroup) || this.#isLimit(places.perTenant)
    const emit = engine.emit.bind(engine)
    this.places = new Places({ part: 'relay', clock, store, emit, ...places })
  }

  /** The next message that may be handled now. */
  next(): MessageRun | undefined {
    const run = this.waiting.next((lane) => this.places.mayTake(lane))
    if (run !== undefined) this.#reserved.delete(run)
    return run
  }

  /**
   * Messages that an ordinary claim may take. Those whose end is being recorded (`open`) count too,
   * or a store that is slow to record would be given ever more. Those that wait for their own
   * topic or tenant do not count: places that are free are for others.
   */
  room(open: number): number {
    const { batchSize, places } = this.#options
    const wanted = this.places.free + this.#inAdvance() - this.#waitingForPlaces()
    const recordable = UNRECORDED_MAX + 2 * places.places - open
    return Math.max(0, Math.min(wanted, batchSize, recordable))
  }

  /** An ordinary claim; `undefined` where no topic may have more. */
  ask(open: number): RoomAsk | undefined {
    this.#noteFullTenants()
    return this.#toAsk('ordinary', this.room(open), [...this.#tenantsBehind])
  }

  /** Whether tenants that were left out, or had messages given back, have room again. */
  hasCrowd(open: number): boolean {
    return this.#tenantsBehind.size > 0 && this.askCrowd(open) !== undefined
  }

  /** A claim for these tenants. No larger than their room, or most of it would be given back. */
  askCrowd(open: number): RoomAsk | undefined {
    this.#noteFullTenants()
    const crowd = this.#crowd()
    const room = crowd.reduce((sum, tenant) => sum + this.#tenantRoom(tenant), 0)
    const without = [...this.#tenantsBehind].filter((tenant) => !crowd.includes(tenant))
    return this.#toAsk('crowd', Math.min(room, this.room(open)), without)
  }

  /** Claims for the reserve. */
  askReserve(): RoomAsk[] {
    return this.places.askReserve(this.#topics).map((ask) => this.#reservedAsk(ask))
  }

  askTries(): RoomAsk[] {
    const asks = this.places.askTries(this.#topics)
    return asks.map(({ groups, ...ask }) => ({ ...ask, kind: 'try', topics: groups, limits: [1] }))
  }

  /** Notes what an answer says of its topics and tenants. */
  took(ask: RoomAsk, messages: readonly HeldMessage[]): void {
    const { kind, topics, limit, limits, withoutTenants } = ask
    if (kind !== 'ordinary' && kind !== 'crowd') return
    const isAll = messages.length < limit
    const taken = new Map<string, number>()
    for (const { topic } of messages) taken.set(topic, (taken.get(topic) ?? 0) + 1)
    for (const [index, topic] of topics.entries()) {
      const max = limits[index]!
      if (max < limit && (taken.get(topic) ?? 0) >= max) this.#topicsBehind.add(topic)
      else if (isAll) this.#topicsBehind.delete(topic)
    }
    if (kind !== 'crowd' || !isAll) return
    for (const tenant of this.#tenantsBehind) {
      if (!withoutTenants.includes(tenant)) this.#tenantsBehind.delete(tenant)
    }
  }

  /** Lets a message wait for its place. `false`: it would wait too long, and must go back. */
  admit(run: MessageRun, kind: ClaimKind): boolean {
    const { group, tenant } = laneOf(run)
    const hasRoom = this.#tenantRoom(tenant) > 0
    if (!hasRoom) this.#tenantsBehind.add(tenant)
    if (!hasRoom || !this.places.pauses.mayBegin(group)) return false
    // Without a place, each try would add one more message that waits.
    if (kind === 'try' && !this.places.mayTake({ group, tenant })) return false
    this.waiting.push(run)
    if (kind === 'reserve') this.#reserved.add(run)
    return true
  }

  /** Messages that were taken for the reserve may be waiting. */
  get hasReserved(): boolean {
    return this.#reserved.size > 0
  }

  /** Takes out what was taken for the reserve and has not begun since. */
  takeReserved(): MessageRun[] {
    const runs = this.waiting.take((run) => this.#reserved.has(run))
    this.#reserved.clear()
    return runs
  }

  /** More of the topic of this message may be due, and half of its places or more are free. */
  isBehind(run: MessageRun): boolean {
    const { group } = laneOf(run)
    const { perGroup } = this.#options.places
    return this.#topicsBehind.has(group) && this.#topicRoom(group) * 2 >= perGroup
  }

  #toAsk(kind: ClaimKind, limit: number, without: readonly string[]): RoomAsk | undefined {
    const [open, full] = partition(this.#topics, (topic) => this.#topicRoom(topic) > 0)
    if (limit === 0 || open.length === 0) return undefined
    for (const topic of full) this.#topicsBehind.add(topic)
    const limits = open.map((topic) => Math.min(limit, this.#topicRoom(topic)))
    return { kind, topics: open, limit, limits, withoutTenants: without }
  }

  #reservedAsk({ limit, groups, withoutTenants }: Ask): RoomAsk {
    const without = withoutTenants.length === 0 ? [] : [...this.waiting.ofTenant.keys()]
    return {
      kind: 'reserve',
      topics: groups,
      limit,
      limits: groups.map(() => limit),
      withoutTenants: [...new Set([...withoutTenants, ...without])],
    }
  }

  /** Messages that one topic may have more, here. */
  #topicRoom(topic: string): number {
    if (this.places.pauses.isPaused(topic)) return 0
    const { perGroup } = this.#options.places
    if (!this.#isLimit(perGroup)) return Number.POSITIVE_INFINITY
    const taken = this.places.ofGroup(topic) + this.waiting.ofTopic(topic)
    return Math.max(0, 2 * perGroup - taken)
  }

  #tenantRoom(tenant: string): number {
    const { perTenant } = this.#options.places
    if (!this.#isLimit(perTenant)) return Number.POSITIVE_INFINITY
    const taken = this.places.ofTenant(tenant) + (this.waiting.ofTenant.get(tenant) ?? 0)
    return Math.max(0, 2 * perTenant - taken)
  }

  /** Tenants that are behind and have room for half as many as they have places, or more. */
  #crowd(): string[] {
    const { perTenant } = this.#options.places
    return [...this.#tenantsBehind].filter((one) => this.#tenantRoom(one) * 2 >= perTenant)
  }

  #noteFullTenants(): void {
    if (!this.#isLimit(this.#options.places.perTenant)) return
    for (const tenant of [...this.places.tenants(), ...this.waiting.ofTenant.keys()]) {
      if (this.#tenantRoom(tenant) === 0) this.#tenantsBehind.add(tenant)
    }
  }

  #waitingForPlaces(): number {
    if (!this.#hasLimits) return this.waiting.size
    return this.waiting.count((lane) => this.places.isWithinLimits(lane))
  }

  /** Below all places: with the default, a topic or tenant may have every one of them. */
  #isLimit(limit: number): boolean {
    const { places, reserve } = this.#options.places
    return limit < places + reserve
  }

  #inAdvance(): number {
    const { places, batchSize } = this.#options
    return Math.max(places.places, Math.min(2 * this.pace, batchSize))
  }
}

function partition<Item>(items: readonly Item[], test: (item: Item) => boolean): [Item[], Item[]] {
  return [items.filter(test), items.filter((item) => !test(item))]
}
