import { callStore } from '../../../core/store/store-call.ts'
import { systemClock } from '../../../core/time/clock.ts'
import { isNeverConnected } from '../../kit/never-connected.ts'
import type { Argument, Connection, Driver } from '../client.ts'
import { isScriptMissing, notSent } from '../failures.ts'
import { untilAborted } from './until-aborted.ts'

/** How many replicas must have a write, and how long they may take. */
export interface WaitReplicas {
  readonly count: number
  readonly timeoutMs: number
}

/** The write was made, and too few replicas have it. */
export class NotReplicated extends Error {}

/** Time for connecting and answering, in addition to the wait itself. */
const ANSWER_MS = 5_000

/** For messages. */
const CALL = 'wait for replicas'

/** Most calls in one group. The calls of a group share one WAIT. */
const GROUP_MAX = 16

interface Entry {
  readonly args: readonly Argument[]
  readonly resolve: (answer: unknown) => void
  readonly reject: (error: Error) => void
}

/**
 * Sends scripts and waits until replicas have what the scripts wrote.
 *
 * Uses a separate connection, because WAIT blocks all later commands of its connection, and covers
 * only the writes of its connection. Every script that is sent here writes a mark, even if it
 * changes no record. The wait then also covers what the script has read, such as a result to replay
 * that another process wrote a moment before. (Redis 7.0 counts from the last command of a
 * connection, of any kind, but it only promises to count from the last write.) No command is sent
 * again on another connection, because WAIT always succeeds on a connection without writes.
 *
 * While one group waits, later calls gather for the next group.
 */
export class Replication {
  readonly #connect: NonNullable<Driver['connect']>
  readonly #wait: WaitReplicas
  #queue: Entry[] = []
  #isBusy = false
  #isClosed = false
  #session: Session | undefined

  constructor(connect: NonNullable<Driver['connect']>, wait: WaitReplicas) {
    this.#connect = connect
    this.#wait = wait
  }

  /** When `signal` aborts, a queued call is not sent, and a sent call ends its connection. */
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
      this.#queue.push(entry)
      // `#work` never rejects: it answers each entry.
      if (!this.#isBusy) void this.#work()
    })
  }

  close(): void {
    this.#isClosed = true
    this.#drop(new Error('the store is closed'))
  }

  /** Only this class uses the connection, so one call that is given up on it ends it. */
  #giveUp(entry: Entry, reason: Error): void {
    if (this.#queue.includes(entry)) {
      this.#queue = this.#queue.filter((other) => other !== entry)
    } else this.#drop(reason)
    entry.reject(reason)
  }

  async #work(): Promise<void> {
    this.#isBusy = true
    while (this.#queue.length > 0) {
      const group = this.#queue.slice(0, GROUP_MAX)
      this.#queue = this.#queue.slice(GROUP_MAX)
      try {
        const timeoutMs = this.#wait.timeoutMs + ANSWER_MS
        const limit = { store: 'redis', call: CALL, timeoutMs }
        await callStore(systemClock, limit, () => this.#send(group))
      } catch (error) {
        // No call is left that could use a later answer of the connection.
        this.#drop(error)
        for (const entry of group) entry.reject(error as Error)
      }
    }
    this.#isBusy = false
  }

  async #send(group: readonly Entry[]): Promise<void> {
    if (this.#isClosed) throw new Error('the store is closed')
    const session = (this.#session ??= new Session(this.#connect))
    const connection = await session.opening.catch((error: unknown) => {
      throw isNeverConnected(error) ? notSent(CALL, error) : error
    })
    const { count, timeoutMs } = this.#wait
    // Sent in one turn of the event loop, so that WAIT follows the scripts on the same socket.
    const sent = group.map((entry) => connection.send(entry.args))
    const waited = connection.send(['WAIT', `${count}`, `${timeoutMs}`])
    // If the connection ends before the scripts are answered, no code awaits this error.
    waited.catch(() => undefined)
    const answers = await session.untilEnded(Promise.allSettled(sent))
    const reached = Number(await session.untilEnded(waited))
    const tooFew = new NotReplicated(
      `the write reached ${reached} of ${count} replicas within ${timeoutMs} ms`,
    )
    for (const [n, answer] of answers.entries()) {
      const { resolve, reject } = group[n]!
      if (answer.status === 'rejected') {
        if (!isScriptMissing(answer.reason) && this.#session === session) this.#drop(answer.reason)
        reject(answer.reason as Error)
      } else if (reached >= count) resolve(answer.value)
      else reject(tooFew)
    }
  }

  /** Ends the connection. The next call opens another. */
  #drop(reason: unknown): void {
    const session = this.#session
    this.#session = undefined
    session?.end(reason)
  }
}

/** One connection, from the start of its opening to its end. */
class Session {
  readonly opening: Promise<Connection>
  readonly #ended = new AbortController()

  constructor(connect: (signal: AbortSignal) => Promise<Connection>) {
    this.opening = connect(this.#ended.signal)
    // The call that waits for the connection gets this error. If it was given up, no code does.
    this.opening.catch(() => undefined)
  }

  /** Rejects when the connection is ended: a client may never answer its commands. */
  untilEnded<Answer>(answer: Promise<Answer>): Promise<Answer> {
    return untilAborted(answer, this.#ended.signal)
  }

  end(reason: unknown): void {
    this.#ended.abort(reason)
  }
}
