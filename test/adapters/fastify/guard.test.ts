/** Runs the shared adapter cases on Fastify. */
import { Readable } from 'node:stream'
import type { FastifyReply, FastifyRequest } from 'fastify'
import { idempotency, idempotencyStatus } from '../../../src/adapters/fastify/index.ts'
import {
  adaptOptions,
  adaptStatusOptions,
  type AdapterSubject,
  type CaseReply,
} from '../../../src/testing/index.ts'
import { runAdapterCases } from '../run-adapter-cases.ts'
import { newApp, serveApp } from '../run-fastify.ts'

const headOf = (request: FastifyRequest) => ({
  header: (name: string) => request.raw.headers[name]?.toString(),
})

function sendTo(reply: FastifyReply, { status, headers, body, stream }: CaseReply): FastifyReply {
  void reply.code(status)
  for (const [name, value] of Object.entries(headers ?? {})) void reply.header(name, value)
  return reply.send(stream === undefined ? body : Readable.from(stream, { objectMode: false }))
}

function bytesOf(body: unknown): Uint8Array {
  if (body instanceof Uint8Array) return body
  return Buffer.from(typeof body === 'string' ? body : JSON.stringify(body))
}

const subject: AdapterSubject = {
  async serve({ options, routes, status }) {
    const app = newApp()
    app.addContentTypeParser('*', { parseAs: 'buffer' }, (_request, body, done) => {
      done(null, body)
    })
    await app.register(idempotency, adaptOptions(options, headOf))
    for (const { method = 'POST', path: url, options: own, handle, isValid } of routes) {
      app.route({
        method,
        url,
        ...(own !== undefined && { config: { idempotency: own && adaptOptions(own, headOf) } }),
        ...(isValid !== undefined && {
          preValidation: async (request: FastifyRequest, reply: FastifyReply) => {
            if (!isValid(headOf(request))) return reply.code(400).send({ error: 'invalid' })
            return undefined
          },
        }),
        handler: async (request, reply) => {
          const answer = await handle({
            ...headOf(request),
            idempotency: request.idempotency,
            bytes: async () => bytesOf(request.body),
            json: async () => request.body,
          })
          return sendTo(reply, answer)
        },
      })
    }
    if (status !== undefined) {
      const handler = idempotencyStatus(adaptStatusOptions(status.options, headOf))
      app.get(`${status.path}/:id`, handler)
    }
    return serveApp(app)
  },
}

runAdapterCases('fastify', subject)
