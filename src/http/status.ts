/**
 * What became of a request, asked for by the opaque id of its record and never by its key: the one
 * place where that is decided. Adapters only translate.
 */
import { answerWithin } from '../core/answer-within.ts'
import { isExpired } from '../core/decide.ts'
import { hasCode } from '../core/errors.ts'
import type { RecordView, Store } from '../core/store.ts'
import { retryAfterInProgress, retryAfterUnknown, unknownDetail } from './answers.ts'
import type { HttpReply } from './exchange.ts'
import { checkTenant } from './guard-options.ts'
import { readableBy } from './readable-reply.ts'
import { replayOf } from './replay.ts'
import {
  resolveStatusOptions,
  type ResolvedStatusOptions,
  type StatusOptions,
} from './status-options.ts'

/** A question, as far as every framework can tell it. */
export interface StatusQuestion {
  readonly method: string
  /** What the client can read of `Accept-Encoding`. */
  readonly accepted: string | undefined
}

export interface Status<Request> {
  /** Rejects only with what `tenant`, `recordId` or `upgradeReply` has thrown. */
  reply(request: Request, question: StatusQuestion): Promise<HttpReply>
}

/** `recordIdOf`: where the framework has the id, unless the options say otherwise. */
export function createStatus<Request>(
  options: StatusOptions<Request>,
  recordIdOf: (request: Request) => unknown,
): Status<Request> {
  return new RecordStatus(resolveStatusOptions(options, recordIdOf))
}

/** The last part of a path that says anything: `/operations/1/` has `1`. */
export function lastSegment(path: string): string | undefined {
  return path.split('/').findLast((part) => part !== '')
}

/** Every record id is a UUID in small letters. Anything else is not worth a question. */
const RECORD_ID = /^[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}$/

/** As long as an engine waits for its store unless it was told otherwise. */
const STORE_TIMEOUT_MS = 5_000

const RETRY_SOON_MS = 1_000

const GONE =
  'The request is over, and what became of it is no longer kept. Look up its result another way; ' +
  'use a new key only for a request that is really new.'

class RecordStatus<Request> implements Status<Request> {
  readonly #options: ResolvedStatusOptions<Request>

  constructor(options: ResolvedStatusOptions<Request>) {
    this.#options = options
  }

  async reply(request: Request, { method, accepted }: StatusQuestion): Promise<HttpReply> {
    if (method !== 'GET' && method !== 'HEAD') return NOT_ALLOWED
    const tenant = checkTenant(await this.#options.tenant(request))
    const recordId = this.#options.recordId(request)
    if (typeof recordId !== 'string' || !RECORD_ID.test(recordId)) return this.#notFound()
    try {
      const record = await this.#find(tenant, recordId)
      if (record === undefined) return this.#notFound()
      return await readableBy(accepted, await this.#tell(record))
    } catch (error) {
      // Never 404: a client could take that for "it was not executed".
      if (!hasCode(error, 'STORE_FAILED')) throw error
      const retryAfterSeconds = retryAfterInProgress(RETRY_SOON_MS)
      return this.#options.answers.problem('status_unavailable', { retryAfterSeconds })
    }
  }

  /**
   * The record, if it is the tenant's own. One of another tenant is looked for in the history like
   * one that is not there, so that not even the time it takes tells them apart.
   */
  async #find(tenant: string, recordId: string): Promise<RecordView | undefined> {
    const record = await this.#options.engine.read({ recordId })
    if (record?.tenant === tenant) return record
    const past = await this.#ask('history', async (store) => {
      return (await store.history?.({ ref: { recordId }, limit: 1 })) ?? []
    })
    const found = past.find((one) => one.tenant === tenant)
    return found && { ...found, state: 'expired' }
  }

  async #tell(record: RecordView): Promise<HttpReply> {
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
        // A worker goes on with it where it stopped.
        if (recoveryPoint !== undefined) {
          return this.#progress(record, 'pending', record.reconcileAt)
        }
        if (await this.#isGone(record)) return this.#gone()
        // Without Retry-After, as the only 409: who comes back for the same question gets the same
        // answer until somebody sends the request itself again.
        return this.#options.answers.problem('retry_required')
      case 'unknown':
        return this.#unknown(record)
      case 'expired':
        return this.#gone()
    }
  }

  /** How long to wait is a guess within narrow bounds, so the clock of this process is enough. */
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

  /** By the rule that claims go by, and by the store's own clock: it published the expiry. */
  async #isGone({ state, recoveryPoint, expiresAt }: RecordView): Promise<boolean> {
    const expiresAtMs = expiresAt.getTime()
    return isExpired({ state, recoveryPoint, expiresAtMs }, await this.#nowMs())
  }

  #nowMs(): Promise<number> {
    const { clock } = this.#options.engine
    return this.#ask('now', async (store, signal) => {
      return store.now === undefined ? clock.nowMs() : (await store.now(signal)).getTime()
    })
  }

  #gone(): HttpReply {
    return this.#options.answers.problem('key_expired', { detail: GONE })
  }

  #notFound(): HttpReply {
    return this.#options.answers.problem('record_not_found')
  }

  /** What the engine has no call for: given up in time, and its failure reported, all the same. */
  async #ask<Answer>(
    call: string,
    ask: (store: Store, signal: AbortSignal) => Promise<Answer>,
  ): Promise<Answer> {
    const { engine } = this.#options
    const { store, clock } = engine
    const details = { store: store.name, call, timeoutMs: STORE_TIMEOUT_MS }
    try {
      return await answerWithin(clock, details, (signal) => ask(store, signal))
    } catch (error) {
      engine.emit({ kind: 'store_error', store: store.name, call, error })
      throw error
    }
  }
}

const NO_BYTES = new Uint8Array(0)

const NOT_ALLOWED: HttpReply = {
  status: 405,
  headers: [
    ['Allow', 'GET, HEAD'],
    ['Cache-Control', 'no-store'],
  ],
  body: NO_BYTES,
}

/**
 * It was the reply to a POST, which no cache keeps unless told to. To a GET, one might keep it by
 * itself, and show it to another tenant.
 */
function uncached(reply: HttpReply): HttpReply {
  if (reply.headers.some(([name]) => name.toLowerCase() === 'cache-control')) return reply
  return { ...reply, headers: [...reply.headers, ['Cache-Control', 'no-store']] }
}
