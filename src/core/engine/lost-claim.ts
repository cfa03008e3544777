import { ByWeight, type Weighted } from '../store/by-weight.ts'
import type { Clock } from '../time/clock.ts'
import { isRejected } from '../errors.ts'
import type { FairQueue } from '../store/fair-queue.ts'
import { LaneLooks } from './lane-looks.ts'
import { LookPace } from './look-pace.ts'
import {
  endMs,
  neededPerSecond,
  nextLookMs,
  retryMs,
  URGENCIES,
  urgencyOf,
  type LookHistory,
} from './look-schedule.ts'
import type { StorePort } from '../store/store-port.ts'
import type { ClaimRequest, SettleOutcome, Settlement } from '../store/store.ts'

/** The limit of tracked claims. Beyond it a claim is left to lapse, as after a crash. */
const LOST_MAX = 10_000

/** The shortest and the longest pause between two passes over all claims. */
const COLLECT_MS = 100
const COLLECT_MS_MAX = 1_000
/** An `extra` lookup is put off for this time while requests wait in its lane. */
const BUSY_MS = 100

/** A claim that may hold its key although its work does not run. */
interface LostClaim extends LookHistory {
  readonly owner: Owner
  readonly lane: LaneLooks<LostClaim>
  readonly release: Settlement
  /** When the next lookup is due; `undefined` while the claim is queued or its lookup runs. */
  dueMs: number | undefined
  /** A lookup of the claim is in flight. */
  isInFlight: boolean
  /** The claim is still tracked. */
  isTracked: boolean
}

/** The lost claims of one tenant, oldest first. */
class Owner implements Weighted<Owner> {
  readonly tenant: string
  readonly claims = new Set<LostClaim>()
  weight = 0
  before: Owner | undefined
  after: Owner | undefined

  constructor(tenant: string) {
    this.tenant = tenant
  }
}

interface NextLook {
  readonly lost: LostClaim
  readonly queue: FairQueue<LostClaim>
  readonly isBusy: boolean
}

/**
 * Releases lost claims: claims whose answer never arrived. Such a claim may hold its key for work
 * that does not run. Without a release it would lapse, and its key would become `unknown` although
 * nothing happened.
 *
 * A lookup sends the release of a claim by its token, and finds out whether the claim took effect.
 * A claim has several lookups, because it may still be on its way and take effect after an earlier
 * lookup has found nothing. The lookups end when a release has succeeded, or when the lease of a
 * claim that took effect would be over.
 *
 * An outage loses thousands of claims at once. All of them share one pace (`LookPace`), and the
 * lanes of the store and the tenants take turns. Each lane has a separate pause while it fails, so
 * that a silent lane does not delay the claims of other lanes. Requests that wait for a lane go
 * first: while they wait, only the lookups that each claim needs are made there, and those late in
 * its lease.
 */
export class LostClaims {
  readonly #clock: Clock
  readonly #port: StorePort
  readonly #pace: LookPace
  /** In the order of their turns. */
  readonly #byTenant = new Map<string, Owner>()
  readonly #byWeight = new ByWeight<Owner>()
  /** In the order of their turns. */
  readonly #lanes = new Map<number | undefined, LaneLooks<LostClaim>>()
  #pending = 0
  #inFlight = 0
  /** The lookups per second that give every claim the ones that it needs in time. */
  #neededPerSecond = 0
  #collectedMs = Number.NEGATIVE_INFINITY
  #collectAtMs = Number.POSITIVE_INFINITY
  #isStopped = false
  #cancel: () => void = () => undefined

  constructor(clock: Clock, port: StorePort) {
    this.#clock = clock
    this.#port = port
    this.#pace = new LookPace(clock)
  }

  /** The number of claims that may still hold their keys. */
  get pending(): number {
    return this.#pending
  }

  /** Starts one last lookup of every claim at once, and schedules no more. */
  stop(): void {
    this.#isStopped = true
    this.#cancel()
    for (const lost of [...this.#all()]) if (!lost.isInFlight) void this.#look(lost)
  }

  release({ identity, tenant, token, retentionMs, leaseMs }: ClaimRequest): void {
    if (!this.#makeRoom(tenant)) return
    const lease = { identity, token, attempt: 0 }
    const release = { kind: 'release', lease, proof: 'proven', retentionMs } as const
    const lost: LostClaim = {
      owner: this.#ownerOf(tenant),
      lane: this.#laneOf(identity),
      release: { ...release, errorCode: 'claim_unanswered' },
      leaseMs,
      sinceMs: this.#clock.monotonicMs(),
      looks: 0,
      failures: 0,
      answeredMs: undefined,
      dueMs: undefined,
      isInFlight: false,
      isTracked: true,
    }
    this.#add(lost)
    if (this.#isStopped) return void this.#look(lost)
    lost.lane.due('needed').push(tenant, lost)
    this.#pump()
  }

  /**
   * At the limit, drops the oldest claim of the tenant with most claims. `false` if no other tenant
   * has more than this one: its new claim is then not tracked.
   */
  #makeRoom(tenant: string): boolean {
    if (this.#pending < LOST_MAX) return true
    const most = this.#byWeight.heaviest
    const own = this.#byTenant.get(tenant)?.weight ?? 0
    if (most === undefined || most.weight <= own + 1) return false
    const [oldest] = most.claims
    this.#remove(oldest!)
    // The removed claim may still be in a queue. The next pass rebuilds the queues.
    this.#collectAtMs = this.#clock.monotonicMs()
    return true
  }

  #ownerOf(tenant: string): Owner {
    const owner = this.#byTenant.get(tenant) ?? new Owner(tenant)
    this.#byTenant.set(tenant, owner)
    return owner
  }

  #laneOf(identity: string): LaneLooks<LostClaim> {
    const number = this.#port.laneOf(identity)
    const lane = this.#lanes.get(number) ?? new LaneLooks<LostClaim>(number)
    this.#lanes.set(number, lane)
    return lane
  }

  #add(lost: LostClaim): void {
    const { owner } = lost
    owner.claims.add(lost)
    this.#byWeight.weigh(owner, owner.claims.size)
    this.#pending++
    this.#neededPerSecond += neededPerSecond(lost, lost.sinceMs)
    this.#collectAtMs = Math.min(this.#collectAtMs, lost.sinceMs + COLLECT_MS_MAX)
  }

  #remove(lost: LostClaim): void {
    if (!lost.isTracked) return
    lost.isTracked = false
    const { owner } = lost
    owner.claims.delete(lost)
    this.#byWeight.weigh(owner, owner.claims.size)
    if (owner.claims.size === 0) this.#byTenant.delete(owner.tenant)
    this.#pending--
  }

  *#all(): Iterable<LostClaim> {
    for (const { claims } of this.#byTenant.values()) yield* claims
  }

  /** Starts the lookups that may start now, and sets a timer for the others. */
  #pump(): void {
    if (this.#isStopped) return
    this.#cancel()
    this.#cancel = () => undefined
    const nowMs = this.#clock.monotonicMs()
    if (nowMs >= this.#nextCollectMs()) this.#collect(nowMs)
    const waitMs = Math.min(this.#send(nowMs), this.#nextCollectMs() - nowMs)
    if (this.#pending === 0) return
    this.#cancel = this.#clock.after(Math.ceil(waitMs), () => this.#pump())
  }

  /** Returns the time until the next lookup. Infinite if another lookup has to end first. */
  #send(nowMs: number): number {
    for (;;) {
      const next = this.#nextLook(nowMs)
      if (typeof next === 'number') return next
      const waitMs = this.#pace.waitMs(this.#neededPerSecond, next.isBusy)
      if (waitMs > 0) return waitMs
      this.#pace.spend()
      next.queue.shift()
      void this.#look(next.lost)
    }
  }

  /** The most urgent lookup of a lane that is not paused, or the time until there is one. */
  #nextLook(nowMs: number): NextLook | number {
    let leastMs = Number.POSITIVE_INFINITY
    for (const urgency of URGENCIES) {
      for (const lane of this.#lanes.values()) {
        const queue = lane.due(urgency)
        const lost = firstToLookUp(queue)
        const pauseMs = lane.waitMs(nowMs, this.#inFlight)
        if (lost === undefined || pauseMs === Number.POSITIVE_INFINITY) continue
        const isBusy = this.#port.waitingIn(lane.lane) > 0
        const waitMs = isBusy && urgency === 'extra' ? Math.max(BUSY_MS, pauseMs) : pauseMs
        if (waitMs === 0) return { lost, queue, isBusy }
        leastMs = Math.min(leastMs, waitMs)
      }
    }
    return leastMs
  }

  #nextCollectMs(): number {
    return Math.max(this.#collectAtMs, this.#collectedMs + COLLECT_MS)
  }

  /** Rebuilds the queues of due lookups, and drops claims whose lease is over. */
  #collect(nowMs: number): void {
    for (const lane of this.#lanes.values()) lane.clear()
    this.#collectedMs = nowMs
    this.#collectAtMs = nowMs + COLLECT_MS_MAX
    this.#neededPerSecond = 0
    for (const lost of [...this.#all()]) {
      if (lost.isInFlight) continue
      if (nowMs >= endMs(lost)) {
        this.#remove(lost)
        continue
      }
      this.#neededPerSecond += neededPerSecond(lost, nowMs)
      if (lost.dueMs !== undefined && lost.dueMs > nowMs) {
        this.#collectAtMs = Math.min(this.#collectAtMs, lost.dueMs)
        continue
      }
      lost.dueMs = undefined
      lost.lane.due(urgencyOf(lost, nowMs)).push(lost.owner.tenant, lost)
    }
  }

  /** Never rejects. */
  async #look(lost: LostClaim): Promise<void> {
    const isLast = this.#isStopped
    lost.isInFlight = true
    this.#inFlight++
    this.#passTurn(lost)
    const outcome = await this.#release(lost)
    this.#inFlight--
    lost.isInFlight = false
    if (outcome?.kind === 'settled' || isLast) this.#remove(lost)
    // Stopped during this lookup: make one more, because the claim may have taken effect since.
    else if (this.#isStopped) return this.#look(lost)
    else this.#scheduleNext(lost, outcome !== undefined)
    this.#pump()
  }

  async #release({ release, owner, lane }: LostClaim): Promise<SettleOutcome | undefined> {
    const begunMs = this.#clock.monotonicMs()
    lane.begun()
    try {
      const outcome = await this.#port.releaseLost(release, owner.tenant)
      lane.answered()
      return outcome
    } catch (error) {
      // The port has reported the store error; a later lookup tries again.
      if (isRejected(error)) lane.answered()
      else lane.failed(begunMs, this.#clock.monotonicMs())
      return undefined
    }
  }

  #scheduleNext(lost: LostClaim, isAnswered: boolean): void {
    const nowMs = this.#clock.monotonicMs()
    if (isAnswered) {
      lost.looks++
      lost.failures = 0
      lost.answeredMs = nowMs
    } else lost.failures++
    lost.dueMs = isAnswered ? nextLookMs(lost, nowMs) : nowMs + retryMs(lost)
    if (lost.dueMs >= endMs(lost)) return this.#remove(lost)
    this.#collectAtMs = Math.min(this.#collectAtMs, lost.dueMs)
  }

  /**
   * Moves the tenant and the lane behind the others: queues are filled in the order of the tenants,
   * and served in the order of the lanes.
   */
  #passTurn({ owner, lane }: LostClaim): void {
    const { tenant } = owner
    if (this.#byTenant.size > 1 && this.#byTenant.get(tenant) === owner) {
      this.#byTenant.delete(tenant)
      this.#byTenant.set(tenant, owner)
    }
    if (this.#lanes.size === 1) return
    this.#lanes.delete(lane.lane)
    this.#lanes.set(lane.lane, lane)
  }
}

/** The first claim of a queue that needs a lookup. Claims before it are removed from the queue. */
function firstToLookUp(queue: FairQueue<LostClaim>): LostClaim | undefined {
  for (let next = queue.peek(); next !== undefined; next = queue.peek()) {
    if (next.isTracked && !next.isInFlight) return next
    queue.shift()
  }
  return undefined
}
