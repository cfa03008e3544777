import type { Encryption, EncryptionContext, EncryptionSubject } from '../core/encryption.ts'
import { MINUTE_MS } from '../core/time/durations.ts'
import { DataKeyCache, type DataKey } from './data-key.ts'
import {
  resolveEnvelopeOptions,
  type EnvelopeKeyringOptions,
  type ResolvedEnvelopeOptions,
} from './envelope-options.ts'
import { KeyService, type KeyOwner } from './key-service.ts'
import { SharedCalls } from './shared-calls.ts'
import { checkPlain, decryptValue, encryptValue, readValueHeader } from './value-cipher.ts'

/** An `Encryption` with `prepare`, which calls the key service before the work runs. */
export type EnvelopeKeyring = Required<Encryption>

/**
 * Encrypts with data keys that a key service wraps. Each tenant has a data key, which is used for
 * `cache.ageMs` and `cache.uses`. Each value is encrypted with a separate key, which is derived
 * from the data key, and is stored with the wrapped data key.
 *
 * `prepare` calls the service when a tenant needs a new data key. `encrypt` then needs no service:
 * it is synchronous while the tenant's data key is in memory, even if its age or uses are over.
 * `decrypt` is synchronous if the data key of the value is in memory.
 */
export function envelopeKeyring(options: EnvelopeKeyringOptions): EnvelopeKeyring {
  const keys = new DataKeys(resolveEnvelopeOptions(options))
  return {
    prepare: (subject) => keys.prepare(subject),
    encrypt(plain, context) {
      checkPlain(plain, context)
      return keys.withCurrent(context, (key) => {
        key.uses++
        return encryptValue(key, plain, context)
      })
    },
    decrypt(encrypted, context) {
      const header = readValueHeader(encrypted)
      const { keyId, wrapped } = header
      if (wrapped === undefined) {
        throw new Error(
          `the bytes were encrypted by an aesKeyring with the key ${keyId}, and this is an ` +
            'envelopeKeyring: decrypt them with a keyring of the same kind',
        )
      }
      const owner = { tenant: context.tenant, keyId }
      return keys.withStored(owner, wrapped, (key) =>
        decryptValue(header, key.secret, encrypted, context),
      )
    },
  }
}

/**
 * How long a data key is kept after its age, for work that began before. Longer than work in a
 * request takes; later, `encrypt` asks the key service for a new one.
 */
const KEPT_AFTER_AGE_MS = 15 * MINUTE_MS

/** The data keys in memory, and the calls that get missing ones. */
class DataKeys {
  readonly #options: ResolvedEnvelopeOptions
  readonly #service: KeyService
  /** The key that encrypts for a tenant. */
  readonly #current: DataKeyCache
  /** The keys of stored values. */
  readonly #unwrapped: DataKeyCache
  readonly #calls: SharedCalls<DataKey>

  constructor(options: ResolvedEnvelopeOptions) {
    const { clock, cache } = options
    const { ageMs, tenantsMax, unwrappedMax } = cache
    this.#options = options
    this.#service = new KeyService(options)
    const keptMs = ageMs + KEPT_AFTER_AGE_MS
    this.#current = new DataKeyCache({ clock, keysMax: tenantsMax, keptMs })
    this.#unwrapped = new DataKeyCache({ clock, keysMax: unwrappedMax, keptMs: ageMs })
    this.#calls = new SharedCalls(clock)
  }

  prepare({ tenant }: EncryptionSubject): void | Promise<void> {
    const keyId = this.#options.idOf({ tenant })
    const key = this.#current.get(nameOf(tenant))
    const isUsable = key?.keyId === keyId && key.uses < this.#options.cache.uses
    if (isUsable && this.#isYoung(key)) return
    return this.#renew({ tenant, keyId }, () => undefined)
  }

  /** Calls `use` at once if the tenant has a data key. Its age was checked before the work ran. */
  withCurrent<Value>(
    { tenant }: EncryptionContext,
    use: (key: DataKey) => Value,
  ): Value | Promise<Value> {
    const key = this.#current.get(nameOf(tenant))
    if (key !== undefined) return use(key)
    return this.#renew({ tenant, keyId: this.#options.idOf({ tenant }) }, use)
  }

  /** Calls `use` at once if the key is in memory. */
  withStored<Value>(
    owner: KeyOwner,
    wrapped: Uint8Array,
    use: (key: DataKey) => Value,
  ): Value | Promise<Value> {
    const name = storedName(owner, wrapped)
    const key = this.#unwrapped.get(name)
    // Checked here, too, because a timer is late while the process is busy.
    if (key !== undefined && this.#isYoung(key)) return use(key)
    const call = this.#service.storedKey(owner, wrapped)
    const arrived = (arrivedKey: DataKey) => this.#unwrapped.put(name, arrivedKey)
    return this.#calls.join(`unwrap ${name}`, { ...call, arrived }, use)
  }

  #renew<Value>(owner: KeyOwner, use: (key: DataKey) => Value): Promise<Value> {
    const name = nameOf(owner.tenant)
    const arrived = (key: DataKey) => {
      this.#current.put(name, key)
      // Replays often come soon after their first request.
      this.#unwrapped.put(storedName(owner, key.wrapped), key.copy())
    }
    const call = this.#service.newKey(owner)
    return this.#calls.join(`wrap ${owner.keyId} ${name}`, { ...call, arrived }, use)
  }

  #isYoung({ madeMs }: DataKey): boolean {
    return this.#options.clock.monotonicMs() - madeMs < this.#options.cache.ageMs
  }
}

/** No tenant, and a tenant of any name, have different names. */
function nameOf(tenant: string | undefined): string {
  return tenant === undefined ? '-' : `=${tenant}`
}

/** With the tenant, because the service may refuse to unwrap a key for another one. */
function storedName({ tenant, keyId }: KeyOwner, wrapped: Uint8Array): string {
  const { buffer, byteOffset, byteLength } = wrapped
  const text = Buffer.from(buffer, byteOffset, byteLength).toString('latin1')
  return `${keyId} ${byteLength} ${text} ${nameOf(tenant)}`
}
