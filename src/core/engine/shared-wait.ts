import { isBusy, type Claim, type MakeClaim } from './claim.ts'
import { sharedOutcome } from '../store/claim-sharing.ts'
import type { Clock } from '../time/clock.ts'
import { backoffMs, type Backoff } from '../time/retry.ts'
import type { RunRequest } from './engine-contract.ts'
import { StoreFailedError } from '../errors.ts'
import type { Policy } from './policy.ts'
import type { WaitingRoom } from './waiting-room.ts'

export const POLL_MS_FIRST = 25
/** The pauses between the polls of waiting requests. */
const POLL: Backoff = { firstMs: POLL_MS_FIRST, maxMs: 1_000 }
/** A store that reports changes is polled a tenth as often, for the changes that it may miss. */
const POLL_WATCHED_FACTOR = 10
const POLL_WATCHED_MS_MAX = 2_000

export interface SharedWaitParts {
  readonly clock: Clock
  readonly room: WaitingRoom
  readonly claim: MakeClaim
  readonly isClosing: () => boolean
}

/** A duplicate that waits until `deadlineMs`, by the clock of the engine. */
export interface Waiter {
  readonly request: RunRequest
  readonly policy: Policy
  readonly deadlineMs: number
}

interface Member extends Waiter {
  readonly resolve: (claim: Claim) => void
  readonly reject: (error: unknown) => void
}

/** Lets duplicates wait for the first request to end. Duplicates of one request wait together. */
export class SharedWaits {
  readonly #parts: SharedWaitParts
  readonly #waits = new Map<string, SharedWait>()

  constructor(parts: SharedWaitParts) {
    this.#parts = parts
  }

  /** `first` is the claim that found the key busy. Resolves with the claim to act on. */
  wait(first: Claim, waiter: Waiter): Promise<Claim> {
    const { request, policy } = waiter
    const { afterExpiry, refuseForMs } = policy
    // A look-up never shares a wait with a claim, which may win the key.
    const mode = request.findOnly === true ? 'find' : 'hold'
    const refusal = `${afterExpiry} ${refuseForMs}`
    const question = `${first.identity} ${mode} ${refusal} ${request.fingerprint}`
    const shared = this.#waits.get(question)
    if (shared !== undefined) return shared.join(waiter)
    const wait = new SharedWait(this.#parts, first)
    this.#waits.set(question, wait)
    const claim = wait.join(waiter)
    void wait.run(() => this.#waits.delete(question))
    return claim
  }
}

/**
 * The waiting duplicates of one request. A poll is one claim for all of them, made for the
 * duplicate that may wait longest. If that claim wins the key, the others keep waiting for its
 * result.
 */
class SharedWait {
  readonly #parts: SharedWaitParts
  readonly #members = new Set<Member>()
  /** The answer to the last poll. */
  #last: Claim
  #polledMs: number
  /** The polls so far. The claim that found the key busy was the first. */
  #polls = 1
  #isWatched = false
  /** The store has reported a change: it is not watched again until the next poll is due. */
  #isWatchSkipped = false

  constructor(parts: SharedWaitParts, first: Claim) {
    this.#parts = parts
    this.#last = first
    this.#polledMs = parts.clock.monotonicMs()
  }

  join(waiter: Waiter): Promise<Claim> {
    return new Promise((resolve, reject) => {
      this.#members.add({ ...waiter, resolve, reject })
      // The new deadline may be earlier than the end of the current sleep.
      this.#parts.room.wake(this.#last.identity, 'timer')
    })
  }

  /** Runs while a request waits. Never rejects: a failed poll rejects the waiting requests. */
  async run(onOver: () => void): Promise<void> {
    const { room, isClosing } = this.#parts
    const { identity } = this.#last
    while (this.#members.size > 0) {
      // After a report the key may still be busy. A pause comes before the next watch, because a
      // store that reports changes which did not happen would be polled without end.
      this.#isWatched = !this.#isWatchSkipped && room.watch(identity)
      const by = await room.sleep(identity, this.#sleepMs())
      this.#isWatchSkipped = by === 'store' || (this.#isWatchSkipped && !this.#isPollDue())
      // `close()` wakes the sleepers: a claim made now could start work.
      if (isClosing()) this.#dismiss(() => true)
      else if (by !== 'timer' || this.#isPollDue() || this.#isLastPollDue()) await this.#poll()
      else this.#dismissLate()
    }
    // In the same tick as the last check, or a request could join a wait that is over.
    onOver()
    room.unwatch(identity)
  }

  get #nextPollMs(): number {
    const pauseMs = backoffMs(POLL, this.#polls)
    if (!this.#isWatched) return this.#polledMs + pauseMs
    const watchedMs = Math.min(pauseMs * POLL_WATCHED_FACTOR, POLL_WATCHED_MS_MAX)
    return this.#polledMs + watchedMs
  }

  #isPollDue(): boolean {
    return this.#parts.clock.monotonicMs() >= this.#nextPollMs
  }

  /** A request whose time is up gets a last poll, unless the previous one is recent. */
  #isLastPollDue(): boolean {
    const nowMs = this.#parts.clock.monotonicMs()
    const isOver = [...this.#members].some(({ deadlineMs }) => deadlineMs <= nowMs)
    return isOver && nowMs - this.#polledMs >= POLL_MS_FIRST
  }

  #sleepMs(): number {
    let untilMs = this.#nextPollMs
    for (const { deadlineMs } of this.#members) untilMs = Math.min(untilMs, deadlineMs)
    return Math.max(0, untilMs - this.#parts.clock.monotonicMs())
  }

  async #poll(): Promise<void> {
    const { clock, claim } = this.#parts
    const poller = this.#mostPatient()
    // A request that joins during this poll waits for the next one.
    const sharing = new Set(this.#members)
    try {
      const found = await claim(poller.request, poller.policy)
      this.#polledMs = clock.monotonicMs()
      this.#polls++
      this.#share(found, poller, sharing)
    } catch (error) {
      if (error instanceof StoreFailedError) error.keyInUse = true
      for (const member of sharing) this.#leave(member).reject(error)
    }
  }

  #share(found: Claim, poller: Member, sharing: ReadonlySet<Member>): void {
    if (found.outcome.kind === 'claimed') {
      this.#leave(poller).resolve(found)
      this.#last = { ...found, outcome: sharedOutcome(found.outcome, poller.policy.leaseMs) }
      return this.#dismissLate()
    }
    if (isBusy(found.outcome)) {
      this.#last = found
      return this.#dismissLate()
    }
    for (const member of sharing) {
      const { outcome } = found
      const own = member === poller ? outcome : sharedOutcome(outcome, member.policy.leaseMs)
      this.#leave(member).resolve({ ...found, outcome: own })
    }
    // There is a result: for requests that joined during this poll, the next one is due at once.
    this.#polledMs = Number.NEGATIVE_INFINITY
  }

  #mostPatient(): Member {
    const members = [...this.#members]
    return members.reduce((most, one) => (one.deadlineMs > most.deadlineMs ? one : most))
  }

  #dismissLate(): void {
    const nowMs = this.#parts.clock.monotonicMs()
    this.#dismiss(({ deadlineMs }) => deadlineMs <= nowMs)
  }

  #dismiss(isDismissed: (member: Member) => boolean): void {
    for (const member of this.#members) {
      if (isDismissed(member)) this.#leave(member).resolve(this.#last)
    }
  }

  #leave(member: Member): Member {
    this.#members.delete(member)
    return member
  }
}
