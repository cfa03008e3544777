import { systemClock } from '../../core/clock.ts'
import { agentsOf } from './agents.ts'
import type { CallOptions, DynamodbClient } from './client.ts'

/** The SDK waits for an answer for ever unless its client is told otherwise. */
const CALL_MS = 10_000

/**
 * Gives calls up in time: when the store's caller has, and at the latest after `CALL_MS`. The SDK
 * then destroys the connection of the call.
 *
 * Where the network is silent, the connections that its agent keeps idle are dead as well, and do
 * not show it: one call after the other would be given up on them. So they are ended with the call.
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

  /** One listener for all calls of a signal: Node warns of more than ten. */
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

  /** A healthy one among them costs the next call a new connection. */
  #endIdle(): void {
    for (const agent of agentsOf(this.#client)) {
      for (const sockets of Object.values(agent.freeSockets)) {
        for (const socket of sockets ?? []) socket.destroy()
      }
    }
  }
}
