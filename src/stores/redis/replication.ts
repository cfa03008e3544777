import { answerWithin } from '../../core/answer-within.ts'
import { systemClock } from '../../core/clock.ts'
import { isNeverConnected } from '../../core/never-connected.ts'
import type { Argument, Connection, Driver } from './client.ts'
import { isScriptMissing, notSent } from './failures.ts'
import { untilAborted } from './until-aborted.ts'

/** How many replicas must have a write, and how long they may take. */
export interface WaitReplicas {
  readonly count: number
  readonly timeoutMs: number
}

/** The write was made, and too few replicas have it. */
export class NotReplicated extends Error {}

/** What connecting and answering may take beside the wait itself. */
const ANSWER_MS = 5_000

/** For messages. */
const CALL = 'wait for replicas'

/** Calls in one group: they share a wait. */
const GROUP_MAX = 16

interface Entry {
  readonly args: readonly Argument[]
  readonly resolve: (answer: unknown) => void
  readonly reject: (error: Error) => void
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
  readonly #connect: NonNullable<Driver['connect']>
  readonly #wait: WaitReplicas
  #waiting: Entry[] = []
  #isBusy = false
  #isClosed = false
  #line: Line | undefined

  constructor(connect: NonNullable<Driver['connect']>, wait: WaitReplicas) {
    this.#connect = connect
    this.#wait = wait
  }

  /** Given up: what waits is not sent, and the connection that does not answer is ended. */
  send(args: readonly Argument[], signal?: AbortSignal): Promise<unknown> {
    return new Promise((resolve, reject) => {
      if (signal?.aborted === true) return reject(signal.reason as Error)
      const entry: Entry = {
        args,
        resolve: (answer) => {
          signal?.removeEventListener('abort', giveUp)
          resolve(answer)
        },
        reject: (error) => {
          signal?.removeEventListener('abort', giveUp)
          reject(error)
        },
      }
      const giveUp = () => this.#giveUp(entry, signal?.reason as Error)
      signal?.addEventListener('abort', giveUp)
      this.#waiting.push(entry)
      // Never rejects: every entry gets its own answer.
      if (!this.#isBusy) void this.#work()
    })
  }

  close(): void {
    this.#isClosed = true
    this.#drop(new Error('the store is closed'))
  }

  /** No other call uses the connection, so that it is ended as soon as one is given up on it. */
  #giveUp(entry: Entry, reason: Error): void {
    if (this.#waiting.includes(entry)) {
      this.#waiting = this.#waiting.filter((other) => other !== entry)
    } else this.#drop(reason)
    entry.reject(reason)
  }

  async #work(): Promise<void> {
    this.#isBusy = true
    while (this.#waiting.length > 0) {
      const group = this.#waiting.slice(0, GROUP_MAX)
      this.#waiting = this.#waiting.slice(GROUP_MAX)
      try {
        const timeoutMs = this.#wait.timeoutMs + ANSWER_MS
        const limit = { store: 'redis', call: CALL, timeoutMs }
        await answerWithin(systemClock, limit, () => this.#send(group))
      } catch (error) {
        // Whatever the connection still answers is of no use to anybody.
        this.#drop(error)
        for (const entry of group) entry.reject(error as Error)
      }
    }
    this.#isBusy = false
  }

  async #send(group: readonly Entry[]): Promise<void> {
    if (this.#isClosed) throw new Error('the store is closed')
    const line = (this.#line ??= new Line(this.#connect))
    const connection = await line.opening.catch((error: unknown) => {
      throw isNeverConnected(error) ? notSent(CALL, error) : error
    })
    const { count, timeoutMs } = this.#wait
    // All in one turn, so that the wait stands behind the scripts on the same socket.
    const sent = group.map((entry) => connection.send(entry.args))
    const waited = connection.send(['WAIT', `${count}`, `${timeoutMs}`])
    // Where a script is given up before it, this error is nobody's.
    waited.catch(() => undefined)
    const answers = await line.untilEnded(Promise.allSettled(sent))
    const reached = Number(await line.untilEnded(waited))
    const short = new NotReplicated(`${reached} of ${count} replicas within ${timeoutMs} ms`)
    for (const [n, answer] of answers.entries()) {
      const { resolve, reject } = group[n]!
      if (answer.status === 'rejected') {
        if (!isScriptMissing(answer.reason) && this.#line === line) this.#drop(answer.reason)
        reject(answer.reason as Error)
      } else if (reached >= count) resolve(answer.value)
      else reject(short)
    }
  }

  /** The next call opens a new one. */
  #drop(reason: unknown): void {
    const line = this.#line
    this.#line = undefined
    line?.end(reason)
  }
}

/** One connection, from the moment it is asked for until it is ended. */
class Line {
  readonly opening: Promise<Connection>
  readonly #ended = new AbortController()

  constructor(connect: (signal: AbortSignal) => Promise<Connection>) {
    this.opening = connect(this.#ended.signal)
    // The call that waits for it gets this error, unless it was given up meanwhile.
    this.opening.catch(() => undefined)
  }

  /** A client may never answer on a connection that was ended. */
  untilEnded<Answer>(answer: Promise<Answer>): Promise<Answer> {
    return untilAborted(answer, this.#ended.signal)
  }

  end(reason: unknown): void {
    this.#ended.abort(reason)
  }
}
