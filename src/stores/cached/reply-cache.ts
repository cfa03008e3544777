/**
 * A cache of replies. It may lose entries, keep them too long, damage them or return old ones:
 * every returned entry is checked before it is used.
 *
 * It has one duty: a forgotten entry stays forgotten. `fill` and `forget` of one identity must be
 * atomic with respect to each other.
 *
 * Each call takes an `AbortSignal` last, which is aborted when the caller stops waiting. This may
 * be soon (`timeoutMs`), so end a connection for it only if the connection has long been silent.
 */
export interface ReplyCache {
  /**
   * The bytes under these identities, in their order; `undefined` for each miss. The caller reads
   * the bytes immediately and does not change them.
   */
  get(
    identities: readonly string[],
    signal?: AbortSignal,
  ): Promise<readonly (Uint8Array | undefined)[]>

  /**
   * Keeps the bytes, unless the identity has a tombstone (see `forget`), or the kept bytes expire
   * later: those then belong to a newer record of the same key.
   */
  fill(identity: string, fill: CacheFill, signal?: AbortSignal): Promise<void>

  /**
   * Removes the entry, and ignores every fill of the identity for `tombstoneMs`. Resolves only when
   * both are in effect.
   */
  forget(identity: string, tombstoneMs: number, signal?: AbortSignal): Promise<void>
}

export interface CacheFill {
  readonly bytes: Uint8Array
  /** By the durable store's clock: compare it only with other values of this field. */
  readonly expiresAtMs: number
  /** After this time the bytes are not used any more. */
  readonly ttlMs: number
}
