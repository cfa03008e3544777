import { sleep, type Clock } from '../../core/clock.ts'
import { hexArray } from './array-literal.ts'
import type { Calls } from './calls.ts'
import type { Listen, Listening } from './client.ts'
import { NEWS } from './outbox-functions.ts'
import { CHECK, NOTIFY_CHECK, WATCH } from './sql.ts'

/** Records in one call that marks them. */
const MARKED_MAX = 128
/** After a call that failed, or that found a record locked, which is about to move. */
const MARK_AGAIN_MS_FIRST = 20
const MARK_AGAIN_MS_MAX = 1_000
const LISTEN_AGAIN_MS_FIRST = 100
const LISTEN_AGAIN_MS_MAX = 5_000
/** How long a connection may hear nothing until it is checked, and how long the check may take. */
const CHECK_MS = 15_000
const ANSWER_MS = 5_000
/** A connection is kept this long after the last watch: waits come in bursts. */
const IDLE_MS = 30_000

interface Watch {
  readonly wakes: Set<() => void>
  /** Its record is marked: whoever ends it will say so. */
  isMarked: boolean
}

/**
 * Wakes those who wait for records that are held elsewhere. Listens first and marks the record
 * then, so that its end is either seen by the mark or heard of.
 *
 * Nothing that goes wrong here is an error for anybody: who waits also looks for itself, and that
 * is what it comes down to while nothing is heard.
 */
export class Watcher {
  readonly #listen: Listen
  readonly #channel: string
  readonly #calls: Calls
  readonly #clock: Clock
  readonly #watches = new Map<string, Watch>()
  /** Of those who wait for messages. They stay until they are taken back. */
  readonly #messageWakes = new Set<() => void>()
  readonly #closing = new AbortController()
  /** What listens, or is about to. */
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

  /** One wake ends the watch. */
  watch(identity: string, wake: () => void): () => void {
    const watch = this.#watches.get(identity) ?? { wakes: new Set(), isMarked: false }
    // A function of its own: the same one may be given twice.
    const own = () => wake()
    watch.wakes.add(own)
    if (!this.#closing.signal.aborted) this.#watches.set(identity, watch)
    this.#start()
    return () => {
      watch.wakes.delete(own)
      if (watch.wakes.size > 0 || this.#watches.get(identity) !== watch) return
      this.#watches.delete(identity)
      this.#rest()
    }
  }

  /** Calls `wake` for every commit that brought messages, as long as it is listened. */
  watchMessages(wake: () => void): () => void {
    const own = () => wake()
    if (!this.#closing.signal.aborted) this.#messageWakes.add(own)
    this.#start()
    return () => {
      if (this.#messageWakes.delete(own)) this.#rest()
    }
  }

  /** Somebody waits for messages, and what is announced is heard. */
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
    // Under way, or due: what is due is left to its timer, or every watch would try at once.
    if (this.#listening !== undefined) this.#goOn()
    else if (this.#cancelTimer === undefined) this.#open()
  }

  /** A caller waits again before the connection was ended. */
  #goOn(): void {
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
        // What was said while nobody listened was missed.
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
   * A connection that listens sends nothing, so it would never notice that its network has lost
   * it. The store sends a notification to itself, unless another has been heard since.
   */
  #check(): void {
    const heard = this.#heardCount
    const limit = new AbortController()
    // Whether it is heard is all that counts: a call that fails is not heard.
    this.#calls.send('check', NOTIFY_CHECK, () => [], limit.signal).catch(() => undefined)
    this.#checkAfter(ANSWER_MS, () => {
      limit.abort(new Error(`nothing was heard within ${ANSWER_MS} ms`))
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

  /** Listens anew. A driver that does so by itself has the same time again. */
  #drop(): void {
    this.#isListening = false
    this.#unmark()
    this.#checkAfter(ANSWER_MS, () => this.#drop())
    this.#listening?.drop()
  }

  /** There is one check at the most, and none while nobody waits. */
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

  /** Nobody watches any more. */
  #rest(): void {
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

  /** There is one timer at the most: to try again, or to stop. */
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
    this.#rest()
    for (const wake of watch.wakes) wake()
  }

  /** Marks what is not marked yet, until all is. One at a time: what comes meanwhile joins it. */
  async #mark(): Promise<void> {
    if (this.#isMarking) return
    this.#isMarking = true
    try {
      await new Promise<void>((resolve) => this.#clock.soon(resolve))
      for (let pauseMs = MARK_AGAIN_MS_FIRST; this.#isListening;) {
        const batch = [...this.#watches].filter(([, watch]) => !watch.isMarked)
        if (batch.length === 0) break
        if (await this.#markOnce(batch.slice(0, MARKED_MAX))) continue
        await sleep(this.#clock, pauseMs, this.#closing.signal)
        pauseMs = Math.min(pauseMs * 2, MARK_AGAIN_MS_MAX)
      }
    } finally {
      this.#isMarking = false
    }
  }

  /** Whether all of it was marked, or is over. */
  async #markOnce(batch: readonly (readonly [string, Watch])[]): Promise<boolean> {
    let answers: Map<unknown, unknown>
    try {
      const identities = batch.map(([identity]) => identity)
      const rows = await this.#calls.send('watch', WATCH, () => [hexArray(identities)])
      answers = new Map(rows.map(([identity, how]) => [identity, how]))
    } catch {
      // The database falters: who waits will hear of it by its own looking.
      return false
    }
    for (const [identity, watch] of batch) {
      const how = answers.get(identity)
      // Woken meanwhile, the record was moved after it was marked: this watch is over.
      if (this.#watches.get(identity) !== watch) continue
      if (how === 'watched') watch.isMarked = true
      else if (how === undefined) this.#wake(identity)
    }
    return batch.every(([identity]) => answers.get(identity) !== 'locked')
  }
}
