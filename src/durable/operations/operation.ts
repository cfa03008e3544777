import { attemptOf, type OperationAttempt, phasesOf } from '../../core/attempt/operation-attempt.ts'
import { NO_BYTES } from '../../core/bytes.ts'
import { effectiveRule, resolveEncryption, type Encryption } from '../../core/encryption.ts'
import { InvalidOptionsError, NotExecutedError, hasCode } from '../../core/errors.ts'
import {
  describe,
  flag,
  optionalFunction,
  rejectUnknownOptions,
  wholeNumber,
} from '../../core/options.ts'
import { DAY_MS } from '../../core/time/durations.ts'
import type { RunContext, Work } from '../../core/attempt/run-context.ts'
import type { StoredOperation } from '../../core/store/durable-store.ts'
import type { DurableRoute } from '../../http/guard/durable-route.ts'
import { GuardedContext, type HandlerContext } from '../../http/guard/handler-context.ts'
import type { ReplyInit } from '../../http/reply/http-reply.ts'
import { sendStoreSignal } from '../store-signal.ts'
import type { Effect, Effects, OperationContext } from './operation-contract.ts'
import {
  OperationRun,
  type OnReply,
  type RunDefinition,
  type SealedInput,
} from './operation-run.ts'
import { resumeAfterMs } from './failed-attempt.ts'
import { checkSchema, checkSchemaOption, type Schema } from './schema.ts'
import { INPUT, RecordValues } from '../record-values.ts'
import { encodeValue, VALUE_BYTES_MAX } from '../values.ts'

export interface OperationOptions<Input, Declared extends Effects> {
  /**
   * The stable name of the operation, 1 to 255 characters. Workers find open operations by it, and
   * it is the `operation` in the scope of their keys, so a renamed operation loses both.
   */
  name: string

  /**
   * Increase it when the phases change. An operation that began with another version is resumed
   * only by a process that has that version, so keep a worker with the old one until all have
   * ended. From 1 to 2_147_483_647.
   *
   * @default 1
   */
  version?: number

  /**
   * Schema of the input: zod, valibot, ArkType or another Standard Schema. An input that does not
   * match is rejected with an error of status 400 before the operation begins.
   *
   * @default no check
   */
  input?: Schema<Input>

  /** The outside effects of the operation, by the name of their phase. @default none */
  effects?: Declared

  /**
   * The work, as phases. Code outside of phases runs again on every attempt, so it must be
   * deterministic and without effects.
   */
  run: (op: OperationContext<Declared>, input: Input) => Promise<ReplyInit> | ReplyInit

  /**
   * How many attempts may fail before the record becomes `unknown` and waits for an operator. The
   * pause between attempts doubles from one second to five minutes, so 20 attempts take about an
   * hour. More attempts survive a longer outage and report a permanent fault later. From 1 to
   * 1_000_000.
   *
   * @default 20
   */
  maxAttempts?: number

  /**
   * The version that is stored with each reply. Increase it when the format of the replies changes,
   * and let the route's `upgradeReply` translate older ones. From 0 to 65_535.
   *
   * @default 1
   */
  replyVersion?: number

  /**
   * Encrypts the reply, the input, and the requests and results of the phases before they are
   * stored, each for its own record. What does not decrypt ends the attempt before the next phase;
   * no phase runs again because of it.
   *
   * @default that of the engine, if it has one
   */
  encryption?: Encryption

  /**
   * Refuses stored values that are not encrypted, like values that do not decrypt. Needs its own
   * `encryption`. Switch it on when operations that began without encryption have ended.
   *
   * @default that of the engine
   */
  requireEncryption?: boolean
}

export interface Operation<Input = unknown> {
  readonly name: string
  readonly version: number
  readonly effects: Effects
  /** The option of the operation; `undefined`: the encryption of the engine. */
  readonly encryption: Encryption | undefined
  /** The option of the operation; `undefined`: that of the engine. */
  readonly requireEncryption: boolean | undefined

  /** Options for the route that runs the operation: `idempotency(options).with(pay.route)`. */
  readonly route: { readonly durable: DurableRoute }

  /**
   * Runs or resumes the operation while the caller waits. In a handler, the guard sends the reply:
   * do not send another one.
   */
  run(context: HandlerContext | RunContext, input: Input): Promise<ReplyInit>

  /**
   * Commits the input and leaves the operation to a worker. In a handler, the guard replies with
   * 202 and the `Location` of the status: do not send another reply.
   */
  accept(context: HandlerContext | RunContext, input: Input): Promise<void>

  /** Work for `engine.run` with the policy `operationPolicy(engine)`, without an HTTP request. */
  work(input: Input): Work

  /** Resumes the operation from its record. For workers. */
  resume(context: RunContext): Promise<ReplyInit>
}

const OPTION_NAMES = [
  'name',
  'version',
  'input',
  'effects',
  'run',
  'maxAttempts',
  'replyVersion',
  'encryption',
  'requireEncryption',
] as const satisfies readonly (keyof OperationOptions<never, never>)[]

const NAME_LENGTH_MAX = 255

/**
 * Defines work that survives a crash of its process: a function of named phases, each of which is
 * committed before the next one begins.
 *
 * @example
 * ```ts
 * const pay = defineOperation({
 *   name: 'payments.create',
 *   effects: {
 *     charge: { send: ({ request, downstreamKey }) => provider.charge(request, downstreamKey) },
 *   },
 *   async run(op, input: { amount: number }) {
 *     const id = op.deterministicId('payment')
 *     await op.transaction('record', (tx: SqliteTransaction) => insertPayment(tx, id, input))
 *     const charge = await op.external('charge', { amount: input.amount })
 *     return op.finish('book', (tx: SqliteTransaction) => book(tx, id, charge))
 *   },
 * })
 * ```
 */
export function defineOperation<Input, Declared extends Effects = Effects>(
  options: OperationOptions<Input, Declared>,
): Operation<Input> {
  return new DefinedOperation(options)
}

class DefinedOperation<Input, Declared extends Effects> implements Operation<Input> {
  readonly name: string
  readonly version: number
  readonly effects: Effects
  readonly encryption: Encryption | undefined
  readonly requireEncryption: boolean | undefined
  readonly route: { readonly durable: DurableRoute }
  readonly #input: Schema<Input> | undefined
  readonly #definition: RunDefinition

  constructor(options: OperationOptions<Input, Declared>) {
    checkOptions(options)
    const { name, effects = {}, input, run } = options
    const where = `operation "${name}"`
    this.name = name
    this.version = wholeNumber(`${where}: version`, options.version, {
      fallback: 1,
      min: 1,
      max: 2_147_483_647,
    })
    this.effects = effects
    this.#input = input
    const replyVersion = wholeNumber(`${where}: replyVersion`, options.replyVersion, {
      fallback: 1,
      min: 0,
      max: 65_535,
    })
    const { encryption } = resolveEncryption(where, options)
    const { requireEncryption } = options
    this.encryption = encryption
    this.requireEncryption = requireEncryption
    const route = { name, replyVersion, encryption, requireEncryption }
    this.route = Object.freeze({ durable: Object.freeze(route) })
    this.#definition = {
      name,
      version: this.version,
      effects,
      replyVersion,
      maxAttempts: wholeNumber(`${where}: maxAttempts`, options.maxAttempts, {
        fallback: 20,
        min: 1,
        max: 1_000_000,
      }),
      run: (op, value) => run(op, value as Input),
    }
  }

  async run(context: HandlerContext | RunContext, input: Input): Promise<ReplyInit> {
    const attempt = this.#attemptOf(context)
    // Set as soon as the reply is recorded, so that a later failure cannot replace it.
    const onReply: OnReply = (reply) => {
      if (context instanceof GuardedContext) context.recordedAs(reply)
    }
    const run = this.#begin(attempt, input, (sealed) => this.#run(attempt, sealed, onReply))
    return run.catch((error: unknown) => rethrow(context, error))
  }

  async accept(context: HandlerContext | RunContext, input: Input): Promise<void> {
    const attempt = this.#attemptOf(context)
    const begun = this.#begin(attempt, input, async (sealed) => {
      await this.#newRun(attempt).handOver(sealed?.stored)
      // The guard builds the reply, because it knows the URL of the status.
      if (context instanceof GuardedContext) context.recordedAs(ACCEPTED)
    })
    await begun.catch((error: unknown) => rethrow(context, error))
    sendStoreSignal(attempt.store, 'operation_due')
  }

  work(input: Input): Work {
    return async (context) => {
      await this.run(context, input)
      // The reply is on record already, so the engine ignores this value.
      return NO_BYTES
    }
  }

  resume(context: RunContext): Promise<ReplyInit> {
    const attempt = this.#attemptOf(context)
    return this.#untilEnded(attempt, () =>
      this.#releaseOnError(attempt, () => this.#run(attempt, undefined)),
    )
  }

  #attemptOf(context: object): OperationAttempt {
    const attempt = attemptOf(context)
    if (attempt === undefined) {
      throw new InvalidOptionsError(
        `operation "${this.name}" needs the context of its handler (req.idempotency, or the ` +
          `context of engine.run), got ${describe(context)}`,
      )
    }
    if (attempt.onLapse !== 'resume') {
      throw new InvalidOptionsError(
        `operation "${this.name}" runs behind a guard without its options: mount the route with ` +
          '.with(operation.route), or pass operationPolicy(engine) to engine.run',
      )
    }
    return attempt
  }

  #begin<Result>(
    attempt: OperationAttempt,
    input: unknown,
    run: (sealed: SealedInput | undefined) => Promise<Result>,
  ): Promise<Result> {
    return this.#untilEnded(attempt, async () => {
      // An invalid input is no failed attempt, because nothing has begun. An operation that has
      // begun continues with the input on record, even if the request or the schema has changed.
      const isBegun = attempt.recoveryPoint !== undefined
      const sealed = isBegun ? undefined : await this.#sealInput(attempt, input)
      return this.#releaseOnError(attempt, () => run(sealed))
    })
  }

  /** Delays the settlement of the attempt until the operation has ended. */
  #untilEnded<Result>(attempt: OperationAttempt, run: () => Promise<Result>): Promise<Result> {
    let end: () => void = () => undefined
    attempt.begin(new Promise<void>((resolve) => (end = resolve)))
    return run().finally(end)
  }

  async #releaseOnError<Result>(
    attempt: OperationAttempt,
    run: () => Promise<Result>,
  ): Promise<Result> {
    try {
      return await run()
    } catch (error) {
      // Ignored if the run has set an end already.
      attempt.fail({ kind: 'release', resumeAfterMs: resumeAfterMs(attempt.attempt) })
      throw error
    }
  }

  async #run(
    attempt: OperationAttempt,
    input: SealedInput | undefined,
    onReply?: OnReply,
  ): Promise<ReplyInit> {
    const { recordId } = attempt.subject
    const load = (signal: AbortSignal) => phasesOf(attempt.store).load(recordId, signal)
    const stored = attempt.recoveryPoint === undefined ? undefined : await attempt.ask('load', load)
    return this.#newRun(attempt, { stored, onReply }).run(input)
  }

  #newRun(attempt: OperationAttempt, known: KnownRun = {}): OperationRun {
    const values = this.#valuesOf(attempt)
    return new OperationRun(this.#definition, { attempt, values, ...known })
  }

  #valuesOf(attempt: OperationAttempt): RecordValues {
    const parts = { clock: attempt.clock, emit: attempt.emit.bind(attempt) }
    return new RecordValues(parts, attempt.subject, effectiveRule(this, attempt.encryption))
  }

  async #sealInput(attempt: OperationAttempt, input: unknown): Promise<SealedInput> {
    const plain = await this.#encodeInput(input)
    try {
      return { plain, stored: await this.#valuesOf(attempt).sealInTime(plain, INPUT) }
    } catch (cause) {
      // Nothing has begun, so the key is free for a retry, even if the error looks like a lost
      // call.
      const message = `the input of operation "${this.name}" could not be encrypted`
      throw Object.assign(new NotExecutedError(message, { cause }), {
        status: 503,
        statusCode: 503,
      })
    }
  }

  /** Encoded once, so that every attempt gets the same input. */
  async #encodeInput(input: unknown): Promise<Uint8Array> {
    const where = `the input of operation "${this.name}"`
    try {
      return encodeValue(where, await checkSchema(where, this.#input, input), VALUE_BYTES_MAX)
    } catch (error) {
      // A schema that throws another error says nothing about the request.
      if (!hasCode(error, 'INVALID_REQUEST')) throw error
      // Frameworks read these fields to reply with status 400.
      throw Object.assign(error, { status: 400, statusCode: 400 })
    }
  }
}

/** Marks a store failure for the guard, which replies to it if the handler does not catch it. */
function rethrow(context: object, error: unknown): never {
  if (context instanceof GuardedContext && hasCode(error, 'STORE_FAILED')) {
    context.storeFailed(error)
  }
  throw error
}

/** The facts about an operation that its attempt has when it begins. */
interface KnownRun {
  readonly stored?: StoredOperation | undefined
  readonly onReply?: OnReply | undefined
}

const ACCEPTED = { status: 202, headers: [], body: NO_BYTES } as const

function checkOptions<Input, Declared extends Effects>(
  options: OperationOptions<Input, Declared>,
): void {
  rejectUnknownOptions('operation', options, OPTION_NAMES)
  const { name, run } = options
  const effects: Effects = options.effects ?? {}
  const isName = typeof name === 'string' && name !== '' && name.length <= NAME_LENGTH_MAX
  if (!isName || !name.isWellFormed() || name.includes('\0')) {
    throw new InvalidOptionsError(
      `operation.name must have 1 to ${NAME_LENGTH_MAX} characters, got ${describe(name)}`,
    )
  }
  if (typeof run !== 'function') {
    throw new InvalidOptionsError(`operation "${name}": run must be a function`)
  }
  checkSchemaOption(`operation "${name}": input`, options.input)
  for (const [phase, effect] of Object.entries(effects)) checkEffect(name, phase, effect)
}

const EFFECT_OPTION_NAMES = [
  'send',
  'reconcile',
  'notFoundIsFinalAfterMs',
  'resendWithinMs',
  'keyless',
  'timeoutMs',
  'providerId',
  'request',
  'result',
] as const satisfies readonly (keyof Effect)[]

const YEAR_MS = 365 * DAY_MS

function checkEffect(operationName: string, phase: string, effect: Effect): void {
  const where = `effect "${phase}" of operation "${operationName}"`
  rejectUnknownOptions(where, effect, EFFECT_OPTION_NAMES)
  if (typeof effect.send !== 'function') {
    throw new InvalidOptionsError(`${where}: send must be a function`)
  }
  const limits = { fallback: 0, min: 1, max: YEAR_MS }
  wholeNumber(`${where}: notFoundIsFinalAfterMs`, effect.notFoundIsFinalAfterMs, limits)
  flag(`${where}: keyless`, effect.keyless, false)
  wholeNumber(`${where}: resendWithinMs`, effect.resendWithinMs, limits)
  wholeNumber(`${where}: timeoutMs`, effect.timeoutMs, limits)
  for (const name of ['reconcile', 'providerId'] as const) {
    optionalFunction(`${where}: ${name}`, effect[name])
  }
  checkSchemaOption(`${where}: request`, effect.request)
  checkSchemaOption(`${where}: result`, effect.result)
  if (effect.notFoundIsFinalAfterMs !== undefined && effect.reconcile === undefined) {
    throw new InvalidOptionsError(
      `${where}: notFoundIsFinalAfterMs needs reconcile, which returns 'not_found'`,
    )
  }
}
