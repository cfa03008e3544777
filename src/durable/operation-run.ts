import type { Attempt, OperationEnd } from '../core/attempt.ts'
import type { Encryption } from '../core/encryption.ts'
import type {
  NewOperation,
  StepOutcome,
  StoredOperation,
  StoredPhase,
} from '../core/durable-store.ts'
import {
  InvalidOptionsError,
  LeaseLostError,
  OperationChangedError,
  hasCode,
} from '../core/errors.ts'
import { deterministicIdOf } from '../core/identity.ts'
import { describe } from '../core/options.ts'
import type { HttpReply } from '../http/exchange.ts'
import { toReply, type GivenReply } from '../http/http-reply.ts'
import { storedForm } from '../http/reply-encryption.ts'
import { ATTEMPTS_EXHAUSTED, EFFECT_UNKNOWN } from './doubts.ts'
import { ExternalPhase } from './external-phase.ts'
import type { Effects, OperationContext } from './operation-contract.ts'
import { resumeAfterMs } from './resume-after.ts'
import { decodeValue, encodeValue, VALUE_BYTES_MAX } from './values.ts'

/** Told of the reply, as it was recorded, once it is. */
export type OnReply = (reply: HttpReply) => void

export interface RunDefinition {
  readonly name: string
  readonly version: number
  readonly effects: Effects
  readonly replyVersion: number
  readonly encryption: Encryption | undefined
  readonly attemptsMax: number
  readonly run: (op: OperationContext, input: unknown) => Promise<GivenReply> | GivenReply
}

const PHASE_NAME_LENGTH_MAX = 64
/** An operation is a handful of steps; a loop over rows belongs into one of them. */
const PHASES_MAX = 100

/** One attempt at an operation: what is on record is passed by, the rest is done and recorded. */
export class OperationRun {
  readonly #definition: RunDefinition
  readonly #attempt: Attempt
  readonly #stored: StoredOperation | undefined
  readonly #onReply: OnReply | undefined
  readonly #names = new Set<string>()
  /** Brought along by the first step; from then on it is on record. */
  #unrecorded: NewOperation | undefined
  /** The phase under way. `ended`: well or badly. */
  #open: { readonly name: string; readonly ended: Promise<void> } | undefined
  /** What it replies, as it is recorded. */
  #reply: HttpReply | undefined
  /** An error that came out of a phase, or ended the run: nothing may follow on it. */
  #failed: { readonly error: unknown } | undefined
  /** What the last phase has completed the key with. */
  #finished: GivenReply | undefined
  /** An outside effect was sent and nobody knows what became of it. */
  #doubt: Extract<OperationEnd, { kind: 'doubt' }> | undefined

  constructor(
    definition: RunDefinition,
    attempt: Attempt,
    stored?: StoredOperation,
    onReply?: OnReply,
  ) {
    this.#definition = definition
    this.#attempt = attempt
    this.#stored = stored
    this.#onReply = onReply
  }

  /** `input`: for an operation that may not be on record yet. */
  async run(input: Uint8Array | undefined): Promise<GivenReply> {
    try {
      const operation = this.#begin(input)
      if (this.#stored === undefined) this.#unrecorded = operation
      const value = decodeValue(operation.input)
      const reply = await this.#definition.run(this.#context(), value)
      return await this.#end(reply)
    } catch (error) {
      this.#failed ??= { error }
      // What it has left under way may be sending: its result must still be recorded.
      await this.#open?.ended
      this.#attempt.fail(this.#endFor(error))
      throw error
    }
  }

  /** `input`: absent where the operation is on record already. */
  async handOver(input: Uint8Array | undefined): Promise<void> {
    const { name, version } = this.#definition
    const { subject } = this.#attempt
    const operation = input && { name, version, input }
    // A client that asks again and again must not have a failing operation tried each time.
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
        `record ${this.#attempt.subject.recordId} has no operation to go on with`,
      )
    }
    if (stored.name === name && stored.version === version) return stored
    throw new OperationChangedError(
      `record ${this.#attempt.subject.recordId} began as "${stored.name}" version ` +
        `${stored.version} and cannot go on as "${name}" version ${version}: keep a worker with ` +
        'the old one until its operations have ended',
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
      deterministicId: (name) => deterministicIdOf(recordId, name),
      transaction: (name, work) =>
        this.#phase(name, 'transaction', (place) =>
          this.#transaction(place, work as Work),
        ) as never,
      external: (name, request) =>
        this.#phase(name, 'external', (place) => this.#external(place, request)),
      finish: (name, work) =>
        this.#phase(name, 'finish', () => this.#finish(work as ReplyWork)) as Promise<GivenReply>,
    }
  }

  /** One phase at a time, in the order that is on record, and none after one that failed. */
  async #phase(
    name: string,
    kind: StoredPhase['kind'] | 'finish',
    run: (place: Place) => Promise<unknown>,
  ): Promise<unknown> {
    const place = this.#enter(name, kind)
    const result = run(place)
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

  #enter(name: string, kind: StoredPhase['kind'] | 'finish'): Place {
    if (this.#failed !== undefined) throw this.#failed.error
    this.#checkFree(name)
    const number = this.#names.add(name).size
    const stored = this.#stored?.phases.find((phase) => phase.number === number)
    if (stored === undefined || (stored.name === name && stored.kind === kind)) {
      return { name, number, stored }
    }
    throw this.#changed(
      `phase ${number} is the ${kind} phase "${name}" now, and was the ${stored.kind} phase ` +
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
      throw fault(
        `phase "${name}" began while "${this.#open.name}" was under way: await each of them`,
      )
    }
    if (this.#finished !== undefined) throw fault(`phase "${name}" comes after the last one`)
    if (this.#names.has(name)) throw fault(`two phases are called "${name}"`)
    if (this.#names.size >= PHASES_MAX) throw fault(`more than ${PHASES_MAX} phases`)
  }

  async #transaction({ name, number, stored }: Place, work: Work): Promise<unknown> {
    if (stored !== undefined) return decodeValue(stored.result)
    let result: Uint8Array | undefined
    const take = (value: unknown) => {
      result = encodeValue(`the result of phase "${name}"`, value, VALUE_BYTES_MAX)
      const phase = { kind: 'transaction', name, number, result } as const
      return { operation: this.#unrecorded, phase }
    }
    const outcome = await this.#stepped(this.#attempt.advance((tx) => whenGiven(work(tx), take)))
    this.#checkAdvanced(outcome)
    return decodeValue(result)
  }

  async #external({ name, number, stored }: Place, request: unknown): Promise<unknown> {
    const effect = Object.hasOwn(this.#definition.effects, name)
      ? this.#definition.effects[name]
      : undefined
    if (effect === undefined) {
      throw new InvalidOptionsError(
        `operation "${this.#definition.name}" has declared no effect "${name}"`,
      )
    }
    const phase = new ExternalPhase({
      operation: this.#definition.name,
      place: { name, number, stored },
      effect,
      attempt: this.#attempt,
      record: (phase) =>
        this.#stepped(this.#attempt.record({ operation: this.#unrecorded, phase })),
      doubt: (end) => {
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

  async #finish(work: ReplyWork): Promise<GivenReply> {
    let reply: GivenReply | undefined
    const outcome = await this.#attempt.advance((tx) =>
      whenGiven(work(tx), (given) => {
        reply = given
        return whenGiven(this.#encode(given), (result) => this.#completion(result))
      }),
    )
    this.#checkAdvanced(outcome)
    this.#finished = reply!
    this.#onReply?.(this.#reply!)
    return reply!
  }

  async #end(reply: GivenReply): Promise<GivenReply> {
    if (this.#failed !== undefined) throw this.#failed.error
    if (this.#open !== undefined) {
      throw new InvalidOptionsError(
        `operation "${this.#definition.name}" ended while phase "${this.#open.name}" was under way`,
      )
    }
    if (this.#finished !== undefined) return this.#finished
    this.#checkAllPassed()
    const result = await this.#encode(reply)
    this.#checkAdvanced(await this.#attempt.record(this.#completion(result)))
    this.#onReply?.(this.#reply!)
    return reply
  }

  #completion(result: Uint8Array) {
    this.#checkAllPassed()
    const { retentionMs } = this.#attempt
    return { operation: this.#unrecorded, end: { kind: 'complete', result, retentionMs } } as const
  }

  /** What is on record must have been passed by: else the code of today does less than it did. */
  #checkAllPassed(): void {
    const left = this.#stored?.phases.find(({ name }) => !this.#names.has(name))
    if (left === undefined) return
    throw this.#changed(`it has done phase "${left.name}", and ends without it now`)
  }

  #encode(given: GivenReply): Uint8Array | Promise<Uint8Array> {
    const { name, replyVersion, encryption } = this.#definition
    const reply = toReply(`the reply of operation "${name}"`, given)
    if (reply.body.byteLength > VALUE_BYTES_MAX) {
      throw new InvalidOptionsError(
        `the reply of operation "${name}" has ${reply.body.byteLength} bytes; at most ` +
          `${VALUE_BYTES_MAX} are allowed`,
      )
    }
    this.#reply = reply
    const stored = { ...reply, elided: false, schemaVersion: replyVersion }
    return storedForm(stored, this.#attempt.subject, encryption)
  }

  #checkAdvanced(outcome: StepOutcome): void {
    if (outcome.kind !== 'advanced') throw new LeaseLostError(this.#attempt.subject.recordId)
  }

  #changed(what: string): OperationChangedError {
    const { name, version } = this.#definition
    return new OperationChangedError(
      `operation "${name}" version ${version} is not what it was: ${what}. Give it a new ` +
        'version, and keep a worker with the old one until its operations have ended',
    )
  }

  #endFor(error: unknown): OperationEnd {
    const { attempt } = this.#attempt
    const isLast = attempt >= this.#definition.attemptsMax
    if (this.#doubt !== undefined) {
      // Found to be undone, it would be sent again, and again after that.
      const isOpen = this.#doubt.errorCode === EFFECT_UNKNOWN
      return isOpen && isLast ? { ...this.#doubt, errorCode: ATTEMPTS_EXHAUSTED } : this.#doubt
    }
    // A transaction of the work's own making: nobody knows what is kept of it.
    if (hasCode(error, 'OUTCOME_UNKNOWN')) {
      return { kind: 'doubt', reconcileAfterMs: 0, errorCode: undefined }
    }
    const isOurs = hasCode(error, 'OPERATION_CHANGED') || hasCode(error, 'LEASE_LOST')
    if (isLast && !isOurs && this.#attempt.isBegun) {
      return { kind: 'doubt', reconcileAfterMs: 0, errorCode: ATTEMPTS_EXHAUSTED }
    }
    return { kind: 'release', resumeAfterMs: resumeAfterMs(attempt) }
  }
}

export interface Place {
  readonly name: string
  readonly number: number
  readonly stored: StoredPhase | undefined
}

type Work = (tx: unknown) => unknown
type ReplyWork = (tx: unknown) => GivenReply | Promise<GivenReply>

/** Synchronous work stays synchronous: on SQLite it must not let anybody in between. */
function whenGiven<Value, Result>(
  value: Value | PromiseLike<Value>,
  then: (value: Value) => Result | Promise<Result>,
): Result | Promise<Result> {
  if (!isThenable(value)) return then(value)
  return Promise.resolve(value).then(then)
}

/** Not `instanceof Promise`: query builders return promises of their own making. */
function isThenable<Value>(value: Value | PromiseLike<Value>): value is PromiseLike<Value> {
  return typeof (value as PromiseLike<Value> | undefined)?.then === 'function'
}
