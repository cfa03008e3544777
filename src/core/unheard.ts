import type { Clock } from './clock.ts'
import { hasCode } from './errors.ts'
import type { EngineEvent } from './events.ts'
import { printable } from './printable.ts'
import { warn } from './warn.ts'

export interface UnheardOptions {
  readonly clock: Clock
  /** When the store answered last; `undefined`: it never has. */
  readonly answeredAt: () => Date | undefined
  /** Whether a reconciler looks into unknown records. */
  readonly isReconciled: () => boolean
}

/** One warning about a thing in this time; the others are counted. */
const EVERY_MS = 60_000
/** Things that are told apart. What comes beyond shares one warning. */
const THINGS_MAX = 20
const OTHERS = 'others'
/** What tells two failures apart, where the store has no advice on them. */
const ABOUT_LENGTH = 80

/**
 * Prints as warnings what an engine without a listener must not keep to itself: a store that
 * fails, records that become `unknown`, replies that cannot be read, work that is paused, and
 * requests that reach a closed engine.
 */
export class Unheard {
  readonly #options: UnheardOptions
  readonly #printed = new Map<string, { atMs: number; heldBack: number }>()

  constructor(options: UnheardOptions) {
    this.#options = options
  }

  hear(event: EngineEvent): void {
    switch (event.kind) {
      case 'store_error':
        return this.#print(aboutFailure(event.error), () => this.#storeFailed(event.error))
      case 'reconcile_scheduled':
        return this.#print('unknown', () => this.#becameUnknown(event))
      case 'reply_unreadable':
        return this.#print('unreadable', () => unreadable(event))
      case 'work_paused':
        return this.#print(`paused ${event.part} ${event.name}`, () => paused(event))
      case 'claim_refused':
        // An open breaker follows on store errors, which were printed.
        if (event.reason === 'engine_closed') this.#print('closed', () => CLOSED)
        return
      default:
    }
  }

  #storeFailed(error: unknown): string {
    return `${this.#standing(error)}: ${printable(error)}`
  }

  #standing(error: unknown): string {
    const failure = hasCode(error, 'STORE_FAILED') && 'failure' in error ? error.failure : undefined
    if (failure === 'rejected')
      return 'The store rejects what it was given, and the request got 503'
    if (failure === 'overloaded') return 'More requests wait than the store can take: some get 503'
    const answeredAt = this.#options.answeredAt()
    return answeredAt === undefined
      ? 'The store has never answered this process, and every protected request gets 503'
      : `The store fails; it answered last at ${answeredAt.toISOString()}`
  }

  #becameUnknown(event: Extract<EngineEvent, { kind: 'reconcile_scheduled' }>): string {
    const { recordId, operation, errorCode = 'no reason given' } = event
    const next = this.#options.isReconciled()
      ? 'The reconciler looks into it.'
      : 'No reconciler was made for this engine, so find out whether the work was done, and say ' +
        'so with engine.resolve() (see docs/guides/unknown-outcomes.md).'
    return printable(
      `Record ${recordId} of "${operation}" became unknown (${errorCode}): its work may have ` +
        `taken effect, and its retries get 409 until there is a verdict. ${next}`,
    )
  }

  #print(about: string, say: () => string): void {
    const isKnown = this.#printed.has(about) || this.#printed.size < THINGS_MAX
    const thing = isKnown ? about : OTHERS
    const nowMs = this.#options.clock.monotonicMs()
    const last = this.#printed.get(thing)
    if (last !== undefined && nowMs - last.atMs < EVERY_MS) {
      last.heldBack++
      return
    }
    const heldBack = last?.heldBack ?? 0
    this.#printed.set(thing, { atMs: nowMs, heldBack: 0 })
    const more = heldBack === 0 ? '' : ` (${heldBack} more of these since the last warning)`
    warn(`${say()}${more}`)
  }
}

const CLOSED =
  'A request reached an engine after engine.close(), and got 503. Close the HTTP server first, ' +
  'and the engine when the last request is answered.'

function paused(event: Extract<EngineEvent, { kind: 'work_paused' }>): string {
  const { part, name, overdue } = event
  const what = part === 'relay' ? `Topic "${name}"` : `Operation "${name}"`
  return printable(
    `${what} is paused in this process, because its calls get no answer in time; ${overdue} of ` +
      'them run on. Look at its provider or receiver, and end your code when its signal aborts.',
  )
}

function unreadable(event: Extract<EngineEvent, { kind: 'reply_unreadable' }>): string {
  const { recordId, operation, reason } = event
  return printable(
    `The reply of record ${recordId} of "${operation}" cannot be read (${reason}). Its work was ` +
      'done, so its retries get 409 and do not run it again (see docs/reference/problems.md).',
  )
}

function aboutFailure(error: unknown): string {
  const advice = hasCode(error, 'STORE_FAILED') && 'advice' in error ? error.advice : undefined
  return typeof advice === 'string' ? advice : printable(error).slice(0, ABOUT_LENGTH)
}
