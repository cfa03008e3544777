import { ByWeight, type Weighed } from './by-weight.ts'
import type { Clock } from './clock.ts'
import { isRejected } from './errors.ts'
import type { FairQueue } from './fair-queue.ts'
import { LaneLooks } from './lane-looks.ts'
import { LookPace } from './look-pace.ts'
import {
  endMs,
  neededPerSecond,
  nextLookMs,
  retryMs,
  URGENCIES,
  urgencyOf,
  type Looked,
} from './look-schedule.ts'
import type { StorePort } from './store-port.ts'
import type { ClaimRequest, SettleOutcome, Settlement } from './store.ts'

/** Claims looked after at once. One more is left to lapse, as if this process had died. */
const LOST_MAX = 10_000

/** All claims are gone through at most so often, and at least so often. */
const COLLECT_MS = 100
const COLLECT_MS_MAX = 1_000
/** While requests wait for the store, it is asked so often whether they still do. */
const BUSY_MS = 100

/** One claim that may be held without work. */
interface Lost extends Looked {
  readonly owner: Owner
  readonly lane: LaneLooks<Lost>
  readonly release: Settlement
  /** When it is to be looked for; `undefined` while it waits for its turn, or is asked about. */
  dueMs: number | undefined
  isAsked: boolean
  isOpen: boolean
}

/** The lost claims of one tenant, the oldest first. */
class Owner implements Weighed<Owner> {
  readonly tenant: string
  readonly claims = new Set<Lost>()
  weight = 0
  before: Owner | undefined
  after: Owner | undefined

  constructor(tenant: string) {
    this.tenant = tenant
  }
}

interface NextLook {
  readonly lost: Lost
  readonly queue: FairQueue<Lost>
  readonly isBusy: boolean
}

/**
 * The answer to a claim never came, so it is not known whether the key is held, by us, for work
 * that will not run. Left alone the claim would lapse, and its key become `unknown` although
 * nothing happened.
 *
 * So it is released by its token, several times: the claim may still be on its way and take hold
 * after an earlier release found nothing. That ends once a release has hit, or when the lease of a
 * claim that had taken hold would be over.
 *
 * A storm loses thousands of claims at once. All of them share one pace (`LookPace`), and the
 * lanes of the store and the tenants take turns. Each lane has its own rest while it fails: a lane
 * that is silent keeps the claims of no other. The requests that wait for a lane go first: while
 * they do, only the looks are made that each claim needs, and those late in its lease.
 */
export class LostClaims {
  readonly #clock: Clock
  readonly #port: StorePort
  readonly #pace: LookPace
  /** By tenant, the one whose turn is next before the others. */
  readonly #byTenant = new Map<string, Owner>()
  readonly #byWeight = new ByWeight<Owner>()
  /** The one whose turn is next before the others. */
  readonly #lanes = new Map<number | undefined, LaneLooks<Lost>>()
  #pending = 0
  #underWay = 0
  /** Looks per second that give every claim those it needs. */
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

  /** Claims that may still be held. */
  get pending(): number {
    return this.#pending
  }

  /** Releases what it has once more, now, and ends. */
  stop(): void {
    this.#isStopped = true
    this.#cancel()
    for (const lost of [...this.#all()]) if (!lost.isAsked) void this.#look(lost)
  }

  release({ identity, tenant, token, retentionMs, leaseMs }: ClaimRequest): void {
    if (!this.#makeRoom(tenant)) return
    const lease = { identity, token, attempt: 0 }
    const release = { kind: 'release', lease, proof: 'proven', retentionMs } as const
    const lost: Lost = {
      owner: this.#ownerOf(tenant),
      lane: this.#laneOf(identity),
      release: { ...release, errorCode: 'claim_unanswered' },
      leaseMs,
      sinceMs: this.#clock.monotonicMs(),
      looks: 0,
      failures: 0,
      answeredMs: undefined,
      dueMs: undefined,
      isAsked: false,
      isOpen: true,
    }
    this.#add(lost)
    if (this.#isStopped) return void this.#look(lost)
    lost.lane.due('needed').push(tenant, lost)
    this.#pump()
  }

  /** Where there are too many, the oldest of the tenant with most is given up, or this one. */
  #makeRoom(tenant: string): boolean {
    if (this.#pending < LOST_MAX) return true
    const most = this.#byWeight.heaviest
    const own = this.#byTenant.get(tenant)?.weight ?? 0
    if (most === undefined || most.weight <= own + 1) return false
    const [oldest] = most.claims
    this.#remove(oldest!)
    // It may still stand in a queue, which is made anew then.
    this.#collectAtMs = this.#clock.monotonicMs()
    return true
  }

  #ownerOf(tenant: string): Owner {
    const owner = this.#byTenant.get(tenant) ?? new Owner(tenant)
    this.#byTenant.set(tenant, owner)
    return owner
  }

  #laneOf(identity: string): LaneLooks<Lost> {
    const number = this.#port.laneOf(identity)
    const lane = this.#lanes.get(number) ?? new LaneLooks<Lost>(number)
    this.#lanes.set(number, lane)
    return lane
  }

  #add(lost: Lost): void {
    const { owner } = lost
    owner.claims.add(lost)
    this.#byWeight.weigh(owner, owner.claims.size)
    this.#pending++
    this.#neededPerSecond += neededPerSecond(lost, lost.sinceMs)
    this.#collectAtMs = Math.min(this.#collectAtMs, lost.sinceMs + COLLECT_MS_MAX)
  }

  #remove(lost: Lost): void {
    if (!lost.isOpen) return
    lost.isOpen = false
    const { owner } = lost
    owner.claims.delete(lost)
    this.#byWeight.weigh(owner, owner.claims.size)
    if (owner.claims.size === 0) this.#byTenant.delete(owner.tenant)
    this.#pending--
  }

  *#all(): Iterable<Lost> {
    for (const { claims } of this.#byTenant.values()) yield* claims
  }

  /** Makes the looks that may be made now, and comes back for the others. */
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

  /** How long the next look has to wait; for ever, where the end of another one comes first. */
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

  /** What is most urgent in a lane that may be asked; or how long there is none. */
  #nextLook(nowMs: number): NextLook | number {
    let leastMs = Number.POSITIVE_INFINITY
    for (const urgency of URGENCIES) {
      for (const lane of this.#lanes.values()) {
        const queue = lane.due(urgency)
        const lost = open(queue)
        const restMs = lane.waitMs(nowMs, this.#underWay)
        if (lost === undefined || restMs === Number.POSITIVE_INFINITY) continue
        const isBusy = this.#port.waitingIn(lane.lane) > 0
        const waitMs = isBusy && urgency === 'extra' ? Math.max(BUSY_MS, restMs) : restMs
        if (waitMs === 0) return { lost, queue, isBusy }
        leastMs = Math.min(leastMs, waitMs)
      }
    }
    return leastMs
  }

  #nextCollectMs(): number {
    return Math.max(this.#collectAtMs, this.#collectedMs + COLLECT_MS)
  }

  /** Makes the queues of what is due anew, and forgets what is over. */
  #collect(nowMs: number): void {
    for (const lane of this.#lanes.values()) lane.clear()
    this.#collectedMs = nowMs
    this.#collectAtMs = nowMs + COLLECT_MS_MAX
    this.#neededPerSecond = 0
    for (const lost of [...this.#all()]) {
      if (lost.isAsked) continue
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
  async #look(lost: Lost): Promise<void> {
    const isLast = this.#isStopped
    lost.isAsked = true
    this.#underWay++
    this.#passTurn(lost)
    const outcome = await this.#release(lost)
    this.#underWay--
    lost.isAsked = false
    if (outcome?.kind === 'settled' || isLast) this.#remove(lost)
    // Stopped meanwhile: once more, because the claim may have taken hold since.
    else if (this.#isStopped) return this.#look(lost)
    else this.#putOff(lost, outcome !== undefined)
    this.#pump()
  }

  async #release({ release, owner, lane }: Lost): Promise<SettleOutcome | undefined> {
    const begunMs = this.#clock.monotonicMs()
    lane.begun()
    try {
      const outcome = await this.#port.releaseLost(release, owner.tenant)
      lane.answered()
      return outcome
    } catch (error) {
      // Reported by the port as a store error; a later look tries again.
      if (isRejected(error)) lane.answered()
      else lane.failed(begunMs, this.#clock.monotonicMs())
      return undefined
    }
  }

  #putOff(lost: Lost, isAnswered: boolean): void {
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

  /** The queues are made in the order of the tenants, and gone through in that of the lanes. */
  #passTurn({ owner, lane }: Lost): void {
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

/** The first of a queue that is still looked for; what stands before it is taken out. */
function open(queue: FairQueue<Lost>): Lost | undefined {
  for (let next = queue.peek(); next !== undefined; next = queue.peek()) {
    if (next.isOpen && !next.isAsked) return next
    queue.shift()
  }
  return undefined
}
