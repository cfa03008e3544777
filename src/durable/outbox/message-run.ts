/**
 * Runs the handler of one message and settles the message.
 *
 * Tests: test/durable/outbox/relay.test.ts, relay-leases.test.ts.
 */
import { backoffMs, jittered, retry, type Backoff } from '../../core/time/retry.ts'
import type { HeldMessage, MessageSettlement } from '../../core/store/durable-store.ts'
import { InvalidOptionsError, isRejected, LeaseLostError } from '../../core/errors.ts'
import { downstreamKeyOf } from '../../core/record/identity.ts'
import { describe } from '../../core/options.ts'
import { NO_BYTES } from '../../core/bytes.ts'
import { isThenable } from '../../core/thenable.ts'
import { warnOnce } from '../../core/warn.ts'
import { checkMessageName, faultOf } from './message-checks.ts'
import type { OutboxPort } from './outbox-port.ts'
import type { RelayMessage } from './relay-contract.ts'
import type { ResolvedRelayOptions } from './relay-options.ts'
import { readPayload } from './sealed-payload.ts'

export interface RunParts {
  readonly options: ResolvedRelayOptions
  readonly port: OutboxPort
  /** The handler has ended. */
  readonly onHandled: (run: MessageRun) => void
  /** The handler still runs after its time limit, or after the lease was lost. */
  readonly onLate: (run: MessageRun) => void
  /** The message is settled or lost here. The handler may still run. */
  readonly onOver: (run: MessageRun, end: RunEnd) => void
}

export type RunEnd = 'relayed' | 'retried' | 'dead' | 'lost' | 'returned'

type Verdict =
  | { readonly kind: 'done'; readonly providerId: string | undefined }
  | { readonly kind: 'dead_letter'; readonly error: unknown }
  | { readonly kind: 'failed'; readonly error: unknown; readonly delayMsMin: number }

/** Whether the store accepted a settlement. `failed`: the store did not answer. */
type Answer = boolean | { readonly failed: unknown }

/** A lease is renewed after a third of it, so that two renewals may fail before it ends. */
const RENEWALS_PER_LEASE = 3
/** The pauses between failed settlements. */
const SETTLE_BACKOFF: Backoff = { firstMs: 50, maxMs: 1_000 }

/** One message under one lease: from its claim until it is settled, or lost to another relay. */
export class MessageRun {
  readonly message: Omit<HeldMessage, 'payload'>
  readonly #parts: RunParts
  /** Dropped when the handler has ended, to free memory while the end is recorded. */
  #payload: Uint8Array | undefined
  /** Monotonic time. Counted from before the claim or the renewal was sent. */
  heldUntilMs: number
  renewAtMs: number
  timeoutAtMs = Number.POSITIVE_INFINITY
  /** The settlement is decided. */
  isSettling = false
  /** The handler runs although its time limit or its lease is over. */
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

  /** Calls the handler, and settles the message when it ends. */
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

  /** The lease is over, so another relay may have the message. */
  lose(): void {
    // While a settlement is being sent, its answer decides.
    if (this.isOver || this.isSettling) return
    this.#stop(new LeaseLostError(this.message.id))
    this.#finish('lost')
  }

  /** The relay is closed and the grace time is over. */
  abandon(): void {
    this.#stop(new LeaseLostError(this.message.id))
    if (!this.isOver) this.#finish('lost')
  }

  /**
   * The time limit of the handler is over: the attempt has failed, even if the handler succeeds.
   */
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

  /** Fails the attempt without calling the handler. */
  fail(error: Error, delayMsMin = 0): void {
    if (this.isOver) return
    void this.#settle({ kind: 'failed', error, delayMsMin })
  }

  /** Returns a message that was not started, so that another relay can claim it at once. */
  returnToStore(): void {
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

  /** Created on first use: most handlers never read the signal. */
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
    // If the time limit came first, the failure is on record already.
    if (!this.isSettling) await this.#settle(verdict)
  }

  async #askHandler(): Promise<Verdict> {
    const { topic } = this.message
    try {
      const handler = this.#parts.options.handlers.get(topic)
      if (handler === undefined) throw new InvalidOptionsError(`no handler for "${topic}"`)
      const stored = this.#payload ?? NO_BYTES
      const read = readPayload(this.#parts.options.engine, this.message, stored)
      const payload = isThenable(read) ? await read : read
      // The lease or the time limit may have ended while the payload was decrypted.
      if (this.#abortReason !== undefined) throw this.#abortReason
      return judge(topic, await handler(this.#toRelayMessage(payload)))
    } catch (error) {
      return { kind: 'failed', error, delayMsMin: 0 }
    }
  }

  #toRelayMessage(payload: unknown): RelayMessage {
    const { token: _, ...message } = this.message
    const { id } = message
    const signal = () => this.#signal()
    return {
      ...message,
      payload,
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
    // A handler that does not await `note` must not cause an unhandled rejection. A lost lease and
    // a store failure are emitted in any case.
    this.#noting = noted.catch(() => undefined)
    return noted
  }

  async #writeNote(value: string): Promise<void> {
    const providerId = checkMessageName('the provider id of a message', value)
    if (this.isOver || this.isSettling) throw new LeaseLostError(this.message.id)
    const answer = await this.#sendSettlement({ ...this.#lease(), kind: 'note', providerId })
    if (typeof answer === 'object') throw answer.failed
    if (!answer) {
      this.lose()
      throw new LeaseLostError(this.message.id)
    }
    this.#providerId = providerId
  }

  async #settle(verdict: Verdict): Promise<void> {
    this.isSettling = true
    // A pending note is written first: one message has one write at a time.
    await this.#noting
    await this.#record(this.#toSettlement(verdict), verdict)
  }

  async #record(settlement: MessageSettlement, verdict: Verdict | undefined): Promise<void> {
    this.isSettling = true
    const answer = await this.#sendSettlement(settlement)
    if (this.isOver) return
    this.#finish(answer === true ? this.#report(settlement, verdict) : 'lost')
  }

  /**
   * The lease is over, but if no other relay has claimed the message, the store accepts the end.
   */
  async #recordLate(verdict: Verdict): Promise<void> {
    await this.#noting
    const settlement = this.#toSettlement(verdict)
    try {
      if (await this.#parts.port.settle(settlement)) this.#report(settlement, verdict)
    } catch {
      // The port has emitted the failure. The message counts as lost and is claimed again.
    }
  }

  #toSettlement(verdict: Verdict): MessageSettlement {
    const { maxAttempts, backoff, random, onDeadLetter } = this.#parts.options
    const { attempt } = this.message
    const lease = this.#lease()
    if (verdict.kind === 'done') {
      return { ...lease, kind: 'done', providerId: verdict.providerId ?? this.#providerId }
    }
    const error = toText(verdict.error)
    if (verdict.kind === 'dead_letter' || attempt >= maxAttempts) {
      return { ...lease, kind: 'dead', error, blocks: onDeadLetter === 'block' }
    }
    const pauseMs = Math.floor(jittered(backoffMs(backoff, attempt), 1, random))
    const delayMs = Math.max(pauseMs, verdict.delayMsMin)
    return { ...lease, kind: 'retry', error, delayMs }
  }

  /** Tries until the lease is over, and at most for the length of one lease. */
  async #sendSettlement(settlement: MessageSettlement): Promise<Answer> {
    const { options, port } = this.#parts
    const { clock } = options.engine
    const deadlineMs = this.#nowMs() + options.leaseMs
    const leftMs = () => this.heldUntilMs - this.#nowMs()
    try {
      return await retry(
        {
          clock,
          deadlineMs,
          pauseMs: (failures) => Math.min(backoffMs(SETTLE_BACKOFF, failures), leftMs()),
          // The port has emitted the failure. A repeated settlement is idempotent by its token.
          mayRetry: (error) => !this.isOver && leftMs() > 0 && !isRejected(error),
        },
        () => port.settle(settlement),
      )
    } catch (error) {
      return { failed: error }
    }
  }

  /** Emits the event for what is on record now. */
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

/** Reads the return value of a handler. A value that is no object means `done`. */
function judge(topic: string, returned: unknown): Verdict {
  if (typeof returned !== 'object' || returned === null) {
    return { kind: 'done', providerId: undefined }
  }
  const { kind = 'done', providerId, error } = returned as Record<string, unknown>
  if (kind === 'dead_letter') return { kind, error }
  if (kind !== 'done') {
    // If a misspelt `dead_letter` counted as done, the message would be lost.
    throw new InvalidOptionsError(
      `the handler of "${topic}" must return nothing, { providerId } or ` +
        `{ kind: 'dead_letter', error }, got the kind ${describe(kind)}`,
    )
  }
  const fault = providerId === undefined ? undefined : faultOf(providerId)
  if (fault === undefined) return { kind, providerId: providerId as string | undefined }
  // The message was delivered: an error because of its id would deliver it a second time.
  const about = `the handler of "${topic}" returned a providerId that`
  warnOnce(`${about} ${fault}; its messages are done without it`, about)
  return { kind, providerId: undefined }
}

function toText(error: unknown): string {
  if (!(error instanceof Error)) return typeof error === 'string' ? error : describe(error)
  // `name` and `message` can be of any type, and must not throw here.
  const { name, message } = error as { readonly name: unknown; readonly message: unknown }
  const [what, text] = [name, message].map((one) => (typeof one === 'string' ? one : describe(one)))
  return text === '' ? what! : `${what}: ${text}`
}
