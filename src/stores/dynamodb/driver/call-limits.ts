import { systemClock } from '../../../core/time/clock.ts'
import { agentsOf } from './agents.ts'
import type { CallOptions, DynamodbClient } from '../client.ts'

/** By default the SDK waits forever for an answer. */
const CALL_MS = 10_000

/**
 * Aborts calls when the signal of the store call aborts, and at the latest after `CALL_MS`. The SDK
 * then destroys the connection of the call.
 *
 * While the network is silent, the idle connections of the agent are dead as well, without a sign.
 * Every later call on one of them would time out, so they are destroyed with the call.
 */
export class CallLimits {
  readonly #client: DynamodbClient
  readonly #callsOf = new WeakMap<AbortSignal, Set<AbortController>>()

  constructor(client: DynamodbClient) {
    this.#client = client
  }

  async call<Answer>(
    call: (options: CallOptions) => Promise<Answer>,
    signal: AbortSignal | undefined,
  ): Promise<Answer> {
    signal?.throwIfAborted()
    const givenUp = new AbortController()
    const giveUp = () => {
      givenUp.abort(new Error(`no answer within ${CALL_MS} ms`))
      this.#endIdle()
    }
    const cancel = systemClock.after(CALL_MS, giveUp, { background: true })
    const calls = signal === undefined ? undefined : this.#join(signal, givenUp)
    try {
      return await call({ abortSignal: givenUp.signal })
    } finally {
      cancel()
      calls?.delete(givenUp)
    }
  }

  /** One listener for all calls of a signal: Node warns about more than ten. */
  #join(signal: AbortSignal, givenUp: AbortController): Set<AbortController> {
    const known = this.#callsOf.get(signal)
    if (known !== undefined) return known.add(givenUp)
    const calls = new Set([givenUp])
    const giveUp = () => {
      // Between two calls there is no connection to end.
      if (calls.size > 0) this.#endIdle()
      for (const one of calls) one.abort(signal.reason)
    }
    signal.addEventListener('abort', giveUp, { once: true })
    this.#callsOf.set(signal, calls)
    return calls
  }

  /** Destroys healthy connections, too: the next call then opens a new one. */
  #endIdle(): void {
    for (const agent of agentsOf(this.#client)) {
      for (const sockets of Object.values(agent.freeSockets)) {
        for (const socket of sockets ?? []) socket.destroy()
      }
    }
  }
}
