/**
 * Decides for all adapters which requests are protected, how each outcome is answered, and which
 * parts of a reply are recorded. Adapters only translate.
 */
import { createHash } from 'node:crypto'
import { attemptOf } from '../../core/attempt/operation-attempt.ts'
import type { Engine, RunRequest } from '../../core/engine/engine-contract.ts'
import { hasCode, type StoreFailedError } from '../../core/errors.ts'
import type { RunOutcome } from '../../core/attempt/run-outcome.ts'
import { OPERATION_LENGTH_MAX, type Scope } from '../../core/record/identity.ts'
import { checkKey, parseKeyHeader } from '../../protocol/key-syntax.ts'
import type { ProblemName } from '../../protocol/problems.ts'
import {
  expiresHeader,
  retryAfterInProgress,
  retryAfterStore,
  retryAfterUnknown,
  toRecorded,
  unknownDetail,
  type ProblemOptions,
} from './answers.ts'
import { fieldOf } from './body-field.ts'
import { decodeBody } from './content-coding.ts'
import type {
  Answer,
  ExchangeBody,
  CapturedHandler,
  HttpExchange,
  HttpReply,
  Produced,
} from './exchange.ts'
import type { FingerprintBody } from '../fingerprint/fingerprint-body.ts'
import type { FingerprintInput } from '../fingerprint/fingerprint.ts'
import type { GuardOptions } from './guard-options.ts'
import {
  checkPrincipal,
  checkTenant,
  resolveGuardOptions,
  type ResolvedGuardOptions,
} from './resolve-guard-options.ts'
import { GuardedRun, GuardedWork } from './guarded-work.ts'
import type { GuardedContext } from './handler-context.ts'
import { meaningOf, statusOf } from './handler-reply.ts'
import { ReplyEncoder, recordOf } from './reply-encoder.ts'
import { readableBy } from '../reply/readable-reply.ts'
import { readReply, replayOf, unreadableReply } from '../reply/replay.ts'

/** Controls of the guard of every adapter. */
export interface GuardControls {
  /** The engine behind the guard. */
  readonly engine: Engine

  /**
   * Shuts the guard down: accepts no new work, and waits at most `graceMs` for running handlers and
   * for their results to be recorded. Call it when the server has answered its last request, and
   * close the store after it. A longer grace period abandons less work; a shorter one ends the
   * process sooner. `close` may be called more than once.
   *
   * Guards on one store share one engine, so closing one of them closes them all. An engine that
   * you passed in stays open: close it yourself.
   *
   * @default graceMs 10_000
   */
  close(options?: { graceMs?: number }): Promise<void>
}

export interface Guard<Request> extends GuardControls {
  /**
   * Decides how a request is answered, and runs its handler if necessary. Never rejects: a failure
   * is an answer, too.
   */
  handle(request: Request, exchange: HttpExchange, handler: CapturedHandler): Promise<Answer>

  /** Whether requests with this method are protected. */
  protects(method: string): boolean
}

export function createGuard<Request>(options: GuardOptions<Request>): Guard<Request> {
  return new HttpGuard(resolveGuardOptions(options))
}

/** The controls that an adapter adds to its middleware. */
export function controlsOf(guard: GuardControls): GuardControls {
  return { engine: guard.engine, close: (options) => guard.close(options) }
}

/** How long a client should wait if no better time is known. */
const RETRY_SOON_MS = 1_000

const NOT_RECORDED = 'outcome_not_recorded'

class HttpGuard<Request> implements Guard<Request> {
  readonly #options: ResolvedGuardOptions<Request>
  readonly #encoder: ReplyEncoder

  constructor(options: ResolvedGuardOptions<Request>) {
    this.#options = options
    this.#encoder = new ReplyEncoder(options)
  }

  get engine(): Engine {
    return this.#options.engine
  }

  async close(options?: { graceMs?: number }): Promise<void> {
    if (this.#options.ownsEngine) await this.#options.engine.close(options)
  }

  protects(method: string): boolean {
    return this.#options.methods.has(method)
  }

  async handle(
    request: Request,
    exchange: HttpExchange,
    handler: CapturedHandler,
  ): Promise<Answer> {
    if (!this.protects(exchange.method)) return { kind: 'pass' }
    try {
      // Steps without a promise are not awaited: a request has many, and each await takes time.
      const { keyFrom, keyField, keyHeader, keyRules } = this.#options
      const early = keyField === undefined ? undefined : await this.#body(exchange)
      const parsed =
        keyFrom !== undefined
          ? checkKey(await keyFrom(request), keyRules)
          : keyField !== undefined
            ? checkKey(fieldOf(early!, contentTypeOf(exchange), keyField), keyRules)
            : parseKeyHeader(exchange.header(keyHeader), keyRules)
      if (parsed.kind === 'malformed') return this.#problem('key_malformed', parsed)
      if (parsed.kind === 'missing') {
        return this.#options.keyRequired ? this.#missing() : { kind: 'pass' }
      }
      const run = await this.#identify(request, exchange, { key: parsed.key, body: early })
      if (run === undefined) return this.#problem('request_unreadable')
      const answer = await this.#run(run, handler)
      if (answer.kind !== 'reply') return answer
      const reply = readableBy(exchange.header('accept-encoding')?.toString(), answer.reply)
      return reply === answer.reply ? answer : { kind: 'reply', reply: await reply }
    } catch (error) {
      if (error instanceof EarlyAnswer) return error.answer
      return { kind: 'error', error }
    }
  }

  #body(exchange: HttpExchange): FingerprintBody | Promise<FingerprintBody> {
    const raw = exchange.body(this.#options.requestBytesMax)
    const coding = exchange.header('content-encoding')?.toString()
    if (coding === undefined && !(raw instanceof Promise)) return this.#wholeBody(raw)
    return this.#decodedBody(raw, coding)
  }

  async #decodedBody(
    raw: ExchangeBody | Promise<ExchangeBody>,
    coding: string | undefined,
  ): Promise<FingerprintBody> {
    return this.#wholeBody(await decodeBody(await raw, coding, this.#options.requestBytesMax))
  }

  #wholeBody(body: ExchangeBody): FingerprintBody {
    if (body.kind === 'too_large') throw new EarlyAnswer(this.#tooLarge())
    if (body.kind === 'aborted') throw abortedError()
    return body
  }

  /** Determines the scope and the fingerprint. `undefined` if the body cannot be compared. */
  async #identify(
    request: Request,
    exchange: HttpExchange,
    { key, body: early }: { readonly key: string; readonly body: FingerprintBody | undefined },
  ): Promise<GuardedRun | undefined> {
    const { tenant, principal, fingerprinter } = this.#options
    const given = tenant(request)
    const scope = this.#scope(request, exchange, typeof given === 'string' ? given : await given)
    const read = early ?? this.#body(exchange)
    const body = read instanceof Promise ? await read : read
    const input: FingerprintInput = {
      method: exchange.method,
      path: exchange.path,
      query: exchange.query,
      mediaType: contentTypeOf(exchange),
      body,
      principal: principal === undefined ? undefined : checkPrincipal(await principal(request)),
      fields: this.#options.fingerprintFields,
    }
    const fingerprint = fingerprinter.current(input)
    if (fingerprint === undefined) return undefined
    return new GuardedRun({ scope, key, fingerprint }, this.#options, input)
  }

  #scope(request: Request, exchange: HttpExchange, given: unknown): Scope {
    const { operation, scopeBy } = this.#options
    const tenant = checkTenant(given)
    if (scopeBy === 'tenant') return { tenant, operation: '*' }
    const name = typeof operation === 'function' ? operation(request) : operation
    return { tenant, operation: name ?? operationOf(exchange) }
  }

  async #run(request: RunRequest, handler: CapturedHandler): Promise<Answer> {
    const work = new GuardedWork(this.#encoder, handler)
    try {
      const outcome = await this.#options.engine.run(request, (context) => work.run(context))
      const { context } = work
      if (context?.returned !== undefined) {
        return await this.#returned(outcome, context.returned, request.scope)
      }
      if (work.isStoreFailure) return await this.#storeFailure(outcome, context!)
      if (outcome.kind === 'ran' && context?.joined !== undefined) {
        return await this.#joined(outcome, work.sent, request.scope)
      }
      return await this.#answer(outcome, handler.produced(), request.scope, context)
    } catch (error) {
      return this.#failed(error, work.context !== undefined, request.scope)
    }
  }

  /** Sends the reply that the transaction returned, because the handler itself has sent none. */
  async #returned(outcome: RunOutcome, reply: HttpReply, scope: Scope): Promise<Answer> {
    const answer = await this.#answer(outcome, { kind: 'reply', reply }, scope)
    if (answer.kind !== 'deliver') return answer
    return { kind: 'reply', reply: { ...reply, headers: [...reply.headers, ...answer.headers] } }
  }

  /** If the handler has completed its key with another reply than it sent, that reply counts. */
  async #joined(
    outcome: Extract<RunOutcome, { kind: 'ran' }>,
    sent: Uint8Array | undefined,
    scope: Scope,
  ): Promise<Answer> {
    const { result, expiresAt } = outcome
    if (sent !== undefined && Buffer.compare(sent, result) === 0) {
      return { kind: 'deliver', headers: [expiresHeader(expiresAt)] }
    }
    const decoded = await readReply(result, recordOf(outcome, scope), this.#options)
    if (decoded.kind === 'unreadable') {
      return { kind: 'reply', reply: unreadableReply(this.#options.answers) }
    }
    return { kind: 'reply', reply: toRecorded(decoded.reply, expiresAt) }
  }

  #answer(
    outcome: RunOutcome,
    produced: Produced | undefined,
    scope: Scope,
    context?: GuardedContext,
  ): Answer | Promise<Answer> {
    switch (outcome.kind) {
      case 'ran':
        return { kind: 'deliver', headers: [expiresHeader(outcome.expiresAt)] }
      case 'released':
        if (isPremature(produced, context)) {
          return this.#accepted(outcome.recordId, RETRY_SOON_MS)
        }
        return { kind: 'deliver', headers: [] }
      case 'doubted':
        // A client with a success must never cause a second run. With this outcome it could.
        if (produced === undefined || statusOf(produced) < 400 || isPremature(produced, context)) {
          return this.#unknown(0)
        }
        return { kind: 'deliver', headers: [] }
      case 'replayed':
        return this.#replay(outcome, scope)
      case 'in_progress':
        return this.#busy(outcome)
      case 'pending':
        return this.#accepted(outcome.recordId, RETRY_SOON_MS)
      case 'unknown':
        return this.#unknown(outcome.retryAfterMs)
      case 'lease_lost':
        return this.#unknown(RETRY_SOON_MS)
      case 'mismatch':
        return this.#problem('key_reused_with_different_payload')
      case 'expired':
        return this.#problem('key_expired')
    }
  }

  /** The handler failed with an error of the store, so the answer follows from the record. */
  #storeFailure(outcome: RunOutcome, context: GuardedContext): Answer | Promise<Answer> {
    switch (outcome.kind) {
      case 'ran':
        // A transaction that the handler began itself has committed, although the store failed.
        return this.#joined(outcome, undefined, context.scope)
      case 'released': {
        // An unrecorded release proves nothing about a transaction that the handler began itself.
        const isCertain = context.joined === undefined || outcome.expiresAt !== undefined
        const isBegun = attemptOf(context)?.isBegun === true
        return this.#retryLater(isCertain && !isBegun ? 'store_unavailable' : NOT_RECORDED)
      }
      case 'doubted':
        return outcome.isRecorded ? this.#unknown(0) : this.#retryLater(NOT_RECORDED)
      default:
        return this.#answer(outcome, undefined, context.scope, context)
    }
  }

  #retryLater(name: 'store_unavailable' | typeof NOT_RECORDED): Answer {
    return this.#problem(name, { retryAfterSeconds: retryAfterInProgress(RETRY_SOON_MS) })
  }

  #replay(
    outcome: Extract<RunOutcome, { kind: 'replayed' }>,
    scope: Scope,
  ): Answer | Promise<Answer> {
    const reply = replayOf(outcome, recordOf(outcome, scope), this.#options)
    if (!(reply instanceof Promise)) return { kind: 'reply', reply }
    return reply.then((replay) => ({ kind: 'reply', reply: replay }))
  }

  #busy(outcome: Extract<RunOutcome, { kind: 'in_progress' }>): Answer {
    const { recordId, retryAfterMs } = outcome
    if (this.#options.policy.whileInProgress === 'accepted') {
      return this.#accepted(recordId, retryAfterMs)
    }
    const retryAfterSeconds = retryAfterInProgress(retryAfterMs)
    return this.#problem('key_in_progress', { retryAfterSeconds })
  }

  #accepted(recordId: string, leftMs: number): Answer {
    const location = this.#options.statusUrl?.(recordId)
    const retryAfterSeconds = retryAfterInProgress(leftMs)
    return this.#problem('accepted', { location, retryAfterSeconds })
  }

  #unknown(leftMs: number): Answer {
    const retryAfterSeconds = retryAfterUnknown(leftMs)
    const detail = unknownDetail(this.#options.engine)
    return this.#problem('outcome_unknown', { retryAfterSeconds, detail })
  }

  #missing(): Answer {
    const { keyFrom, keyField, keyHeaderName } = this.#options
    // `keyFrom` may look anywhere, so the detail cannot name the place.
    if (keyFrom !== undefined) return this.#problem('key_missing')
    const place =
      keyField === undefined ? `the header ${keyHeaderName}` : `the field ${keyField} of the body`
    const detail =
      `This request has no idempotency key. Send a unique value, such as a UUID, in ${place}, ` +
      'and the same value again when you retry this request.'
    return this.#problem('key_missing', { detail })
  }

  #tooLarge(): Answer {
    const { requestBytesMax } = this.#options
    const detail =
      `The request was not executed. Its body exceeds ${requestBytesMax} bytes, the limit of ` +
      'this route (option requestBytesMax). Send a smaller body; the key may be used again.'
    return this.#problem('request_too_large', { detail })
  }

  #failed(error: unknown, entered: boolean, scope: Scope): Answer {
    const { engine, onStoreFailure } = this.#options
    const retryAfterSeconds = retryAfterInProgress(RETRY_SOON_MS)
    if (hasCode(error, 'OUTCOME_NOT_RECORDED')) {
      return this.#problem('outcome_not_recorded', { retryAfterSeconds })
    }
    // After the handler was entered, every error is its own, regardless of its class.
    if (entered) return { kind: 'error', error }
    if (hasCode(error, 'ENGINE_CLOSED')) {
      return this.#problem('server_stopping', { retryAfterSeconds })
    }
    if (!hasCode(error, 'STORE_FAILED')) return { kind: 'error', error }
    const { keyInUse, failure, retryAfterMs } = error as Partial<StoreFailedError>
    // An open breaker alone is no reason to run unprotected: the claim was not sent to the store.
    if (onStoreFailure === 'closed' || keyInUse === true || failure === 'refused') {
      return this.#problem('store_unavailable', {
        retryAfterSeconds: retryAfterStore(retryAfterMs ?? RETRY_SOON_MS),
      })
    }
    engine.emit({ kind: 'unprotected_run', ...scope })
    return { kind: 'pass' }
  }

  #problem(name: ProblemName, options: ProblemOptions = {}): Answer {
    return { kind: 'reply', reply: this.#options.answers.problem(name, options) }
  }
}

/** Ends the handling of a request with an answer. */
class EarlyAnswer extends Error {
  readonly answer: Answer

  constructor(answer: Answer) {
    super('answered early')
    this.answer = answer
  }
}

function contentTypeOf(exchange: HttpExchange): string {
  const value = exchange.header('content-type')
  return (typeof value === 'string' ? value : value?.[0]) ?? ''
}

/**
 * Whether the handler has sent a final reply although its operation will be resumed. A client with
 * that reply would stop asking, or pay again with a new key.
 */
function isPremature(produced: Produced | undefined, context: GuardedContext | undefined): boolean {
  if (produced === undefined || context === undefined) return false
  if (attemptOf(context)?.willResume !== true) return false
  return meaningOf(produced, { error: undefined, isNotExecuted: false }) === 'complete'
}

/** Method and route. A name that is too long for a record is cut, and its hash appended. */
function operationOf({ method, route }: HttpExchange): string {
  const name = `${method} ${route}`
  if (name.length <= OPERATION_LENGTH_MAX) return name
  const hash = createHash('sha256').update(name).digest('hex')
  return `${name.slice(0, OPERATION_LENGTH_MAX - hash.length - 1)}#${hash}`
}

/** The error of body parsers for a client that has disconnected: a 400, not a 500. */
function abortedError(): Error {
  const details = { status: 400, statusCode: 400, type: 'request.aborted', code: 'ECONNABORTED' }
  return Object.assign(new Error('request aborted'), details)
}
