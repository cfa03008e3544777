/** Connections that the application shares with a store: ended only when they are silent. */
import { systemClock } from './clock.ts'

/** A connection at one moment. */
export interface ConnectionLook {
  /** Another object after each reconnect. */
  readonly connection: object
  /** Grows with each answer of the connection, to the store or to the application. */
  readonly heard: number
  /** Something was sent and is not answered yet. */
  readonly isWaiting: boolean
}

export interface SharedConnection {
  /** `undefined` where the client has no connection now. */
  look(): ConnectionLook | undefined
  /** Something is about to be asked. */
  asking?(): void
  /** Hears what becomes of a question, where the connection does not show its answers. */
  track?(answer: Promise<unknown>): void
  /** Ends the connection, which was silent for so long, and has the client open another. */
  end(silentMs: number): void
}

interface Silence {
  readonly heard: number
  readonly sinceMs: number
}

/** A call that may be given up, and the questions of it that are not answered yet. */
interface Call {
  readonly giveUps: Set<() => void>
}

/**
 * Asks on connections that others use as well, and ends those that have gone silent.
 *
 * A call that is given up proves little: the server may be busy with what others have asked. So a
 * connection is ended only when it has answered no call at all for as long as a whole
 * call was waited for.
 */
export class SilenceWatch {
  readonly #connections: () => readonly SharedConnection[]
  readonly #silences = new WeakMap<object, Silence>()
  readonly #calls = new WeakMap<AbortSignal, Call>()

  constructor(connections: () => readonly SharedConnection[]) {
    this.#connections = connections
  }

  /**
   * Rejects as soon as `signal` aborts. `ask` gets a signal of this question alone, where its
   * client takes one. `silentMs`: how long a connection must have been silent by then to be ended.
   * @default as long as the call has taken
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
    this.#note(nowMs)
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

  /** A question is not asked, because the client has no connection that is ready. */
  refused(): void {
    for (const connection of this.#connections()) connection.asking?.()
  }

  /** One listener for all questions of a call: Node warns of more than ten. */
  #callOf(
    signal: AbortSignal,
    { startMs, silentMs }: { readonly startMs: number; readonly silentMs: number | undefined },
  ): Call {
    const known = this.#calls.get(signal)
    if (known !== undefined) return known
    const call: Call = { giveUps: new Set() }
    const giveUp = () => {
      // All of it is answered: it was given up for another reason.
      if (call.giveUps.size === 0) return
      const nowMs = systemClock.monotonicMs()
      this.#endSilent(nowMs, silentMs ?? nowMs - startMs)
      for (const one of call.giveUps) one()
    }
    signal.addEventListener('abort', giveUp, { once: true })
    this.#calls.set(signal, call)
    return call
  }

  #track<Answer>(answer: Promise<Answer>): Promise<Answer> {
    for (const connection of this.#connections()) connection.track?.(answer)
    return answer
  }

  #note(sinceMs: number): void {
    for (const shared of this.#connections()) {
      shared.asking?.()
      const seen = shared.look()
      if (seen === undefined) continue
      const { connection, heard, isWaiting } = seen
      const silence = this.#silences.get(connection)
      // A connection without an open call is not silent, however long it says nothing.
      const isCounted = isWaiting && silence?.heard === heard
      if (!isCounted) this.#silences.set(connection, { heard, sinceMs })
    }
  }

  #endSilent(nowMs: number, silentMs: number): void {
    for (const shared of this.#connections()) {
      const seen = shared.look()
      const silence = seen && this.#silences.get(seen.connection)
      if (seen === undefined || silence === undefined) continue
      const isSilent = seen.isWaiting && silence.heard === seen.heard
      if (isSilent && nowMs - silence.sinceMs >= silentMs) shared.end(silentMs)
    }
  }
}
