/**
 * Runs the phases of one attempt at an operation.
 *
 * Tests: test/durable/operations/operation.test.ts, operation-refusals.test.ts, unanswered.test.ts.
 */
import type { OperationAttempt, OperationEnd } from '../../core/attempt/operation-attempt.ts'
import type {
  NewOperation,
  StepOutcome,
  StoredOperation,
  StoredPhase,
} from '../../core/store/durable-store.ts'
import {
  InvalidOptionsError,
  LeaseLostError,
  OperationChangedError,
  hasCode,
} from '../../core/errors.ts'
import { deterministicIdOf } from '../../core/record/identity.ts'
import { describe } from '../../core/options.ts'
import { isThenable } from '../../core/thenable.ts'
import type { HttpReply } from '../../http/guard/exchange.ts'
import { toReply, type ReplyInit } from '../../http/reply/http-reply.ts'
import { storedForm } from '../../http/reply/reply-encryption.ts'
import { ATTEMPTS_EXHAUSTED, EFFECT_UNKNOWN, resumeAfterMs } from './failed-attempt.ts'
import { ExternalPhase } from './external-phase.ts'
import type { Effects, OperationContext } from './operation-contract.ts'
import { INPUT, resultOf, type RecordValues } from '../record-values.ts'
import { decodeValue, encodeValue, VALUE_BYTES_MAX } from '../values.ts'

/** Called with the reply after it was recorded. */
export type OnReply = (reply: HttpReply) => void

export interface RunDefinition {
  readonly name: string
  readonly version: number
  readonly effects: Effects
  readonly replyVersion: number
  readonly maxAttempts: number
  readonly run: (op: OperationContext, input: unknown) => Promise<ReplyInit> | ReplyInit
}

/** The input of an operation that is not on record yet, as it is stored, and as it is encoded. */
export interface SealedInput {
  readonly stored: Uint8Array
  readonly plain: Uint8Array
}

export interface OperationRunParts {
  readonly attempt: OperationAttempt
  readonly values: RecordValues
  /** The operation on record. */
  readonly stored?: StoredOperation | undefined
  readonly onReply?: OnReply | undefined
}

const PHASE_NAME_LENGTH_MAX = 64
/** An operation has a few phases; a loop over rows belongs inside one of them. */
const PHASES_MAX = 100

/** One attempt at an operation: phases on record return their result, the others run. */
export class OperationRun {
  readonly #definition: RunDefinition
  readonly #attempt: OperationAttempt
  readonly #values: RecordValues
  readonly #stored: StoredOperation | undefined
  readonly #onReply: OnReply | undefined
  readonly #names = new Set<string>()
  /** Written with the first step; `undefined` once it is on record. */
  #unrecorded: NewOperation | undefined
  /** The running phase. `ended` resolves at its end, also if it fails. */
  #open: { readonly name: string; readonly ended: Promise<void> } | undefined
  /** The reply as it is recorded. */
  #reply: HttpReply | undefined
  /** The error of a phase or of the run: no phase may start after it. */
  #failed: { readonly error: unknown } | undefined
  /** The reply of `finish`, which has completed the key. */
  #finished: ReplyInit | undefined
  /** Set while the outcome of a sent effect is unknown. */
  #doubt: Extract<OperationEnd, { kind: 'doubt' }> | undefined

  constructor(definition: RunDefinition, { attempt, values, stored, onReply }: OperationRunParts) {
    this.#definition = definition
    this.#attempt = attempt
    this.#values = values
    this.#stored = stored
    this.#onReply = onReply
  }

  /** `input`: needed if the operation may not be on record yet. */
  async run(input: SealedInput | undefined): Promise<ReplyInit> {
    try {
      const operation = this.#begin(input?.stored)
      if (this.#stored === undefined) this.#unrecorded = operation
      const value =
        this.#stored === undefined
          ? decodeValue(input?.plain)
          : await this.#values.read(operation.input, INPUT)
      const reply = await this.#definition.run(this.#context(), value)
      return await this.#end(reply)
    } catch (error) {
      this.#failed ??= { error }
      // A phase that was not awaited may be sending an effect: its result must still be recorded.
      await this.#open?.ended
      this.#attempt.fail(this.#endFor(error))
      throw error
    }
  }

  /** Leaves the operation to a worker. `input`: absent if the operation is on record. */
  async handOver(input: Uint8Array | undefined): Promise<void> {
    const { name, version } = this.#definition
    const { subject } = this.#attempt
    const operation = input && { name, version, input }
    // Without the pause, a client that retries fast would start a failing operation each time.
    const { attempt, recoveryPoint } = this.#attempt
    const afterMs = recoveryPoint === undefined ? 0 : resumeAfterMs(attempt - 1)
    const outcome = await this.#attempt.record({ operation, end: { kind: 'hand_over', afterMs } })
    if (outcome.kind !== 'advanced') throw new LeaseLostError(subject.recordId)
    this.#attempt.emit({ kind: 'operation_accepted', ...subject, name })
  }

  #begin(input: Uint8Array | undefined): NewOperation {
    const { name, version } = this.#definition
    const stored = this.#stored
    if (stored === undefined) {
      if (input !== undefined) return { name, version, input }
      throw new OperationChangedError(
        `record ${this.#attempt.subject.recordId} has no operation, so it cannot be resumed`,
      )
    }
    if (stored.name === name && stored.version === version) return stored
    throw new OperationChangedError(
      `record ${this.#attempt.subject.recordId} began as "${stored.name}" version ` +
        `${stored.version} and cannot continue as "${name}" version ${version}: keep a worker ` +
        'with the old version until its operations have ended',
    )
  }

  #context(): OperationContext {
    const attempt = this.#attempt
    const { recordId, tenant } = attempt.subject
    return {
      recordId,
      tenant,
      attempt: attempt.attempt,
      get signal() {
        return attempt.signal
      },
      deterministicId: (name) => deterministicIdOf(attempt.idSource, name),
      transaction: (name, work) =>
        this.#phase(name, 'transaction', (position) =>
          this.#transaction(position, work as Work),
        ) as never,
      external: (name, request) =>
        this.#phase(name, 'external', (position) => this.#external(position, request)),
      finish: (name, work) =>
        this.#phase(name, 'finish', () => this.#finish(work as ReplyWork)) as Promise<ReplyInit>,
    }
  }

  /** Phases run one at a time, in the order on record, and none runs after a failed one. */
  async #phase(
    name: string,
    kind: StoredPhase['kind'] | 'finish',
    run: (position: PhasePosition) => Promise<unknown>,
  ): Promise<unknown> {
    const position = this.#enter(name, kind)
    const result = run(position)
    const done = () => undefined
    this.#open = { name, ended: result.then(done, done) }
    try {
      return await result
    } catch (error) {
      this.#failed = { error }
      throw error
    } finally {
      this.#open = undefined
    }
  }

  #enter(name: string, kind: StoredPhase['kind'] | 'finish'): PhasePosition {
    if (this.#failed !== undefined) throw this.#failed.error
    this.#checkFree(name)
    const number = this.#names.add(name).size
    const stored = this.#stored?.phases.find((phase) => phase.number === number)
    if (stored === undefined || (stored.name === name && stored.kind === kind)) {
      return { name, number, stored }
    }
    throw this.#changed(
      `phase ${number} is now the ${kind} phase "${name}", and was the ${stored.kind} phase ` +
        `"${stored.name}" when the operation began`,
    )
  }

  #checkFree(name: string): void {
    const where = `operation "${this.#definition.name}"`
    const fault = (text: string) => new InvalidOptionsError(`${where}: ${text}`)
    const isName = typeof name === 'string' && name !== '' && name.length <= PHASE_NAME_LENGTH_MAX
    if (!isName || !name.isWellFormed() || name.includes('\0')) {
      throw fault(
        `a phase needs a name of 1 to ${PHASE_NAME_LENGTH_MAX} characters, got ${describe(name)}`,
      )
    }
    if (this.#open !== undefined) {
      throw fault(`phase "${name}" began while "${this.#open.name}" was running: await each phase`)
    }
    if (this.#finished !== undefined)
      throw fault(`phase "${name}" comes after finish(), which must be the last phase`)
    if (this.#names.has(name)) throw fault(`two phases have the name "${name}"`)
    if (this.#names.size >= PHASES_MAX) throw fault(`more than ${PHASES_MAX} phases`)
  }

  async #transaction({ name, number, stored }: PhasePosition, work: Work): Promise<unknown> {
    if (stored !== undefined) return this.#values.read(stored.result, resultOf(stored))
    let plain: Uint8Array | undefined
    const take = (value: unknown) => {
      plain = encodeValue(`the result of phase "${name}"`, value, VALUE_BYTES_MAX)
      return thenOrNow(this.#values.seal(plain, resultOf({ name, number })), (result) => {
        const phase = { kind: 'transaction', name, number, result } as const
        return { operation: this.#unrecorded, phase }
      })
    }
    const outcome = await this.#stepped(this.#attempt.advance((tx) => thenOrNow(work(tx), take)))
    this.#checkAdvanced(outcome)
    return decodeValue(plain)
  }

  async #external({ name, number, stored }: PhasePosition, request: unknown): Promise<unknown> {
    const effect = Object.hasOwn(this.#definition.effects, name)
      ? this.#definition.effects[name]
      : undefined
    if (effect === undefined) {
      throw new InvalidOptionsError(
        `operation "${this.#definition.name}" declares no effect "${name}"`,
      )
    }
    const phase = new ExternalPhase({
      operation: this.#definition.name,
      position: { name, number, stored },
      effect,
      attempt: this.#attempt,
      values: this.#values,
      record: (phase) =>
        this.#stepped(this.#attempt.record({ operation: this.#unrecorded, phase })),
      setDoubt: (end) => {
        this.#doubt = end
      },
    })
    return phase.run(request)
  }

  async #stepped(step: Promise<StepOutcome>): Promise<StepOutcome> {
    const outcome = await step
    if (outcome.kind !== 'fenced') this.#unrecorded = undefined
    return outcome
  }

  async #finish(work: ReplyWork): Promise<ReplyInit> {
    let reply: ReplyInit | undefined
    const outcome = await this.#attempt.advance((tx) =>
      thenOrNow(work(tx), (value) => {
        reply = value
        return thenOrNow(this.#encode(value), (result) => this.#completion(result))
      }),
    )
    this.#checkAdvanced(outcome)
    this.#finished = reply!
    this.#onReply?.(this.#reply!)
    return reply!
  }

  async #end(reply: ReplyInit): Promise<ReplyInit> {
    if (this.#failed !== undefined) throw this.#failed.error
    if (this.#open !== undefined) {
      throw new InvalidOptionsError(
        `operation "${this.#definition.name}" ended while phase "${this.#open.name}" was ` +
          'running: await every phase',
      )
    }
    if (this.#finished !== undefined) return this.#finished
    this.#checkAllReached()
    const result = await this.#encode(reply)
    this.#checkAdvanced(await this.#attempt.record(this.#completion(result)))
    this.#onReply?.(this.#reply!)
    return reply
  }

  #completion(result: Uint8Array) {
    this.#checkAllReached()
    const { retentionMs } = this.#attempt
    return { operation: this.#unrecorded, end: { kind: 'complete', result, retentionMs } } as const
  }

  /** Every phase on record must have been reached: the code has lost a phase otherwise. */
  #checkAllReached(): void {
    const left = this.#stored?.phases.find(({ name }) => !this.#names.has(name))
    if (left === undefined) return
    throw this.#changed(`phase "${left.name}" is on record, and the operation now ends without it`)
  }

  #encode(init: ReplyInit): Uint8Array | Promise<Uint8Array> {
    const { name, replyVersion } = this.#definition
    const reply = toReply(`the reply of operation "${name}"`, init)
    if (reply.body.byteLength > VALUE_BYTES_MAX) {
      throw new InvalidOptionsError(
        `the reply of operation "${name}" has ${reply.body.byteLength} bytes; at most ` +
          `${VALUE_BYTES_MAX} are allowed`,
      )
    }
    this.#reply = reply
    const stored = { ...reply, elided: false, schemaVersion: replyVersion }
    return storedForm(stored, this.#attempt.subject, this.#values.rule.encryption)
  }

  #checkAdvanced(outcome: StepOutcome): void {
    if (outcome.kind !== 'advanced') throw new LeaseLostError(this.#attempt.subject.recordId)
  }

  #changed(what: string): OperationChangedError {
    const { name, version } = this.#definition
    return new OperationChangedError(
      `operation "${name}" version ${version} has changed: ${what}. Give it a new ` +
        'version, and keep a worker with the old one until its operations have ended',
    )
  }

  #endFor(error: unknown): OperationEnd {
    const { attempt } = this.#attempt
    const isLast = attempt >= this.#definition.maxAttempts
    if (this.#doubt !== undefined) {
      // A finding of `not_executed` would send it again, although its attempts are used up.
      const isOpen = this.#doubt.errorCode === EFFECT_UNKNOWN
      return isOpen && isLast ? { ...this.#doubt, errorCode: ATTEMPTS_EXHAUSTED } : this.#doubt
    }
    // A transaction that the work ran by itself: its commit may or may not have happened.
    if (hasCode(error, 'OUTCOME_UNKNOWN')) {
      return { kind: 'doubt', reconcileAfterMs: 0, errorCode: undefined }
    }
    const isWorkError = !hasCode(error, 'OPERATION_CHANGED') && !hasCode(error, 'LEASE_LOST')
    if (isLast && isWorkError && this.#attempt.isBegun) {
      return { kind: 'doubt', reconcileAfterMs: 0, errorCode: ATTEMPTS_EXHAUSTED }
    }
    return { kind: 'release', resumeAfterMs: resumeAfterMs(attempt) }
  }
}

/** A phase of the run: its name, its number, and what is on record of it. */
export interface PhasePosition {
  readonly name: string
  readonly number: number
  readonly stored: StoredPhase | undefined
}

type Work = (tx: unknown) => unknown
type ReplyWork = (tx: unknown) => ReplyInit | Promise<ReplyInit>

/** Calls `then` without a delay if `value` is no promise: a SQLite transaction must not yield. */
function thenOrNow<Value, Result>(
  value: Value | PromiseLike<Value>,
  then: (value: Value) => Result | Promise<Result>,
): Result | Promise<Result> {
  if (!isThenable(value)) return then(value)
  return Promise.resolve(value).then(then)
}
