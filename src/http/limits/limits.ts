/** Applies the limits of a guard or status handler. Tests: test/http/limits/limits.test.ts. */
import { hash } from 'node:crypto'
import type { Engine } from '../../core/engine/engine-contract.ts'
import type { LimitName } from '../../core/events.ts'
import type { Scope } from '../../core/record/identity.ts'
import { describe } from '../../core/options.ts'
import { InvalidOptionsError } from '../../core/errors.ts'
import type { HeaderPair } from '../reply/stored-headers.ts'
import { hasPoint, takePoint, type Limiter, type LimiterAnswer } from './limiter.ts'
import { resolveLimits, type LimitOptions, type ResolvedLimitOptions } from './limit-options.ts'

/** A limit that a request exceeds, with the fields of its answer. */
export interface Exceeded {
  readonly limit: LimitName
  readonly retryAfterMs: number
  readonly headers: readonly HeaderPair[]
}

export interface LimitsParts<Request> {
  readonly engine: Engine
  readonly limits: ResolvedLimitOptions<Request>
  /** Counts the requests in flight. Guards with one count share it. */
  readonly inFlight: InFlight
}

/** How long a client waits if the end of a request is not known. */
const RETRY_SOON_MS = 1_000

export class Limits<Request> {
  readonly #parts: LimitsParts<Request>

  constructor(parts: LimitsParts<Request>) {
    this.#parts = parts
  }

  /** Takes a place for a request of the tenant, or says that none is left. Synchronous. */
  enter(tenant: string): Exceeded | undefined {
    const { limits, inFlight } = this.#parts
    const max = limits.inFlight
    if (max === undefined || inFlight.of(tenant) < max) {
      inFlight.change(tenant, 1)
      return undefined
    }
    return {
      limit: 'in_flight',
      retryAfterMs: RETRY_SOON_MS,
      headers: [
        ['RateLimit-Policy', `"in-flight";q=${max};qu="concurrent-requests"`],
        ['RateLimit', '"in-flight";r=0;t=1'],
      ],
    }
  }

  leave(tenant: string): void {
    this.#parts.inFlight.change(tenant, -1)
  }

  /**
   * Whether the tenant may use a new key now. If not, the guard looks the key up, and answers a
   * free one with 429. Whether a key is new is known only after the claim.
   */
  async admit({ tenant, operation }: Scope): Promise<Exceeded | undefined> {
    const { newKeys } = this.#parts.limits
    if (newKeys === undefined) return undefined
    const answer = await hasPoint(newKeys, hashOf(tenant), this.#call())
    return this.#toExceeded('new_keys', newKeys, answer, { tenant, operation })
  }

  /** Charges a new key whose work has started. Never rejects. */
  async chargeNewKey({ tenant, operation }: Scope): Promise<void> {
    const { newKeys } = this.#parts.limits
    if (newKeys === undefined) return
    const answer = await takePoint(newKeys, hashOf(tenant), this.#call())
    // A key that has won runs, even if the limit was reached since.
    this.#toExceeded('new_keys', newKeys, answer, { tenant, operation })
  }

  /** Charges an answer from a record. `fallback`: the caller if the options have none. */
  async chargeLookUp(
    request: Request,
    { tenant, operation }: Scope,
    fallback: string | undefined,
  ): Promise<Exceeded | undefined> {
    const { lookUps, caller } = this.#parts.limits
    if (lookUps === undefined) return undefined
    const given = caller === undefined ? (fallback ?? '') : checkCaller(await caller(request))
    const key = hashOf(`${tenant.length}:${tenant}${given}`)
    const answer = await takePoint(lookUps, key, this.#call())
    return this.#toExceeded('look_ups', lookUps, answer, { tenant, operation })
  }

  #call() {
    return { clock: this.#parts.engine.clock, timeoutMs: this.#parts.limits.timeoutMs }
  }

  #toExceeded(
    limit: Exclude<LimitName, 'in_flight'>,
    limiter: Limiter,
    answer: LimiterAnswer,
    scope: { readonly tenant: string; readonly operation: string },
  ): Exceeded | undefined {
    switch (answer.kind) {
      case 'allowed':
        return undefined
      case 'failed':
        this.#parts.engine.emit({ kind: 'limiter_failed', ...scope, limit, error: answer.error })
        return undefined
      case 'exceeded': {
        const { retryAfterMs } = answer
        return { limit, retryAfterMs, headers: fieldsOf(limit, limiter, retryAfterMs) }
      }
    }
  }
}

/** The fields of draft-ietf-httpapi-ratelimit-headers: the policy, and what is left of it. */
function fieldsOf(
  limit: LimitName,
  { points, duration }: Limiter,
  retryAfterMs: number,
): HeaderPair[] {
  const name = `"${limit.replace('_', '-')}"`
  const state: HeaderPair = ['RateLimit', `${name};r=0;t=${Math.ceil(retryAfterMs / 1000)}`]
  if (!Number.isSafeInteger(points)) return [state]
  const window = Number.isSafeInteger(duration) && duration! > 0 ? `;w=${duration}` : ''
  return [['RateLimit-Policy', `${name};q=${points}${window}`], state]
}

/**
 * The key of a limiter. A name may be a person, longer than a column of the limiter's database, or
 * equal to another one there.
 */
function hashOf(name: string): string {
  return hash('sha256', name, 'hex').slice(0, 32)
}

function checkCaller(caller: unknown): string {
  if (typeof caller === 'string') return caller
  throw new InvalidOptionsError(
    `limits.caller(request) returned ${describe(caller)}; it must return a string`,
  )
}

/** The requests in flight of each tenant. Tenants without one take no memory. */
export class InFlight {
  readonly #counts = new Map<string, number>()

  of(tenant: string): number {
    return this.#counts.get(tenant) ?? 0
  }

  change(tenant: string, by: 1 | -1): void {
    const count = this.of(tenant) + by
    if (count > 0) this.#counts.set(tenant, count)
    else this.#counts.delete(tenant)
  }
}

const counts = new WeakMap<object, InFlight>()

export function createLimits<Request>(
  options: LimitOptions<Request> | undefined,
  engine: Engine,
): Limits<Request> | undefined {
  const limits = resolveLimits(options)
  if (options === undefined || limits === undefined) return undefined
  return new Limits({ engine, limits, inFlight: inFlightOf(options) })
}

/** One count for each `limits` object, so that the routes of a service count together. */
function inFlightOf(limits: object): InFlight {
  const known = counts.get(limits)
  if (known !== undefined) return known
  const made = new InFlight()
  counts.set(limits, made)
  return made
}
