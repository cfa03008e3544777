import { systemClock, type Clock } from '../../core/time/clock.ts'
import { rejectUnknownOptions, wholeNumber } from '../../core/options.ts'
import type { CacheFill, ReplyCache } from './reply-cache.ts'

export interface MemoryCacheOptions {
  /**
   * The maximum number of replies. Beyond it, the least recently used reply is removed. A higher
   * limit answers more retries without the durable store, and takes more memory.
   *
   * @default 10_000
   */
  entriesMax?: number

  /**
   * The maximum total size of the replies in bytes. Beyond it, the least recently used reply is
   * removed.
   *
   * @default 67_108_864 (64 MiB)
   */
  bytesMax?: number

  /** The clock of the cache, for tests. @default the system clock */
  clock?: Clock
}

const ENTRIES_MAX = 10_000
const BYTES_MAX = 64 * 1024 * 1024

/** Approximate memory of an entry beside its bytes. */
const ENTRY_BYTES = 200

/**
 * Keeps replies in this process. `forget` reaches no other process: with several processes, the
 * others may replay a record that was removed from the database until it expires.
 */
export function memoryCache(options: MemoryCacheOptions = {}): ReplyCache {
  rejectUnknownOptions('memoryCache', options, ['entriesMax', 'bytesMax', 'clock'])
  const max = Number.MAX_SAFE_INTEGER
  return new MemoryCache({
    entriesMax: wholeNumber('memoryCache: entriesMax', options.entriesMax, {
      fallback: ENTRIES_MAX,
      min: 1,
      max,
    }),
    bytesMax: wholeNumber('memoryCache: bytesMax', options.bytesMax, {
      fallback: BYTES_MAX,
      min: 1,
      max,
    }),
    clock: options.clock ?? systemClock,
  })
}

interface KeptEntry {
  readonly bytes: Uint8Array
  readonly expiresAtMs: number
  /** By the monotonic clock. */
  readonly untilMs: number
}

class MemoryCache implements ReplyCache {
  readonly #options: Readonly<Required<MemoryCacheOptions>>
  /** The most recently used entry is the last. */
  readonly #entries = new Map<string, KeptEntry>()
  /** End of each tombstone by the monotonic clock. Separate, so that no reply can evict one. */
  readonly #tombstones = new Map<string, number>()
  #bytes = 0

  constructor(options: Readonly<Required<MemoryCacheOptions>>) {
    this.#options = options
  }

  async get(identities: readonly string[]): Promise<(Uint8Array | undefined)[]> {
    return identities.map((identity) => {
      const entry = this.#take(identity)
      if (entry === undefined || entry.untilMs <= this.#nowMs()) return undefined
      this.#put(identity, entry)
      return entry.bytes
    })
  }

  async fill(identity: string, { bytes, expiresAtMs, ttlMs }: CacheFill): Promise<void> {
    const nowMs = this.#nowMs()
    if ((this.#tombstones.get(identity) ?? -Infinity) > nowMs) return
    if ((this.#entries.get(identity)?.expiresAtMs ?? -Infinity) > expiresAtMs) return
    this.#take(identity)
    this.#put(identity, { bytes: bytes.slice(), expiresAtMs, untilMs: nowMs + ttlMs })
    while (this.#entries.size > this.#options.entriesMax || this.#bytes > this.#options.bytesMax) {
      const [oldest] = this.#entries.keys()
      this.#take(oldest!)
    }
  }

  async forget(identity: string, tombstoneMs: number): Promise<void> {
    const nowMs = this.#nowMs()
    if (this.#tombstones.size >= this.#options.entriesMax) {
      for (const [old, untilMs] of this.#tombstones) {
        if (untilMs <= nowMs) this.#tombstones.delete(old)
      }
    }
    if (this.#tombstones.size >= this.#options.entriesMax && !this.#tombstones.has(identity)) {
      throw new Error(
        `memoryCache already has ${this.#tombstones.size} tombstones, as many as entriesMax; ` +
          'increase entriesMax or decrease tombstoneMs',
      )
    }
    this.#take(identity)
    this.#tombstones.set(identity, nowMs + tombstoneMs)
  }

  #take(identity: string): KeptEntry | undefined {
    const entry = this.#entries.get(identity)
    if (entry === undefined) return undefined
    this.#entries.delete(identity)
    this.#bytes -= entry.bytes.byteLength + ENTRY_BYTES
    return entry
  }

  #put(identity: string, entry: KeptEntry): void {
    this.#entries.set(identity, entry)
    this.#bytes += entry.bytes.byteLength + ENTRY_BYTES
  }

  #nowMs(): number {
    return this.#options.clock.monotonicMs()
  }
}
