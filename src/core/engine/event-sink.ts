import { MINUTE_MS } from '../time/durations.ts'
import type { Clock } from '../time/clock.ts'
import { hasCode } from '../errors.ts'
import type { EngineEvent, EventListener } from '../events.ts'
import { describe } from '../options.ts'
import { printable } from '../printable.ts'
import { warn, warnOnce } from '../warn.ts'

/** Passes events to the listener. Without one, prints those that an operator must see. */
export function eventSink(
  onEvent: EventListener | undefined,
  unheard: UnheardEvents,
): EventListener {
  if (onEvent === undefined) return (event) => unheard.warnAbout(event)
  return (event) => {
    // A bug in a listener must not change the outcome of a payment.
    try {
      // An `async` listener has this type, too, and its rejection would end the process.
      const returned: unknown = onEvent(event)
      if (returned instanceof Promise)
        returned.catch((error: unknown) => warnAboutError(event, error))
    } catch (error) {
      warnAboutError(event, error)
    }
  }
}

function warnAboutError({ kind }: EngineEvent, error: unknown): void {
  const why = error instanceof Error ? error.message : describe(error)
  warnOnce(`onEvent threw on "${kind}": ${why}`, `onEvent threw on "${kind}"`)
}

export interface UnheardEventsOptions {
  readonly clock: Clock
  /** When the store answered last; `undefined` if it never has. */
  readonly answeredAt: () => Date | undefined
  /** Whether the engine has a reconciler for unknown records. */
  readonly isReconciled: () => boolean
}

/** One warning for each cause in this time; the others are counted. */
const EVERY_MS = MINUTE_MS
/** Causes that are distinguished. All further causes share one warning. */
const CAUSES_MAX = 20
const OTHER_CAUSES = 'others'
/** Failures without advice are distinguished by the first characters of their message. */
const CAUSE_LENGTH = 80

/**
 * The events of an engine without a listener. Prints those that an operator must see as warnings: a
 * store or an encryption that fails, records that become `unknown`, replies and values that cannot
 * be read, effects without their key, work that is paused, and requests that reach a closed engine.
 */
export class UnheardEvents {
  readonly #options: UnheardEventsOptions
  readonly #printed = new Map<string, { atMs: number; suppressed: number }>()

  constructor(options: UnheardEventsOptions) {
    this.#options = options
  }

  warnAbout(event: EngineEvent): void {
    switch (event.kind) {
      case 'store_error':
        return this.#print(causeOf(event.error), () => this.#storeFailed(event.error))
      case 'reconcile_scheduled':
        return this.#print('unknown', () => this.#becameUnknown(event))
      case 'reply_unreadable':
        return this.#print('unreadable', () => unreadable(event))
      case 'value_unreadable':
        return this.#print('value unreadable', () => valueUnreadable(event))
      case 'encryption_failed':
        return this.#print('encryption', () => notPrepared(event))
      case 'work_paused':
        return this.#print(`paused ${event.part} ${event.name}`, () => paused(event))
      case 'effect_without_key':
        return this.#print(`key ${event.name} ${event.phase}`, () => withoutKey(event))
      case 'claim_refused':
        // An open breaker follows store errors, which were printed.
        if (event.reason === 'engine_closed') this.#print('closed', () => CLOSED)
        return
      default:
    }
  }

  #storeFailed(error: unknown): string {
    return `${this.#storeState(error)}: ${printable(error)}`
  }

  #storeState(error: unknown): string {
    const failure = hasCode(error, 'STORE_FAILED') && 'failure' in error ? error.failure : undefined
    if (failure === 'rejected')
      return 'The store rejected the data of a request, and the request got 503'
    if (failure === 'overloaded') return 'Too many requests wait for the store, and some get 503'
    const answeredAt = this.#options.answeredAt()
    return answeredAt === undefined
      ? 'The store has never answered this process, and every protected request gets 503'
      : `The store fails; its last answer was at ${answeredAt.toISOString()}`
  }

  #becameUnknown(event: Extract<EngineEvent, { kind: 'reconcile_scheduled' }>): string {
    const { recordId, operation, errorCode = 'no reason given' } = event
    const next = this.#options.isReconciled()
      ? 'The reconciler will ask for the outcome.'
      : 'This engine has no reconciler: find out whether the work was done, and give the verdict ' +
        'with engine.resolve() (see docs/guides/unknown-outcomes.md).'
    return printable(
      `Record ${recordId} of "${operation}" became unknown (${errorCode}): its work may have ` +
        `taken effect, and its retries get 409 until a verdict. ${next}`,
    )
  }

  #print(cause: string, message: () => string): void {
    const isDistinct = this.#printed.has(cause) || this.#printed.size < CAUSES_MAX
    const key = isDistinct ? cause : OTHER_CAUSES
    const nowMs = this.#options.clock.monotonicMs()
    const last = this.#printed.get(key)
    if (last !== undefined && nowMs - last.atMs < EVERY_MS) {
      last.suppressed++
      return
    }
    const suppressed = last?.suppressed ?? 0
    this.#printed.set(key, { atMs: nowMs, suppressed: 0 })
    const more = suppressed === 0 ? '' : ` (${suppressed} more of these since the last warning)`
    warn(`${message()}${more}`)
  }
}

const CLOSED =
  'A request reached an engine after engine.close(), and got 503. Close the HTTP server first, ' +
  'and the engine after the last request was answered.'

function withoutKey(event: Extract<EngineEvent, { kind: 'effect_without_key' }>): string {
  const { name, phase } = event
  return printable(
    `Effect "${phase}" of operation "${name}" sent its request without the downstreamKey, so a ` +
      'repeat may take effect twice: send the key with the request, for example with ' +
      'keyedFetch(call), or declare keyless: true.',
  )
}

function paused(event: Extract<EngineEvent, { kind: 'work_paused' }>): string {
  const { part, name, overdue } = event
  const what = part === 'relay' ? `Topic "${name}"` : `Operation "${name}"`
  return printable(
    `${what} is paused in this process, because its calls get no answer in time; ${overdue} of ` +
      'them still run. Check its provider or receiver, and end your code when its signal aborts.',
  )
}

function unreadable(event: Extract<EngineEvent, { kind: 'reply_unreadable' }>): string {
  const { recordId, operation, reason } = event
  return printable(
    `The reply of record ${recordId} of "${operation}" cannot be read (${reason}). Its work was ` +
      'done, so retries get 409 and do not run it again (see docs/reference/problems.md).',
  )
}

function valueUnreadable(event: Extract<EngineEvent, { kind: 'value_unreadable' }>): string {
  const { recordId, operation, purpose, phase, reason } = event
  const of = phase === undefined ? '' : ` of phase "${phase}"`
  return printable(
    `The ${purpose}${of} of record ${recordId} of "${operation}" cannot be read (${reason}). ` +
      'Nothing runs again because of that: its operation is tried again later, and waits for an ' +
      'operator after its last attempt.',
  )
}

function notPrepared({
  operation,
  error,
}: Extract<EngineEvent, { kind: 'encryption_failed' }>): string {
  return printable(
    `The encryption for "${operation}" cannot be prepared, so new keys get 503, and operations ` +
      `that are due wait: ${printable(error)}`,
  )
}

function causeOf(error: unknown): string {
  const advice = hasCode(error, 'STORE_FAILED') && 'advice' in error ? error.advice : undefined
  return typeof advice === 'string' ? advice : printable(error).slice(0, CAUSE_LENGTH)
}
