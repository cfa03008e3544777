/**
 * Decides for all adapters how a status request is answered. It names the opaque id of a record,
 * never a key. Adapters only translate.
 */
import { NO_BYTES } from '../../core/bytes.ts'
import { callStore } from '../../core/store/store-call.ts'
import { isExpired } from '../../core/record/expiry.ts'
import { hasCode } from '../../core/errors.ts'
import type { RecordView, Store } from '../../core/store/store.ts'
import {
  retryAfterInProgress,
  retryAfterLimit,
  retryAfterUnknown,
  unknownDetail,
} from '../guard/answers.ts'
import type { HttpReply } from '../guard/exchange.ts'
import { checkPrincipal, checkTenant } from '../guard/resolve-guard-options.ts'
import { readableBy } from '../reply/readable-reply.ts'
import { replayOf } from '../reply/replay.ts'
import {
  resolveStatusOptions,
  type ResolvedStatusOptions,
  type StatusOptions,
} from './status-options.ts'

/** The parts of a status request that every framework has. */
export interface StatusQuestion {
  readonly method: string
  /** The header `Accept-Encoding`. */
  readonly accepted: string | undefined
}

export interface Status<Request> {
  /**
   * Rejects only with an error of `tenant`, `principal`, `caller`, `recordId` or `upgradeReply`.
   */
  reply(request: Request, question: StatusQuestion): Promise<HttpReply>
}

/** `recordIdOf` reads the id from the request, unless the options have `recordId`. */
export function createStatus<Request>(
  options: StatusOptions<Request>,
  recordIdOf: (request: Request) => unknown,
): Status<Request> {
  return new RecordStatus(resolveStatusOptions(options, recordIdOf))
}

/** Returns the last part of a path that is not empty: `1` for `/operations/1/`. */
export function lastSegment(path: string): string | undefined {
  return path.split('/').findLast((part) => part !== '')
}

/** Every record id is a UUID in lower case, so other ids need no store call. */
const RECORD_ID = /^[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}$/

/** The default `storeTimeoutMs` of an engine. */
const STORE_TIMEOUT_MS = 5_000

const RETRY_SOON_MS = 1_000

const GONE =
  'The request has ended, and its outcome is no longer kept. Look up its result another way; use ' +
  'a new key only for a request that is really new.'

class RecordStatus<Request> implements Status<Request> {
  readonly #options: ResolvedStatusOptions<Request>

  constructor(options: ResolvedStatusOptions<Request>) {
    this.#options = options
  }

  async reply(request: Request, { method, accepted }: StatusQuestion): Promise<HttpReply> {
    if (method !== 'GET' && method !== 'HEAD') return NOT_ALLOWED
    const tenant = checkTenant(await this.#options.tenant(request))
    const recordId = this.#options.recordId(request)
    const principal = checkPrincipal(await this.#options.principal?.(request))
    const limited = await this.#limited(request, tenant, principal)
    if (limited !== undefined) return limited
    if (typeof recordId !== 'string' || !RECORD_ID.test(recordId)) return this.#notFound()
    try {
      const record = await this.#find({ tenant, principal }, recordId)
      if (record === undefined) return this.#notFound()
      return await readableBy(accepted, await this.#answer(record))
    } catch (error) {
      // Never 404: a client could conclude that the request was not executed.
      if (!hasCode(error, 'STORE_FAILED')) throw error
      const retryAfterSeconds = retryAfterInProgress(RETRY_SOON_MS)
      return this.#options.answers.problem('status_unavailable', { retryAfterSeconds })
    }
  }

  /** Charges the look-up also for an id that does not exist: guessing ids must cost something. */
  async #limited(
    request: Request,
    tenant: string,
    principal: string | undefined,
  ): Promise<HttpReply | undefined> {
    const { limits, engine, answers } = this.#options
    const scope = { tenant, operation: STATUS_OPERATION }
    const exceeded = await limits?.chargeLookUp(request, scope, principal)
    if (exceeded === undefined) return undefined
    const { limit: reason, retryAfterMs, headers } = exceeded
    engine.emit({ kind: 'request_refused', ...scope, reason })
    const retryAfterSeconds = retryAfterLimit(retryAfterMs)
    return answers.problem('rate_limited', { retryAfterSeconds, headers })
  }

  /**
   * Returns the record if it belongs to the caller. For a record of another caller, the history is
   * searched as for an unknown id, so that not even the response time distinguishes the two.
   */
  async #find(caller: Caller, recordId: string): Promise<RecordView | undefined> {
    const record = await this.#options.engine.read({ recordId })
    if (record !== undefined && this.#isOf(caller, record)) return record
    const past = await this.#callStore('history', async (store) => {
      return (await store.history?.({ ref: { recordId }, limit: 1 })) ?? []
    })
    const found = past.find((one) => this.#isOf(caller, one))
    return found && { ...found, state: 'expired' }
  }

  #isOf({ tenant, principal }: Caller, record: RecordView): boolean {
    if (record.tenant !== tenant) return false
    if (this.#options.principal === undefined) return true
    return principal !== undefined && this.#options.engine.isOwnedBy(record, principal)
  }

  async #answer(record: RecordView): Promise<HttpReply> {
    const { state, expiresAt, recoveryPoint } = record
    switch (state) {
      case 'pending':
        return this.#progress(record, 'pending', record.reconcileAt)
      case 'in_progress':
        return this.#progress(record, 'in_progress', record.leaseUntil)
      case 'completed':
        if (await this.#isGone(record)) return this.#gone()
        return uncached(
          await replayOf({ result: record.result ?? NO_BYTES, expiresAt }, record, this.#options),
        )
      case 'failed_retryable':
        // A worker resumes it after its recovery point.
        if (recoveryPoint !== undefined) {
          return this.#progress(record, 'pending', record.reconcileAt)
        }
        if (await this.#isGone(record)) return this.#gone()
        // The only 409 without Retry-After: the answer stays the same until a client sends the
        // request itself again.
        return this.#options.answers.problem('retry_required')
      case 'unknown':
        return this.#unknown(record)
      case 'expired':
        return this.#gone()
    }
  }

  /** The wait is an estimate within narrow limits, so the clock of this process is enough. */
  #progress(
    { recordId, createdAt }: RecordView,
    status: 'pending' | 'in_progress',
    due: Date | undefined,
  ): HttpReply {
    const { answers, engine, statusUrl } = this.#options
    const leftMs = due === undefined ? RETRY_SOON_MS : due.getTime() - engine.clock.nowMs()
    const retryAfterSeconds = retryAfterInProgress(leftMs)
    const location = statusUrl?.(recordId)
    return answers.progress({ status, recordId, createdAt, retryAfterSeconds, location })
  }

  async #unknown({ reconcileAt }: RecordView): Promise<HttpReply> {
    const leftMs = reconcileAt === undefined ? 0 : reconcileAt.getTime() - (await this.#nowMs())
    const retryAfterSeconds = retryAfterUnknown(leftMs)
    const { answers, engine } = this.#options
    return answers.problem('outcome_unknown', { retryAfterSeconds, detail: unknownDetail(engine) })
  }

  /** Applies the rule of claims, by the clock of the store, which has published the expiry. */
  async #isGone({ state, recoveryPoint, expiresAt }: RecordView): Promise<boolean> {
    const expiresAtMs = expiresAt.getTime()
    return isExpired({ state, recoveryPoint, expiresAtMs }, await this.#nowMs())
  }

  #nowMs(): Promise<number> {
    const { clock } = this.#options.engine
    return this.#callStore('now', async (store, signal) => {
      return store.now === undefined ? clock.nowMs() : (await store.now(signal)).getTime()
    })
  }

  #gone(): HttpReply {
    return this.#options.answers.problem('key_expired', { detail: GONE })
  }

  #notFound(): HttpReply {
    return this.#options.answers.problem('record_not_found')
  }

  /** Makes a store call that the engine does not offer, with the same timeout and failure event. */
  async #callStore<Answer>(
    call: string,
    run: (store: Store, signal: AbortSignal) => Promise<Answer>,
  ): Promise<Answer> {
    const { engine } = this.#options
    const { store, clock } = engine
    const details = { store: store.name, call, timeoutMs: STORE_TIMEOUT_MS }
    try {
      return await callStore(clock, details, (signal) => run(store, signal))
    } catch (error) {
      engine.emit({ kind: 'store_error', store: store.name, call, error })
      throw error
    }
  }
}

interface Caller {
  readonly tenant: string
  readonly principal: string | undefined
}

/** The operation of events about the status handler, which asks about any operation. */
const STATUS_OPERATION = 'status'

const NOT_ALLOWED: HttpReply = {
  status: 405,
  headers: [
    ['Allow', 'GET, HEAD'],
    ['Cache-Control', 'no-store'],
  ],
  body: NO_BYTES,
}

/**
 * Prevents caching. The reply was made for a POST, which caches do not store by default. They may
 * store the answer to a GET, and send it to another tenant.
 */
function uncached(reply: HttpReply): HttpReply {
  if (reply.headers.some(([name]) => name.toLowerCase() === 'cache-control')) return reply
  return { ...reply, headers: [...reply.headers, ['Cache-Control', 'no-store']] }
}
