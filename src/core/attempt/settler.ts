import type { Clock } from '../time/clock.ts'
import { HOUR_MS } from '../time/durations.ts'
import { backoffMs, retry, type Backoff } from '../time/retry.ts'
import { isRejected } from '../errors.ts'
import type { StorePort } from '../store/store-port.ts'
import type { SettleOutcome, Settlement } from '../store/store.ts'

/** The store has not accepted the settlement within the time that the caller waits. */
export interface NotRecorded {
  readonly kind: 'not_recorded'
  readonly cause: unknown
}

export interface SettlingOptions {
  readonly tenant: string
  /** How long the caller waits. */
  readonly timeoutMs: number
  /** Sent outside a batch: its row may be locked, and other settlements must not wait for it. */
  readonly alone?: boolean
}

interface Task extends SettlingOptions {
  readonly settlement: Settlement
  /** The error of the last try. */
  cause: unknown
  abandoned: boolean
}

/** The pauses between tries. */
const BACKOFF: Backoff = { firstMs: 50, maxMs: 5_000 }
/** After this time the record is left to lapse: operators work on a store that is down so long. */
const KEEP_TRYING_MS = HOUR_MS
/**
 * Limits of the results that are kept in memory for a store that is down. A result beyond a limit
 * is abandoned at once, and reported as `settle_abandoned`.
 */
const BACKGROUND_MAX = 10_000
const BACKGROUND_BYTES_MAX = 64 * 1024 * 1024

/**
 * Sends settlements to the store and repeats them when the store fails. The caller waits for
 * `timeoutMs`. After that the tries continue in the background, because the work has run and only
 * this process knows its result.
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

  /** The number of settlements that are still tried although their caller was answered. */
  get pending(): number {
    return this.#background
  }

  /** Ends the tries: a call that was sent is still awaited, and is not repeated. */
  stop(): void {
    this.#stopped.abort()
  }

  /**
   * Resolves with the answer of the store, or with `not_recorded` after `timeoutMs`, even if a call
   * is then unanswered. After `not_recorded`, `onEnd` is called when the background tries have
   * ended: with the answer, or with `undefined` if they were given up.
   */
  settle(
    settlement: Settlement,
    options: SettlingOptions,
    onEnd: (outcome: SettleOutcome | undefined) => void,
  ): Promise<SettleOutcome | NotRecorded> {
    const { timeoutMs } = options
    const task: Task = { ...options, settlement, cause: undefined, abandoned: false }
    const tried = this.#tryUntil(task, this.#clock.monotonicMs() + timeoutMs + KEEP_TRYING_MS)
    return new Promise((resolve) => {
      let waiting = true
      const cancel = this.#clock.after(timeoutMs, () => {
        waiting = false
        this.#continueInBackground(task, tried, onEnd)
        const cause = task.cause ?? new Error(`no answer within ${timeoutMs} ms`)
        resolve({ kind: 'not_recorded', cause })
      })
      // `#tryUntil` catches every failure, so the promise never rejects.
      void tried.then((outcome) => {
        if (!waiting) return
        cancel()
        if (outcome === undefined) onEnd(undefined)
        resolve(outcome ?? { kind: 'not_recorded', cause: task.cause })
      })
    })
  }

  /** Counts the settlement as a background one, or abandons it if that exceeds a limit. */
  #continueInBackground(
    task: Task,
    tried: Promise<SettleOutcome | undefined>,
    onEnd: (outcome: SettleOutcome | undefined) => void,
  ): void {
    const { settlement } = task
    const bytes = settlement.kind === 'complete' ? settlement.result.byteLength : 0
    if (
      this.#background >= BACKGROUND_MAX ||
      this.#backgroundBytes + bytes > BACKGROUND_BYTES_MAX
    ) {
      task.abandoned = true
      return onEnd(undefined)
    }
    this.#background++
    this.#backgroundBytes += bytes
    void tried.then((outcome) => {
      this.#background--
      this.#backgroundBytes -= bytes
      onEnd(outcome)
    })
  }

  /** Returns the answer of the store, or `undefined` when the tries have ended without one. */
  #tryUntil(task: Task, deadlineMs: number): Promise<SettleOutcome | undefined> {
    const pauses = {
      clock: this.#clock,
      pauseMs: (failures: number) => backoffMs(BACKOFF, failures),
      mayRetry: (cause: unknown) => {
        // The port has reported the store error. Repeating is safe: the store knows the token.
        task.cause = cause
        // After `rejected`, the store has answered and would reject these bytes again.
        return !isRejected(cause)
      },
      deadlineMs,
      signal: this.#stopped.signal,
    }
    return retry(pauses, () => this.#send(task)).catch(() => undefined)
  }

  #send({ settlement, tenant, alone, abandoned }: Task): Promise<SettleOutcome> | undefined {
    if (abandoned) return undefined
    return alone === true
      ? this.#port.settleAlone(settlement)
      : this.#port.settle(settlement, tenant)
  }
}
