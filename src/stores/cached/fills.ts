/** Tests: test/stores/cached/store.process.test.ts, test/stores/cached/fuzz.process.test.ts. */
import type { Breaker } from '../../core/health/breaker.ts'
import type { Clock } from '../../core/time/clock.ts'
import type { DatabaseClock } from './database-clock.ts'
import { encodeEntry, type ReplyEntry } from './entry.ts'
import type { ReplyCache } from './reply-cache.ts'
import { isStillKept } from './serving.ts'

/** Bounds of the fills that run at the same time, of those that wait, and of their bytes. */
const RUNNING_MAX = 64
const WAITING_MAX = 1000
const BYTES_MAX = 16 * 1024 * 1024

/**
 * After this time a waiting fill is not sent, and a sent fill counts as lost. Its reply was valid
 * when the durable store was asked, but may have been forgotten since; a tombstone lives longer
 * than this.
 */
const FILL_MS_MAX = 30_000

export interface FillsOptions {
  readonly cache: ReplyCache
  readonly clock: Clock
  readonly databaseClock: DatabaseClock
  readonly breaker: Breaker
  readonly resultBytesMax: number
  readonly onFailure: (error: unknown) => void
}

interface Fill {
  readonly identity: string
  readonly bytes: Uint8Array
  readonly expiresAtMs: number
  /** When the durable store was asked, by the monotonic clock. */
  readonly askedMs: number
  readonly givenUp: AbortController
}

/**
 * Puts replies into the cache after the answers were returned. A failed fill changes no answer: a
 * later claim asks the durable store. Bounded in calls and in bytes. Has no timer: the next fill
 * gives up fills that got no answer.
 */
export class Fills {
  readonly #options: FillsOptions
  #waiting: Fill[] = []
  readonly #running = new Set<Fill>()
  #bytes = 0
  #isScheduled = false

  constructor(options: FillsOptions) {
    this.#options = options
  }

  add(entry: ReplyEntry, askedMs: number): void {
    if (entry.result.byteLength > this.#options.resultBytesMax) return
    this.#giveUpOnStuck()
    if (this.#waiting.length >= WAITING_MAX) return
    // Encoded now, because the caller may change the result after the answer was returned.
    const bytes = encodeEntry(entry)
    if (this.#bytes + bytes.byteLength > BYTES_MAX) return
    const { identity, expiresAtMs } = entry
    this.#bytes += bytes.byteLength
    const givenUp = new AbortController()
    this.#waiting.push({ identity, bytes, expiresAtMs, askedMs, givenUp })
    this.#schedule()
  }

  /** Drops the waiting fills. */
  stop(): void {
    for (const { bytes } of this.#waiting) this.#bytes -= bytes.byteLength
    this.#waiting = []
  }

  #schedule(): void {
    if (this.#isScheduled || this.#waiting.length === 0) return
    this.#isScheduled = true
    this.#options.clock.soon(() => {
      this.#isScheduled = false
      this.#sendWaiting()
    })
  }

  #sendWaiting(): void {
    const free = RUNNING_MAX - this.#running.size
    for (const fill of this.#waiting.splice(0, free)) {
      const ttlMs = this.#ttlMs(fill)
      if (ttlMs === undefined || this.#isLate(fill) || !this.#options.breaker.mayTry()) {
        this.#bytes -= fill.bytes.byteLength
      } else {
        this.#send(fill, ttlMs)
      }
    }
  }

  #ttlMs({ expiresAtMs }: Fill): number | undefined {
    const latestMs = this.#options.databaseClock.latestMs()
    if (latestMs === undefined || !isStillKept({ expiresAtMs }, latestMs)) return undefined
    return Math.ceil(expiresAtMs - latestMs)
  }

  #send(fill: Fill, ttlMs: number): void {
    const { identity, bytes, expiresAtMs, givenUp } = fill
    const entry = { bytes, expiresAtMs, ttlMs }
    this.#running.add(fill)
    const fail = (error: unknown) => this.#end(fill, { error })
    try {
      const sent = this.#options.cache.fill(identity, entry, givenUp.signal)
      sent.then(() => this.#end(fill), fail)
    } catch (error) {
      fail(error)
    }
  }

  #end(fill: Fill, failure?: { readonly error: unknown }): void {
    // Already given up.
    if (!this.#running.delete(fill)) return
    this.#bytes -= fill.bytes.byteLength
    const { breaker, onFailure } = this.#options
    if (failure === undefined) {
      breaker.succeeded()
    } else {
      // An open breaker was reported already; fills that ran beside it add nothing.
      if (breaker.state === 'closed') onFailure(failure.error)
      breaker.failed()
    }
    this.#schedule()
  }

  #giveUpOnStuck(): void {
    for (const fill of this.#running) {
      if (!this.#isLate(fill)) return
      const error = new Error(`no answer within ${FILL_MS_MAX} ms`)
      this.#end(fill, { error })
      fill.givenUp.abort(error)
    }
  }

  #isLate({ askedMs }: Fill): boolean {
    return this.#options.clock.monotonicMs() - askedMs > FILL_MS_MAX
  }
}
