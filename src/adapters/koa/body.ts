/** The body of a Koa request that a parser has read before the guard. */
import type { Context } from 'koa'
import { InvalidRequestError } from '../../core/errors.ts'

/**
 * The result of a parser before the guard. The unparsed text is preferred where the parser keeps
 * it, as `koa-bodyparser` does: there, two numbers too large for JavaScript still differ.
 */
export function parsedBody(ctx: Context): unknown {
  const { body, rawBody } = ctx.request as { readonly body?: unknown; readonly rawBody?: unknown }
  const type = ctx.req.headers['content-type'] ?? ''
  if (!/^multipart\//i.test(type)) {
    if (typeof rawBody === 'string') return Buffer.from(rawBody)
    if (rawBody instanceof Uint8Array) return rawBody
    // Parsers set an empty object also when they do not parse the body.
    if (body !== undefined && (!isEmptyObject(body) || /json|urlencoded/i.test(type))) return body
  }
  throw new InvalidRequestError(
    'the body was read before idempotency() and cannot be compared with a retry: mount ' +
      'idempotency() before the parser, or let it keep ctx.request.rawBody, as koa-bodyparser does',
  )
}

function isEmptyObject(value: unknown): boolean {
  if (typeof value !== 'object' || value === null || value instanceof Uint8Array) return false
  return Object.keys(value).length === 0
}
