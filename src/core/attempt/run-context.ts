/** The contract between the engine and guarded work: the context it gets and what it returns. */
import type { Scope } from '../record/identity.ts'

/** Guarded work. Returns its result as bytes, or says how it ended. */
export type Work = (context: RunContext) => WorkResult | Promise<WorkResult>

export type WorkResult =
  /** Completed: retries get these bytes. */
  | Uint8Array
  | { readonly kind: 'complete'; readonly result: Uint8Array }
  /** Ended without an effect and without a lasting result: only this caller gets the bytes. */
  | { readonly kind: 'release'; readonly result: Uint8Array; readonly error?: unknown }
  | FailedEnd

/** Failed, with bytes for the caller: `onError` decides about the key. */
export interface FailedEnd {
  readonly kind: 'fail'
  readonly result: Uint8Array
  readonly error: unknown
  /** The work does not know the error that caused the failure. @default false */
  readonly blind?: boolean
  /** The result does not come from the work, so it is never recorded. @default false */
  readonly unstorable?: boolean
}

/** Returns how the work ended; `undefined` if plain JavaScript returned a value of another type. */
export function toEnding(end: WorkResult | undefined): Exclude<WorkResult, Uint8Array> | undefined {
  if (end instanceof Uint8Array) return { kind: 'complete', result: end }
  const known = end?.kind === 'complete' || end?.kind === 'release' || end?.kind === 'fail'
  return known && end.result instanceof Uint8Array ? end : undefined
}

/** The methods and facts that work can use while it holds its key. */
export interface RunContext {
  readonly key: string
  readonly scope: Scope
  /** Hash over tenant, operation and key. Use it where the key itself must not appear. */
  readonly identity: string
  /** Opaque, and the same on every attempt: business rows may refer to it. */
  readonly recordId: string
  /** 1 for the first run; each retry adds 1. */
  readonly attempt: number

  /** Aborts when the lease is lost or after `runTimeoutMs`. Pass it to calls that take a signal. */
  readonly signal: AbortSignal

  /**
   * Throws `LeaseLostError` unless this attempt still holds the key. Call it right before an
   * outside effect. The call shortens the time in which two attempts could act, but cannot remove
   * it.
   */
  assertHeld(): void

  /**
   * Returns a key to send with an outside effect: the same on every attempt, at most 64 characters.
   * The call means that the effect begins: if the work fails after it without a
   * `NotExecutedError`, the outcome is unknown.
   */
  downstreamKey(name?: string): string

  /** Returns a UUID that is the same on every attempt, for ids and nonces that the work creates. */
  deterministicId(name: string): string

  /** Declares that this attempt had no effect, regardless of its result: the key may run again. */
  notExecuted(): void

  /** Declares that it is unknown whether this attempt had an effect. */
  outcomeUnknown(): void

  /** Keeps the result longer than the policy does. The time counts from its completion. */
  extendRetention(retentionMs: number): void

  /**
   * Runs `work` in a transaction of the store and commits the key together with the rows that
   * `work` writes: both take effect, or neither does. `work` returns the bytes to record. Keep it
   * short; on SQLite keep it synchronous, because it holds the only writer of the file.
   */
  transaction<Tx>(work: (tx: Tx) => Uint8Array | Promise<Uint8Array>): Promise<Uint8Array>

  /**
   * Completes the key as a statement of a transaction that the work has begun itself, in the
   * database of the store: the rows of the transaction commit with the key, or neither does. Call
   * it last, right before the commit. If the lease is lost, or the key was completed before, it
   * throws `LeaseLostError`: let that error roll the transaction back.
   *
   * The work decides whether to commit, so the engine reads the record afterwards. If the
   * transaction has committed, its result is the result of the run, even if the work returns other
   * bytes. If it has not, the bytes that the work returns count as usual, with one exception: if
   * they are the bytes that it passed to `completeIn`, they stand for the commit. The outcome is
   * then unknown, because a part of the transaction may be kept (savepoints).
   *
   * A transaction that was rolled back may be tried again, with a new call. At most one of them
   * can commit.
   */
  completeIn(tx: unknown, result: Uint8Array): Promise<void>
}
