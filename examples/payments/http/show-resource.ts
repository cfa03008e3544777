import type { RequestHandler } from 'express'
import type { Query } from '../database/database.ts'
import { isId } from './input.ts'
import { sendProblem } from './problems.ts'
import { tenantOf } from './tokens.ts'

type Find = (query: Query, tenant: string, id: string) => Promise<object | undefined>

/** GET of one resource by its id. `what` is its name in the API. */
export function showResource(
  what: string,
  find: Find,
  query: Query,
): RequestHandler<{ id: string }> {
  return async (req, res) => {
    const { id } = req.params
    const found = isId(id) ? await find(query, tenantOf(req), id) : undefined
    if (found !== undefined) {
      res.json(found)
      return
    }
    // The same answer for a missing resource and one of another tenant.
    sendProblem(res, {
      status: 404,
      code: `${what}_not_found`,
      title: `No such ${what}`,
      detail: `You have no ${what} with this id.`,
    })
  }
}
