import { sleep } from '../../core/time/clock.ts'
import { DAY_MS } from '../../core/time/durations.ts'
import { backoffMs, type Backoff } from '../../core/time/retry.ts'
import type { HeldMessage } from '../../core/store/durable-store.ts'
import { InvalidOptionsError } from '../../core/errors.ts'
import { newToken } from '../../core/record/identity.ts'
import { rejectUnknownOptions, wholeNumber } from '../../core/options.ts'
import { mayHaveWritten } from '../../core/store/store-port.ts'
import { onStoreSignal } from '../store-signal.ts'
import { MessageLeases } from './message-leases.ts'
import type { PlaceHandle } from '../places/places.ts'
import { MessageRun, type RunEnd, type RunParts } from './message-run.ts'
import { OutboxPort } from './outbox-port.ts'
import { PollTimer } from './poll-timer.ts'
import type {
  Relay,
  RelayCloseReport,
  RelayOptions,
  RelayReport,
  RelayStats,
} from './relay-contract.ts'
import { ClaimPlanner, type ClaimKind, type ClaimPlan } from './claim-planner.ts'
import { ConditionWaiters } from './condition-waiters.ts'
import { emitUnrelayed, isUnrelayedQueryDue, noteRelay } from './unrelayed.ts'
import { resolveRelayOptions, type ResolvedRelayOptions } from './relay-options.ts'
import { laneOf } from './waiting-messages.ts'

/** Creates a relay, which passes the messages of an outbox to their handlers. */
export function createRelay(options: RelayOptions): Relay {
  return new OutboxRelay(resolveRelayOptions(options))
}

const GRACE_MS = 10_000
const GRACE_MS_MAX = DAY_MS
/** While all ordinary places are taken: how often to claim messages for the reserve. */
const RESERVE_EVERY_MS = 250
/** The pauses between failed claims. */
const CLAIM_BACKOFF: Backoff = { firstMs: 100, maxMs: 5_000 }
/** A failed claim is repeated with its token for this part of the lease: it may have succeeded. */
const REPEATS_PART = 0.5

/** Up to this attempt, a message starts without a check of how the attempt before it ended. */
const UNCHECKED_ATTEMPTS_MAX = 3

interface Claim extends ClaimPlan {
  readonly token: string
  /** The monotonic time before the first send: the leases of the store cannot start earlier. */
  readonly sentMs: number
}

/** A running handler. */
interface RunningHandler {
  readonly run: MessageRun
  readonly place: PlaceHandle
}

class OutboxRelay implements Relay {
  readonly #options: ResolvedRelayOptions
  readonly #port: OutboxPort
  readonly #leases: MessageLeases
  readonly #parts: RunParts
  readonly #planner: ClaimPlanner
  /** Messages that are claimed and not settled. */
  readonly #open = new Set<MessageRun>()
  /** Running handlers, by message id. */
  readonly #handling = new Map<string, RunningHandler>()
  /** When the next claim for the reserve is due, and when the last ordinary claim was sent. */
  #reserveAtMs = 0
  #ordinaryAtMs = Number.NEGATIVE_INFINITY
  #use: 'none' | 'run' | 'once' = 'none'
  #isClosed = false
  #stopping = new AbortController()
  /** The claim that is being sent, or that failed and may be repeated. */
  #claim: Claim | undefined
  #isClaiming = false
  readonly #timer: PollTimer
  /** The last ordinary claim returned as many messages as it had room for: more are due. */
  #isMore = false
  /** Unregisters the topics of this relay, and its pauses from `engine.health()`. */
  #unregister: () => void = () => undefined
  /** The running query for messages of topics without a relay. */
  #unrelayedQuery: Promise<unknown> | undefined
  readonly #waiters: ConditionWaiters
  #tally: Record<RunEnd, number> = newTally()

  constructor(options: ResolvedRelayOptions) {
    const { engine, outbox, leaseMs, pollMs } = options
    this.#options = options
    this.#port = new OutboxPort(engine, outbox)
    this.#leases = new MessageLeases({ clock: engine.clock, port: this.#port, leaseMs })
    this.#timer = new PollTimer(engine.clock, pollMs)
    this.#waiters = new ConditionWaiters(engine.clock)
    this.#planner = new ClaimPlanner(options)
    this.#parts = {
      options,
      port: this.#port,
      onHandled: (run) => this.#onHandled(run),
      onLate: (run) => this.#onLate(run),
      onOver: (run, end) => this.#onOver(run, end),
    }
  }

  async run(signal?: AbortSignal): Promise<void> {
    if (this.#isClosed) return
    this.#begin('run')
    const stop = () => this.#stop()
    signal?.addEventListener('abort', stop)
    if (signal?.aborted === true) stop()
    const unwatch = this.#listen()
    try {
      await this.#relayUntilStopped()
    } finally {
      unwatch()
      signal?.removeEventListener('abort', stop)
      // `#stop` has not run if the loop ended because the engine was closed.
      this.#returnWaiting()
      await this.#waiters.until(() => this.#open.size === 0)
      await this.#unrelayedQuery
      this.#unregister()
      this.#use = 'none'
    }
  }

  async runOnce(): Promise<RelayReport> {
    this.#begin('once')
    try {
      if (!this.#isClosed) await this.#claimDue()
      this.#checkUnrelayed()
      await this.#waiters.until(() => this.#open.size === 0)
      await this.#unrelayedQuery
    } finally {
      this.#use = 'none'
    }
    const { relayed, retried, dead, lost } = this.#tally
    return { relayed, retried, dead, lost }
  }

  stats(): RelayStats {
    return { ...this.#planner.places.stats(), waiting: this.#planner.waiting.size }
  }

  async close(options: { graceMs?: number } = {}): Promise<RelayCloseReport> {
    rejectUnknownOptions('relay.close', options, ['graceMs'])
    const bounds = { fallback: GRACE_MS, min: 0, max: GRACE_MS_MAX }
    const graceMs = wholeNumber('relay.close.graceMs', options.graceMs, bounds)
    this.#isClosed = true
    this.#stop()
    const isIdle = () => this.#open.size + this.#handling.size === 0 && !this.#isClaiming
    await this.#waiters.until(isIdle, graceMs)
    const abandoned = this.#handling.size
    const handling = [...this.#handling.values()].map(({ run }) => run)
    for (const run of [...handling, ...this.#open]) run.abandon()
    this.#leases.stop()
    this.#planner.places.pauses.stop()
    this.#unregister()
    return { abandoned }
  }

  #begin(use: 'run' | 'once'): void {
    if (this.#use !== 'none') {
      throw new InvalidOptionsError(
        `${this.#use === 'run' ? 'run' : 'runOnce'}() of this relay has not ended; await it, or ` +
          'create another relay',
      )
    }
    this.#use = use
    const { engine, handlers } = this.#options
    this.#unregister()
    const removeTopics = noteRelay(engine.store, [...handlers.keys()])
    const endUse = this.#planner.places.pauses.use()
    this.#unregister = () => {
      removeTopics()
      endUse()
    }
    this.#stopping = new AbortController()
    this.#timer.isDue = true
    this.#isMore = false
    this.#tally = newTally()
  }

  #stop(): void {
    this.#stopping.abort()
    this.#returnWaiting()
    this.#timer.wake()
  }

  /** Listens for commits that the store reports, and for messages that this process adds. */
  #listen(): () => void {
    const { engine, outbox } = this.#options
    const unwatch = outbox.watch?.(() => {
      this.#timer.isDue = true
      this.#timer.pollSoon()
      this.#timer.wake()
    })
    const unlisten = onStoreSignal(engine.store, 'message_added', () => this.#timer.pollSoon())
    return () => {
      unwatch?.()
      unlisten()
    }
  }

  async #relayUntilStopped(): Promise<void> {
    const { engine } = this.#options
    const { clock } = engine
    let failures = 0
    while (!this.#mustStop()) {
      if (!this.#mayClaim()) {
        await this.#timer.wait(this.#reserveInMs())
        continue
      }
      await engine.untilStoreAnswers(this.#stopping.signal)
      // Handlers that end together free their places together: one claim fills all of them.
      await new Promise<void>((resolve) => clock.soon(resolve))
      if (this.#mustStop() || !this.#mayClaim()) continue
      try {
        await this.#claimDue()
        this.#checkUnrelayed()
        failures = 0
      } catch {
        // The port has emitted the failure. The claim is repeated, with the same token for a while.
        this.#timer.isDue = true
        failures++
        await sleep(clock, backoffMs(CLAIM_BACKOFF, failures), this.#stopping.signal)
      }
    }
  }

  /** Queries for messages without a relay from time to time. Messages do not wait for the query. */
  #checkUnrelayed(): void {
    const { engine, outbox } = this.#options
    if (this.#unrelayedQuery !== undefined || !isUnrelayedQueryDue(engine)) return
    // `askStore` has emitted a failure, and the next query comes in a minute.
    this.#unrelayedQuery = emitUnrelayed(engine, outbox)
      .catch(() => undefined)
      .finally(() => (this.#unrelayedQuery = undefined))
  }

  #mustStop(): boolean {
    return this.#stopping.signal.aborted || this.#isClosed || this.#options.engine.isClosed
  }

  #mayClaim(): boolean {
    return this.#mayClaimOrdinary() || this.#planner.canCatchUp(this.#open.size)
  }

  #mayClaimOrdinary(): boolean {
    if (!this.#timer.isDue && !this.#isMore) return false
    return this.#isWorthCall() || this.#reserveInMs() === 0
  }

  /** While more is due than fits, an ordinary claim waits until there is room for a full batch. */
  #isWorthCall(): boolean {
    const { places, batchSize } = this.#options
    const room = this.#planner.room(this.#open.size)
    if (room === 0) return false
    if (!this.#isMore || this.#open.size === 0) return true
    return room >= Math.min(places.places, batchSize)
  }

  /**
   * The time until a claim for the reserve, or for a room that is smaller than a batch. Infinite
   * while an ordinary claim is worth a call. Without it, handlers that hang could leave a small
   * room unused for as long as they hang.
   */
  #reserveInMs(): number {
    const hasFree = this.#planner.places.free > 0 && this.#planner.room(this.#open.size) === 0
    if (hasFree || this.#isWorthCall()) return Number.POSITIVE_INFINITY
    return Math.max(0, this.#reserveAtMs - this.#options.engine.clock.monotonicMs())
  }

  /** Claims for trials and tenants that are behind; then an ordinary claim or the reserve. */
  async #claimDue(): Promise<void> {
    const failed = this.#claimToRepeat()
    if (failed !== undefined) return this.#send(failed)
    for (const plan of this.#planner.planTrials()) await this.#send(this.#newClaim(plan))
    const catchUp = this.#planner.planCatchUp(this.#open.size)
    if (catchUp !== undefined) {
      await this.#send(this.#newClaim(catchUp))
      if (!this.#mayClaimOrdinary()) return
    }
    const { clock } = this.#options.engine
    const plan = this.#planner.planOrdinary(this.#open.size)
    if (plan === undefined || !this.#isWorthCall()) {
      this.#reserveAtMs = clock.monotonicMs() + RESERVE_EVERY_MS
    }
    if (plan === undefined) return this.#claimForReserve()
    this.#ordinaryAtMs = clock.monotonicMs()
    await this.#send(this.#newClaim(plan))
  }

  async #claimForReserve(): Promise<void> {
    // Messages of the last reserve claim that could not start make room for the next claim.
    for (const run of this.#planner.takeReserved()) run.returnToStore()
    const plans = this.#planner.planReserve()
    // If every topic is paused, there is nothing to claim until one of them is resumed.
    if (plans.length === 0 && this.#planner.room(this.#open.size) > 0) {
      this.#timer.isDue = false
      this.#isMore = false
    }
    for (const plan of plans) await this.#send(this.#newClaim(plan))
  }

  async #send(claim: Claim): Promise<void> {
    const { leaseMs } = this.#options
    const { sentMs, kind, ...request } = claim
    const isOrdinary = kind === 'ordinary'
    if (isOrdinary) this.#timer.isDue = false
    // Catch-up claims can follow each other at once, and must not delay the poll for the others.
    if (kind !== 'catch_up') this.#timer.restart()
    this.#claim = claim
    this.#isClaiming = true
    try {
      const messages = await this.#port.claim({ ...request, leaseMs })
      this.#claim = undefined
      if (isOrdinary) {
        this.#planner.measurePace(sentMs)
        this.#isMore = messages.length >= claim.limit
      }
      this.#planner.noteClaimed(claim, messages)
      const isActive = kind === 'catch_up' ? messages.length < claim.limit : messages.length > 0
      if (isActive) this.#pollAgain()
      this.#accept(messages, claim)
    } catch (error) {
      if (!mayHaveWritten(error)) this.#claim = undefined
      throw error
    } finally {
      this.#isClaiming = false
      this.#changed()
    }
  }

  /** The claim whose answer was lost, while the messages it may have taken are still leased. */
  #claimToRepeat(): Claim | undefined {
    const { engine, leaseMs } = this.#options
    const failed = this.#claim
    this.#claim = undefined
    if (failed === undefined) return undefined
    const sinceMs = engine.clock.monotonicMs() - failed.sentMs
    return sinceMs < leaseMs * REPEATS_PART ? failed : undefined
  }

  #newClaim(plan: ClaimPlan): Claim {
    return { ...plan, token: newToken(), sentMs: this.#options.engine.clock.monotonicMs() }
  }

  #accept(messages: readonly HeldMessage[], { sentMs, kind }: Claim): void {
    const { engine, maxAttempts } = this.#options
    const nowMs = engine.clock.monotonicMs()
    for (const message of messages) {
      const run = new MessageRun(this.#parts, message, sentMs)
      this.#open.add(run)
      this.#leases.add(run)
      if (nowMs >= run.heldUntilMs) run.lose()
      else if (message.attempt > Math.min(UNCHECKED_ATTEMPTS_MAX, maxAttempts))
        void this.#checkLastAttempt(run, kind)
      else this.#queue(run, kind)
    }
    this.#startNext()
  }

  #queue(run: MessageRun, kind: ClaimKind): void {
    if (this.#mustStop() || !this.#planner.admit(run, kind)) run.returnToStore()
  }

  /**
   * Queues a message that was claimed several times only if its last attempt has recorded an error.
   * Otherwise a relay crashed during that attempt, perhaps because of this message or of one beside
   * it. Such a message fails: it is retried after a random pause that separates it from the others,
   * or becomes a dead letter after its last attempt.
   */
  async #checkLastAttempt(run: MessageRun, kind: ClaimKind): Promise<void> {
    const { id, attempt } = run.message
    try {
      const view = await this.#port.read(id)
      if (view?.errors.at(-1)?.attempt === attempt - 1) this.#queue(run, kind)
      else run.fail(new Error(`attempt ${attempt - 1} recorded no end: its relay probably crashed`))
    } catch {
      // The port has emitted the failure. Without the pause, the message would be claimed in a
      // loop.
      await sleep(this.#options.engine.clock, CLAIM_BACKOFF.maxMs, this.#stopping.signal)
      run.returnToStore()
    }
    this.#startNext()
  }

  #startNext(): void {
    for (let run = this.#planner.next(); run !== undefined; run = this.#planner.next())
      this.#start(run)
  }

  #start(run: MessageRun): void {
    const { engine, leaseMs } = this.#options
    const { id } = run.message
    if (run.isOver) return
    if (engine.clock.monotonicMs() >= run.heldUntilMs) return run.lose()
    if (this.#handling.has(id)) {
      // With a pause of one lease: without it, the message would be claimed in a loop.
      return run.fail(new Error('the handler of an earlier attempt still runs'), leaseMs)
    }
    // `next` has checked for a place in the same tick.
    const place = this.#planner.places.take(laneOf(run))!
    this.#handling.set(id, { run, place })
    run.start()
    this.#leases.watch(run)
  }

  #returnWaiting(test: (run: MessageRun) => boolean = () => true): void {
    for (const run of this.#planner.waiting.take(test)) run.returnToStore()
  }

  #onHandled(run: MessageRun): void {
    this.#handling.get(run.message.id)?.place.end()
    this.#handling.delete(run.message.id)
    this.#planner.noteHandled()
    // The ordinary places are stuck, so it had one of the reserve: claim for the reserve at once.
    const sinceMs = this.#options.engine.clock.monotonicMs() - this.#ordinaryAtMs
    const isStuck = this.#planner.places.free === 0 && sinceMs >= RESERVE_EVERY_MS
    if (isStuck && !this.#planner.hasReserved) this.#reserveAtMs = 0
    if (run.isLate || this.#planner.isBehind(run)) this.#timer.isDue = true
    this.#startNext()
    this.#changed()
  }

  #onLate(run: MessageRun): void {
    const { topic, id } = run.message
    this.#handling.get(id)?.place.overdue(id)
    // Other relays may still handle a topic that is paused here.
    const isPaused = this.#planner.places.pauses.isPaused(topic)
    if (isPaused) this.#returnWaiting(({ message }) => message.topic === topic)
    this.#startNext()
    this.#changed()
  }

  #onOver(run: MessageRun, end: RunEnd): void {
    this.#open.delete(run)
    this.#leases.remove(run)
    this.#tally[end]++
    // The next message of its partition may be due now, and no store reports that.
    if (run.message.partition !== undefined) this.#timer.isDue = true
    this.#changed()
  }

  #changed(): void {
    if (this.#mayClaim()) this.#timer.wake()
    this.#waiters.changed()
  }

  /** Some stores report a commit only after a claim that found no messages. */
  #pollAgain(): void {
    this.#timer.isDue = true
    this.#timer.pollSoon()
  }
}

function newTally(): Record<RunEnd, number> {
  return { relayed: 0, retried: 0, dead: 0, lost: 0, returned: 0 }
}
