import type { ServerResponse } from 'node:http'
import type { HttpReply } from '../../http/guard/exchange.ts'
import type { RealMethods } from './response-methods.ts'

/** Sends a reply that the handler did not write. Headers that were set before stay. */
export function sendReply(
  res: ServerResponse,
  reply: HttpReply,
  real: Pick<RealMethods, 'end' | 'setHeader' | 'appendHeader'> = res,
): void {
  res.statusCode = reply.status
  const seen = new Set<string>()
  for (const [name, value] of reply.headers) {
    if (seen.has(name)) real.appendHeader.call(res, name, value)
    else real.setHeader.call(res, name, value)
    seen.add(name)
  }
  // Node adds the length by itself, but not after a handler's Content-Length was removed.
  if (reply.status !== 204 && reply.status !== 304) {
    real.setHeader.call(res, 'Content-Length', reply.body.byteLength)
  }
  endWith(res, reply.body, real.end)
}

/** Passes the whole body to `end`, so that Node adds its length. */
export function endWith(
  res: ServerResponse,
  body: Uint8Array,
  end: ServerResponse['end'],
  callback?: () => void,
): void {
  const finish = end as (chunk?: Uint8Array, encoding?: undefined, callback?: () => void) => unknown
  finish.call(res, body.byteLength === 0 ? undefined : body, undefined, callback)
}
