import { attemptOf, type Attempt } from '../core/attempt.ts'
import type { Encryption } from '../core/encryption.ts'
import { InvalidOptionsError, hasCode } from '../core/errors.ts'
import { describe, optionalFunction, rejectUnknownOptions, wholeNumber } from '../core/options.ts'
import { phasesOf } from '../core/operation-steps.ts'
import type { Work } from '../core/execution.ts'
import type { RunContext } from '../core/run-context.ts'
import type { DurableRoute } from '../http/durable-route.ts'
import { GuardedContext, type HandlerContext } from '../http/handler-context.ts'
import type { GivenReply } from '../http/http-reply.ts'
import { resolveEncryption } from '../http/reply-encryption.ts'
import { nudge } from './nudge.ts'
import type { Effect, Effects, OperationContext } from './operation-contract.ts'
import { OperationRun, type OnReply, type RunDefinition } from './operation-run.ts'
import { resumeAfterMs } from './resume-after.ts'
import { checkSchema, checkSchemaOption, type Schema } from './schema.ts'
import { encodeValue, VALUE_BYTES_MAX } from './values.ts'

export interface OperationOptions<Input, Declared extends Effects> {
  /** Stable: operations under way are found again by it. Also the scope of its keys. */
  name: string

  /**
   * Counts up when the phases change. Operations that were begun under another version are left to
   * the processes that still have that one.
   *
   * @default 1
   */
  version?: number

  /** What the input must be like (zod, valibot, ArkType and other Standard Schemas). */
  input?: Schema<Input>

  /** Its outside effects, by the name of their phase. */
  effects?: Declared

  /** The work, as phases. Whatever it does outside of them may be done again. */
  run: (op: OperationContext<Declared>, input: Input) => Promise<GivenReply> | GivenReply

  /**
   * How many attempts may fail before it becomes `unknown` and an operator is asked.
   *
   * @default 20
   */
  attemptsMax?: number

  /** The version of its replies, kept with each. @default 1 */
  replyVersion?: number
  /** Encrypts its replies before they are stored, and decrypts them for its route. */
  encryption?: Encryption
}

export interface Operation<Input = unknown> {
  readonly name: string
  readonly version: number
  readonly effects: Effects

  /** For the route that runs it: `idempotency(options).with(pay.route)`. */
  readonly route: { readonly durable: DurableRoute }

  /**
   * Runs it, or goes on with it, while the caller waits. In a handler the reply leaves by itself:
   * there is nothing more to send.
   */
  run(context: HandlerContext | RunContext, input: Input): Promise<GivenReply>

  /**
   * Leaves it to a worker: the input is committed, and the client gets 202 with the `Location` of
   * its status. In a handler that is the reply: there is nothing more to send.
   */
  accept(context: HandlerContext | RunContext, input: Input): Promise<void>

  /** For `engine.run`, under `operationPolicy(engine)`, where there is no request. */
  work(input: Input): Work

  /** Goes on with it from what is on record. For workers. */
  resume(context: RunContext): Promise<GivenReply>
}

const OPTION_NAMES = [
  'name',
  'version',
  'input',
  'effects',
  'run',
  'attemptsMax',
  'replyVersion',
  'encryption',
] as const satisfies readonly (keyof OperationOptions<never, never>)[]

const NAME_LENGTH_MAX = 255

/**
 * Work that survives the death of its process: a function of named phases, each committed before
 * the next one begins.
 *
 * @example
 * ```ts
 * const pay = operation({
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
export function operation<Input, Declared extends Effects = Effects>(
  options: OperationOptions<Input, Declared>,
): Operation<Input> {
  return new DefinedOperation(options)
}

class DefinedOperation<Input, Declared extends Effects> implements Operation<Input> {
  readonly name: string
  readonly version: number
  readonly effects: Effects
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
    const { encryption } = resolveEncryption(where, { encryption: options.encryption })
    this.route = Object.freeze({ durable: Object.freeze({ name, replyVersion, encryption }) })
    this.#definition = {
      name,
      version: this.version,
      effects,
      replyVersion,
      encryption,
      attemptsMax: wholeNumber(`${where}: attemptsMax`, options.attemptsMax, {
        fallback: 20,
        min: 1,
        max: 1_000_000,
      }),
      run: (op, value) => run(op, value as Input),
    }
  }

  async run(context: HandlerContext | RunContext, input: Input): Promise<GivenReply> {
    const attempt = this.#attemptOf(context)
    // As soon as it is recorded: whatever goes wrong after that, this is what leaves.
    const onReply: OnReply = (reply) => {
      if (context instanceof GuardedContext) context.recordedAs(reply)
    }
    const run = this.#begin(attempt, input, (bytes) => this.#run(attempt, bytes, onReply))
    return run.catch((error: unknown) => rethrown(context, error))
  }

  async accept(context: HandlerContext | RunContext, input: Input): Promise<void> {
    const attempt = this.#attemptOf(context)
    const begun = this.#begin(attempt, input, async (bytes) => {
      await new OperationRun(this.#definition, attempt).handOver(bytes)
      // What the client gets is the guard's to say: it knows where the status is.
      if (context instanceof GuardedContext) context.recordedAs(ACCEPTED)
    })
    await begun.catch((error: unknown) => rethrown(context, error))
    nudge(attempt.store)
  }

  work(input: Input): Work {
    return async (context) => {
      await this.run(context, input)
      // The result is on record already; this stands for it.
      return NO_BYTES
    }
  }

  resume(context: RunContext): Promise<GivenReply> {
    const attempt = this.#attemptOf(context)
    return this.#until(attempt, () => this.#failing(attempt, () => this.#run(attempt, undefined)))
  }

  #attemptOf(context: object): Attempt {
    const attempt = attemptOf(context)
    if (attempt === undefined) {
      throw new InvalidOptionsError(
        `operation "${this.name}" needs the context that its handler was given ` +
          `(req.idempotency, or that of engine.run), got ${describe(context)}`,
      )
    }
    if (attempt.onLapse !== 'resume') {
      throw new InvalidOptionsError(
        `operation "${this.name}" runs behind a guard that knows nothing of it: mount it with ` +
          '.with(operation.route), or engine.run with the policy of operationPolicy(engine)',
      )
    }
    return attempt
  }

  #begin<Result>(
    attempt: Attempt,
    input: unknown,
    run: (bytes: Uint8Array | undefined) => Promise<Result>,
  ): Promise<Result> {
    return this.#until(attempt, async () => {
      // An input that is wrong is no failure of the operation: nothing of it has begun. One that
      // has goes on with the input on record, whatever its client or its schema says by now.
      const isBegun = attempt.recoveryPoint !== undefined
      const bytes = isBegun ? undefined : await this.#encodeInput(input)
      return this.#failing(attempt, () => run(bytes))
    })
  }

  /** The attempt is settled once the operation has ended, whoever waits for it. */
  #until<Result>(attempt: Attempt, run: () => Promise<Result>): Promise<Result> {
    let end: () => void = () => undefined
    attempt.begin(new Promise<void>((resolve) => (end = resolve)))
    return run().finally(end)
  }

  async #failing<Result>(attempt: Attempt, run: () => Promise<Result>): Promise<Result> {
    try {
      return await run()
    } catch (error) {
      // Where the run itself has not said so already.
      attempt.fail({ kind: 'release', resumeAfterMs: resumeAfterMs(attempt.attempt) })
      throw error
    }
  }

  async #run(
    attempt: Attempt,
    input: Uint8Array | undefined,
    onReply?: OnReply,
  ): Promise<GivenReply> {
    const { recordId } = attempt.subject
    const load = (signal: AbortSignal) => phasesOf(attempt.store).load(recordId, signal)
    const stored = attempt.recoveryPoint === undefined ? undefined : await attempt.ask('load', load)
    return new OperationRun(this.#definition, attempt, stored, onReply).run(input)
  }

  /** As it will be read by whoever goes on with it, so that every attempt gets the same. */
  async #encodeInput(input: unknown): Promise<Uint8Array> {
    const where = `the input of operation "${this.name}"`
    try {
      return encodeValue(where, await checkSchema(where, this.#input, input), VALUE_BYTES_MAX)
    } catch (error) {
      // A schema that fails by itself says nothing about the request.
      if (!hasCode(error, 'INVALID_REQUEST')) throw error
      // What frameworks read to answer for a request that is wrong.
      throw Object.assign(error, { status: 400, statusCode: 400 })
    }
  }
}

/** The guard answers for a store that failed, where the handler lets the error through. */
function rethrown(context: object, error: unknown): never {
  if (context instanceof GuardedContext && hasCode(error, 'STORE_FAILED')) {
    context.storeFailed(error)
  }
  throw error
}

const NO_BYTES = new Uint8Array(0)
const ACCEPTED = { status: 202, headers: [], body: new Uint8Array(0) } as const

function checkOptions<Input, Declared extends Effects>(
  options: OperationOptions<Input, Declared>,
): void {
  rejectUnknownOptions('operation', options, OPTION_NAMES)
  const { name, run } = options
  const effects: Effects = options.effects ?? {}
  const isName = typeof name === 'string' && name !== '' && name.length <= NAME_LENGTH_MAX
  if (!isName || !name.isWellFormed() || name.includes('\0')) {
    throw new InvalidOptionsError(
      `operation.name must be a name of 1 to ${NAME_LENGTH_MAX} characters, got ${describe(name)}`,
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
  'provenAfterMs',
  'repeatable',
  'timeoutMs',
  'providerId',
  'request',
  'result',
] as const satisfies readonly (keyof Effect)[]

const YEAR_MS = 365 * 24 * 60 * 60 * 1000

function checkEffect(operationName: string, phase: string, effect: Effect): void {
  const where = `effect "${phase}" of operation "${operationName}"`
  rejectUnknownOptions(where, effect, EFFECT_OPTION_NAMES)
  if (typeof effect.send !== 'function') {
    throw new InvalidOptionsError(`${where}: send must be a function`)
  }
  const limits = { fallback: 0, min: 1, max: YEAR_MS }
  wholeNumber(`${where}: provenAfterMs`, effect.provenAfterMs, limits)
  wholeNumber(`${where}: timeoutMs`, effect.timeoutMs, limits)
  for (const name of ['reconcile', 'providerId'] as const) {
    optionalFunction(`${where}: ${name}`, effect[name])
  }
  checkSchemaOption(`${where}: request`, effect.request)
  checkSchemaOption(`${where}: result`, effect.result)
  if (effect.provenAfterMs !== undefined && effect.reconcile === undefined) {
    throw new InvalidOptionsError(`${where}: provenAfterMs is about what reconcile finds: give it`)
  }
  if (effect.repeatable === undefined) return
  rejectUnknownOptions(`${where}: repeatable`, effect.repeatable, ['withinMs'])
  if (wholeNumber(`${where}: repeatable.withinMs`, effect.repeatable.withinMs, limits) === 0) {
    throw new InvalidOptionsError(
      `${where}: repeatable.withinMs must say how long the provider remembers its keys`,
    )
  }
}
