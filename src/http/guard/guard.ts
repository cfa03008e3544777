/**
 * Decides for all adapters which requests are protected, how each outcome is answered, and which
 * parts of a reply are recorded. Adapters only translate.
 */
import { createHash } from 'node:crypto'
import { attemptOf } from '../../core/attempt/operation-attempt.ts'
import type { Engine } from '../../core/engine/engine-contract.ts'
import { prepareEncryption } from '../../core/engine/preparation.ts'
import { hasCode, type StoreFailedError } from '../../core/errors.ts'
import type { RunOutcome } from '../../core/attempt/run-outcome.ts'
import type { ClaimedFrom } from '../../core/store/store.ts'
import { OPERATION_LENGTH_MAX, type Scope } from '../../core/record/identity.ts'
import { checkKey, parseKeyHeader } from '../../protocol/key-syntax.ts'
import { expiresHeader, toRecorded } from './answers.ts'
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
import { GuardAnswers, RETRY_SOON_MS } from './guard-answers.ts'
import type { GuardOptions } from './guard-options.ts'
import {
  checkPrincipal,
  checkScopePrincipal,
  checkTenant,
  resolveGuardOptions,
  type ResolvedGuardOptions,
} from './resolve-guard-options.ts'
import { GuardedRun, GuardedWork, type Refusal } from './guarded-work.ts'
import type { GuardedContext } from './handler-context.ts'
import { meaningOf, statusOf } from './handler-reply.ts'
import type { Exceeded } from '../limits/limits.ts'
import { requestAgeOf, type RequestAge, type RequestAgeRule } from './request-age.ts'
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

const NOT_RECORDED = 'outcome_not_recorded'

const TOO_OLD: Refusal = { kind: 'too_old' }
const UNPREPARED: Refusal = { kind: 'unprepared' }

class HttpGuard<Request> implements Guard<Request> {
  readonly #options: ResolvedGuardOptions<Request>
  readonly #answers: GuardAnswers
  readonly #encoder: ReplyEncoder

  constructor(options: ResolvedGuardOptions<Request>) {
    this.#options = options
    this.#answers = new GuardAnswers(options)
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
      const { keyFrom, keyField, keyHeader, keyRules, requestAge } = this.#options
      const early = keyField === undefined ? undefined : await this.#body(exchange)
      const parsed =
        keyFrom !== undefined
          ? checkKey(await keyFrom(request), keyRules)
          : keyField !== undefined
            ? checkKey(fieldOf(early!, contentTypeOf(exchange), keyField), keyRules)
            : parseKeyHeader(exchange.header(keyHeader), keyRules)
      if (parsed.kind === 'malformed') return this.#answers.problem('key_malformed', parsed)
      if (parsed.kind === 'missing') {
        return this.#options.keyRequired ? this.#answers.keyMissing() : { kind: 'pass' }
      }
      const age = requestAge && (await this.#ageOf(requestAge, request, exchange))
      if (age === 'missing') return this.#answers.timeMissing()
      const run = await this.#identify(request, exchange, { key: parsed.key, body: early })
      if (run === undefined) return this.#answers.problem('request_unreadable')
      if (age === 'too_old') run.refusal = TOO_OLD
      const answer = await this.#runLimited(request, run, handler)
      if (answer.kind !== 'reply') return answer
      const reply = readableBy(exchange.header('accept-encoding')?.toString(), answer.reply)
      return reply === answer.reply ? answer : { kind: 'reply', reply: await reply }
    } catch (error) {
      if (error instanceof EarlyAnswer) return error.answer
      return { kind: 'error', error }
    }
  }

  #ageOf(
    rule: RequestAgeRule<Request>,
    request: Request,
    exchange: HttpExchange,
  ): Promise<RequestAge> {
    return requestAgeOf(rule, { request, exchange }, this.engine.clock.nowMs())
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
    if (body.kind === 'too_large') throw new EarlyAnswer(this.#answers.tooLarge())
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
    const checked = checkTenant(typeof given === 'string' ? given : await given)
    const user = principal === undefined ? undefined : checkPrincipal(await principal(request))
    const scope = this.#scope(request, exchange, { tenant: checked, principal: user })
    const read = early ?? this.#body(exchange)
    const body = read instanceof Promise ? await read : read
    const input: FingerprintInput = {
      method: exchange.method,
      path: exchange.path,
      query: exchange.query,
      mediaType: contentTypeOf(exchange),
      body,
      principal: user,
      fields: this.#options.fingerprintFields,
    }
    const fingerprint = fingerprinter.current(input)
    if (fingerprint === undefined) return undefined
    return new GuardedRun({ scope, key, fingerprint }, this.#options, input)
  }

  #scope(
    request: Request,
    exchange: HttpExchange,
    { tenant, principal }: { readonly tenant: string; readonly principal: string | undefined },
  ): Scope {
    const { operation, scopeBy } = this.#options
    if (scopeBy === 'tenant') return { tenant, operation: '*' }
    const name =
      (typeof operation === 'function' ? operation(request) : operation) ?? operationOf(exchange)
    if (scopeBy === 'tenant+operation') return { tenant, operation: name }
    return { tenant, operation: name, principal: checkScopePrincipal(principal) }
  }

  /** Counts the request as in flight while its handler may run. */
  async #runLimited(request: Request, run: GuardedRun, handler: CapturedHandler): Promise<Answer> {
    const { limits } = this.#options
    if (limits === undefined || run.refusal !== undefined) return this.#run(request, run, handler)
    const { tenant } = run.scope
    // No await before this: requests that arrive together must not pass the check together.
    const full = limits.enter(tenant)
    try {
      const exceeded = full ?? (await limits.admit(run.scope))
      if (exceeded !== undefined) run.refusal = { kind: 'limited', exceeded }
      return await this.#run(request, run, handler)
    } finally {
      if (full === undefined) limits.leave(tenant)
    }
  }

  async #run(given: Request, request: GuardedRun, handler: CapturedHandler): Promise<Answer> {
    const { engine, limits } = this.#options
    if (!request.findOnly) {
      const isReady = prepareEncryption(engine, this.#options.encryption, request.scope)
      if (isReady !== true && !(await isReady)) request.refusal = UNPREPARED
    }
    const work = new GuardedWork(this.#encoder, handler)
    let charging: Promise<void> | undefined
    try {
      const outcome = await engine.run(request, (context) => {
        // The first attempt means a new key. Later ones have paid for it.
        if (context.attempt === 1) charging = limits?.chargeNewKey(request.scope)
        return work.run(context)
      })
      await charging
      const { context } = work
      if (outcome.kind === 'free' && isPaid(request, outcome.from)) {
        request.refusal = undefined
        return await this.#run(given, request, handler)
      }
      if (limits !== undefined && context === undefined && isLookUp(outcome)) {
        const exceeded = await limits.chargeLookUp(given, request.scope, request.principal)
        if (exceeded !== undefined) return this.#limited(exceeded, request.scope)
      }
      if (outcome.kind === 'free') return this.#refused(request)
      if (context?.returned !== undefined) {
        return await this.#returned(outcome, context.returned, request.scope)
      }
      if (work.isStoreFailure) return await this.#storeFailure(outcome, context!)
      if (outcome.kind === 'ran' && context?.joined !== undefined) {
        return await this.#joined(outcome, work.sent, request.scope)
      }
      return await this.#answer(outcome, handler.produced(), request.scope, context)
    } catch (error) {
      return this.#failed(error, work.context !== undefined, request)
    }
  }

  /** The answer to a free key that must not run. */
  #refused({ refusal, scope }: GuardedRun): Answer {
    if (refusal?.kind === 'limited') return this.#limited(refusal.exceeded, scope)
    // For the client as if the store failed: nothing has run, and the same retry is right.
    if (refusal?.kind === 'unprepared') return this.#answers.storeUnavailable()
    const { tenant, operation } = scope
    this.engine.emit({ kind: 'request_refused', tenant, operation, reason: 'too_old' })
    return this.#answers.problem('request_too_old')
  }

  #limited(exceeded: Exceeded, { tenant, operation }: Scope): Answer {
    this.engine.emit({ kind: 'request_refused', tenant, operation, reason: exceeded.limit })
    return this.#answers.limited(exceeded)
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
          return this.#answers.accepted(outcome.recordId, RETRY_SOON_MS)
        }
        return { kind: 'deliver', headers: [] }
      case 'doubted':
        // A client with a success must never cause a second run. With this outcome it could.
        if (produced === undefined || statusOf(produced) < 400 || isPremature(produced, context)) {
          return this.#answers.unknown(0)
        }
        return { kind: 'deliver', headers: [] }
      case 'replayed':
        return this.#replay(outcome, scope)
      case 'in_progress':
        return this.#busy(outcome)
      case 'pending':
        return this.#answers.accepted(outcome.recordId, RETRY_SOON_MS)
      case 'unknown':
        return this.#answers.unknown(outcome.retryAfterMs)
      case 'lease_lost':
        return this.#answers.unknown(RETRY_SOON_MS)
      case 'mismatch':
        return this.#answers.problem('key_reused_with_different_payload')
      case 'expired':
        return this.#answers.problem('key_expired')
      case 'free':
        // Unreachable: `#run` answers it.
        return this.#answers.problem('rate_limited')
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
        return this.#answers.retrySoon(isCertain && !isBegun ? 'store_unavailable' : NOT_RECORDED)
      }
      case 'doubted':
        return outcome.isRecorded ? this.#answers.unknown(0) : this.#answers.retrySoon(NOT_RECORDED)
      default:
        return this.#answer(outcome, undefined, context.scope, context)
    }
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
      return this.#answers.accepted(recordId, retryAfterMs)
    }
    return this.#answers.inProgress(retryAfterMs)
  }

  #failed(error: unknown, entered: boolean, { scope, findOnly }: GuardedRun): Answer {
    const { engine, onStoreFailure } = this.#options
    if (hasCode(error, 'OUTCOME_NOT_RECORDED')) return this.#answers.retrySoon(NOT_RECORDED)
    // After the handler was entered, every error is its own, regardless of its class.
    if (entered) return { kind: 'error', error }
    if (hasCode(error, 'ENGINE_CLOSED')) return this.#answers.retrySoon('server_stopping')
    if (!hasCode(error, 'STORE_FAILED')) return { kind: 'error', error }
    const { keyInUse, failure, retryAfterMs } = error as Partial<StoreFailedError>
    // An open breaker alone is no reason to run unprotected: the claim was not sent to the store. A
    // request that must not run stays refused.
    const isClosed = onStoreFailure === 'closed' || findOnly
    if (isClosed || keyInUse === true || failure === 'refused') {
      return this.#answers.storeUnavailable(retryAfterMs)
    }
    const { tenant, operation } = scope
    engine.emit({ kind: 'unprotected_run', tenant, operation })
    return { kind: 'pass' }
  }
}

/** Whether the key has had an attempt before, and only the limit of new keys refuses it. */
function isPaid({ refusal }: GuardedRun, from: ClaimedFrom): boolean {
  const hasRun = from === 'retry' || from === 'lapsed'
  return hasRun && refusal?.kind === 'limited' && refusal.exceeded.limit === 'new_keys'
}

/**
 * Whether the answer comes from the record of an earlier request. Also `free`: it tells the caller
 * that the key is not in use.
 */
function isLookUp({ kind }: RunOutcome): boolean {
  switch (kind) {
    case 'replayed':
    case 'in_progress':
    case 'pending':
    case 'unknown':
    case 'mismatch':
    case 'expired':
    case 'free':
      return true
    case 'ran':
    case 'released':
    case 'doubted':
    case 'lease_lost':
      return false
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
