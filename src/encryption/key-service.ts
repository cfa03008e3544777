import { randomBytes } from 'node:crypto'
import { InvalidOptionsError } from '../core/errors.ts'
import { DataKey } from './data-key.ts'
import type { KeyServiceCall, ResolvedEnvelopeOptions } from './envelope-options.ts'
import { checkKeyBytes, KEY_BYTES } from './key-bytes.ts'
import { withoutContent } from './key-id.ts'
import type { SharedCall } from './shared-calls.ts'
import { WRAPPED_BYTES_MAX } from './value-header.ts'

/** The owner of a data key, and the key of the service that wraps it. */
export type KeyOwner = Omit<KeyServiceCall, 'signal'>

type Begin = SharedCall<DataKey>['begin']

/** Makes data keys and wraps them, and unwraps stored ones. Keeps nothing. */
export class KeyService {
  readonly #options: ResolvedEnvelopeOptions

  constructor(options: ResolvedEnvelopeOptions) {
    this.#options = options
  }

  /** A call that makes a new data key. */
  newKey(owner: KeyOwner): Omit<SharedCall<DataKey>, 'arrived'> {
    return this.#call('wrap', owner, async (signal) => {
      const bytes = randomBytes(KEY_BYTES)
      // Lent, because `wrap` may wipe or change what it gets.
      const lent = Uint8Array.from(bytes)
      try {
        const wrapped: unknown = await this.#options.wrap(lent, { ...owner, signal })
        signal.throwIfAborted()
        const keyId = owner.keyId
        return new DataKey({ keyId, wrapped: checkWrapped(wrapped, bytes) }, bytes, this.#nowMs())
      } catch (error) {
        bytes.fill(0)
        throw error
      } finally {
        // Not at the time limit: `wrap` may still read it then.
        lent.fill(0)
      }
    })
  }

  /** A call that unwraps the data key of a stored value. */
  storedKey(owner: KeyOwner, wrapped: Uint8Array): Omit<SharedCall<DataKey>, 'arrived'> {
    return this.#call('unwrap', owner, async (signal) => {
      // A copy, because `unwrap` may change it, and `wrapped` is a part of the stored value.
      const lent = Uint8Array.from(wrapped)
      const given: unknown = await this.#options.unwrap(lent, { ...owner, signal })
      signal.throwIfAborted()
      // A copy, because the function may return the same array again after this one is wiped.
      const bytes = Uint8Array.from(checkKeyBytes('the result of unwrap()', given))
      return new DataKey({ keyId: owner.keyId, wrapped: lent }, bytes, this.#nowMs())
    })
  }

  #call(
    name: 'wrap' | 'unwrap',
    { keyId }: KeyOwner,
    begin: Begin,
  ): Omit<SharedCall<DataKey>, 'arrived'> {
    const limitMs = this.#options.timeoutMs
    return {
      limitMs,
      atLimit: () =>
        new Error(`${name}() for key ${keyId} gave no answer within timeoutMs (${limitMs})`),
      begin: async (signal) => {
        try {
          return await begin(signal)
        } catch (cause) {
          const why = cause instanceof Error ? `: ${cause.message}` : ''
          throw new Error(`${name}() for key ${keyId} failed${why}`, { cause })
        }
      },
    }
  }

  #nowMs(): number {
    return this.#options.clock.monotonicMs()
  }
}

/** Returns a copy, because the function may reuse its array. */
function checkWrapped(given: unknown, key: Buffer): Uint8Array {
  if (!(given instanceof Uint8Array)) {
    throw new InvalidOptionsError(`it must return a Uint8Array, got ${withoutContent(given)}`)
  }
  if (given.byteLength === 0 || given.byteLength > WRAPPED_BYTES_MAX) {
    throw new InvalidOptionsError(
      `it must return 1 to ${WRAPPED_BYTES_MAX} bytes, got ${given.byteLength}`,
    )
  }
  if (Buffer.from(given.buffer, given.byteOffset, given.byteLength).includes(key)) {
    throw new InvalidOptionsError('its result contains the key itself; encrypt the key')
  }
  // Not `slice`, which returns a view if the array is a Buffer.
  return Uint8Array.from(given)
}
