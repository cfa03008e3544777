/** Closes connections that a store shares with the application, but only if they are silent. */
import { systemClock } from '../../core/time/clock.ts'

/** The state of a connection at one moment. */
export interface ConnectionSnapshot {
  /** A different object after each reconnect. */
  readonly connection: object
  /** Grows with each answer on the connection, to the store or to the application. */
  readonly answers: number
  /** A command was sent and is not answered yet. */
  readonly isWaiting: boolean
}

export interface SharedConnection {
  /** Returns `undefined` if the client has no connection now. */
  snapshot(): ConnectionSnapshot | undefined
  /** Called before a command is sent. */
  beforeSend?(): void
  /** Gets the answer to each command. For clients whose answers cannot be seen otherwise. */
  track?(answer: Promise<unknown>): void
  /** Closes the connection, which was silent for `silentMs`. The client then opens another. */
  end(silentMs: number): void
}

interface Silence {
  readonly answers: number
  readonly sinceMs: number
}

/** A call that may time out. */
interface Call {
  /** One function for each command of the call that is not answered yet. */
  readonly giveUps: Set<() => void>
}

/**
 * Sends commands on connections that the application also uses, and closes connections that have
 * stopped answering.
 *
 * A call that times out proves little: the server may be busy with commands of the application. A
 * connection is therefore closed only if it has answered no command at all for the time limit of a
 * whole call.
 */
export class SilenceWatch {
  readonly #connections: () => readonly SharedConnection[]
  readonly #silences = new WeakMap<object, Silence>()
  readonly #calls = new WeakMap<AbortSignal, Call>()

  constructor(connections: () => readonly SharedConnection[]) {
    this.#connections = connections
  }

  /**
   * Sends one command by `ask`, and rejects as soon as `signal` aborts. `ask` can get a separate
   * signal for this command, for clients that accept one. A connection that has been silent for
   * `silentMs` at the abort is closed; the default is the time since the call began.
   */
  ask<Answer>(
    ask: (signalOf: () => AbortSignal | undefined) => Promise<Answer>,
    signal: AbortSignal | undefined,
    silentMs?: number,
  ): Promise<Answer> {
    if (signal === undefined) return this.#track(ask(() => undefined))
    if (signal.aborted) return Promise.reject(signal.reason as Error)
    const nowMs = systemClock.monotonicMs()
    const { giveUps } = this.#callOf(signal, { startMs: nowMs, silentMs })
    this.#noteSilences(nowMs)
    return new Promise((resolve, reject) => {
      let own: AbortController | undefined
      const giveUp = () => {
        reject(signal.reason as Error)
        own?.abort(signal.reason)
      }
      giveUps.add(giveUp)
      this.#track(ask(() => (own ??= new AbortController()).signal))
        .finally(() => giveUps.delete(giveUp))
        .then(resolve, reject)
    })
  }

  /** Call this when a command is not sent because the client has no ready connection. */
  refused(): void {
    for (const connection of this.#connections()) connection.beforeSend?.()
  }

  /** One abort listener for all commands of a call: Node warns about more than ten. */
  #callOf(
    signal: AbortSignal,
    { startMs, silentMs }: { readonly startMs: number; readonly silentMs: number | undefined },
  ): Call {
    const known = this.#calls.get(signal)
    if (known !== undefined) return known
    const call: Call = { giveUps: new Set() }
    const giveUp = () => {
      // Every command is answered: the call was aborted for another reason.
      if (call.giveUps.size === 0) return
      const nowMs = systemClock.monotonicMs()
      this.#endSilent(nowMs, silentMs ?? nowMs - startMs)
      for (const giveUpCommand of call.giveUps) giveUpCommand()
    }
    signal.addEventListener('abort', giveUp, { once: true })
    this.#calls.set(signal, call)
    return call
  }

  #track<Answer>(answer: Promise<Answer>): Promise<Answer> {
    for (const connection of this.#connections()) connection.track?.(answer)
    return answer
  }

  /** Starts to measure silence, except on connections whose silence is already measured. */
  #noteSilences(sinceMs: number): void {
    for (const shared of this.#connections()) {
      shared.beforeSend?.()
      const seen = shared.snapshot()
      if (seen === undefined) continue
      const { connection, answers, isWaiting } = seen
      const silence = this.#silences.get(connection)
      // A connection without an unanswered command is idle, not silent.
      const isCounted = isWaiting && silence?.answers === answers
      if (!isCounted) this.#silences.set(connection, { answers, sinceMs })
    }
  }

  #endSilent(nowMs: number, silentMs: number): void {
    for (const shared of this.#connections()) {
      const seen = shared.snapshot()
      const silence = seen && this.#silences.get(seen.connection)
      if (seen === undefined || silence === undefined) continue
      const isSilent = seen.isWaiting && silence.answers === seen.answers
      if (isSilent && nowMs - silence.sinceMs >= silentMs) shared.end(silentMs)
    }
  }
}
