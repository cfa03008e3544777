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

/** For trying things out. A real service keeps hashes of its tokens, and not in its source. */
const TENANTS: ReadonlyMap<string, string> = new Map([
  ['demo-a', 'tenant-a'],
  ['demo-b', 'tenant-b'],
])

/** Lets in who has a known bearer token, and remembers whose it is. */
export const authenticate: RequestHandler = (req, res, next) => {
  const token = /^Bearer +(\S+)$/i.exec(req.headers.authorization ?? '')?.[1]
  const tenant = token === undefined ? undefined : TENANTS.get(token)
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

/** Whose request it is. Throws where nobody has asked: no tenant must never mean every tenant. */
export function tenantOf(req: Request): string {
  if (req.tenant === undefined) throw new Error('authenticate must be mounted before this route')
  return req.tenant
}
