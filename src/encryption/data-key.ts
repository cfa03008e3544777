import { createSecretKey, type KeyObject } from 'node:crypto'
import type { Clock } from '../core/time/clock.ts'
import type { ValueKey } from './value-cipher.ts'

/** A data key in memory. Wiped when the cache that has it drops it. */
export class DataKey implements ValueKey {
  readonly keyId: string
  readonly wrapped: Uint8Array
  /** When the key was made or unwrapped, by the monotonic clock. */
  readonly madeMs: number
  /** The number of values that were encrypted with this key. */
  uses = 0
  readonly #bytes: Uint8Array
  #isWiped = false

  /** Takes `bytes` over, and wipes them later. */
  constructor(
    { keyId, wrapped }: { readonly keyId: string; readonly wrapped: Uint8Array },
    bytes: Uint8Array,
    madeMs: number,
  ) {
    this.keyId = keyId
    this.wrapped = wrapped
    this.madeMs = madeMs
    this.#bytes = bytes
  }

  /** For one value: keep no reference to it, because it outlives `wipe`. */
  get secret(): KeyObject {
    return createSecretKey(this.#unwiped())
  }

  /** The same key for another cache, which wipes its copy at another time. */
  copy(): DataKey {
    return new DataKey(this, Uint8Array.from(this.#unwiped()), this.madeMs)
  }

  wipe(): void {
    this.#isWiped = true
    this.#bytes.fill(0)
  }

  #unwiped(): Uint8Array {
    // Zero bytes would encrypt, too, with a key that is no secret.
    if (this.#isWiped) throw new Error(`the data key of key ${this.keyId} was already wiped`)
    return this.#bytes
  }
}

export interface DataKeyCacheOptions {
  readonly clock: Clock
  /** Beyond this number, the least recently used key is dropped. */
  readonly keysMax: number
  /** A key is dropped this long after it was made, even if it is in use. */
  readonly keptMs: number
}

interface Entry {
  readonly key: DataKey
  readonly cancel: () => void
}

/** Data keys by name. A dropped key is wiped at once. */
export class DataKeyCache {
  readonly #options: DataKeyCacheOptions
  /** The most recently used key is the last. */
  readonly #entries = new Map<string, Entry>()

  constructor(options: DataKeyCacheOptions) {
    this.#options = options
  }

  get size(): number {
    return this.#entries.size
  }

  get(name: string): DataKey | undefined {
    const entry = this.#entries.get(name)
    if (entry === undefined) return undefined
    this.#entries.delete(name)
    this.#entries.set(name, entry)
    return entry.key
  }

  put(name: string, key: DataKey): void {
    const { clock, keysMax, keptMs } = this.#options
    this.drop(name)
    const leftMs = key.madeMs + keptMs - clock.monotonicMs()
    // A timer and not only a check at the next use: the key of an idle tenant must go, too.
    const cancel = clock.after(leftMs, () => this.drop(name), { background: true })
    this.#entries.set(name, { key, cancel })
    if (this.#entries.size > keysMax) {
      const [oldest] = this.#entries.keys()
      this.drop(oldest!)
    }
  }

  drop(name: string): void {
    const entry = this.#entries.get(name)
    if (entry === undefined) return
    this.#entries.delete(name)
    entry.cancel()
    entry.key.wipe()
  }
}
