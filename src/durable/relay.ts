import { sleep } from '../core/clock.ts'
import type { HeldMessage } from '../core/durable-store.ts'
import { InvalidOptionsError } from '../core/errors.ts'
import { newToken } from '../core/identity.ts'
import { rejectUnknownOptions, wholeNumber } from '../core/options.ts'
import { mayHaveTakenHold } from '../core/store-port.ts'
import { onLocalAdd } from './local-adds.ts'
import { MessageLeases } from './message-leases.ts'
import type { TakenPlace } from './places.ts'
import { MessageRun, type RunEnd, type RunParts } from './message-run.ts'
import { OutboxPort } from './outbox-port.ts'
import type {
  Relay,
  RelayCloseReport,
  RelayOptions,
  RelayReport,
  RelayStats,
} from './relay-contract.ts'
import { RelayRoom, type ClaimKind, type RoomAsk } from './relay-room.ts'
import { isLookDue, noteRelay, tellUnrelayed } from './unrelayed.ts'
import { resolveRelayOptions, type ResolvedRelayOptions } from './relay-options.ts'
import { laneOf } from './waiting-messages.ts'
import { Watchers } from './watchers.ts'

export function createRelay(options: RelayOptions): Relay {
  return new OutboxRelay(resolveRelayOptions(options))
}

const GRACE_MS = 10_000
const GRACE_MS_MAX = 24 * 60 * 60 * 1000
/** How soon to look after something has happened; doubles until it is `pollMs` again. */
const LOOK_MS_FIRST = 5
/** While all ordinary places are taken: how often it looks for messages for the reserve. */
const RESERVE_EVERY_MS = 250
/** First pause after a claim that failed; doubles up to the longest. */
const PAUSE_MS_FIRST = 100
const PAUSE_MS_MAX = 5_000
/** A failed claim is repeated for this part of the lease: what it may have taken has a rest. */
const REPEATS_PART = 0.5

/** Attempts of which nobody asks whether the one before has come back: it nearly always has. */
const TRUSTED_MAX = 3

interface Claim extends RoomAsk {
  readonly token: string
  /** The monotonic clock before it was sent first: the store counts its leases no earlier. */
  readonly sentMs: number
}

/** A handler that runs. */
interface Handling {
  readonly run: MessageRun
  readonly place: TakenPlace
}

class OutboxRelay implements Relay {
  readonly #options: ResolvedRelayOptions
  readonly #port: OutboxPort
  readonly #leases: MessageLeases
  readonly #parts: RunParts
  readonly #room: RelayRoom
  /** Taken, and not at their end. */
  readonly #open = new Set<MessageRun>()
  /** By message: whose handler runs, and the place that it has. */
  readonly #handling = new Map<string, Handling>()
  /** Handlers that have ended since the last claim did, and when that was. */
  #handled = 0
  #claimedAtMs = 0
  /** When it may claim for the reserve, and when it made an ordinary claim last. */
  #reserveAtMs = 0
  #askedAtMs = Number.NEGATIVE_INFINITY
  #use: 'none' | 'run' | 'once' = 'none'
  #isClosed = false
  #stopping = new AbortController()
  /** The claim that is under way, or that failed and will be repeated. */
  #claim: Claim | undefined
  #isClaiming = false
  /** Something may be due. */
  #isDue = true
  /** The last claim took all that it could: more is due. */
  #isMore = false
  #lookAtMs = 0
  #lookMs: number
  #wake: () => void = () => undefined
  /** Ends the notes that this relay has its topics, and which of them are paused. */
  #unnote: () => void = () => undefined
  /** The look for messages of other topics that is under way. */
  #look: Promise<unknown> | undefined
  readonly #watchers: Watchers
  #tally: Record<RunEnd, number> = newTally()

  constructor(options: ResolvedRelayOptions) {
    const { engine, outbox, leaseMs, pollMs } = options
    this.#options = options
    this.#port = new OutboxPort(engine, outbox)
    this.#leases = new MessageLeases({ clock: engine.clock, port: this.#port, leaseMs })
    this.#lookMs = pollMs
    this.#watchers = new Watchers(engine.clock)
    this.#room = new RelayRoom(options)
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
      // Where the engine was closed, nobody has said so before.
      this.#giveBackWaiting()
      await this.#watchers.until(() => this.#open.size === 0)
      await this.#look
      this.#unnote()
      this.#use = 'none'
    }
  }

  async runOnce(): Promise<RelayReport> {
    this.#begin('once')
    try {
      if (!this.#isClosed) await this.#take()
      this.#tellUnrelayed()
      await this.#watchers.until(() => this.#open.size === 0)
      await this.#look
    } finally {
      this.#use = 'none'
    }
    const { relayed, retried, dead, lost } = this.#tally
    return { relayed, retried, dead, lost }
  }

  stats(): RelayStats {
    return { ...this.#room.places.stats(), waiting: this.#room.waiting.size }
  }

  async close(options: { graceMs?: number } = {}): Promise<RelayCloseReport> {
    rejectUnknownOptions('relay.close', options, ['graceMs'])
    const bounds = { fallback: GRACE_MS, min: 0, max: GRACE_MS_MAX }
    const graceMs = wholeNumber('relay.close.graceMs', options.graceMs, bounds)
    this.#isClosed = true
    this.#stop()
    const isQuiet = () => this.#open.size + this.#handling.size === 0 && !this.#isClaiming
    await this.#watchers.until(isQuiet, graceMs)
    const abandoned = this.#handling.size
    const handled = [...this.#handling.values()].map(({ run }) => run)
    for (const run of [...handled, ...this.#open]) run.abandon()
    this.#leases.stop()
    this.#room.places.pauses.stop()
    this.#unnote()
    return { abandoned }
  }

  #begin(use: 'run' | 'once'): void {
    if (this.#use !== 'none') {
      throw new InvalidOptionsError(
        `this relay is in use already (${this.#use === 'run' ? 'run' : 'runOnce'}); a relay does ` +
          'one thing at a time, so await it, or make another relay',
      )
    }
    this.#use = use
    const { engine, handlers } = this.#options
    this.#unnote()
    const forget = noteRelay(engine.store, [...handlers.keys()])
    const endUse = this.#room.places.pauses.use()
    this.#unnote = () => {
      forget()
      endUse()
    }
    this.#stopping = new AbortController()
    this.#isDue = true
    this.#isMore = false
    this.#tally = newTally()
  }

  #stop(): void {
    this.#stopping.abort()
    this.#giveBackWaiting()
    this.#wake()
  }

  /** Whatever can tell that messages were committed, or soon will be. */
  #listen(): () => void {
    const { engine, outbox } = this.#options
    const unwatch = outbox.watch?.(() => {
      this.#isDue = true
      this.#lookSoon()
      this.#wake()
    })
    const unlisten = onLocalAdd(engine.store, () => this.#lookSoon())
    return () => {
      unwatch?.()
      unlisten()
    }
  }

  async #relayUntilStopped(): Promise<void> {
    const { engine } = this.#options
    const { clock } = engine
    let pauseMs = PAUSE_MS_FIRST
    while (!this.#mustStop()) {
      if (!this.#mayTake()) {
        await this.#rest()
        continue
      }
      await engine.untilStoreAnswers(this.#stopping.signal)
      // Handlers that end together make room together.
      await new Promise<void>((resolve) => clock.soon(resolve))
      if (this.#mustStop() || !this.#mayTake()) continue
      try {
        await this.#take()
        this.#tellUnrelayed()
        pauseMs = PAUSE_MS_FIRST
      } catch {
        // Reported by the port. The store is asked again, with the same token while that helps.
        this.#isDue = true
        await sleep(clock, pauseMs, this.#stopping.signal)
        pauseMs = Math.min(pauseMs * 2, PAUSE_MS_MAX)
      }
    }
  }

  /** Now and then, beside the messages: they do not wait for it. */
  #tellUnrelayed(): void {
    const { engine, outbox } = this.#options
    if (this.#look !== undefined || !isLookDue(engine)) return
    // What fails was reported by `askStore`, and the next look comes in a minute.
    this.#look = tellUnrelayed(engine, outbox)
      .catch(() => undefined)
      .finally(() => (this.#look = undefined))
  }

  #mustStop(): boolean {
    return this.#stopping.signal.aborted || this.#isClosed || this.#options.engine.isClosed
  }

  #mayTake(): boolean {
    return this.#mayAsk() || this.#room.hasCrowd(this.#open.size)
  }

  #mayAsk(): boolean {
    if (!this.#isDue && !this.#isMore) return false
    return this.#isWorthCall() || this.#reserveInMs() === 0
  }

  /** While there is more than fits, the next ordinary claim waits until it is worth a call. */
  #isWorthCall(): boolean {
    const { places, batchSize } = this.#options
    const room = this.#room.room(this.#open.size)
    if (room === 0) return false
    if (!this.#isMore || this.#open.size === 0) return true
    return room >= Math.min(places.places, batchSize)
  }

  /**
   * How long until it may claim for the reserve, or for what room there is: never, while a claim is
   * worth a call. Handlers that hang may leave a little room for as long as they hang.
   */
  #reserveInMs(): number {
    const hasFree = this.#room.places.free > 0 && this.#room.room(this.#open.size) === 0
    if (hasFree || this.#isWorthCall()) return Number.POSITIVE_INFINITY
    return Math.max(0, this.#reserveAtMs - this.#options.engine.clock.monotonicMs())
  }

  /** Claims for tries and crowds; then one ordinary claim or, without room, for the reserve. */
  async #take(): Promise<void> {
    const failed = this.#claimToRepeat()
    if (failed !== undefined) return this.#send(failed)
    for (const one of this.#room.askTries()) await this.#send(this.#newClaim(one))
    const crowd = this.#room.askCrowd(this.#open.size)
    if (crowd !== undefined) {
      await this.#send(this.#newClaim(crowd))
      if (!this.#mayAsk()) return
    }
    const { clock } = this.#options.engine
    const ask = this.#room.ask(this.#open.size)
    if (ask === undefined || !this.#isWorthCall()) {
      this.#reserveAtMs = clock.monotonicMs() + RESERVE_EVERY_MS
    }
    if (ask === undefined) return this.#takeForReserve()
    this.#askedAtMs = clock.monotonicMs()
    await this.#send(this.#newClaim(ask))
  }

  async #takeForReserve(): Promise<void> {
    // Had they been able to begin, they would have by now. What is fetched next may be.
    for (const run of this.#room.takeReserved()) run.giveBack()
    const asks = this.#room.askReserve()
    // Where every topic is paused, there is nothing to ask for until one of them goes on.
    if (asks.length === 0 && this.#room.room(this.#open.size) > 0) {
      this.#isDue = false
      this.#isMore = false
    }
    for (const ask of asks) await this.#send(this.#newClaim(ask))
  }

  async #send(claim: Claim): Promise<void> {
    const { engine, leaseMs } = this.#options
    const { sentMs, kind, ...request } = claim
    const isOrdinary = kind === 'ordinary'
    if (isOrdinary) this.#isDue = false
    // Claims for a crowd may follow on each other, and must not put off the look for the others.
    if (kind !== 'crowd') this.#lookAtMs = engine.clock.monotonicMs() + this.#lookMs
    this.#claim = claim
    this.#isClaiming = true
    try {
      const messages = await this.#port.claim({ ...request, leaseMs })
      this.#claim = undefined
      if (isOrdinary) {
        this.#measure(sentMs)
        this.#isMore = messages.length >= claim.limit
      }
      this.#room.took(claim, messages)
      if (kind === 'crowd' ? messages.length < claim.limit : messages.length > 0) this.#foundSome()
      this.#accept(messages, claim)
    } catch (error) {
      if (!mayHaveTakenHold(error)) this.#claim = undefined
      throw error
    } finally {
      this.#isClaiming = false
      this.#changed()
    }
  }

  #measure(sentMs: number): void {
    const nowMs = this.#options.engine.clock.monotonicMs()
    const sinceMs = Math.max(1, nowMs - this.#claimedAtMs)
    this.#room.pace = Math.ceil((this.#handled * (nowMs - sentMs)) / sinceMs)
    this.#handled = 0
    this.#claimedAtMs = nowMs
  }

  /** The claim whose answer never came, while what it may have taken is of use. */
  #claimToRepeat(): Claim | undefined {
    const { engine, leaseMs } = this.#options
    const failed = this.#claim
    this.#claim = undefined
    if (failed === undefined) return undefined
    const sinceMs = engine.clock.monotonicMs() - failed.sentMs
    return sinceMs < leaseMs * REPEATS_PART ? failed : undefined
  }

  #newClaim(ask: RoomAsk): Claim {
    return { ...ask, token: newToken(), sentMs: this.#options.engine.clock.monotonicMs() }
  }

  #accept(messages: readonly HeldMessage[], { sentMs, kind }: Claim): void {
    const { engine, attemptsMax } = this.#options
    const nowMs = engine.clock.monotonicMs()
    for (const message of messages) {
      const run = new MessageRun(this.#parts, message, sentMs)
      this.#open.add(run)
      this.#leases.add(run)
      if (nowMs >= run.heldUntilMs) run.lose()
      else if (message.attempt > Math.min(TRUSTED_MAX, attemptsMax)) void this.#lookInto(run, kind)
      else this.#queue(run, kind)
    }
    this.#startNext()
  }

  #queue(run: MessageRun, kind: ClaimKind): void {
    if (this.#mustStop() || !this.#room.admit(run, kind)) run.giveBack()
  }

  /**
   * It has been taken often. Whoever had it last has failed, or never came back: perhaps because
   * of this very message, perhaps of one beside it. So it is put off, each by a pause of its own
   * that parts the one from the others; or given up, where it was taken as often as it may be.
   */
  async #lookInto(run: MessageRun, kind: ClaimKind): Promise<void> {
    const { id, attempt } = run.message
    try {
      const view = await this.#port.read(id)
      if (view?.errors.at(-1)?.attempt === attempt - 1) this.#queue(run, kind)
      else run.fail(new Error(`of ${attempt - 1} attempts, the last never came back`))
    } catch {
      // Reported by the port. Not given back at once, or it would be taken again without end.
      await sleep(this.#options.engine.clock, PAUSE_MS_MAX, this.#stopping.signal)
      run.giveBack()
    }
    this.#startNext()
  }

  #startNext(): void {
    for (let run = this.#room.next(); run !== undefined; run = this.#room.next()) this.#start(run)
  }

  #start(run: MessageRun): void {
    const { engine, leaseMs } = this.#options
    const { id } = run.message
    if (run.isOver) return
    if (engine.clock.monotonicMs() >= run.heldUntilMs) return run.lose()
    if (this.#handling.has(id)) {
      // Not at once, or it would be taken and put off without end.
      return run.fail(new Error('the handler of an earlier attempt still runs'), leaseMs)
    }
    // The room was asked a moment ago, so there is a place.
    const place = this.#room.places.take(laneOf(run))!
    this.#handling.set(id, { run, place })
    run.start()
    this.#leases.watch(run)
  }

  #giveBackWaiting(test: (run: MessageRun) => boolean = () => true): void {
    for (const run of this.#room.waiting.take(test)) run.giveBack()
  }

  #onHandled(run: MessageRun): void {
    this.#handling.get(run.message.id)?.place.end()
    this.#handling.delete(run.message.id)
    this.#handled++
    // It had a place of the reserve, and the ordinary places are stuck: the next one may begin.
    const sinceMs = this.#options.engine.clock.monotonicMs() - this.#askedAtMs
    const isStuck = this.#room.places.free === 0 && sinceMs >= RESERVE_EVERY_MS
    if (isStuck && !this.#room.hasReserved) this.#reserveAtMs = 0
    if (run.isLate || this.#room.isBehind(run)) this.#isDue = true
    this.#startNext()
    this.#changed()
  }

  #onLate(run: MessageRun): void {
    const { topic, id } = run.message
    this.#handling.get(id)?.place.overdue(id)
    // Another relay may have better luck with the rest of a topic that is paused here.
    const isPaused = this.#room.places.pauses.isPaused(topic)
    if (isPaused) this.#giveBackWaiting(({ message }) => message.topic === topic)
    this.#startNext()
    this.#changed()
  }

  #onOver(run: MessageRun, end: RunEnd): void {
    this.#open.delete(run)
    this.#leases.remove(run)
    this.#tally[end]++
    // What is behind it in its partition may be due now, and nobody else will tell.
    if (run.message.partition !== undefined) this.#isDue = true
    this.#changed()
  }

  #changed(): void {
    if (this.#mayTake()) this.#wake()
    this.#watchers.changed()
  }

  /** Until there may be something to take, and room for it. */
  #rest(): Promise<void> {
    const { clock } = this.#options.engine
    return new Promise((resolve) => {
      const wake = () => {
        cancel()
        this.#wake = () => undefined
        resolve()
      }
      const look = () => {
        this.#isDue = true
        this.#lookMs = Math.min(this.#lookMs * 2, this.#options.pollMs)
        this.#lookAtMs = clock.monotonicMs() + this.#lookMs
        wake()
      }
      const inMs = Math.min(this.#lookAtMs - clock.monotonicMs(), this.#reserveInMs())
      const cancel = clock.after(inMs, look)
      this.#wake = wake
    })
  }

  /** Some stores tell only those who have looked and found nothing. */
  #foundSome(): void {
    this.#isDue = true
    this.#lookSoon()
  }

  /**
   * Something happens: a message was added here that is not committed yet, or some were found, and
   * of the next one nobody may tell. So look soon, and then less and less often.
   */
  #lookSoon(): void {
    const { engine, pollMs } = this.#options
    this.#lookMs = Math.min(LOOK_MS_FIRST, pollMs)
    const atMs = engine.clock.monotonicMs() + this.#lookMs
    if (atMs >= this.#lookAtMs) return
    this.#lookAtMs = atMs
    this.#wake()
  }
}

function newTally(): Record<RunEnd, number> {
  return { relayed: 0, retried: 0, dead: 0, lost: 0, returned: 0 }
}
