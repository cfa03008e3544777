import { sleep } from '../core/clock.ts'
import type { HeldMessage, MessageSettlement } from '../core/durable-store.ts'
import { InvalidOptionsError, isRejected, LeaseLostError } from '../core/errors.ts'
import { downstreamKeyOf } from '../core/identity.ts'
import { describe } from '../core/options.ts'
import { warnOnce } from '../core/warn.ts'
import { backoffMs } from './backoff.ts'
import { checkMessageName, faultOf } from './message-checks.ts'
import type { OutboxPort } from './outbox-port.ts'
import type { RelayMessage } from './relay-contract.ts'
import type { ResolvedRelayOptions } from './relay-options.ts'
import { decodeValue } from './values.ts'

export interface RunParts {
  readonly options: ResolvedRelayOptions
  readonly port: OutboxPort
  /** Its handler has ended. */
  readonly onHandled: (run: MessageRun) => void
  /** Its handler runs on after its time, or after its lease. */
  readonly onLate: (run: MessageRun) => void
  /** Nothing more is to be recorded of it, although its handler may still run. */
  readonly onOver: (run: MessageRun, end: RunEnd) => void
}

export type RunEnd = 'relayed' | 'retried' | 'dead' | 'lost' | 'returned'

type Verdict =
  | { readonly kind: 'done'; readonly providerId: string | undefined }
  | { readonly kind: 'dead_letter'; readonly error: unknown }
  | { readonly kind: 'failed'; readonly error: unknown; readonly delayMsMin: number }

/** The store's word on a settlement: whether it took hold. `failed`: there was no answer. */
type Answer = boolean | { readonly failed: unknown }

/** A lease is renewed after this part of it, so that two renewals may fail before it is gone. */
const RENEWALS_PER_LEASE = 3
/** First pause after a failed settlement; doubles up to the longest. */
const PAUSE_MS_FIRST = 50
const PAUSE_MS_MAX = 1_000

/** One message under one lease: from being taken until its end is on record, or nobody's here. */
export class MessageRun {
  readonly message: Omit<HeldMessage, 'payload'>
  readonly #parts: RunParts
  /** Until its handler has ended: what is only being recorded should not take room. */
  #payload: Uint8Array | undefined
  /** By the monotonic clock, counted from before the claim or renewal was sent. */
  heldUntilMs: number
  renewAtMs: number
  timeoutAtMs = Number.POSITIVE_INFINITY
  /** What is to be recorded is decided. */
  isSettling = false
  /** Its handler runs although its time or its lease is over. */
  isLate = false
  #isHandling = false
  #end: RunEnd | undefined
  #abort: AbortController | undefined
  #abortReason: Error | undefined
  #providerId: string | undefined
  #noting: Promise<unknown> = Promise.resolve()

  constructor(parts: RunParts, { payload, ...message }: HeldMessage, claimSentMs: number) {
    this.#parts = parts
    this.message = message
    this.#payload = payload
    this.#providerId = message.providerId
    const { leaseMs } = parts.options
    this.heldUntilMs = claimSentMs + leaseMs
    this.renewAtMs = claimSentMs + leaseMs / RENEWALS_PER_LEASE
  }

  get isOver(): boolean {
    return this.#end !== undefined
  }

  /** Its handler is entered. Every way out of it is taken care of here. */
  start(): void {
    this.#isHandling = true
    this.timeoutAtMs = this.#nowMs() + this.#parts.options.handlerTimeoutMs
    // Never rejects: a handler that fails is an outcome.
    void this.#handle()
  }

  renewed(sentMs: number): void {
    const { leaseMs } = this.#parts.options
    this.heldUntilMs = sentMs + leaseMs
    this.renewAtMs = sentMs + leaseMs / RENEWALS_PER_LEASE
  }

  /** Somebody else may have it by now. */
  lose(): void {
    // Where its settlement is under way, the answer to that says more.
    if (this.isOver || this.isSettling) return
    this.#stop(new LeaseLostError(this.message.id))
    this.#finish('lost')
  }

  /** The relay is closed and waits no longer. */
  abandon(): void {
    this.#stop(new LeaseLostError(this.message.id))
    if (!this.isOver) this.#finish('lost')
  }

  /** Its handler has had its time: the attempt has failed, whatever the handler does now. */
  timeOut(): void {
    this.timeoutAtMs = Number.POSITIVE_INFINITY
    if (this.isOver || this.isSettling) return
    const { handlerTimeoutMs } = this.#parts.options
    const error = new Error(
      `the handler of "${this.message.topic}" took longer than ${handlerTimeoutMs} ms`,
    )
    this.#stop(error)
    void this.#settle({ kind: 'failed', error, delayMsMin: 0 })
  }

  /** Without its handler: this attempt counts as failed. */
  fail(error: Error, delayMsMin = 0): void {
    if (this.isOver) return
    void this.#settle({ kind: 'failed', error, delayMsMin })
  }

  /** Not begun, and not to be begun: somebody else may have it at once. */
  giveBack(): void {
    if (this.isOver) return
    void this.#record({ ...this.#lease(), kind: 'return' }, undefined)
  }

  #stop(reason: Error): void {
    this.#abortReason ??= reason
    this.#abort?.abort(this.#abortReason)
    if (!this.#isHandling || this.isLate) return
    this.isLate = true
    this.#parts.onLate(this)
  }

  /** Made only if somebody asks. */
  #signal(): AbortSignal {
    this.#abort ??= new AbortController()
    if (this.#abortReason !== undefined) this.#abort.abort(this.#abortReason)
    return this.#abort.signal
  }

  async #handle(): Promise<void> {
    const verdict = await this.#askHandler()
    this.#isHandling = false
    this.#payload = undefined
    this.#parts.onHandled(this)
    if (this.#end === 'lost') return this.#recordLate(verdict)
    // Where its time was over first, that is what is on record.
    if (!this.isSettling) await this.#settle(verdict)
  }

  async #askHandler(): Promise<Verdict> {
    const { topic } = this.message
    try {
      const handler = this.#parts.options.handlers.get(topic)
      if (handler === undefined) throw new InvalidOptionsError(`no handler for "${topic}"`)
      return judge(topic, await handler(this.#toRelayMessage()))
    } catch (error) {
      return { kind: 'failed', error, delayMsMin: 0 }
    }
  }

  #toRelayMessage(): RelayMessage {
    const { token: _, ...message } = this.message
    const { id } = message
    const signal = () => this.#signal()
    return {
      ...message,
      payload: decodeValue(this.#payload),
      get downstreamKey() {
        return downstreamKeyOf(id, 'message')
      },
      get signal() {
        return signal()
      },
      note: (providerId) => this.#note(providerId),
    }
  }

  #note(providerId: string): Promise<void> {
    const noted = this.#noting.then(() => this.#writeNote(providerId))
    // Whoever does not wait for it must not end the process by that: a lease that is lost and a
    // store that fails are reported in any case.
    this.#noting = noted.catch(() => undefined)
    return noted
  }

  async #writeNote(given: string): Promise<void> {
    const providerId = checkMessageName('the provider id of a message', given)
    if (this.isOver || this.isSettling) throw new LeaseLostError(this.message.id)
    const answer = await this.#bringIn({ ...this.#lease(), kind: 'note', providerId })
    if (typeof answer === 'object') throw answer.failed
    if (!answer) {
      this.lose()
      throw new LeaseLostError(this.message.id)
    }
    this.#providerId = providerId
  }

  async #settle(verdict: Verdict): Promise<void> {
    this.isSettling = true
    // A note that is under way comes first: one message has one write at a time.
    await this.#noting
    await this.#record(this.#toSettlement(verdict), verdict)
  }

  async #record(settlement: MessageSettlement, verdict: Verdict | undefined): Promise<void> {
    this.isSettling = true
    const answer = await this.#bringIn(settlement)
    if (this.isOver) return
    this.#finish(answer === true ? this.#report(settlement, verdict) : 'lost')
  }

  /** Its lease is over, but perhaps nobody has taken the message since: then this still counts. */
  async #recordLate(verdict: Verdict): Promise<void> {
    await this.#noting
    const settlement = this.#toSettlement(verdict)
    try {
      if (await this.#parts.port.settle(settlement)) this.#report(settlement, verdict)
    } catch {
      // Reported by the port; the message is already known to be lost, and comes again.
    }
  }

  #toSettlement(verdict: Verdict): MessageSettlement {
    const { attemptsMax, backoff, random, onDeadLetter } = this.#parts.options
    const { attempt } = this.message
    const lease = this.#lease()
    if (verdict.kind === 'done') {
      return { ...lease, kind: 'done', providerId: verdict.providerId ?? this.#providerId }
    }
    const error = toText(verdict.error)
    if (verdict.kind === 'dead_letter' || attempt >= attemptsMax) {
      return { ...lease, kind: 'dead', error, blocks: onDeadLetter === 'block' }
    }
    const delayMs = Math.max(backoffMs(backoff, attempt, random), verdict.delayMsMin)
    return { ...lease, kind: 'retry', error, delayMs }
  }

  /** Tries while the lease lives, and never longer than one lease lasts. */
  async #bringIn(settlement: MessageSettlement): Promise<Answer> {
    const { options, port } = this.#parts
    const { clock } = options.engine
    const deadlineMs = this.#nowMs() + options.leaseMs
    for (let pauseMs = PAUSE_MS_FIRST; ; pauseMs = Math.min(pauseMs * 2, PAUSE_MS_MAX)) {
      let failed: unknown
      try {
        return await port.settle(settlement)
      } catch (error) {
        // Reported by the port; a repeated settlement recognises itself.
        failed = error
      }
      const leftMs = Math.min(deadlineMs, this.heldUntilMs) - this.#nowMs()
      if (this.isOver || leftMs <= 0 || isRejected(failed)) return { failed }
      await sleep(clock, Math.min(pauseMs, leftMs))
    }
  }

  /** Says what is on record now. */
  #report({ kind }: MessageSettlement, verdict: Verdict | undefined): RunEnd {
    const { engine } = this.#parts.options
    const { id: messageId, topic, attempt } = this.message
    const error = verdict === undefined || verdict.kind === 'done' ? undefined : verdict.error
    switch (kind) {
      case 'done':
        engine.emit({ kind: 'message_relayed', topic, messageId })
        return 'relayed'
      case 'retry':
        engine.emit({ kind: 'message_retried', topic, messageId, attempt, error })
        return 'retried'
      case 'dead':
        engine.emit({ kind: 'message_dead', topic, messageId, error })
        return 'dead'
      case 'note':
      case 'return':
        return 'returned'
    }
  }

  #finish(end: RunEnd): void {
    const { id: messageId, topic } = this.message
    this.#end = end
    if (end === 'lost') this.#parts.options.engine.emit({ kind: 'message_lost', topic, messageId })
    this.#parts.onOver(this, end)
  }

  #lease() {
    const { id, token } = this.message
    return { id, token }
  }

  #nowMs(): number {
    return this.#parts.options.engine.clock.monotonicMs()
  }
}

/** What a handler has returned. Anything that is not ours to read means: it is done. */
function judge(topic: string, returned: unknown): Verdict {
  if (typeof returned !== 'object' || returned === null) {
    return { kind: 'done', providerId: undefined }
  }
  const { kind = 'done', providerId, error } = returned as Record<string, unknown>
  if (kind === 'dead_letter') return { kind, error }
  if (kind !== 'done') {
    // Read as "done", a misspelt `dead_letter` would be a message that nobody ever sees again.
    throw new InvalidOptionsError(
      `the handler of "${topic}" must return nothing, { providerId } or ` +
        `{ kind: 'dead_letter', error }, got the kind ${describe(kind)}`,
    )
  }
  const fault = providerId === undefined ? undefined : faultOf(providerId)
  if (fault === undefined) return { kind, providerId: providerId as string | undefined }
  // It was handed over: to try it again because of its name would be to hand it over twice.
  const about = `the handler of "${topic}" returned a providerId that`
  warnOnce(`${about} ${fault}; its messages are done without it`, about)
  return { kind, providerId: undefined }
}

function toText(error: unknown): string {
  if (!(error instanceof Error)) return typeof error === 'string' ? error : describe(error)
  // Whatever others have made of them: an error that cannot be told must not end the process.
  const { name, message } = error as { readonly name: unknown; readonly message: unknown }
  const [what, text] = [name, message].map((one) => (typeof one === 'string' ? one : describe(one)))
  return text === '' ? what! : `${what}: ${text}`
}
