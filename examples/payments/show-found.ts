import type { RequestHandler } from 'express'
import type { Query } from './database/database.ts'
import { isId } from './input.ts'
import { sendProblem } from './problems.ts'
import { tenantOf } from './tokens.ts'

type Find = (query: Query, tenant: string, id: string) => Promise<object | undefined>

/** GET of one thing by its id. `what` is how the API calls it. */
export function showFound(what: string, find: Find, query: Query): RequestHandler<{ id: string }> {
  return async (req, res) => {
    const { id } = req.params
    const found = isId(id) ? await find(query, tenantOf(req), id) : undefined
    if (found !== undefined) {
      res.json(found)
      return
    }
    // The same answer whether it does not exist or is somebody else's.
    sendProblem(res, {
      status: 404,
      code: `${what}_not_found`,
      title: `There is no such ${what}`,
      detail: `You have no ${what} with this id.`,
    })
  }
}
