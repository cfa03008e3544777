import { sleep, type Clock } from '../../core/time/clock.ts'
import { backoffMs, type Backoff } from '../../core/time/retry.ts'
import { hexArray } from './driver/values.ts'
import type { Calls } from './calls.ts'
import type { Listen, Listening } from './driver/driver.ts'
import { NEWS } from './functions/outbox.ts'
import { CHECK, NOTIFY_CHECK, WATCH } from './sql.ts'

/** Records that one call marks. */
const MARKED_MAX = 128
/** The pauses after a call that failed, or that found a record locked, which is about to change. */
const MARK_BACKOFF: Backoff = { firstMs: 20, maxMs: 1_000 }
const LISTEN_AGAIN_MS_FIRST = 100
const LISTEN_AGAIN_MS_MAX = 5_000
/** A connection without notifications is checked after this time; the limit of the check. */
const CHECK_MS = 15_000
const ANSWER_MS = 5_000
/** The connection stays open this long after the last watch, because waits come in bursts. */
const IDLE_MS = 30_000

interface Watch {
  readonly wakes: Set<() => void>
  /** The record is marked: the call that settles it sends a notification. */
  isMarked: boolean
}

/**
 * Wakes requests that wait for a record which another process holds. Listens first and marks the
 * record then, so that either the mark finds the record settled or a notification arrives.
 *
 * A failure here is not reported: a waiting request also polls, and only polls while the store
 * receives no notifications.
 */
export class Watcher {
  readonly #listen: Listen
  readonly #channel: string
  readonly #calls: Calls
  readonly #clock: Clock
  readonly #watches = new Map<string, Watch>()
  /** The callbacks of relays that wait for messages. They stay until the relay removes them. */
  readonly #messageWakes = new Set<() => void>()
  readonly #closing = new AbortController()
  /** The connection that listens or is being opened. */
  #listening: Listening | undefined
  #isListening = false
  #heardCount = 0
  #cancelCheck: (() => void) | undefined
  #isMarking = false
  #listenAgainMs = LISTEN_AGAIN_MS_FIRST
  #cancelTimer: (() => void) | undefined

  constructor(parts: { listen: Listen; channel: string; calls: Calls; clock: Clock }) {
    this.#listen = parts.listen
    this.#channel = parts.channel
    this.#calls = parts.calls
    this.#clock = parts.clock
  }

  /** Calls `wake` once when the record changes. The returned function ends the watch. */
  watch(identity: string, wake: () => void): () => void {
    const watch = this.#watches.get(identity) ?? { wakes: new Set(), isMarked: false }
    // A new function, because the caller may pass the same one twice.
    const own = () => wake()
    watch.wakes.add(own)
    if (!this.#closing.signal.aborted) this.#watches.set(identity, watch)
    this.#start()
    return () => {
      watch.wakes.delete(own)
      if (watch.wakes.size > 0 || this.#watches.get(identity) !== watch) return
      this.#watches.delete(identity)
      this.#stopLater()
    }
  }

  /** Calls `wake` for each commit that added messages, while the store listens. */
  watchMessages(wake: () => void): () => void {
    const own = () => wake()
    if (!this.#closing.signal.aborted) this.#messageWakes.add(own)
    this.#start()
    return () => {
      if (this.#messageWakes.delete(own)) this.#stopLater()
    }
  }

  /** A relay waits for messages, and the store receives notifications. */
  get isHearingMessages(): boolean {
    return this.#isListening && this.#messageWakes.size > 0
  }

  wakeForMessages(): void {
    for (const wake of [...this.#messageWakes]) wake()
  }

  close(): void {
    this.#closing.abort()
    this.#watches.clear()
    this.#messageWakes.clear()
    this.#stop()
  }

  #start(): void {
    if (this.#closing.signal.aborted) return
    if (this.#isListening) void this.#mark()
    // A retry that is due is left to its timer, or every new watch would open a connection.
    if (this.#listening !== undefined) this.#keepOpen()
    else if (this.#cancelTimer === undefined) this.#open()
  }

  /** Keeps the connection, because a new watch began before it was closed. */
  #keepOpen(): void {
    this.#timer(undefined)
    if (this.#cancelCheck !== undefined) return
    if (this.#isListening) this.#checkLater()
    else this.#checkAfter(ANSWER_MS, () => this.#drop())
  }

  #open(): void {
    this.#timer(undefined)
    this.#checkAfter(ANSWER_MS, () => this.#drop())
    this.#listening = this.#listen(this.#channel, {
      opened: () => {
        this.#listenAgainMs = LISTEN_AGAIN_MS_FIRST
        this.#isListening = true
        this.#checkLater()
        // Notifications before this moment were missed.
        this.#unmark()
        void this.#mark()
        this.wakeForMessages()
      },
      heard: (payload) => {
        this.#heardCount++
        if (payload === NEWS) this.wakeForMessages()
        else if (payload !== CHECK) this.#wake(payload)
      },
      lost: () => {
        this.#listening = undefined
        this.#isListening = false
        this.#stopChecks()
        this.#unmark()
        if (this.#isWanted) this.#openLater()
      },
    })
  }

  /**
   * A connection that listens sends nothing, so it never notices that the network has dropped it.
   * The store therefore sends itself a notification if none has arrived for a while.
   */
  #check(): void {
    const heard = this.#heardCount
    const limit = new AbortController()
    // Only the arrival of the notification counts: a failed call sends none.
    this.#calls.send('check', NOTIFY_CHECK, () => [], limit.signal).catch(() => undefined)
    this.#checkAfter(ANSWER_MS, () => {
      limit.abort(new Error(`no notification arrived within ${ANSWER_MS} ms`))
      if (this.#heardCount === heard) this.#drop()
      else this.#checkLater()
    })
  }

  #checkLater(): void {
    const heard = this.#heardCount
    this.#checkAfter(CHECK_MS, () => {
      if (this.#heardCount === heard) this.#check()
      else this.#checkLater()
    })
  }

  /** Listens again. A driver that reconnects by itself gets the same time limit again. */
  #drop(): void {
    this.#isListening = false
    this.#unmark()
    this.#checkAfter(ANSWER_MS, () => this.#drop())
    this.#listening?.drop()
  }

  /** Keeps at most one check, and none while there is no watch. */
  #checkAfter(ms: number, run: () => void): void {
    this.#stopChecks()
    if (!this.#isWanted) return
    const check = () => {
      this.#cancelCheck = undefined
      run()
    }
    this.#cancelCheck = this.#clock.after(ms, check, { background: true })
  }

  #stopChecks(): void {
    this.#cancelCheck?.()
    this.#cancelCheck = undefined
  }

  #openLater(): void {
    const ms = this.#listenAgainMs
    this.#listenAgainMs = Math.min(ms * 2, LISTEN_AGAIN_MS_MAX)
    this.#timer({ ms, run: () => this.#open() })
  }

  /** Closes the connection later if no watch is left. */
  #stopLater(): void {
    if (this.#isWanted) return
    this.#stopChecks()
    this.#timer(this.#listening && { ms: IDLE_MS, run: () => this.#stop() })
  }

  get #isWanted(): boolean {
    return this.#watches.size > 0 || this.#messageWakes.size > 0
  }

  #stop(): void {
    this.#timer(undefined)
    this.#stopChecks()
    this.#listening?.end()
    this.#listening = undefined
    this.#isListening = false
  }

  /** Keeps at most one timer: to open a connection again, or to stop. */
  #timer(next: { readonly ms: number; readonly run: () => void } | undefined): void {
    this.#cancelTimer?.()
    this.#cancelTimer = undefined
    if (next === undefined || this.#closing.signal.aborted) return
    const run = () => {
      this.#cancelTimer = undefined
      next.run()
    }
    this.#cancelTimer = this.#clock.after(next.ms, run, { background: true })
  }

  #unmark(): void {
    for (const watch of this.#watches.values()) watch.isMarked = false
  }

  #wake(identity: string): void {
    const watch = this.#watches.get(identity)
    if (watch === undefined) return
    this.#watches.delete(identity)
    this.#stopLater()
    for (const wake of watch.wakes) wake()
  }

  /** Marks all unmarked records. Only one loop runs; it also takes watches that begin later. */
  async #mark(): Promise<void> {
    if (this.#isMarking) return
    this.#isMarking = true
    try {
      await new Promise<void>((resolve) => this.#clock.soon(resolve))
      for (let failures = 0; this.#isListening;) {
        const batch = [...this.#watches].filter(([, watch]) => !watch.isMarked)
        if (batch.length === 0) break
        if (await this.#markOnce(batch.slice(0, MARKED_MAX))) continue
        failures++
        await sleep(this.#clock, backoffMs(MARK_BACKOFF, failures), this.#closing.signal)
      }
    } finally {
      this.#isMarking = false
    }
  }

  /** Returns whether each record of the batch was marked or has already been settled. */
  async #markOnce(batch: readonly (readonly [string, Watch])[]): Promise<boolean> {
    let answers: Map<unknown, unknown>
    try {
      const identities = batch.map(([identity]) => identity)
      const rows = await this.#calls.send('watch', WATCH, () => [hexArray(identities)])
      answers = new Map(rows.map(([identity, how]) => [identity, how]))
    } catch {
      // The database fails: the waiting requests get the error from their own polling.
      return false
    }
    for (const [identity, watch] of batch) {
      const how = answers.get(identity)
      // The watch was woken during the call: the record changed after it was marked.
      if (this.#watches.get(identity) !== watch) continue
      if (how === 'watched') watch.isMarked = true
      else if (how === undefined) this.#wake(identity)
    }
    return batch.every(([identity]) => answers.get(identity) !== 'locked')
  }
}
