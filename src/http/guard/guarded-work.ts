/** A request and its handler, in the form that the engine runs. */
import { NO_BYTES } from '../../core/bytes.ts'
import type { RunRequest } from '../../core/engine/engine-contract.ts'
import type { WorkResult, RunContext } from '../../core/attempt/run-context.ts'
import type { Scope } from '../../core/record/identity.ts'
import type { Policy } from '../../core/engine/policy.ts'
import { runWith } from './current.ts'
import type { Exceeded } from '../limits/limits.ts'
import type { CapturedHandler, Produced } from './exchange.ts'
import type { Fingerprinter, FingerprintInput } from '../fingerprint/fingerprint.ts'
import { GuardedContext } from './handler-context.ts'
import { meaningOf, replyOf, standsForCommit, statusOf } from './handler-reply.ts'
import type { ReplyEncoder } from './reply-encoder.ts'

/** Statuses by which handlers report that the answer of a call was lost or invalid. */
const LOST_STATUS: ReadonlySet<number> = new Set([502, 504])

export interface GuardedRunOptions {
  readonly policy: Policy
  readonly fingerprinter: Fingerprinter
  readonly onStoreFailure: 'closed' | 'open'
}

/**
 * `too_old`: the request was first sent too long ago. `unprepared`: its reply could perhaps not be
 * encrypted. `limited`: a limit of the guard is exceeded.
 */
export type Refusal =
  | { readonly kind: 'too_old' }
  | { readonly kind: 'unprepared' }
  | { readonly kind: 'limited'; readonly exceeded: Exceeded }

/** A request with its key. Why it is a class: see `ExecutionRequest`. */
export class GuardedRun implements RunRequest {
  readonly scope: Scope
  readonly key: string
  readonly fingerprint: string
  readonly policy: Policy
  readonly ignoresBreaker: boolean
  /** The guard has prepared it, or `refusal` says that it could not. */
  readonly encryption = false
  /** Why the handler must not run: the key is only looked up, and a free one gets this answer. */
  refusal: Refusal | undefined
  readonly #fingerprinter: Fingerprinter
  readonly #input: FingerprintInput

  constructor(
    { scope, key, fingerprint }: Pick<RunRequest, 'scope' | 'key' | 'fingerprint'>,
    { policy, fingerprinter, onStoreFailure }: GuardedRunOptions,
    input: FingerprintInput,
  ) {
    this.scope = scope
    this.key = key
    this.fingerprint = fingerprint
    this.policy = policy
    this.ignoresBreaker = onStoreFailure === 'open'
    this.#fingerprinter = fingerprinter
    this.#input = input
  }

  get findOnly(): boolean {
    return this.refusal !== undefined
  }

  /** The user within the tenant, if the route has `principal`. */
  get principal(): string | undefined {
    return this.#input.principal
  }

  recompute(stored: string): string | undefined {
    return this.#fingerprinter.recompute(stored, this.#input)
  }
}

/** The handler of a request as the work of an engine. */
export class GuardedWork {
  /** Set when the handler is entered. */
  context: GuardedContext | undefined
  /** The reply of the handler, in the form in which it is recorded. */
  sent: Uint8Array | undefined
  /** The handler did not catch an error of the store, so the guard answers. */
  isStoreFailure = false
  readonly #encoder: ReplyEncoder
  readonly #handler: CapturedHandler

  constructor(encoder: ReplyEncoder, handler: CapturedHandler) {
    this.#encoder = encoder
    this.#handler = handler
  }

  async run(run: RunContext): Promise<WorkResult> {
    const handler = this.#handler
    const context = new GuardedContext(run, handler, this.#encoder)
    this.context = context
    runWith(context, () => handler.enter(context, this.#encoder.replyBytesMax))
    let produced: Produced
    try {
      produced = await replyOf(context, handler)
    } catch (error) {
      if (context.isStoreError(error)) return this.#storeFailure(error)
      throw error
    }
    const storeError = context.isRecorded ? undefined : context.storeErrorBehind(produced)
    if (storeError !== undefined) return this.#storeFailure(storeError)
    const ending = context.isRecorded ? NO_BYTES : this.#endOf(produced, context)
    const end = ending instanceof Promise ? await ending : ending
    if (!(end instanceof Uint8Array)) return end
    this.sent = end
    return standsForCommit(handler.produced(), context) ? context.joined!.result : end
  }

  #storeFailure(error: Error): WorkResult {
    this.isStoreFailure = true
    return { kind: 'fail', result: NO_BYTES, error, unstorable: true }
  }

  /** How the work ended, according to its reply. A promise only if a step needs one. */
  #endOf(produced: Produced, context: GuardedContext): WorkResult | Promise<WorkResult> {
    context.isRefused = this.#handler.isEntered?.() === false
    const meaning = meaningOf(produced, context)
    const { error } = context
    if (meaning === 'release') return { kind: 'release', result: NO_BYTES, error }
    const result = this.#encoder.afterWork(produced, context)
    return meaning === 'complete' ? result : this.#failedEnd(produced, context, result)
  }

  async #failedEnd(
    produced: Produced,
    context: GuardedContext,
    encoded: Uint8Array | Promise<Uint8Array>,
  ): Promise<WorkResult> {
    const { error } = context
    const result = await encoded
    context.confirmNotExecuted()
    if (error !== undefined) return { kind: 'fail', result, error }
    if (context.rolledBackReply !== undefined) {
      return { kind: 'fail', result, error: context.rolledBackReply }
    }
    const blind = LOST_STATUS.has(statusOf(produced)) || !this.#handler.seesErrors()
    return { kind: 'fail', result, error, blind }
  }
}
