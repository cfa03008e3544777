import type { Request, RequestHandler } from 'express'
import { sendProblem } from './problems.ts'

declare global {
  namespace Express {
    interface Request {
      /** Set by `authenticate`. */
      tenant?: string
    }
  }
}

/**
 * Accepts requests with a known bearer token, and stores its tenant. These are demo tokens: a real
 * service keeps hashes of them.
 */
export function authenticate(tokens: ReadonlyMap<string, string>): RequestHandler {
  return (req, res, next) => {
    const token = /^Bearer +(\S+)$/i.exec(req.headers.authorization ?? '')?.[1]
    const tenant = token === undefined ? undefined : tokens.get(token)
    if (tenant === undefined) {
      res.set('WWW-Authenticate', 'Bearer realm="payments"')
      return sendProblem(res, {
        status: 401,
        code: 'unauthorized',
        title: 'A known bearer token is required',
        detail: 'Send "Authorization: Bearer demo-a" or "Authorization: Bearer demo-b".',
      })
    }
    req.tenant = tenant
    next()
  }
}

/** The tenant of a request. Throws without one: no tenant must never mean every tenant. */
export function tenantOf(req: Request): string {
  if (req.tenant === undefined) throw new Error('authenticate must be mounted before this route')
  return req.tenant
}
