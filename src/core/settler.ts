import { sleep, type Clock } from './clock.ts'
import type { StorePort } from './store-port.ts'
import type { SettleOutcome, Settlement } from './store.ts'

/** The settlement took this long to fail or is still being tried. */
export interface NotRecorded {
  readonly kind: 'not_recorded'
  readonly cause: unknown
}

/** First pause after a failed try; doubles up to the longest. */
const PAUSE_MS_FIRST = 50
const PAUSE_MS_MAX = 5_000
/** A store that is down for longer than this has operators at work; the record lapses for them. */
const KEEP_TRYING_MS = 60 * 60 * 1000
/** Results kept in memory for a store that is down. One more is given up at once, and said so. */
const BACKGROUND_MAX = 10_000
const BACKGROUND_BYTES_MAX = 64 * 1024 * 1024

/**
 * Brings settlements into the store, against its failures. The caller waits for a while; after
 * that the settlement goes on in the background, because the work has run and its result is the
 * only truth there is.
 */
export class Settler {
  readonly #clock: Clock
  readonly #port: StorePort
  readonly #stopped = new AbortController()
  #background = 0
  #backgroundBytes = 0

  constructor(clock: Clock, port: StorePort) {
    this.#clock = clock
    this.#port = port
  }

  /** Settlements that are still being tried after their caller was answered. */
  get pending(): number {
    return this.#background
  }

  /** Ends the background tries after the one under way. */
  stop(): void {
    this.#stopped.abort()
  }

  /**
   * Resolves with the store's answer, or with `not_recorded` after `timeoutMs`. In that case
   * `onEnd` is called once the background tries have ended: with the answer, or without one when
   * they were given up.
   */
  async settle(
    settlement: Settlement,
    timeoutMs: number,
    onEnd: (outcome: SettleOutcome | undefined) => void,
  ): Promise<SettleOutcome | NotRecorded> {
    const deadlineMs = this.#clock.monotonicMs() + timeoutMs
    const tried = await this.#tryUntil(settlement, deadlineMs, PAUSE_MS_FIRST)
    if (tried.kind !== 'not_recorded') return tried

    const bytes = settlement.kind === 'complete' ? settlement.result.byteLength : 0
    if (
      this.#background >= BACKGROUND_MAX ||
      this.#backgroundBytes + bytes > BACKGROUND_BYTES_MAX
    ) {
      onEnd(undefined)
    } else {
      void this.#keepTrying(settlement, bytes, onEnd)
    }
    return tried
  }

  async #keepTrying(
    settlement: Settlement,
    bytes: number,
    onEnd: (outcome: SettleOutcome | undefined) => void,
  ): Promise<void> {
    this.#background++
    this.#backgroundBytes += bytes
    const deadlineMs = this.#clock.monotonicMs() + KEEP_TRYING_MS
    const tried = await this.#tryUntil(settlement, deadlineMs, PAUSE_MS_FIRST)
    this.#background--
    this.#backgroundBytes -= bytes
    onEnd(tried.kind === 'not_recorded' ? undefined : tried)
  }

  async #tryUntil(
    settlement: Settlement,
    deadlineMs: number,
    firstPauseMs: number,
  ): Promise<SettleOutcome | NotRecorded> {
    let pauseMs = firstPauseMs
    for (;;) {
      try {
        return await this.#port.settle(settlement)
      } catch (cause) {
        // Reported by the port as a store error; repeating is safe, the store knows its tokens.
        const leftMs = deadlineMs - this.#clock.monotonicMs()
        if (leftMs <= 0 || this.#stopped.signal.aborted) return { kind: 'not_recorded', cause }
        await sleep(this.#clock, Math.min(pauseMs, leftMs), this.#stopped.signal)
        pauseMs = Math.min(pauseMs * 2, PAUSE_MS_MAX)
      }
    }
  }
}
