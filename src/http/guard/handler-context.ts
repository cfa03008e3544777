import { isThenable } from '../../core/thenable.ts'
import {
  ATTEMPT,
  attemptOf,
  type OperationAttempt,
  type HasAttempt,
} from '../../core/attempt/operation-attempt.ts'
import {
  hasCode,
  InvalidOptionsError,
  InvalidRequestError,
  NotExecutedError,
} from '../../core/errors.ts'
import type { ReplyEncoder } from './reply-encoder.ts'
import type { RunContext } from '../../core/attempt/run-context.ts'
import type { CapturedHandler, HttpReply, Produced } from './exchange.ts'
import { statusOf, type ReleaseOn } from './handler-reply.ts'
import { toReply, type ReplyInit } from '../reply/http-reply.ts'
import { isMarked, isStoreFailure, markForFrameworks } from './transaction-failure.ts'

/** The facts and methods that a handler has for its key: `req.idempotency`. */
export interface HandlerContext extends Omit<RunContext, 'transaction' | 'completeIn'> {
  /**
   * Reports an error to the guard, which judges the outcome by its class. Adapters report thrown
   * errors themselves; a handler that catches an error and sends a reply may report it, too.
   */
  failed(error: unknown): void

  /**
   * Runs `work` in a transaction of the store. `work` returns the reply, or sends it with the
   * methods of the framework. The reply, the key and the rows that `work` wrote are committed
   * together, and the reply is sent after the commit. A reply that is a failure or a refusal (5xx,
   * 401, 403, 408, 425, 429, or selected by `releaseOn`) rolls everything back, and is sent then.
   * A returned reply answers the request: the handler sends nothing more, and anything that it
   * does send is discarded.
   *
   * @example
   * ```ts
   * await context.transaction<SqliteTransaction>((tx) => {
   *   tx.prepare('INSERT INTO orders (id) VALUES (?)').run(context.deterministicId('order'))
   *   return { status: 201, body: { ok: true } }
   * })
   * ```
   */
  transaction<Tx>(work: (tx: Tx) => TransactionReply | Promise<TransactionReply>): Promise<void>

  /**
   * Completes the key with this reply, as a statement of a transaction that the handler has begun
   * itself, in the database of the store. Call it last, right before the commit; if it throws, roll
   * back. The handler still ends the request as usual. If the transaction has committed, the client
   * gets this reply, even if the handler sends another. If it has not, the reply of the handler
   * counts as usual, with one exception: a reply of the same status, or a success if this reply is
   * a success, stands for this reply, and is an error without its commit.
   *
   * The reply must be neither a failure nor a refusal: not 5xx, 401, 403, 408, 425 or 429, and not
   * selected by `releaseOn`.
   */
  completeIn(tx: unknown, reply: ReplyInit): Promise<void>
}

/** The reply that a transaction returns; nothing if it was sent with the framework's methods. */
export type TransactionReply = ReplyInit | void

/** Rolls a transaction back, because its reply is a failure or a refusal. */
export class RolledBackReply extends Error {
  readonly code = 'rolled_back_by_reply'

  constructor() {
    super('the transaction was rolled back, because its reply is a failure or a refusal')
  }
}

export class GuardedContext implements HandlerContext, HasAttempt {
  /** The last error that the handler or its framework has reported. */
  error: unknown
  /** The handler has declared that it had no effect. */
  isNotExecuted = false
  /** Set if the reply to send has rolled its transaction back. */
  rolledBackReply: RolledBackReply | undefined
  /** Resolves when every transaction has ended. Never rejects: the handler gets the error. */
  transactionEnded: Promise<void> | undefined
  /** The reply with which a transaction that the handler began may have completed the key. */
  joined: { readonly status: number; readonly result: Uint8Array } | undefined
  /** The reply that a transaction of the store has returned. Set when the transaction has ended. */
  returned: HttpReply | undefined
  /** `returned` is recorded, or stands for the outcome that is. */
  isRecorded = false
  /** The handler function was entered. Set only by adapters that watch the function. */
  isHandlerEntered = false
  /** The request was answered before the handler function, which must not be entered any more. */
  isRefused = false
  /** The option `releaseOn` of the route. */
  readonly releaseOn: ReleaseOn | undefined
  /** Errors of the store that the methods of this context have thrown to the handler. */
  #storeErrors: Error[] | undefined
  /** Resolves the promise of `unlessReturned`. */
  #resolveReturned: ((nothing: undefined) => void) | undefined
  readonly #run: RunContext
  readonly #handler: CapturedHandler
  readonly #encoder: ReplyEncoder

  constructor(run: RunContext, handler: CapturedHandler, encoder: ReplyEncoder) {
    this.#run = run
    this.#handler = handler
    this.#encoder = encoder
    this.releaseOn = encoder.releaseOn
  }

  /** Resolves like `sent`, or with `undefined` as soon as `returned` is set. */
  unlessReturned<Value>(sent: Promise<Value>): Promise<Value | undefined> {
    return new Promise((resolve, reject) => {
      this.#resolveReturned = resolve
      if (this.returned !== undefined) resolve(undefined)
      sent.then(resolve, reject)
    })
  }

  get [ATTEMPT](): OperationAttempt | undefined {
    return attemptOf(this.#run)
  }

  get key(): string {
    return this.#run.key
  }

  get scope(): RunContext['scope'] {
    return this.#run.scope
  }

  get identity(): string {
    return this.#run.identity
  }

  get recordId(): string {
    return this.#run.recordId
  }

  get attempt(): number {
    return this.#run.attempt
  }

  get signal(): AbortSignal {
    return this.#run.signal
  }

  assertHeld(): void {
    this.#run.assertHeld()
  }

  downstreamKey(name?: string): string {
    return this.#run.downstreamKey(name)
  }

  deterministicId(name: string): string {
    return this.#run.deterministicId(name)
  }

  notExecuted(): void {
    this.isNotExecuted = true
  }

  /** Passes the declaration on. Only for replies that are not a success: see `meaningOf`. */
  confirmNotExecuted(): void {
    if (this.isNotExecuted) this.#run.notExecuted()
  }

  outcomeUnknown(): void {
    this.#run.outcomeUnknown()
  }

  extendRetention(retentionMs: number): void {
    this.#run.extendRetention(retentionMs)
  }

  /** Throws after a refusal: if a slow validation ends later, a retry may already run. */
  handlerEntered(): void {
    if (this.isRefused) {
      throw new NotExecutedError('the request was answered before its handler was entered')
    }
    this.isHandlerEntered = true
  }

  failed(error: unknown): void {
    this.error = error
    this.#handler.failed(error)
  }

  recovered(error: unknown): void {
    if (this.error !== error) return
    this.error = undefined
    this.#handler.recovered?.()
  }

  /** Remembers an error that is thrown to the handler, if the store has caused it. */
  storeFailed(error: unknown): void {
    if (!isStoreFailure(error)) return
    markForFrameworks(error)
    ;(this.#storeErrors ??= []).push(error)
  }

  /** Whether the store has caused this error of the handler. */
  isStoreError(error: unknown): error is Error {
    return this.#storeErrors?.some((one) => one === error) === true
  }

  /**
   * Returns the error of the store from which the framework has made this reply. `undefined` if
   * the handler has caught the error and sent another reply.
   */
  storeErrorBehind(produced: Produced): Error | undefined {
    if (this.#storeErrors === undefined || statusOf(produced) < 500) return undefined
    if (this.isStoreError(this.error)) return this.error
    return isMarked(produced) ? this.#storeErrors.at(-1) : undefined
  }

  transaction<Tx>(work: (tx: Tx) => TransactionReply | Promise<TransactionReply>): Promise<void> {
    const ended = this.#transaction(work)
    const before = this.transactionEnded
    // A transaction that is refused because another one is open ends before that one.
    this.transactionEnded = ended.then(
      () => before,
      () => before,
    )
    // A new promise: `ended` has a handler, so Node would not report a failure that the caller
    // does not await.
    return ended.then(() => undefined)
  }

  async completeIn(tx: unknown, reply: ReplyInit): Promise<void> {
    this.#checkUnanswered()
    const result = await this.#encoder.forCompleteIn(reply, this)
    const before = this.joined
    const own = { status: reply.status, result }
    this.joined = own
    try {
      await this.#run.completeIn(tx, result)
    } catch (error) {
      // No transaction was joined, so the next reply of the handler does not stand for a commit.
      if (hasCode(error, 'INVALID_OPTIONS') && this.joined === own) this.joined = before
      this.storeFailed(error)
      throw error
    }
  }

  async #transaction<Tx>(
    work: (tx: Tx) => TransactionReply | Promise<TransactionReply>,
  ): Promise<void> {
    let isEntered = false
    let thrown: unknown
    let returned: HttpReply | undefined
    this.#checkUnanswered()
    try {
      await this.#run.transaction<Tx>((tx) => {
        isEntered = true
        this.rolledBackReply = undefined
        const take = (sent: TransactionReply) => {
          returned = this.#returnedBy(sent)
          return returned === undefined
            ? this.#encoder.forCommit(this.#handler.produced(), this)
            : this.#encoder.returned(returned, this)
        }
        const note = (error: unknown): never => {
          thrown = error
          throw error
        }
        try {
          const sent = work(tx)
          return isThenable(sent) ? Promise.resolve(sent).then(take).catch(note) : take(sent)
        } catch (error) {
          return note(error)
        }
      })
    } catch (error) {
      if (!(error instanceof RolledBackReply)) {
        // A refused call has no reply to discard: the reply may belong to another transaction.
        if (isEntered) this.#handler.reset()
        // An error that the callback itself has thrown is no error of the store.
        if (error !== thrown) this.storeFailed(error)
        throw error
      }
      // The reply is sent all the same: the handler refuses the request, and nothing is written.
      this.rolledBackReply = error
    }
    if (returned !== undefined) this.answerWith(returned)
  }

  /** Answers the request with this reply when its record is settled. */
  answerWith(reply: HttpReply): void {
    this.returned = reply
    this.#resolveReturned?.(undefined)
  }

  /** Does the same for a reply that a step of an operation has recorded. */
  recordedAs(reply: HttpReply): void {
    this.isRecorded = true
    this.answerWith(reply)
  }

  /** A later transaction would record another reply than the one that the client gets. */
  #checkUnanswered(): void {
    if (this.returned === undefined) return
    throw new InvalidOptionsError(
      'the work of this attempt has ended already: an earlier transaction has returned its reply',
    )
  }

  /** The reply that the callback returned; `undefined` if it was sent by the framework. */
  #returnedBy(sent: TransactionReply): HttpReply | undefined {
    const isSent = this.#handler.produced() !== undefined
    // `return res.json(…)` has sent the reply, and returns another object.
    if (sent !== undefined && (!isSent || isReply(sent))) return toReply('transaction', sent)
    if (isSent) return undefined
    throw new InvalidRequestError(
      'the transaction callback must return the reply, or send the whole of it before it ' +
        'returns: the reply is committed together with the rows that the callback wrote',
    )
  }
}

function isReply(sent: unknown): boolean {
  return typeof (sent as { readonly status?: unknown } | null)?.status === 'number'
}

/** The application has recovered from this error, so it no longer decides the outcome. */
export function forgetError(context: HandlerContext, error: unknown): void {
  if (context instanceof GuardedContext) context.recovered(error)
}
