import type { IncomingMessage, ServerResponse } from 'node:http'
import { setTimeout as sleep } from 'node:timers/promises'
import type { EffectKind, FaultsReport, ProviderEffect, ProviderError } from './contract.ts'
import { checkFaults, type FaultPlan, type RequestFaults, type RequestFault } from './faults.ts'
import { isSameRequest, type KeyedRequest, type Ledger, type KeyState } from './ledger.ts'
import { BODY_BYTES_MAX, checkRequest, readBody, type ReadBody } from './request-input.ts'

export interface ApiOptions {
  readonly ledger: Ledger
  readonly faultPlan: FaultPlan
  /** Schedules the effect for later. Returns false if there are too many already. */
  readonly postpone: (request: KeyedRequest, afterMs: number) => boolean
  /** Called when an effect was committed. */
  readonly onEffect: () => void
  readonly health: () => object
  readonly onError: (error: unknown) => void
  /** Aborts when the provider stops: delayed requests then continue at once. */
  readonly closing: AbortSignal
}

export interface Api {
  answer(req: IncomingMessage, res: ServerResponse): Promise<void>
}

const KIND_OF_PATH: Readonly<Record<string, EffectKind>> = {
  '/charges': 'charge',
  '/holds': 'hold',
  '/captures': 'capture',
  '/refunds': 'refund',
  '/payouts': 'payout',
}

const PAGE_MAX = 1_000
const PAGE_DEFAULT = 100
/** Lets a client that still sends a refused body read the answer. */
const LINGER_MS = 1_000

/** The HTTP API of the provider: see `contract.ts`. */
export function createApi(options: ApiOptions): Api {
  return new ProviderApi(options)
}

class ProviderApi implements Api {
  readonly #options: ApiOptions
  /** Requests in progress, by key. Postponed ones are in the ledger. */
  readonly #working = new Map<string, KeyedRequest>()

  constructor(options: ApiOptions) {
    this.#options = options
  }

  async answer(req: IncomingMessage, res: ServerResponse): Promise<void> {
    try {
      await this.#route(req, res)
    } catch (error) {
      this.#options.onError(error)
      sendError(res, 500, 'internal_error', 'The outcome is not known. Query by key.')
    }
  }

  async #route(req: IncomingMessage, res: ServerResponse): Promise<void> {
    const url = URL.parse(req.url ?? '/', 'http://provider')
    if (url === null) return sendError(res, 400, 'invalid_request', 'This is not a path.')
    const kind = Object.hasOwn(KIND_OF_PATH, url.pathname) ? KIND_OF_PATH[url.pathname] : undefined
    if (kind !== undefined) {
      return req.method === 'POST' ? this.#make(kind, req, res) : refuseMethod(res, 'POST')
    }
    if (url.pathname === '/faults' && req.method === 'PUT') return this.#setFaults(req, res)
    if (!/^\/(effects(\/[^/]+)?|ledger|faults|healthz)$/.test(url.pathname)) {
      return sendError(res, 404, 'not_found', `Not found: ${url.pathname}.`)
    }
    if (req.method !== 'GET') {
      return refuseMethod(res, url.pathname === '/faults' ? 'GET, PUT' : 'GET')
    }
    this.#show(url, res)
  }

  #show({ pathname, searchParams }: URL, res: ServerResponse): void {
    if (pathname === '/healthz') return send(res, 200, this.#options.health())
    if (pathname === '/faults') return this.#showFaults(res)
    if (pathname === '/ledger') return this.#showLedger(searchParams, res)
    if (this.#options.faultPlan.isQueryRefused()) {
      this.#options.faultPlan.note('refuseQuery')
      return refuse(res)
    }
    const id = pathname.split('/')[2]
    const key = searchParams.get('key')
    if (id !== undefined) return sendEffect(res, this.#options.ledger.findById(id))
    if (key !== null) return sendEffect(res, this.#options.ledger.findByKey(key))
    sendError(res, 400, 'invalid_request', 'Use /effects/:id or /effects?key=…')
  }

  #showLedger(params: URLSearchParams, res: ServerResponse): void {
    const after = toNumber(params.get('after'), 0)
    const limit = toNumber(params.get('limit'), PAGE_DEFAULT)
    if (after === undefined || limit === undefined || limit < 1 || limit > PAGE_MAX) {
      const message = `after must be a sequence, and limit a number from 1 to ${PAGE_MAX}.`
      return sendError(res, 400, 'invalid_request', message)
    }
    send(res, 200, this.#options.ledger.list({ after, limit, key: params.get('key') ?? undefined }))
  }

  async #setFaults(req: IncomingMessage, res: ServerResponse): Promise<void> {
    const body = await readBody(req)
    if (body.kind !== 'read') return refuseBody(req, res, body.kind)
    const checked = checkFaults(body.value)
    if (checked.kind === 'invalid') return sendError(res, 400, 'invalid_request', checked.message)
    this.#options.faultPlan.faults = checked.faults
    this.#showFaults(res)
  }

  #showFaults(res: ServerResponse): void {
    const { faults, counts } = this.#options.faultPlan
    const report: FaultsReport = { ...faults, counts }
    send(res, 200, report)
  }

  async #make(kind: EffectKind, req: IncomingMessage, res: ServerResponse): Promise<void> {
    const body = await readBody(req)
    if (body.kind !== 'read') return refuseBody(req, res, body.kind)
    const checked = checkRequest(kind, req.headers['idempotency-key'], body.value)
    if (checked.kind === 'invalid') return sendError(res, 400, 'invalid_request', checked.message)
    // Before the key is read: an overloaded provider does not read it.
    const fate = this.#options.faultPlan.ofRequest()
    if (fate.end === 'refuse' || fate.end === 'dropRequest') return this.#end(res, fate.end)
    const { request } = checked
    const standing = this.#standingOf(request)
    switch (standing.kind) {
      case 'reused':
        return sendError(res, 422, 'key_reused', 'This key was used for another request.')
      case 'in_progress':
        res.setHeader('Retry-After', '1')
        return sendError(res, 409, 'in_progress', 'A request under this key is being worked on.')
      case 'free':
        if (fate.end === 'lateSuccess' && this.#options.postpone(request, fate.lateMs)) {
          return this.#end(res, fate.end)
        }
        return this.#work(request, fate, res)
      case 'done':
        return this.#work(request, fate, res, standing.effect)
    }
  }

  #standingOf(request: KeyedRequest): KeyState {
    const other = this.#working.get(request.key)
    if (other === undefined) return this.#options.ledger.standingOf(request)
    return { kind: isSameRequest(other, request) ? 'in_progress' : 'reused' }
  }

  /** Runs to its end even when its client has disconnected. */
  async #work(
    request: KeyedRequest,
    fate: RequestFaults,
    res: ServerResponse,
    known?: ProviderEffect,
  ): Promise<void> {
    this.#working.set(request.key, request)
    try {
      if (fate.waitBeforeMs + fate.waitAfterMs > 0) this.#options.faultPlan.note('latency')
      await this.#wait(fate.waitBeforeMs)
      const effect = known ?? this.#options.ledger.perform(request)
      if (known === undefined) this.#options.onEffect()
      await this.#wait(fate.waitAfterMs)
      // If there is nothing to delay, or too many effects are delayed, the answer is normal.
      if (fate.end !== 'answer' && fate.end !== 'lateSuccess') return this.#end(res, fate.end)
      if (known !== undefined) res.setHeader('Idempotent-Replayed', 'true')
      send(res, 201, effect)
    } finally {
      this.#working.delete(request.key)
    }
  }

  /** The reaction that a client gets instead of an answer. */
  #end(res: ServerResponse, fault: RequestFault): void {
    this.#options.faultPlan.note(fault)
    switch (fault) {
      case 'refuse':
        return refuse(res)
      case 'dropRequest':
      case 'effectThenDrop':
        res.socket?.destroy()
        return
      case 'effectThen500':
      case 'lateSuccess':
        return sendError(res, 500, 'internal_error', 'Internal error.')
    }
  }

  async #wait(delayMs: number): Promise<void> {
    if (delayMs === 0) return
    const { closing } = this.#options
    try {
      await sleep(delayMs, undefined, { signal: closing })
    } catch (error) {
      if (!closing.aborted) throw error
    }
  }
}

function send(res: ServerResponse, status: number, body: object): void {
  const text = JSON.stringify(body)
  res.writeHead(status, {
    'Content-Type': 'application/json',
    'Content-Length': Buffer.byteLength(text),
  })
  res.end(text)
}

function sendError(res: ServerResponse, status: number, code: string, message: string): void {
  const body: ProviderError = { error: { code, message } }
  if (res.headersSent) res.destroy()
  else send(res, status, body)
}

function sendEffect(res: ServerResponse, effect: ProviderEffect | undefined): void {
  if (effect !== undefined) return send(res, 200, effect)
  sendError(res, 404, 'not_found', 'There is no such effect.')
}

function refuse(res: ServerResponse): void {
  res.setHeader('Retry-After', '1')
  sendError(res, 503, 'refused', 'Overloaded. Nothing was done for this request.')
}

function refuseMethod(res: ServerResponse, allowed: string): void {
  res.setHeader('Allow', allowed)
  sendError(res, 405, 'method_not_allowed', `Only ${allowed} here.`)
}

function refuseBody(
  req: IncomingMessage,
  res: ServerResponse,
  kind: Exclude<ReadBody['kind'], 'read'>,
): void {
  switch (kind) {
    case 'cut':
      // The client has disconnected.
      res.destroy()
      return
    case 'malformed':
      return sendError(res, 400, 'invalid_request', 'The body is not JSON in UTF-8.')
    case 'too_large':
      // The rest is discarded for a while: a client that still sends would miss the answer.
      res.setHeader('Connection', 'close')
      sendError(res, 413, 'body_too_large', `At most ${BODY_BYTES_MAX} bytes.`)
      req.removeAllListeners('data')
      req.resume()
      setTimeout(() => req.socket.destroy(), LINGER_MS).unref()
  }
}

function toNumber(text: string | null, ifAbsent: number): number | undefined {
  if (text === null) return ifAbsent
  return /^\d{1,15}$/.test(text) ? Number(text) : undefined
}
