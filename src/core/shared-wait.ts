import { isBusy, type Claim, type MakeClaim } from './claim.ts'
import { sharedOutcome } from './claim-sharing.ts'
import type { Clock } from './clock.ts'
import type { RunRequest } from './engine-contract.ts'
import { StoreFailedError } from './errors.ts'
import type { Policy } from './policy.ts'
import type { WaitingRoom } from './waiting-room.ts'

/** How soon the waiting requests look again; doubles up to the longest. */
export const LOOK_AGAIN_MS_FIRST = 25
const LOOK_AGAIN_MS_MAX = 1_000
/** A store that tells of changes is looked at a tenth as often, for the changes it may miss. */
const LOOK_AGAIN_WATCHED_FACTOR = 10
const LOOK_AGAIN_WATCHED_MS_MAX = 2_000

export interface SharedWaitParts {
  readonly clock: Clock
  readonly room: WaitingRoom
  readonly claim: MakeClaim
  readonly isClosing: () => boolean
}

/** A duplicate that waits until `deadlineMs` of the engine's clock. */
export interface Waiter {
  readonly request: RunRequest
  readonly policy: Policy
  readonly deadlineMs: number
}

interface Member extends Waiter {
  readonly resolve: (claim: Claim) => void
  readonly reject: (error: unknown) => void
}

/** Where duplicates wait for the first request to finish, together with others of their kind. */
export class SharedWaits {
  readonly #parts: SharedWaitParts
  readonly #waits = new Map<string, SharedWait>()

  constructor(parts: SharedWaitParts) {
    this.#parts = parts
  }

  /** `first`: the claim that found the key busy. Resolves with the claim to go on with. */
  wait(first: Claim, waiter: Waiter): Promise<Claim> {
    const { request, policy } = waiter
    const about = `${first.identity} ${policy.afterExpiry} ${request.fingerprint}`
    const shared = this.#waits.get(about)
    if (shared !== undefined) return shared.join(waiter)
    const wait = new SharedWait(this.#parts, first)
    this.#waits.set(about, wait)
    const claim = wait.join(waiter)
    void wait.run(() => this.#waits.delete(about))
    return claim
  }
}

/**
 * Duplicates of one request. They share one look at the store, which is made for the one that may
 * wait longest. If that look wins the key, the others go on waiting for its result.
 */
class SharedWait {
  readonly #parts: SharedWaitParts
  readonly #members = new Set<Member>()
  /** What the last look has found. */
  #last: Claim
  #lookedMs: number
  #pauseMs = LOOK_AGAIN_MS_FIRST
  #isWatched = false
  /** The store told of a change, and the look found none. */
  #isTold = false

  constructor(parts: SharedWaitParts, first: Claim) {
    this.#parts = parts
    this.#last = first
    this.#lookedMs = parts.clock.monotonicMs()
  }

  join(waiter: Waiter): Promise<Claim> {
    return new Promise((resolve, reject) => {
      this.#members.add({ ...waiter, resolve, reject })
      // Its deadline may be earlier than the time that the others sleep until.
      this.#parts.room.wake(this.#last.identity, 'time')
    })
  }

  /** Runs while a request waits. Never rejects: a look that fails rejects the waiting requests. */
  async run(onOver: () => void): Promise<void> {
    const { room, isClosing } = this.#parts
    const { identity } = this.#last
    while (this.#members.size > 0) {
      // Told, and still busy: a pause comes before the next watch, or a store that is wrong about
      // a record would be asked without end.
      this.#isWatched = !this.#isTold && room.watch(identity)
      const by = await room.sleep(identity, this.#sleepMs())
      this.#isTold = by === 'told' || (this.#isTold && !this.#isLookDue())
      // `close()` wakes the sleepers: a claim made now could start work.
      if (isClosing()) this.#dismiss(() => true)
      else if (by !== 'time' || this.#isLookDue() || this.#isLastLookDue()) await this.#look()
      else this.#dismissLate()
    }
    // In the same turn as the last check, or a request could join a wait that is over.
    onOver()
    room.unwatch(identity)
  }

  get #nextLookMs(): number {
    if (!this.#isWatched) return this.#lookedMs + this.#pauseMs
    const ms = Math.min(this.#pauseMs * LOOK_AGAIN_WATCHED_FACTOR, LOOK_AGAIN_WATCHED_MS_MAX)
    return this.#lookedMs + ms
  }

  #isLookDue(): boolean {
    return this.#parts.clock.monotonicMs() >= this.#nextLookMs
  }

  /** A request whose time is up gets a last look, unless the one before it is recent. */
  #isLastLookDue(): boolean {
    const nowMs = this.#parts.clock.monotonicMs()
    const isOver = [...this.#members].some(({ deadlineMs }) => deadlineMs <= nowMs)
    return isOver && nowMs - this.#lookedMs >= LOOK_AGAIN_MS_FIRST
  }

  #sleepMs(): number {
    let untilMs = this.#nextLookMs
    for (const { deadlineMs } of this.#members) untilMs = Math.min(untilMs, deadlineMs)
    return Math.max(0, untilMs - this.#parts.clock.monotonicMs())
  }

  async #look(): Promise<void> {
    const { clock, claim } = this.#parts
    const looker = this.#mostPatient()
    // A request that joins while the look is under way waits for the next one.
    const asking = new Set(this.#members)
    try {
      const found = await claim(looker.request, looker.policy)
      this.#lookedMs = clock.monotonicMs()
      this.#pauseMs = Math.min(this.#pauseMs * 2, LOOK_AGAIN_MS_MAX)
      this.#share(found, looker, asking)
    } catch (error) {
      if (error instanceof StoreFailedError) error.keyInUse = true
      for (const member of asking) this.#leave(member).reject(error)
    }
  }

  #share(found: Claim, looker: Member, asking: ReadonlySet<Member>): void {
    if (found.outcome.kind === 'claimed') {
      this.#leave(looker).resolve(found)
      this.#last = { ...found, outcome: sharedOutcome(found.outcome, looker.policy.leaseMs) }
      return this.#dismissLate()
    }
    if (isBusy(found.outcome)) {
      this.#last = found
      return this.#dismissLate()
    }
    for (const member of asking) {
      const { outcome } = found
      const own = member === looker ? outcome : sharedOutcome(outcome, member.policy.leaseMs)
      this.#leave(member).resolve({ ...found, outcome: own })
    }
    // There is a result: a request that joined meanwhile looks at once.
    this.#lookedMs = Number.NEGATIVE_INFINITY
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
