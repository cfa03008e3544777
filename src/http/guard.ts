/**
 * The one place where HTTP meaning is decided: which requests are protected, what each outcome
 * answers, what of a reply is kept. Adapters only translate.
 */
import { createHash } from 'node:crypto'
import { attemptOf } from '../core/attempt.ts'
import type { Engine, RunRequest } from '../core/engine.ts'
import {
  InvalidOptionsError,
  OutcomeUnknownError,
  hasCode,
  type StoreFailedError,
} from '../core/errors.ts'
import type { EventSubject } from '../core/events.ts'
import type { RunOutcome } from '../core/execution.ts'
import { OPERATION_LENGTH_MAX, type Scope } from '../core/identity.ts'
import { checkKey, parseKeyHeader } from '../protocol/key-syntax.ts'
import type { ProblemName } from '../protocol/problems.ts'
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
import { decodeBody } from './decode-body.ts'
import type {
  Answer,
  ExchangeBody,
  HeldHandler,
  HttpExchange,
  HttpReply,
  Produced,
} from './exchange.ts'
import type { FingerprintBody, FingerprintInput } from './fingerprint.ts'
import {
  checkPrincipal,
  checkTenant,
  resolveGuardOptions,
  type GuardOptions,
  type ResolvedGuardOptions,
} from './guard-options.ts'
import { GuardedRun, GuardedWork, type Encoder } from './guarded-work.ts'
import { RolledBackReply, type GuardedContext } from './handler-context.ts'
import { meaningOf, statusOf, type ReleaseOn } from './handler-reply.ts'
import { toReply, type GivenReply } from './http-reply.ts'
import { readableBy } from './readable-reply.ts'
import { storedForm } from './reply-encryption.ts'
import { readReply, replayOf, unreadableReply } from './replay.ts'
import { pickStored } from './stored-headers.ts'

export interface Guard<Request> {
  readonly engine: Engine

  /**
   * Decides what is to be done with a request, entering its handler if that is part of it. Never
   * rejects: what goes wrong is an answer too.
   */
  handle(request: Request, exchange: HttpExchange, handler: HeldHandler): Promise<Answer>

  /** Whether a request with this method would be protected at all. */
  protects(method: string): boolean
}

export function createGuard<Request>(options: GuardOptions<Request>): Guard<Request> {
  return new HttpGuard(resolveGuardOptions(options))
}

/** A wait that a client can keep when nothing better is known. */
const RETRY_SOON_MS = 1_000

const NOT_RECORDED = 'outcome_not_recorded'

class HttpGuard<Request> implements Guard<Request>, Encoder {
  readonly #options: ResolvedGuardOptions<Request>

  constructor(options: ResolvedGuardOptions<Request>) {
    this.#options = options
  }

  get engine(): Engine {
    return this.#options.engine
  }

  protects(method: string): boolean {
    return this.#options.methods.has(method)
  }

  async handle(request: Request, exchange: HttpExchange, handler: HeldHandler): Promise<Answer> {
    if (!this.protects(exchange.method)) return { kind: 'pass' }
    try {
      // Where nothing is asked of a promise, nothing waits for one: a request has many such steps.
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
      if (error instanceof Refused) return error.answer
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
    if (body.kind === 'too_large') throw new Refused(this.#tooLarge())
    if (body.kind === 'aborted') throw abortedError()
    return body
  }

  /** Whose key it is, and for which request. `undefined` where the body cannot be compared. */
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

  async #run(request: RunRequest, handler: HeldHandler): Promise<Answer> {
    const work = new GuardedWork(this, handler)
    try {
      const outcome = await this.#options.engine.run(request, (context) => work.run(context))
      const { context } = work
      if (context?.returned !== undefined) {
        return await this.#returned(outcome, context.returned, request.scope)
      }
      if (work.isStoreTrouble) return await this.#storeTrouble(outcome, context!)
      if (outcome.kind === 'ran' && context?.joined !== undefined) {
        return await this.#joined(outcome, work.sent, request.scope)
      }
      return await this.#answer(outcome, handler.produced(), request.scope, context)
    } catch (error) {
      return this.#failed(error, work.context !== undefined, request.scope)
    }
  }

  get replyBytesMax(): number {
    return this.#options.replyBytesMax
  }

  get releaseOn(): ReleaseOn | undefined {
    return this.#options.releaseOn
  }

  /** The work has run: a reply that cannot be encoded leaves its outcome open, not undone. */
  encodeAfterwards(produced: Produced, context: GuardedContext): Uint8Array | Promise<Uint8Array> {
    const fail = (cause: unknown): never => {
      throw new OutcomeUnknownError('the reply of the handler could not be encoded', { cause })
    }
    try {
      const { returned } = context
      const bytes =
        returned === undefined
          ? this.#encode(produced, context)
          : this.#encodeNamed(returned, context)
      return bytes instanceof Uint8Array ? bytes : Promise.resolve(bytes).catch(fail)
    } catch (cause) {
      return fail(cause)
    }
  }

  #encode(produced: Produced, context: GuardedContext): Uint8Array | Promise<Uint8Array> {
    const { storedHeaders, replyVersion, encryption } = this.#options
    const elided = produced.kind === 'oversized'
    const { status, headers } = elided ? produced : produced.reply
    const reply = {
      status,
      headers: pickStored(headers, storedHeaders),
      body: elided ? NO_BODY : produced.reply.body,
      elided,
      schemaVersion: replyVersion,
    }
    return storedForm(reply, recordOf(context, context.scope), encryption)
  }

  encodeForCommit(
    produced: Produced | undefined,
    context: GuardedContext,
  ): Uint8Array | Promise<Uint8Array> {
    if (produced === undefined) throw new Error('nothing was produced')
    if (meaningOf(produced, context) !== 'complete') throw new RolledBackReply()
    return this.#encode(produced, context)
  }

  encodeReturned(reply: HttpReply, context: GuardedContext): Uint8Array | Promise<Uint8Array> {
    const meaning = meaningOf({ kind: 'reply', reply }, context)
    if (meaning !== 'complete') throw new RolledBackReply()
    return this.#encodeNamed(reply, context)
  }

  encodeGiven(given: GivenReply, context: GuardedContext): Uint8Array | Promise<Uint8Array> {
    const { replyBytesMax } = this.#options
    const reply = toReply('completeIn', given)
    const { status, body } = reply
    if (meaningOf({ kind: 'reply', reply }, context) !== 'complete') {
      throw new InvalidOptionsError(
        `completeIn.status ${status} is none that is recorded, so it completes no key: roll back`,
      )
    }
    // What leaves is what was committed, so it cannot be kept without its body.
    if (body.byteLength > replyBytesMax) {
      throw new InvalidOptionsError(
        `completeIn.body has ${body.byteLength} bytes, more than replyBytesMax (${replyBytesMax})`,
      )
    }
    return this.#encodeNamed(reply, context)
  }

  /** With all of its headers: each of them was named for this reply. */
  #encodeNamed(
    { status, headers, body }: HttpReply,
    context: GuardedContext,
  ): Uint8Array | Promise<Uint8Array> {
    const { replyBytesMax, replyVersion, encryption } = this.#options
    const elided = body.byteLength > replyBytesMax
    const reply = { status, headers, body, elided, schemaVersion: replyVersion }
    return storedForm(reply, recordOf(context, context.scope), encryption)
  }

  /** Nothing is held back that could be let go: what leaves is what the transaction returned. */
  async #returned(outcome: RunOutcome, reply: HttpReply, scope: Scope): Promise<Answer> {
    const answer = await this.#answer(outcome, { kind: 'reply', reply }, scope)
    if (answer.kind !== 'deliver') return answer
    return { kind: 'reply', reply: { ...reply, headers: [...reply.headers, ...answer.headers] } }
  }

  /** The handler has sent one reply; if it has completed its key with another, that one counts. */
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
        // A client that has seen a success must never cause a second run, and this one might.
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

  /** The handler failed with an error of the store: the record says what may be promised. */
  #storeTrouble(outcome: RunOutcome, context: GuardedContext): Answer | Promise<Answer> {
    switch (outcome.kind) {
      case 'ran':
        // A transaction of the handler's own has committed, although the store failed around it.
        return this.#joined(outcome, undefined, context.scope)
      case 'released': {
        // A release that is not recorded proves nothing about a transaction of the handler's own.
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
    // Only the route knows where its own function looks for the key.
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
    const { engine, storeFailure } = this.#options
    const retryAfterSeconds = retryAfterInProgress(RETRY_SOON_MS)
    if (hasCode(error, 'OUTCOME_NOT_RECORDED')) {
      return this.#problem('outcome_not_recorded', { retryAfterSeconds })
    }
    // Once the handler was entered, an error is its own, whatever its class.
    if (entered) return { kind: 'error', error }
    if (hasCode(error, 'ENGINE_CLOSED')) {
      return this.#problem('server_stopping', { retryAfterSeconds })
    }
    if (!hasCode(error, 'STORE_FAILED')) return { kind: 'error', error }
    const { keyInUse, failure, retryAfterMs } = error as Partial<StoreFailedError>
    // An open breaker alone is no reason to run unprotected: the store was not asked.
    if (storeFailure === 'closed' || keyInUse === true || failure === 'refused') {
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

/** Ends the handling of a request early. */
class Refused extends Error {
  readonly answer: Answer

  constructor(answer: Answer) {
    super('refused')
    this.answer = answer
  }
}

function contentTypeOf(exchange: HttpExchange): string {
  const value = exchange.header('content-type')
  return (typeof value === 'string' ? value : value?.[0]) ?? ''
}

const NO_BODY = new Uint8Array(0)

/** The record that a reply is bound to. */
function recordOf(
  { identity, recordId }: Pick<EventSubject, 'identity' | 'recordId'>,
  { tenant, operation }: Scope,
): EventSubject {
  return { identity, tenant, operation, recordId }
}

/**
 * A final answer of the handler's own, while its operation is gone on with: whoever has seen that
 * asks no more, or pays once more.
 */
function isPremature(produced: Produced | undefined, context: GuardedContext | undefined): boolean {
  if (produced === undefined || context === undefined) return false
  if (attemptOf(context)?.isGoneOnWith !== true) return false
  return meaningOf(produced, { error: undefined, isNotExecuted: false }) === 'complete'
}

/** Method and route; a path that is too long for a record is told apart by its hash. */
function operationOf({ method, route }: HttpExchange): string {
  const name = `${method} ${route}`
  if (name.length <= OPERATION_LENGTH_MAX) return name
  const hash = createHash('sha256').update(name).digest('hex')
  return `${name.slice(0, OPERATION_LENGTH_MAX - hash.length - 1)}#${hash}`
}

/** What body parsers say about a client that went away: nobody's fault, and no 500. */
function abortedError(): Error {
  const details = { status: 400, statusCode: 400, type: 'request.aborted', code: 'ECONNABORTED' }
  return Object.assign(new Error('request aborted'), details)
}
