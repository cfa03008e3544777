import type { RequestHandler, Response } from 'express'
import { RateLimiterMemory, RateLimiterRes } from 'rate-limiter-flexible'
import { sendProblem } from './problems.ts'
import { tenantOf } from './tokens.ts'

/**
 * Limits the requests per second of each tenant in this process, so that the flood of one tenant
 * does not delay another. Runs before the guard, so that a refused request uses no key.
 */
export function rateLimit(perSecond: number): RequestHandler {
  if (perSecond === 0) return (_req, _res, next) => next()
  const limiter = new RateLimiterMemory({ points: perSecond, duration: 1 })
  return (req, res, next) => {
    limiter.consume(tenantOf(req)).then(
      () => next(),
      (refusal: unknown) => {
        if (!(refusal instanceof RateLimiterRes)) return next(refusal)
        const retryAfter = Math.max(1, Math.ceil(refusal.msBeforeNext / 1000))
        turnAway(res, retryAfter, `A tenant may send ${perSecond} requests a second.`)
      },
    )
  }
}

/**
 * Limits the concurrent requests of each tenant in this process. When the service is slower than
 * its limit per second, this bounds the work in progress and its memory. The guard holds back the
 * end of a response until the work is recorded, so clients that disconnect count too.
 */
export function limitInFlight(max: number): RequestHandler {
  if (max === 0) return (_req, _res, next) => next()
  const inFlight = new Map<string, number>()
  return (req, res, next) => {
    const tenant = tenantOf(req)
    const count = inFlight.get(tenant) ?? 0
    if (count >= max) return turnAway(res, 1, `A tenant may have ${max} requests in progress.`)
    inFlight.set(tenant, count + 1)
    res.once('close', () => {
      const left = (inFlight.get(tenant) ?? 1) - 1
      if (left === 0) inFlight.delete(tenant)
      else inFlight.set(tenant, left)
    })
    next()
  }
}

function turnAway(res: Response, retryAfterSeconds: number, why: string): void {
  res.set('Retry-After', String(retryAfterSeconds))
  sendProblem(res, {
    status: 429,
    code: 'too_many_requests',
    title: 'Too many requests',
    detail: `${why} Retry with the same key.`,
  })
}
