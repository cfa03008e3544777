import type { Clock } from './clock.ts'
import { isRejected } from './errors.ts'
import { FairQueue } from './fair-queue.ts'
import { LookPace } from './look-pace.ts'
import type { StorePort } from './store-port.ts'
import type { ClaimRequest, SettleOutcome, Settlement } from './store.ts'

/** After the first look, which comes at once; then three times as long after each. */
const PAUSE_MS_FIRST = 1_000
const PAUSE_GROWTH = 3

/** A look that failed is repeated after this time, and after twice as long each time. */
const RETRY_MS_FIRST = 500
const RETRY_MS_MAX = 5_000
/** Nor later than after this part of the lease. */
const RETRY_PART = 1 / 8

/** The pauses reach their longest, or the end of every lease, before that. */
const GROWTHS_MAX = 20

/** A look in the second half of the lease is made in any case; one near its end, if it can be. */
const HALF = 1 / 2
const LATE = 7 / 8

/** Claims looked after at once. One more is left to lapse, as if this process had died. */
const LOST_MAX = 10_000

/** All claims are gone through at most so often, and at least so often. */
const COLLECT_MS = 100
const COLLECT_MS_MAX = 1_000
/** While requests wait for the store, it is asked so often whether they still do. */
const BUSY_MS = 100

/** One claim that may be held without work. */
interface Lost {
  readonly tenant: string
  readonly release: Settlement
  readonly leaseMs: number
  readonly sinceMs: number
  /** Looks that were answered, and those that have failed since. */
  looks: number
  failures: number
  answeredMs: number | undefined
  /** When it is to be looked for; `undefined` while it waits for its turn, or is asked about. */
  dueMs: number | undefined
  isAsked: boolean
  isOpen: boolean
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
 * A storm loses thousands of claims at once. All of them share one pace (`LookPace`), tenants take
 * turns, and the requests that wait for the store go first. While they wait, only the looks are
 * made that each claim needs: the first, and one in the second half of its lease.
 */
export class LostClaims {
  readonly #clock: Clock
  readonly #port: StorePort
  readonly #pace: LookPace
  /** By tenant, the one whose turn is next before the others. */
  readonly #byTenant = new Map<string, Set<Lost>>()
  /** What is due: looks that a claim needs, and looks that free its key sooner. */
  #needed = new FairQueue<Lost>()
  #extra = new FairQueue<Lost>()
  #pending = 0
  #underWay = 0
  /** Looks per second that give every claim those it needs. */
  #neededPerSecond = 0
  /** The tenant with most lost claims, when they were gone through last. */
  #heaviest = ''
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
      tenant,
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
    this.#needed.push(tenant, lost)
    this.#pump()
  }

  /** Where there are too many, the oldest of the tenant with most is given up, or this one. */
  #makeRoom(tenant: string): boolean {
    if (this.#pending < LOST_MAX) return true
    const most = this.#byTenant.get(this.#heaviest)
    const own = this.#byTenant.get(tenant)?.size ?? 0
    if (most === undefined || most.size <= own + 1) return false
    const [oldest] = most
    this.#remove(oldest!)
    // It may still stand in a queue, which is made anew then.
    this.#collectAtMs = this.#clock.monotonicMs()
    return true
  }

  #add(lost: Lost): void {
    const own = this.#byTenant.get(lost.tenant)
    if (own === undefined) this.#byTenant.set(lost.tenant, new Set([lost]))
    else own.add(lost)
    this.#pending++
    this.#neededPerSecond += neededPerSecond(lost, lost.sinceMs)
    this.#collectAtMs = Math.min(this.#collectAtMs, lost.sinceMs + COLLECT_MS_MAX)
  }

  #remove(lost: Lost): void {
    if (!lost.isOpen) return
    lost.isOpen = false
    const own = this.#byTenant.get(lost.tenant)
    own?.delete(lost)
    if (own?.size === 0) this.#byTenant.delete(lost.tenant)
    this.#pending--
  }

  *#all(): Iterable<Lost> {
    for (const own of this.#byTenant.values()) yield* own
  }

  /** Makes the looks that may be made now, and comes back for the others. */
  #pump(): void {
    if (this.#isStopped) return
    this.#cancel()
    this.#cancel = () => undefined
    const nowMs = this.#clock.monotonicMs()
    if (nowMs >= this.#nextCollectMs()) this.#collect(nowMs)
    const waitMs = Math.min(this.#send(), this.#nextCollectMs() - nowMs)
    if (this.#pending === 0) return
    this.#cancel = this.#clock.after(Math.ceil(waitMs), () => this.#pump())
  }

  /** How long the next look has to wait; for ever, where the end of another one comes first. */
  #send(): number {
    while (this.#underWay < this.#pace.atOnceMax) {
      const isBusy = this.#port.waiting > 0
      const next = open(this.#needed) ?? open(this.#extra)
      if (next === undefined) return Number.POSITIVE_INFINITY
      if (isBusy && this.#needed.rows === 0) return BUSY_MS
      const waitMs = this.#pace.waitMs(this.#neededPerSecond, isBusy)
      if (waitMs > 0) return waitMs
      if (this.#needed.rows > 0) this.#needed.shift()
      else this.#extra.shift()
      this.#pace.spend()
      void this.#look(next)
    }
    return Number.POSITIVE_INFINITY
  }

  #nextCollectMs(): number {
    return Math.max(this.#collectAtMs, this.#collectedMs + COLLECT_MS)
  }

  /** Makes the queues of what is due anew, and forgets what is over. */
  #collect(nowMs: number): void {
    this.#needed = new FairQueue()
    this.#extra = new FairQueue()
    this.#collectedMs = nowMs
    this.#collectAtMs = nowMs + COLLECT_MS_MAX
    this.#neededPerSecond = 0
    let most = 0
    for (const lost of [...this.#all()]) {
      const { size } = this.#byTenant.get(lost.tenant)!
      if (size > most) [most, this.#heaviest] = [size, lost.tenant]
      if (lost.isAsked) continue
      if (nowMs >= at(lost, 1)) {
        this.#remove(lost)
        continue
      }
      this.#neededPerSecond += neededPerSecond(lost, nowMs)
      if (lost.dueMs !== undefined && lost.dueMs > nowMs) {
        this.#collectAtMs = Math.min(this.#collectAtMs, lost.dueMs)
        continue
      }
      lost.dueMs = undefined
      const queue = needsLook(lost, nowMs) ? this.#needed : this.#extra
      queue.push(lost.tenant, lost)
    }
  }

  /** Never rejects. */
  async #look(lost: Lost): Promise<void> {
    const isLast = this.#isStopped
    lost.isAsked = true
    this.#underWay++
    this.#passTurn(lost.tenant)
    const outcome = await this.#release(lost)
    this.#underWay--
    lost.isAsked = false
    if (outcome?.kind === 'settled' || isLast) this.#remove(lost)
    // Stopped meanwhile: once more, because the claim may have taken hold since.
    else if (this.#isStopped) return this.#look(lost)
    else this.#putOff(lost, outcome !== undefined)
    this.#pump()
  }

  async #release({ release, tenant }: Lost): Promise<SettleOutcome | undefined> {
    try {
      const outcome = await this.#port.releaseLost(release, tenant)
      this.#pace.answered()
      return outcome
    } catch (error) {
      // Reported by the port as a store error; a later look tries again.
      if (isRejected(error)) this.#pace.answered()
      else this.#pace.failed()
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
    if (lost.dueMs >= at(lost, 1)) return this.#remove(lost)
    this.#collectAtMs = Math.min(this.#collectAtMs, lost.dueMs)
  }

  /** The queues are made in the order of the tenants. */
  #passTurn(tenant: string): void {
    const own = this.#byTenant.get(tenant)
    if (own === undefined || this.#byTenant.size === 1) return
    this.#byTenant.delete(tenant)
    this.#byTenant.set(tenant, own)
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

/** When this part of the lease would be over, had the claim taken hold when it was lost. */
function at({ sinceMs, leaseMs }: Lost, part: number): number {
  return sinceMs + leaseMs * part
}

/** How fast looks must be made, if this one is to be made in the part of the lease it is for. */
function neededPerSecond(lost: Lost, nowMs: number): number {
  if (!needsLook(lost, nowMs)) return 0
  const part = [HALF, LATE].find((end) => nowMs < at(lost, end)) ?? 1
  return 1_000 / Math.max(1_000, at(lost, part) - nowMs)
}

function needsLook(lost: Lost, nowMs: number): boolean {
  if (lost.answeredMs === undefined) return true
  return nowMs >= at(lost, HALF) && lost.answeredMs < at(lost, HALF)
}

/** At the end of the lease: it is not looked for again. */
function nextLookMs(lost: Lost, nowMs: number): number {
  if (nowMs >= at(lost, LATE)) return at(lost, 1)
  const pauseMs = PAUSE_MS_FIRST * PAUSE_GROWTH ** Math.min(lost.looks - 1, GROWTHS_MAX)
  return Math.min(nowMs + pauseMs, at(lost, nowMs < at(lost, HALF) ? HALF : LATE))
}

function retryMs({ failures, leaseMs }: Lost): number {
  const pauseMs = RETRY_MS_FIRST * 2 ** Math.min(failures - 1, GROWTHS_MAX)
  return Math.min(pauseMs, RETRY_MS_MAX, leaseMs * RETRY_PART)
}
