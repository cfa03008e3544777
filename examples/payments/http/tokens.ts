import type { Request, RequestHandler } from 'express'
import type { Caller, Callers } from '../settings/callers.ts'
import { sendProblem } from './problems.ts'

declare global {
  namespace Express {
    interface Request {
      /** Set by `authenticate`. */
      caller?: Caller
    }
  }
}

/**
 * Accepts requests with a known bearer token, and stores its owner. The tokens are in the settings,
 * which is enough for a few partners: a real service keeps hashes of them.
 */
export function authenticate(callers: Callers): RequestHandler {
  return (req, res, next) => {
    const token = /^Bearer +(\S+)$/i.exec(req.headers.authorization ?? '')?.[1]
    const caller = token === undefined ? undefined : callers.get(token)
    if (caller === undefined) {
      res.set('WWW-Authenticate', 'Bearer realm="payments"')
      return sendProblem(res, {
        status: 401,
        code: 'unauthorized',
        title: 'A known bearer token is required',
        detail: 'Send "Authorization: Bearer <token>" with the token of your account.',
      })
    }
    req.caller = caller
    next()
  }
}

/** The caller of a request. Throws without one: no tenant must never mean every tenant. */
export function callerOf(req: Request): Caller {
  if (req.caller === undefined) throw new Error('authenticate must be mounted before this route')
  return req.caller
}

export function tenantOf(req: Request): string {
  return callerOf(req).tenant
}

/** The principal of the guard: a user must not occupy, replay or look up the key of another. */
export function userOf(req: Request): string {
  return callerOf(req).user
}
