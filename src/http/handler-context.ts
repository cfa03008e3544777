import { ATTEMPT, attemptOf, type Attempt, type HasAttempt } from '../core/attempt.ts'
import {
  hasCode,
  InvalidOptionsError,
  InvalidRequestError,
  NotExecutedError,
} from '../core/errors.ts'
import type { RunContext } from '../core/run-context.ts'
import type { HeldHandler, HttpReply, Produced } from './exchange.ts'
import { statusOf, type ReleaseOn } from './handler-reply.ts'
import { toReply, type GivenReply } from './http-reply.ts'
import { isMarked, isStoreTrouble, markForFrameworks } from './transaction-failure.ts'

/** What a handler can know and do about its key: `req.idempotency`. */
export interface HandlerContext extends Omit<RunContext, 'transaction' | 'completeIn'> {
  /**
   * Tells the guard what went wrong, with its class. Adapters that see errors call it themselves;
   * a handler that turns an error into a reply of its own may call it too.
   */
  failed(error: unknown): void

  /**
   * Runs `work` in a transaction of the store. `work` returns the reply, or sends it the way the
   * framework does; the reply, the key and everything `work` wrote are committed together, and
   * only then does the reply leave. A reply that would not be recorded (5xx, 401, 403, 408, 425,
   * 429) rolls everything back, and leaves then. With one that was returned the request is
   * answered: the handler has nothing more to send, and whatever it sends goes nowhere.
   *
   * @example
   * ```ts
   * await context.transaction<SqliteTransaction>((tx) => {
   *   tx.prepare('INSERT INTO orders (id) VALUES (?)').run(context.deterministicId('order'))
   *   return { status: 201, body: { ok: true } }
   * })
   * ```
   */
  transaction<Tx>(work: (tx: Tx) => Sent | Promise<Sent>): Promise<void>

  /**
   * Completes the key with this reply, as a statement of a transaction that the handler has begun
   * itself, in the database of the store. Call it last, right before the commit; where it throws,
   * roll back. The handler still ends the request as usual: if the transaction has committed, the
   * reply that leaves is this one, whatever the handler sends. If it has not, the handler's reply
   * counts as ever; but one of the same status, or a success for a success, is taken for this very
   * reply, and without its commit it is an error.
   *
   * Only a reply that would be recorded will do: not 5xx, 401, 403, 408, 425 or 429.
   */
  completeIn(tx: unknown, reply: GivenReply): Promise<void>
}

/** The reply of a transaction; nothing where it was sent the framework's way. */
export type Sent = GivenReply | void

/** A reply that must not be recorded, so its transaction must not commit. */
export class RolledBackReply extends Error {
  readonly code = 'rolled_back_by_reply'

  constructor() {
    super('the reply is not to be recorded, so the transaction was rolled back')
  }
}

/** How the guard turns replies into bytes. Each throws where a reply must not be recorded. */
export interface Encode {
  /** What the handler has produced so far. */
  readonly produced: () => Uint8Array | Promise<Uint8Array>
  /** What it gives to `completeIn`. */
  readonly given: (reply: GivenReply) => Uint8Array | Promise<Uint8Array>
  /** See `GuardOptions`. */
  readonly releaseOn: ReleaseOn | undefined
  /** What its transaction returned. */
  readonly returned: (reply: HttpReply) => Uint8Array | Promise<Uint8Array>
}

export class GuardedContext implements HandlerContext, HasAttempt {
  /** The last error the handler, or its framework, has reported. */
  error: unknown
  /** The handler says that it has done nothing. */
  isNotExecuted = false
  /** The reply that stands has rolled its transaction back. */
  rolledBackReply: RolledBackReply | undefined
  /** Resolves when every transaction has ended, well or badly: its caller has the error. */
  transactionEnded: Promise<void> | undefined
  /** With this reply a transaction of the handler's own may have completed the key. */
  joined: { readonly status: number; readonly result: Uint8Array } | undefined
  /** The reply that a transaction of the store has returned, once that has ended by it. */
  returned: HttpReply | undefined
  /** It is on record already, or stands for what is. */
  isRecorded = false
  /** The function that handles the request was entered, as far as the adapter was told. */
  isHandlerEntered = false
  /** The request was answered without that function, which must not be entered any more. */
  isRefused = false
  /** The route's own word about replies that release the key. */
  readonly releaseOn: ReleaseOn | undefined
  /** Errors of the store that this context has thrown to the handler. */
  #storeTroubles: Error[] | undefined
  /** Tells whoever waits that `returned` is there. */
  #tellReturned: ((nothing: undefined) => void) | undefined
  readonly #run: RunContext
  readonly #handler: HeldHandler
  readonly #encode: Encode

  constructor(run: RunContext, handler: HeldHandler, encode: Encode) {
    this.#run = run
    this.#handler = handler
    this.#encode = encode
    this.releaseOn = encode.releaseOn
  }

  /** What comes of `sent`, or `undefined` as soon as `returned` is there. */
  unlessReturned<Value>(sent: Promise<Value>): Promise<Value | undefined> {
    return new Promise((resolve, reject) => {
      this.#tellReturned = resolve
      if (this.returned !== undefined) resolve(undefined)
      sent.then(resolve, reject)
    })
  }

  get [ATTEMPT](): Attempt | undefined {
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

  /** Believed only of a reply that is no success: see `meaningOf` in the guard. */
  confirmNotExecuted(): void {
    if (this.isNotExecuted) this.#run.notExecuted()
  }

  outcomeUnknown(): void {
    this.#run.outcomeUnknown()
  }

  extendRetention(retentionMs: number): void {
    this.#run.extendRetention(retentionMs)
  }

  /** A retry may be running by the time a slow validation lets a refused request through. */
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

  /** Remembers an error that is thrown to the handler, if the store is to blame for it. */
  storeFailed(error: unknown): void {
    if (!isStoreTrouble(error)) return
    markForFrameworks(error)
    ;(this.#storeTroubles ??= []).push(error)
  }

  /** Whether the store is to blame for this error, which came out of the handler. */
  isStoreTrouble(error: unknown): error is Error {
    return this.#storeTroubles?.some((trouble) => trouble === error) === true
  }

  /**
   * The error of the store that the handler let through, where this reply is only what the
   * framework made of it. A handler that has caught it and replies otherwise has its own reply.
   */
  storeTroubleBehind(produced: Produced): Error | undefined {
    if (this.#storeTroubles === undefined || statusOf(produced) < 500) return undefined
    if (this.isStoreTrouble(this.error)) return this.error
    return isMarked(produced) ? this.#storeTroubles.at(-1) : undefined
  }

  transaction<Tx>(work: (tx: Tx) => Sent | Promise<Sent>): Promise<void> {
    const ended = this.#transaction(work)
    const before = this.transactionEnded
    // One that was refused because another is open ends before it.
    this.transactionEnded = ended.then(
      () => before,
      () => before,
    )
    // Not `ended` itself: a handler that forgets to wait should hear of a failure from Node.
    return ended.then(() => undefined)
  }

  async completeIn(tx: unknown, reply: GivenReply): Promise<void> {
    this.#checkUnanswered()
    const result = await this.#encode.given(reply)
    const before = this.joined
    const own = { status: reply.status, result }
    this.joined = own
    try {
      await this.#run.completeIn(tx, result)
    } catch (error) {
      // There was nothing to join: what the handler replies instead is its own reply.
      if (hasCode(error, 'INVALID_OPTIONS') && this.joined === own) this.joined = before
      this.storeFailed(error)
      throw error
    }
  }

  async #transaction<Tx>(work: (tx: Tx) => Sent | Promise<Sent>): Promise<void> {
    let isEntered = false
    let thrown: unknown
    let returned: HttpReply | undefined
    this.#checkUnanswered()
    try {
      await this.#run.transaction<Tx>((tx) => {
        isEntered = true
        this.rolledBackReply = undefined
        const take = (sent: Sent) => {
          returned = this.#returnedBy(sent)
          return returned === undefined ? this.#encode.produced() : this.#encode.returned(returned)
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
        // A call that was refused has nothing to take back: the reply may be of another one.
        if (isEntered) this.#handler.reset()
        // What the callback itself has thrown is the handler's own error.
        if (error !== thrown) this.storeFailed(error)
        throw error
      }
      // The reply stands: it is a refusal of the handler's own, and nothing was written.
      this.rolledBackReply = error
    }
    if (returned !== undefined) this.answerWith(returned)
  }

  /** With this reply the request is answered, once the record says so. */
  answerWith(reply: HttpReply): void {
    this.returned = reply
    this.#tellReturned?.(undefined)
  }

  /** The same, where a step of an operation has recorded it. */
  recordedAs(reply: HttpReply): void {
    this.isRecorded = true
    this.answerWith(reply)
  }

  /** What came after it would be recorded, and the client has been told something else. */
  #checkUnanswered(): void {
    if (this.returned === undefined) return
    throw new InvalidOptionsError(
      'the work of this attempt has ended already: an earlier transaction has returned its reply',
    )
  }

  /** The reply in what the callback returned; nothing where it was sent the framework's way. */
  #returnedBy(sent: Sent): HttpReply | undefined {
    const isSent = this.#handler.produced() !== undefined
    // Whoever ends with `return res.json(…)` has sent the reply, and returns something else.
    if (sent !== undefined && (!isSent || isReply(sent))) return toReply('transaction', sent)
    if (isSent) return undefined
    throw new InvalidRequestError(
      'the transaction callback must return the reply, or send the whole of it before it ' +
        'returns: the reply is committed together with what the callback wrote',
    )
  }
}

function isReply(sent: unknown): boolean {
  return typeof (sent as { readonly status?: unknown } | null)?.status === 'number'
}

function isThenable(sent: Sent | Promise<Sent>): sent is Promise<Sent> {
  return typeof (sent as Promise<Sent> | undefined)?.then === 'function'
}
