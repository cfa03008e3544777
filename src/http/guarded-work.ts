/** A request and its handler, as the engine is given them. */
import type { RunRequest } from '../core/engine.ts'
import type { WorkEnd } from '../core/execution.ts'
import type { Scope } from '../core/identity.ts'
import type { Policy } from '../core/policy.ts'
import type { RunContext } from '../core/run-context.ts'
import { runWith } from './current.ts'
import type { HeldHandler, HttpReply, Produced } from './exchange.ts'
import type { Fingerprinter, FingerprintInput } from './fingerprint.ts'
import { GuardedContext, type Encode } from './handler-context.ts'
import { meaningOf, replyOf, standsForCommit, statusOf, type ReleaseOn } from './handler-reply.ts'
import type { GivenReply } from './http-reply.ts'

/** What handlers say of their own about a call whose answer was lost, or made no sense. */
const LOST_STATUS: ReadonlySet<number> = new Set([502, 504])

const NO_BODY = new Uint8Array(0)

export interface GuardedRunOptions {
  readonly policy: Policy
  readonly fingerprinter: Fingerprinter
  readonly storeFailure: 'closed' | 'open'
}

/** A request under its key. Classes, as all that lives as long as a request: `ExecutionRequest`. */
export class GuardedRun implements RunRequest {
  readonly scope: Scope
  readonly key: string
  readonly fingerprint: string
  readonly policy: Policy
  readonly ignoresBreaker: boolean
  readonly #fingerprinter: Fingerprinter
  readonly #input: FingerprintInput

  constructor(
    { scope, key, fingerprint }: Pick<RunRequest, 'scope' | 'key' | 'fingerprint'>,
    { policy, fingerprinter, storeFailure }: GuardedRunOptions,
    input: FingerprintInput,
  ) {
    this.scope = scope
    this.key = key
    this.fingerprint = fingerprint
    this.policy = policy
    this.ignoresBreaker = storeFailure === 'open'
    this.#fingerprinter = fingerprinter
    this.#input = input
  }

  recompute(stored: string): string | undefined {
    return this.#fingerprinter.recompute(stored, this.#input)
  }
}

/** What the work of a request asks of its guard. */
export interface Encoder {
  readonly replyBytesMax: number
  readonly releaseOn: ReleaseOn | undefined
  encodeAfterwards(produced: Produced, context: GuardedContext): Uint8Array | Promise<Uint8Array>
  encodeForCommit(
    produced: Produced | undefined,
    context: GuardedContext,
  ): Uint8Array | Promise<Uint8Array>
  encodeGiven(given: GivenReply, context: GuardedContext): Uint8Array | Promise<Uint8Array>
  encodeReturned(reply: HttpReply, context: GuardedContext): Uint8Array | Promise<Uint8Array>
}

/** The handler of a request as the work of an engine. */
export class GuardedWork implements Encode {
  /** Where the handler was entered. */
  context: GuardedContext | undefined
  /** Its reply, in the form in which it is recorded. */
  sent: Uint8Array | undefined
  /** The handler let an error of the store through: the guard answers, not the handler. */
  isStoreTrouble = false
  readonly #guard: Encoder
  readonly #handler: HeldHandler

  constructor(guard: Encoder, handler: HeldHandler) {
    this.#guard = guard
    this.#handler = handler
  }

  get releaseOn(): ReleaseOn | undefined {
    return this.#guard.releaseOn
  }

  produced(): Uint8Array | Promise<Uint8Array> {
    return this.#guard.encodeForCommit(this.#handler.produced(), this.context!)
  }

  given(reply: GivenReply): Uint8Array | Promise<Uint8Array> {
    return this.#guard.encodeGiven(reply, this.context!)
  }

  returned(reply: HttpReply): Uint8Array | Promise<Uint8Array> {
    return this.#guard.encodeReturned(reply, this.context!)
  }

  async run(run: RunContext): Promise<WorkEnd> {
    const handler = this.#handler
    const context = new GuardedContext(run, handler, this)
    this.context = context
    runWith(context, () => handler.enter(context, this.#guard.replyBytesMax))
    let produced: Produced
    try {
      produced = await replyOf(context, handler)
    } catch (error) {
      if (context.isStoreTrouble(error)) return this.#storeTrouble(error)
      throw error
    }
    const trouble = context.isRecorded ? undefined : context.storeTroubleBehind(produced)
    if (trouble !== undefined) return this.#storeTrouble(trouble)
    const ending = context.isRecorded ? NO_BODY : this.#endOf(produced, context)
    const end = ending instanceof Promise ? await ending : ending
    if (!(end instanceof Uint8Array)) return end
    this.sent = end
    return standsForCommit(handler.produced(), context) ? context.joined!.result : end
  }

  #storeTrouble(error: Error): WorkEnd {
    this.isStoreTrouble = true
    return { kind: 'fail', result: NO_BODY, error, unstorable: true }
  }

  /** What the reply means for the record. A promise only where something waits for one. */
  #endOf(produced: Produced, context: GuardedContext): WorkEnd | Promise<WorkEnd> {
    context.isRefused = this.#handler.isEntered?.() === false
    const meaning = meaningOf(produced, context)
    const { error } = context
    if (meaning === 'release') return { kind: 'release', result: NO_BODY, error }
    const result = this.#guard.encodeAfterwards(produced, context)
    return meaning === 'complete' ? result : this.#failedEnd(produced, context, result)
  }

  async #failedEnd(
    produced: Produced,
    context: GuardedContext,
    encoded: Uint8Array | Promise<Uint8Array>,
  ): Promise<WorkEnd> {
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
