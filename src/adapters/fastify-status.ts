import { Readable } from 'node:stream'
import type { FastifyReply, FastifyRequest } from 'fastify'
import type { HttpReply } from '../http/exchange.ts'
import type { StatusOptions } from '../http/status-options.ts'
import { createStatus, lastSegment } from '../http/status.ts'
import { splitUrl } from './node-handler.ts'
import { linesOf } from './status-lines.ts'

export type FastifyStatusOptions = StatusOptions<FastifyRequest>

/** A handler of routes. */
export type StatusHandler = (request: FastifyRequest, reply: FastifyReply) => Promise<FastifyReply>

/**
 * Tells a client what became of its request, by the id in the `Location` of its 202. Mount it for
 * GET, behind whatever knows the caller.
 *
 * @example
 * ```ts
 * const tenant = (request) => request.user.account
 * const statusUrl = (recordId) => `/operations/${recordId}`
 * app.register(idempotency, { engine, tenant, statusUrl })
 * app.get('/operations/:id', idempotencyStatus({ engine, tenant, statusUrl }))
 * ```
 */
export function idempotencyStatus(options: FastifyStatusOptions): StatusHandler {
  const status = createStatus(options, recordIdOf)
  return async (request, reply) => {
    const { method, headers } = request
    const answer = await status.reply(request, { method, accepted: headers['accept-encoding'] })
    return send(reply, answer)
  }
}

function send(reply: FastifyReply, { status, headers, body }: HttpReply): FastifyReply {
  void reply.code(status).headers(linesOf(headers))
  if (body.byteLength === 0) return reply.send()
  const bytes = Buffer.from(body.buffer, body.byteOffset, body.byteLength)
  if (reply.hasHeader('content-type')) return reply.send(bytes)
  // Of bytes, Fastify would make up a type that the reply never had; of a stream it does not.
  return reply.header('content-length', bytes.byteLength).send(Readable.from([bytes]))
}

function recordIdOf({ params, originalUrl }: FastifyRequest): unknown {
  const { id } = (params ?? {}) as { readonly id?: unknown }
  return id ?? lastSegment(splitUrl(originalUrl)[0])
}
