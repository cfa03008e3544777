import { createCipheriv, createDecipheriv, randomBytes } from 'node:crypto'
import type { KeyServiceCall } from '../../src/encryption/index.ts'

export interface SeenCall extends KeyServiceCall {
  readonly name: 'wrap' | 'unwrap'
  /** The bytes that the function got: for `wrap`, the array itself. */
  readonly bytes: Uint8Array
}

/**
 * A key service in memory. Its answers are promises; `hold` keeps them back, and `fails` makes them
 * rejections. Keys are wrapped for a tenant and a key id, as with the context of a real service.
 */
export class FakeKeyService {
  readonly calls: SeenCall[] = []
  fails = false
  readonly #key = randomBytes(32)
  #gate: Promise<void> = Promise.resolve()

  /** Holds all answers back until the returned function is called. */
  hold(): () => void {
    const { promise, resolve } = Promise.withResolvers<void>()
    this.#gate = promise
    return () => {
      this.#gate = Promise.resolve()
      resolve()
    }
  }

  readonly wrap = async (key: Uint8Array, call: KeyServiceCall): Promise<Uint8Array> => {
    await this.#answer({ name: 'wrap', bytes: key, ...call })
    const nonce = randomBytes(12)
    const cipher = createCipheriv('aes-256-gcm', this.#key, nonce).setAAD(contextOf(call))
    return Buffer.concat([nonce, cipher.update(key), cipher.final(), cipher.getAuthTag()])
  }

  readonly unwrap = async (wrapped: Uint8Array, call: KeyServiceCall): Promise<Uint8Array> => {
    await this.#answer({ name: 'unwrap', bytes: wrapped, ...call })
    const nonce = wrapped.subarray(0, 12)
    const decipher = createDecipheriv('aes-256-gcm', this.#key, nonce, { authTagLength: 16 })
    decipher.setAAD(contextOf(call)).setAuthTag(wrapped.subarray(44))
    return Buffer.concat([decipher.update(wrapped.subarray(12, 44)), decipher.final()])
  }

  count(name: SeenCall['name']): number {
    return this.calls.filter((call) => call.name === name).length
  }

  async #answer(call: SeenCall): Promise<void> {
    this.calls.push(call)
    const { fails } = this
    await this.#gate
    if (fails) throw new Error('the key service is down')
  }
}

function contextOf({ tenant, keyId }: KeyServiceCall): Buffer {
  return Buffer.from(JSON.stringify([tenant ?? null, keyId]))
}
