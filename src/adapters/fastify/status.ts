import { Readable } from 'node:stream'
import type { FastifyReply, FastifyRequest } from 'fastify'
import type { HttpReply } from '../../http/guard/exchange.ts'
import type { StatusOptions } from '../../http/status/status-options.ts'
import { createStatus, lastSegment } from '../../http/status/status.ts'
import { splitUrl } from '../node-http/node-handler.ts'
import { linesOf } from '../node-http/header-lines.ts'

export type IdempotencyStatusOptions = StatusOptions<FastifyRequest>

/** A route handler. */
export type StatusHandler = (request: FastifyRequest, reply: FastifyReply) => Promise<FastifyReply>

/**
 * Reports the state of an operation to its client, which has the record id from the `Location` of
 * a 202. Mount it for GET, behind the authentication.
 *
 * @example
 * ```ts
 * const tenant = (request) => request.user.account
 * const statusUrl = (recordId) => `/operations/${recordId}`
 * app.register(idempotency, { engine, tenant, statusUrl })
 * app.get('/operations/:id', idempotencyStatus({ engine, tenant, statusUrl }))
 * ```
 */
export function idempotencyStatus(options: IdempotencyStatusOptions): StatusHandler {
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
  // Fastify adds a content type to bytes, which the reply does not have, but not to a stream.
  return reply.header('content-length', bytes.byteLength).send(Readable.from([bytes]))
}

function recordIdOf({ params, originalUrl }: FastifyRequest): unknown {
  const { id } = (params ?? {}) as { readonly id?: unknown }
  return id ?? lastSegment(splitUrl(originalUrl)[0])
}
