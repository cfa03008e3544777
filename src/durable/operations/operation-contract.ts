import type { ReplyInit } from '../../http/reply/http-reply.ts'
import type { Schema } from './schema.ts'

/**
 * One outside effect: how to send it, and how to find out later whether it happened. It is declared
 * with its operation, so that a reconciler in another process can find out its outcome.
 */
export interface Effect<Request = unknown, Result = unknown> {
  /**
   * Sends the request to the provider under `downstreamKey`. The return value is recorded, and the
   * operation gets it on this attempt and on every later one. If `send` throws, the effect may have
   * happened, so its outcome has to be found out. Throw a `NotExecutedError` if this call certainly
   * sent nothing; it says nothing about what an earlier attempt sent.
   */
  send(call: EffectCall<Request>): Result | Promise<Result>

  /**
   * Asks the provider for the outcome. It must not change anything there. Without it, an effect
   * whose answer was lost is sent again within `resendWithinMs`, and otherwise waits for a webhook
   * or an operator.
   *
   * @default none
   */
  reconcile?(call: ReconcileCall<Request>): Finding<Result> | Promise<Finding<Result>>

  /**
   * How long after the last send the provider may still start to process the request. After this
   * time, `not_found` proves that the effect did not happen, and it may be sent again. Too short a
   * time can charge twice, because a request can wait in queues for minutes; a longer one only
   * delays the operation. Needs `reconcile`. From 1 to 31_536_000_000 (a year).
   *
   * @default never: `not_found` is no proof
   */
  notFoundIsFinalAfterMs?: number

  /**
   * How long after the first send the provider recognises the downstream key, so that sending the
   * request again cannot have a second effect. Set it below the provider's own limit: a time that
   * is too long can charge twice. After this time an effect with an unknown outcome is reconciled
   * and not sent again. From 1 to 31_536_000_000 (a year).
   *
   * @default an effect with an unknown outcome is never sent again
   */
  resendWithinMs?: number

  /**
   * How long `send` may take. Then its signal aborts, and its outcome counts as unknown. The same
   * limit applies to `reconcile` when an attempt calls it. A longer limit loses fewer slow answers,
   * and lets a provider that hangs hold the client and the worker's place for longer. From 1 to
   * 31_536_000_000 (a year).
   *
   * @default 60_000
   */
  timeoutMs?: number

  /**
   * Declares that `send` does not need the downstream key, because a second effect does no harm or
   * the provider recognises the request by itself. Without it, a `send` that never reads
   * `downstreamKey` is reported, outside production: the event `effect_without_key` and a warning.
   *
   * @default false
   */
  keyless?: boolean

  /**
   * Reads the provider's id from a result, for webhooks and for people: 1 to 255 characters. An
   * invalid id is dropped with a warning.
   *
   * @default none
   */
  providerId?(result: Result): string | undefined

  /** Schema of the request, checked before it is sent. @default no check */
  request?: Schema<Request>
  /**
   * Schema of the result. The outcome of an effect whose result does not match counts as unknown,
   * because the effect has happened.
   *
   * @default no check
   */
  result?: Schema<Result>
}

export interface EffectCall<Request> {
  /** The request that was committed before this call. */
  readonly request: Request
  /**
   * The same on every attempt, at most 64 characters. Send it as the provider's idempotency key.
   */
  readonly downstreamKey: string
  /** The id of the record, the same on every attempt. */
  readonly recordId: string
  /** The number of the attempt of the operation, from 1. */
  readonly attempt: number
  /** Aborts after `timeoutMs`, when the lease is lost, and after the operation's `runTimeoutMs`. */
  readonly signal: AbortSignal
}

export interface ReconcileCall<Request> {
  /** The request that was committed before the effect was sent. */
  readonly request: Request
  /** The key under which `send` has sent the request. */
  readonly downstreamKey: string
  /** The id of the record, the same on every attempt. */
  readonly recordId: string
  /**
   * When the effect was first about to be sent, by the store's clock. If only this attempt has sent
   * it: when that send failed.
   */
  readonly firstSentAt: Date
  /**
   * When the effect was last about to be sent, by the store's clock. If this attempt has sent it:
   * when that send failed.
   */
  readonly sentAt: Date
  /**
   * Aborts after `timeoutMs`: that of the effect in an attempt, and otherwise that of the
   * reconciler. In an attempt, also when the lease is lost and after `runTimeoutMs`.
   */
  readonly signal: AbortSignal
}

export type Finding<Result = unknown> =
  /** The provider has processed the request: a declined payment is `done`, too. */
  | { readonly kind: 'done'; readonly result: Result; readonly providerId?: string | undefined }
  /** The provider does not know the key. A proof only after `notFoundIsFinalAfterMs`. */
  | { readonly kind: 'not_found' }
  /** The provider guarantees that it did not happen and will not happen. */
  | { readonly kind: 'not_executed' }
  /** The provider still processes it, or gave no clear answer. */
  | { readonly kind: 'pending' }

/** Effects by the name of their phase. */
export type Effects = Readonly<Record<string, AnyEffect>>

/** Request and result are both parameters and return values, so only `any` accepts every effect. */
// oxlint-disable-next-line typescript/no-explicit-any -- `unknown` and `never` both reject effects.
type AnyEffect = Effect<any, any>

/** The functions of a running operation. Phases run one after the other: await each of them. */
export interface OperationContext<Declared extends Effects = Effects> {
  /** Opaque id, the same on every attempt. Business rows may refer to it. */
  readonly recordId: string
  readonly tenant: string
  /** 1 for the first run, counting up with every attempt. */
  readonly attempt: number
  /** Aborts when the lease is lost, and after `runTimeoutMs`. */
  readonly signal: AbortSignal

  /** A UUID that is the same on every attempt, for ids and nonces that the operation creates. */
  deterministicId(name: string): string

  /**
   * Commits the writes of `work` together with the recovery point, in one transaction of the store.
   * Its return value (JSON or bytes) is recorded: a later attempt gets it without running `work`
   * again. Keep it short, and synchronous on SQLite.
   */
  transaction<Tx, Value>(
    name: string,
    work: (tx: Tx) => Value | Promise<Value>,
  ): Promise<Awaited<Value>>

  /**
   * Sends the effect that the operation declares under this name. The request is committed before
   * it is sent, and the result is committed before the promise resolves.
   */
  external<Name extends keyof Declared & string>(
    name: Name,
    request: RequestOf<Declared[Name]>,
  ): Promise<ResultOf<Declared[Name]>>

  /**
   * The last phase: commits the writes of `work` together with the reply that it returns. Return
   * the reply from `run`.
   */
  finish<Tx>(name: string, work: (tx: Tx) => ReplyInit | Promise<ReplyInit>): Promise<ReplyInit>
}

/** The type of the request, as `send` declares it. */
export type RequestOf<Declared> = Declared extends { send(call: infer Call): unknown }
  ? Call extends { readonly request: infer Request }
    ? Request
    : undefined
  : never

export type ResultOf<Declared> = Declared extends { send(call: never): infer Result }
  ? Awaited<Result>
  : never
