import type { RequestHandler } from 'express'
import { RateLimiterMemory, RateLimiterRes } from 'rate-limiter-flexible'
import { sendProblem } from './problems.ts'
import { tenantOf } from './tokens.ts'

/**
 * So many requests a second for each tenant, in this process: one tenant's flood is not another
 * one's delay. It stands before the guard, so that a request that is turned away uses up no key.
 */
export function rateLimit(perSecond: number): RequestHandler {
  if (perSecond === 0) return (_req, _res, next) => next()
  const limiter = new RateLimiterMemory({ points: perSecond, duration: 1 })
  return (req, res, next) => {
    limiter.consume(tenantOf(req)).then(
      () => next(),
      (refusal: unknown) => {
        if (!(refusal instanceof RateLimiterRes)) return next(refusal)
        res.set('Retry-After', String(Math.max(1, Math.ceil(refusal.msBeforeNext / 1000))))
        sendProblem(res, {
          status: 429,
          code: 'too_many_requests',
          title: 'Too many requests',
          detail: `A tenant may send ${perSecond} requests a second. Retry with the same key.`,
        })
      },
    )
  }
}
