import { sleep, type Clock } from './clock.ts'
import { isRejected } from './errors.ts'
import type { StorePort } from './store-port.ts'
import type { SettleOutcome, Settlement } from './store.ts'

/** The settlement failed for so long that its caller waits no more. */
export interface NotRecorded {
  readonly kind: 'not_recorded'
  readonly cause: unknown
}

export interface SettlingOptions {
  readonly tenant: string
  /** How long the caller waits. */
  readonly timeoutMs: number
  /** Not in a batch, because its row may be locked: no other settlement may have to wait for it. */
  readonly alone?: boolean
}

interface Task extends SettlingOptions {
  readonly settlement: Settlement
  /** Why the last try failed. */
  cause: unknown
  abandoned: boolean
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
   * Resolves with the store's answer, or with `not_recorded` after `timeoutMs`, also where a try is
   * then still unanswered. In that case `onEnd` is called once the background tries have ended:
   * with the answer, or without one when they were given up.
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
        this.#goOn(task, tried, onEnd)
        const cause = task.cause ?? new Error(`no answer within ${timeoutMs} ms`)
        resolve({ kind: 'not_recorded', cause })
      })
      // Never rejects: every failure is tried again.
      void tried.then((outcome) => {
        if (!waiting) return
        cancel()
        if (outcome === undefined) onEnd(undefined)
        resolve(outcome ?? { kind: 'not_recorded', cause: task.cause })
      })
    })
  }

  /** The caller has been answered: what is still being tried counts as background from now on. */
  #goOn(
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

  /** The store's answer, or `undefined` once there is no more trying. */
  async #tryUntil(task: Task, deadlineMs: number): Promise<SettleOutcome | undefined> {
    let pauseMs = PAUSE_MS_FIRST
    for (;;) {
      try {
        return await (task.alone === true
          ? this.#port.settleAlone(task.settlement)
          : this.#port.settle(task.settlement, task.tenant))
      } catch (cause) {
        // Reported by the port as a store error; repeating is safe, the store knows its tokens.
        task.cause = cause
      }
      // The store was there and refused: it will not take the same bytes later either.
      if (isRejected(task.cause)) return undefined
      const leftMs = deadlineMs - this.#clock.monotonicMs()
      if (leftMs <= 0 || this.#stopped.signal.aborted) return undefined
      await sleep(this.#clock, Math.min(pauseMs, leftMs), this.#stopped.signal)
      if (task.abandoned) return undefined
      pauseMs = Math.min(pauseMs * 2, PAUSE_MS_MAX)
    }
  }
}
