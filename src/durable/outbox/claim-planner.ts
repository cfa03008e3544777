/**
 * Plans the claims of a relay.
 *
 * Tests: test/durable/outbox/relay-fairness.test.ts, relay-limits.test.ts, relay-reserve.test.ts.
 */
import type { HeldMessage, MessageClaim } from '../../core/store/durable-store.ts'
import type { MessageRun } from './message-run.ts'
import { Places, type WorkQuery } from '../places/places.ts'
import type { ResolvedRelayOptions } from './relay-options.ts'
import { laneOf, WaitingMessages } from './waiting-messages.ts'

/**
 * The purpose of a claim.
 *
 * - `ordinary`: all topics and tenants with room.
 * - `catch_up`: tenants with more due messages than earlier claims had room for.
 * - `reserve`: topics and tenants without a place.
 * - `trial`: one message of a paused topic.
 */
export type ClaimKind = 'ordinary' | 'catch_up' | 'reserve' | 'trial'

/** The messages that a claim requests from the store. */
export interface ClaimPlan extends Pick<MessageClaim, 'topics' | 'limit'> {
  readonly kind: ClaimKind
  readonly limits: readonly number[]
  readonly withoutTenants: readonly string[]
}

/** The most handled messages whose end is not recorded yet. */
const UNRECORDED_MAX = 2_000

/**
 * Decides how many messages a relay may claim, and of which topics and tenants: one for every free
 * place, and in advance as many as there are places, or more if handlers are so quick that they
 * would wait for the next claim. A topic or tenant with its own limit has no more in advance than
 * its limit, even if its handlers are quick: it must not hold more messages when they become slow.
 */
export class ClaimPlanner {
  readonly places: Places
  readonly waiting = new WaitingMessages()
  /** Messages that would be handled during a claim. */
  #pace = 0
  /** Handlers that have ended since the last ordinary claim, and when that claim ended. */
  #handled = 0
  #claimedAtMs = 0
  readonly #options: ResolvedRelayOptions
  readonly #topics: readonly string[]
  /** A topic or a tenant may have fewer places than there are in total. */
  readonly #hasLimits: boolean
  /** Messages claimed for the reserve that may not have started. */
  readonly #reserved = new Set<MessageRun>()
  /** Topics and tenants that may have more due messages than the last claims had room for. */
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

  /** Takes out the next message that may start. */
  next(): MessageRun | undefined {
    const run = this.waiting.next((lane) => this.places.mayTake(lane))
    if (run !== undefined) this.#reserved.delete(run)
    return run
  }

  /**
   * How many messages an ordinary claim may take. Messages whose end is being recorded (`open`)
   * count, or a store that records slowly would get more and more of them. Messages that wait for
   * their own topic or tenant do not count: free places are for other ones.
   */
  room(open: number): number {
    const { batchSize, places } = this.#options
    const wanted = this.places.free + this.#inAdvance() - this.#waitingForPlaces()
    const recordable = UNRECORDED_MAX + 2 * places.places - open
    return Math.max(0, Math.min(wanted, batchSize, recordable))
  }

  /** An ordinary claim; `undefined` if no topic may have more messages. */
  planOrdinary(open: number): ClaimPlan | undefined {
    this.#noteFullTenants()
    return this.#toPlan('ordinary', this.room(open), [...this.#tenantsBehind])
  }

  /** Whether a tenant that was left out, or whose messages were returned, has room again. */
  canCatchUp(open: number): boolean {
    return this.#tenantsBehind.size > 0 && this.planCatchUp(open) !== undefined
  }

  /** A claim for these tenants. No larger than their room, or most messages would be returned. */
  planCatchUp(open: number): ClaimPlan | undefined {
    this.#noteFullTenants()
    const tenants = this.#tenantsWithRoom()
    const room = tenants.reduce((sum, tenant) => sum + this.#tenantRoom(tenant), 0)
    const without = [...this.#tenantsBehind].filter((tenant) => !tenants.includes(tenant))
    return this.#toPlan('catch_up', Math.min(room, this.room(open)), without)
  }

  /** Claims for the reserve. */
  planReserve(): ClaimPlan[] {
    return this.places.reserveQueries(this.#topics).map((query) => this.#toReservePlan(query))
  }

  /** One message of each paused topic whose trial is due. */
  planTrials(): ClaimPlan[] {
    const queries = this.places.trialQueries(this.#topics)
    return queries.map(({ groups, ...query }) => ({
      ...query,
      kind: 'trial',
      topics: groups,
      limits: [1],
    }))
  }

  /** Notes which topics and tenants may have more messages than the claim returned. */
  noteClaimed(plan: ClaimPlan, messages: readonly HeldMessage[]): void {
    const { kind, topics, limit, limits, withoutTenants } = plan
    if (kind !== 'ordinary' && kind !== 'catch_up') return
    const isAll = messages.length < limit
    const taken = new Map<string, number>()
    for (const { topic } of messages) taken.set(topic, (taken.get(topic) ?? 0) + 1)
    for (const [index, topic] of topics.entries()) {
      const max = limits[index]!
      if (max < limit && (taken.get(topic) ?? 0) >= max) this.#topicsBehind.add(topic)
      else if (isAll) this.#topicsBehind.delete(topic)
    }
    if (kind !== 'catch_up' || !isAll) return
    for (const tenant of this.#tenantsBehind) {
      if (!withoutTenants.includes(tenant)) this.#tenantsBehind.delete(tenant)
    }
  }

  /** Queues a message for a place. `false`: it would wait too long, and must be returned. */
  admit(run: MessageRun, kind: ClaimKind): boolean {
    const { group, tenant } = laneOf(run)
    const hasRoom = this.#tenantRoom(tenant) > 0
    if (!hasRoom) this.#tenantsBehind.add(tenant)
    if (!hasRoom || !this.places.pauses.mayBegin(group)) return false
    // If no place is free, each trial would queue one more message.
    if (kind === 'trial' && !this.places.mayTake({ group, tenant })) return false
    this.waiting.push(run)
    if (kind === 'reserve') this.#reserved.add(run)
    return true
  }

  /** Whether messages that were claimed for the reserve may be waiting. */
  get hasReserved(): boolean {
    return this.#reserved.size > 0
  }

  /** Takes out the messages that were claimed for the reserve and have not started. */
  takeReserved(): MessageRun[] {
    const runs = this.waiting.take((run) => this.#reserved.has(run))
    this.#reserved.clear()
    return runs
  }

  /** A handler has ended. */
  noteHandled(): void {
    this.#handled++
  }

  /** An ordinary claim that was sent at `sentMs` has ended. */
  measurePace(sentMs: number): void {
    const nowMs = this.#options.engine.clock.monotonicMs()
    const sinceMs = Math.max(1, nowMs - this.#claimedAtMs)
    this.#pace = Math.ceil((this.#handled * (nowMs - sentMs)) / sinceMs)
    this.#handled = 0
    this.#claimedAtMs = nowMs
  }

  /** Whether more messages of this topic may be due, and at least half of its places are free. */
  isBehind(run: MessageRun): boolean {
    const { group } = laneOf(run)
    const { perGroup } = this.#options.places
    return this.#topicsBehind.has(group) && this.#topicRoom(group) * 2 >= perGroup
  }

  #toPlan(kind: ClaimKind, limit: number, without: readonly string[]): ClaimPlan | undefined {
    const [open, full] = partition(this.#topics, (topic) => this.#topicRoom(topic) > 0)
    if (limit === 0 || open.length === 0) return undefined
    for (const topic of full) this.#topicsBehind.add(topic)
    const limits = open.map((topic) => Math.min(limit, this.#topicRoom(topic)))
    return { kind, topics: open, limit, limits, withoutTenants: without }
  }

  #toReservePlan({ limit, groups, withoutTenants }: WorkQuery): ClaimPlan {
    const without = withoutTenants.length === 0 ? [] : [...this.waiting.ofTenant.keys()]
    return {
      kind: 'reserve',
      topics: groups,
      limit,
      limits: groups.map(() => limit),
      withoutTenants: [...new Set([...withoutTenants, ...without])],
    }
  }

  /** How many more messages of one topic this relay may have. */
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

  /** Tenants that are behind and have room for at least half of their places. */
  #tenantsWithRoom(): string[] {
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

  /** Whether a limit is below all places. The default is not. */
  #isLimit(limit: number): boolean {
    const { places, reserve } = this.#options.places
    return limit < places + reserve
  }

  #inAdvance(): number {
    const { places, batchSize } = this.#options
    return Math.max(places.places, Math.min(2 * this.#pace, batchSize))
  }
}

function partition<Item>(items: readonly Item[], test: (item: Item) => boolean): [Item[], Item[]] {
  return [items.filter(test), items.filter((item) => !test(item))]
}
