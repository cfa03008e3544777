/**
 * Where replies are kept close at hand. It may lose what it was given, keep it too long, mangle it
 * or give back something old: whatever it returns is checked before it is believed.
 *
 * One thing alone is asked of it: what was forgotten stays forgotten. `fill` and `forget` of one
 * identity must not run into each other.
 *
 * Each call takes an `AbortSignal` last. It is aborted when the call is no longer waited for, which
 * is soon (`timeoutMs`): a connection may be ended for it only where it has long been silent.
 */
export interface ReplyCache {
  /**
   * What is kept under these identities, in their order; `undefined` where there is nothing. The
   * bytes are read at once, and not changed.
   */
  get(
    identities: readonly string[],
    signal?: AbortSignal,
  ): Promise<readonly (Uint8Array | undefined)[]>

  /**
   * Keeps the bytes, unless the identity was forgotten (see below), or what is kept under it
   * expires later: that is then a newer record of the same key.
   */
  fill(identity: string, fill: CacheFill, signal?: AbortSignal): Promise<void>

  /**
   * Drops what is kept, and for `tombstoneMs` refuses everything that comes. Resolves only when
   * both are done.
   */
  forget(identity: string, tombstoneMs: number, signal?: AbortSignal): Promise<void>
}

export interface CacheFill {
  readonly bytes: Uint8Array
  /** By the durable store's clock: for comparing, not for telling the time. */
  readonly expiresAtMs: number
  /** After this the bytes are of no use to anybody. */
  readonly ttlMs: number
}
