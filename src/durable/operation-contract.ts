import type { GivenReply } from '../http/http-reply.ts'
import type { Schema } from './schema.ts'

/**
 * One outside effect: how it is sent, and how it is found out afterwards whether it happened. It
 * is declared with its operation, so that a reconciler in another process can ask for it.
 */
export interface Effect<Request = unknown, Result = unknown> {
  /**
   * Has the effect, once, under `downstreamKey`. What it returns is recorded and is what the
   * operation gets, now and on every later attempt. Where it throws, the effect may have happened,
   * unless the error is a `NotExecutedError`: that nothing was sent by this call. (What an earlier
   * one has sent is another question, and stays open.)
   */
  send(call: EffectCall<Request>): Result | Promise<Result>

  /** Asks the provider what became of it. Must change nothing there. */
  reconcile?(asked: EffectAsked<Request>): Finding<Result> | Promise<Finding<Result>>

  /**
   * How long after it was sent last the provider may still begin to work on it. "Not found" proves
   * nothing before that. Give it with room: a request can wait in queues for minutes.
   *
   * @default never: `not_found` alone proves nothing
   */
  provenAfterMs?: number

  /**
   * The provider recognises the downstream key for this long after it was sent first, so that to
   * send it again is safe. Later it counts as any other: it is found out, never repeated.
   *
   * @default never repeated
   */
  repeatable?: { withinMs: number }

  /**
   * How long `send` may take before its signal aborts and its answer counts as lost; and how long
   * `reconcile` may take where an attempt asks, before nothing counts as found out.
   *
   * @default 60_000
   */
  timeoutMs?: number

  /** The provider's own name for what it did, for webhooks and people: 1 to 255 characters. */
  providerId?(result: Result): string | undefined

  /** What a request must be like; checked before it is sent. */
  request?: Schema<Request>
  /** What a result must be like. One that is not counts as unreadable, not as undone. */
  result?: Schema<Result>
}

export interface EffectCall<Request> {
  readonly request: Request
  /** The same on every attempt, at most 64 characters. Send it along. */
  readonly downstreamKey: string
  readonly recordId: string
  readonly attempt: number
  /** Aborts after `timeoutMs`, and when the lease is lost or the operation has run too long. */
  readonly signal: AbortSignal
}

export interface EffectAsked<Request> {
  readonly request: Request
  readonly downstreamKey: string
  readonly recordId: string
  readonly firstSentAt: Date
  readonly sentAt: Date
  readonly signal: AbortSignal
}

export type Finding<Result = unknown> =
  /** It happened, well or badly: a declined payment has happened too. */
  | { readonly kind: 'done'; readonly result: Result; readonly providerId?: string | undefined }
  /** The provider has nothing under this key. No proof before `provenAfterMs`. */
  | { readonly kind: 'not_found' }
  /** The provider says that it did not happen and will not. */
  | { readonly kind: 'not_executed' }
  /** Still under way, or no answer. */
  | { readonly kind: 'pending' }

/** By the name of their phase. */
export type Effects = Readonly<Record<string, AnyEffect>>

/** Each has its own request and result, in both directions: only `any` fits them all. */
// oxlint-disable-next-line typescript/no-explicit-any -- It is the only type of its kind.
type AnyEffect = Effect<any, any>

/** What an operation can do while it runs. Phases come one after the other, never side by side. */
export interface OperationContext<Declared extends Effects = Effects> {
  /** Opaque, and the same on every attempt: business rows may refer to it. */
  readonly recordId: string
  readonly tenant: string
  /** 1 for the first run, counting up with every attempt. */
  readonly attempt: number
  /** Aborts when the lease is lost or the operation has run too long. */
  readonly signal: AbortSignal

  /** A UUID that is the same on every attempt: for ids and nonces that the operation makes. */
  deterministicId(name: string): string

  /**
   * Commits what `work` writes together with the recovery point, in one transaction of the store.
   * What it returns (JSON, or bytes) is recorded: a later attempt gets it back and runs `work` no
   * more. Keep it short; on SQLite keep it synchronous.
   */
  transaction<Tx, Value>(
    name: string,
    work: (tx: Tx) => Value | Promise<Value>,
  ): Promise<Awaited<Value>>

  /**
   * Has the outside effect that the operation has declared under this name. The request is
   * committed before it is sent, the result before this returns.
   */
  external<Name extends keyof Declared & string>(
    name: Name,
    request: RequestOf<Declared[Name]>,
  ): Promise<ResultOf<Declared[Name]>>

  /**
   * The last phase: commits what `work` writes together with the reply it returns. Return what
   * this gives you.
   */
  finish<Tx>(name: string, work: (tx: Tx) => GivenReply | Promise<GivenReply>): Promise<GivenReply>
}

/** What `send` is about is what the effect is about. */
export type RequestOf<Declared> = Declared extends { send(call: infer Call): unknown }
  ? Call extends { readonly request: infer Request }
    ? Request
    : undefined
  : never

export type ResultOf<Declared> = Declared extends { send(call: never): infer Result }
  ? Awaited<Result>
  : never
