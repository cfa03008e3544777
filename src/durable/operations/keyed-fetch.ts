import { InvalidOptionsError } from '../../core/errors.ts'
import { describe, optionalFunction, rejectUnknownOptions } from '../../core/options.ts'

export interface KeyedFetchOptions {
  /** The header in which the provider expects the key. @default 'Idempotency-Key' */
  readonly header?: string
  /** The function that sends the request. @default the global `fetch` */
  readonly fetch?: typeof fetch
}

/** The argument of `send`, or a key and a signal of a handler. */
export interface KeyedCall {
  readonly downstreamKey: string
  readonly signal?: AbortSignal
}

/**
 * Returns a `fetch` that sends the downstream key of an effect with its request, and stops with the
 * signal of the effect. An effect is one request, so another method or URL is refused: the second
 * request of a flow needs another effect, with another key.
 *
 * @example
 * ```ts
 * send: async (call) => (await keyedFetch(call)('https://psp.example/charges', { method: 'POST' })).json()
 * ```
 */
export function keyedFetch(call: KeyedCall, options: KeyedFetchOptions = {}): typeof fetch {
  rejectUnknownOptions('keyedFetch', options, ['header', 'fetch'])
  optionalFunction('keyedFetch.fetch', options.fetch)
  const { header = 'Idempotency-Key', fetch: send = globalThis.fetch } = options
  const { downstreamKey, signal } = call
  if (typeof downstreamKey !== 'string' || downstreamKey === '') {
    throw new InvalidOptionsError(
      `keyedFetch must be given { downstreamKey }, got ${describe(downstreamKey)} for it`,
    )
  }
  return async (input, init) => {
    const request = new Request(input, init)
    const target = `${request.method} ${request.url}`
    const first = targets.get(call) ?? target
    targets.set(call, first)
    if (target !== first) {
      throw new InvalidOptionsError(
        `keyedFetch has sent ${withoutQuery(first)} under this key, and cannot send ` +
          `${withoutQuery(target)} under it: declare another effect for the second request`,
      )
    }
    setKey(request, header, downstreamKey)
    const signals = [request.signal, ...(signal === undefined ? [] : [signal])]
    return send(new Request(request, { signal: AbortSignal.any(signals) }))
  }
}

/** The request of each call, because `send` may call `keyedFetch` anew for every request. */
const targets = new WeakMap<KeyedCall, string>()

function setKey({ headers }: Request, header: string, downstreamKey: string): void {
  const given = headers.get(header)
  if (given !== null && given !== downstreamKey) {
    throw new InvalidOptionsError(
      `the request already has a header ${header} with another value; remove it, or its provider ` +
        'would not recognise a repeat',
    )
  }
  headers.set(header, downstreamKey)
}

/** A query may contain secrets, and a message may be logged. */
function withoutQuery(target: string): string {
  return target.replace(/\?.*$/, '')
}
