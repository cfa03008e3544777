import { answerWithin } from '../../core/answer-within.ts'
import { systemClock } from '../../core/clock.ts'
import type { Argument, Connection, Driver } from './client.ts'
import { isScriptMissing } from './failures.ts'

/** How many replicas must have a write, and how long they may take. */
export interface WaitReplicas {
  readonly count: number
  readonly timeoutMs: number
}

/** The write was made, and too few replicas have it. */
export class NotReplicated extends Error {}

/** What connecting and answering may take beside the wait itself. */
const ANSWER_MS = 5_000

/** Calls in one group: they share a wait. */
const GROUP_MAX = 16

interface Entry {
  readonly args: readonly Argument[]
  readonly resolve: (answer: unknown) => void
  readonly reject: (error: unknown) => void
}

/**
 * Sends scripts and waits until replicas have what they wrote.
 *
 * On a connection of its own, because WAIT holds up whatever comes after it, and covers what its
 * own connection wrote and nothing else. Every script that is sent here writes a mark, also where
 * it has nothing to write: the wait then covers all that it has read, as when it replays a result
 * that another process wrote a moment ago. (Redis 7.0 counts from the last command of a connection,
 * whatever it was; what is promised is the last write.) Nothing is sent again on another
 * connection, where WAIT would say yes to anything.
 *
 * While one wait is under way, calls gather for the next.
 */
export class Replication {
  readonly #connect: () => Promise<Connection>
  readonly #wait: WaitReplicas
  #waiting: Entry[] = []
  #isBusy = false
  #isClosed = false
  #connection: Promise<Connection> | undefined

  constructor(connect: NonNullable<Driver['connect']>, wait: WaitReplicas) {
    this.#connect = connect
    this.#wait = wait
  }

  send(args: readonly Argument[]): Promise<unknown> {
    return new Promise((resolve, reject) => {
      this.#waiting.push({ args, resolve, reject })
      // Never rejects: every entry gets its own answer.
      if (!this.#isBusy) void this.#work()
    })
  }

  close(): void {
    this.#isClosed = true
    this.#drop()
  }

  async #work(): Promise<void> {
    this.#isBusy = true
    while (this.#waiting.length > 0) {
      const group = this.#waiting.slice(0, GROUP_MAX)
      this.#waiting = this.#waiting.slice(GROUP_MAX)
      try {
        const timeoutMs = this.#wait.timeoutMs + ANSWER_MS
        const limit = { store: 'redis', call: 'wait for replicas', timeoutMs }
        await answerWithin(systemClock, limit, () => this.#send(group))
      } catch (error) {
        // Whatever the connection still answers is of no use to anybody.
        this.#drop()
        for (const entry of group) entry.reject(error)
      }
    }
    this.#isBusy = false
  }

  async #send(group: readonly Entry[]): Promise<void> {
    if (this.#isClosed) throw new Error('the store is closed')
    const opening = (this.#connection ??= this.#connect())
    const connection = await opening
    const { count, timeoutMs } = this.#wait
    // All in one turn, so that the wait stands behind the scripts on the same socket.
    const sent = group.map((entry) => connection.send(entry.args))
    const waited = connection.send(['WAIT', `${count}`, `${timeoutMs}`])
    const answers = await Promise.allSettled(sent)
    const reached = Number(await waited)
    const short = new NotReplicated(`${reached} of ${count} replicas within ${timeoutMs} ms`)
    for (const [n, answer] of answers.entries()) {
      const { resolve, reject } = group[n]!
      if (answer.status === 'rejected') {
        if (!isScriptMissing(answer.reason) && this.#connection === opening) this.#drop()
        reject(answer.reason)
      } else if (reached >= count) resolve(answer.value)
      else reject(short)
    }
  }

  /** The next call opens a new one. A connection that is still being opened closes after it. */
  #drop(): void {
    const connection = this.#connection
    this.#connection = undefined
    connection?.then(
      (open) => open.close(),
      // The caller that waited for it has got this error.
      () => undefined,
    )
  }
}
