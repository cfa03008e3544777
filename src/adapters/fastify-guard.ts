/** One protected request to a Fastify app. */
import type { FastifyReply, FastifyRequest } from 'fastify'
import type { Answer, HttpExchange } from '../http/exchange.ts'
import type { Guard } from '../http/guard.ts'
import type { HeaderPair } from '../http/stored-headers.ts'
import { arrivalOf } from './fastify-body.ts'
import { watchTimeLimit } from './fastify-time-limit.ts'
import { NodeHandler, splitUrl } from './node-handler.ts'
import { HeldRequest } from './request-body.ts'

/** What is known of a route when the app starts. */
export interface ProtectedRoute {
  readonly guard: Guard<FastifyRequest>
  readonly requestBytesMax: number
  /** Its template without the names of parameters. */
  readonly template: string
}

export interface FastifyTurn {
  readonly request: FastifyRequest
  readonly reply: FastifyReply
  /** Goes on to the handler, or to the error handling. */
  readonly done: (error?: Error) => void
}

/** The last of the hooks before the handler, for a request that is protected. */
export function protect(route: ProtectedRoute, { request, reply, done }: FastifyTurn): void {
  const earlier = headersSoFar(reply)
  // From here on a handler may run, for which the client is there until its reply is recorded.
  const wasAborted = request.raw.destroyed && !request.raw.readableEnded
  const heldRequest = new HeldRequest(request.raw)
  let isEntered = false
  const fail = (error: unknown) => {
    // Never `done` twice: it would run the handler twice.
    if (isEntered) sendFailure(reply, earlier, toError(error))
    else done(toError(error))
  }
  const handler = new NodeHandler(request.raw, reply.raw, {
    enter: (context) => {
      isEntered = true
      request.idempotency = context
      watchTimeLimit(request, context)
      leaveUncompressed(request, reply)
      done()
    },
    pass: () => done(),
    fail,
    // A handler of "not found" has hooks of its own, and ours are not among them.
    seesErrors: () => !request.is404,
    isAnswered: () => reply.sent || answered.has(request),
  })
  route.guard
    .handle(request, toExchange(route, request, wasAborted), handler)
    .then((answer) => {
      heldRequest.letGo()
      handler.act(withHeaders(answer, earlier))
      // For those who log what was sent. A handler that is still at it has a status of its own.
      const isOver = isEntered && handler.produced()?.kind === 'reply'
      if (answer.kind === 'reply' && isOver) reply.raw.statusCode = answer.reply.status
    })
    .catch(fail)
}

/** To these somebody is replying although their handler was not entered. */
const answered = new WeakSet<FastifyRequest>()

/** Remembers that a reply is on its way, where it does not come from a handler with a key. */
export function noteReply(request: FastifyRequest): void {
  if (request.idempotency === undefined) answered.add(request)
}

/** Shows the guard what went wrong, before an error handler makes a reply of it. */
export function reportError(request: FastifyRequest, error: unknown): void {
  noteReply(request)
  request.idempotency?.failed(error ?? new Error('the handler failed without saying why'))
}

function toExchange(
  { template }: ProtectedRoute,
  request: FastifyRequest,
  wasAborted: boolean,
): HttpExchange {
  const { headers, body } = arrivalOf(request)
  const [path, query] = splitUrl(request.originalUrl)
  return {
    method: request.method,
    path,
    query,
    route: template,
    header: (name) => headers[name],
    body: () => (wasAborted ? { kind: 'aborted' } : body),
  }
}

type Headers = Readonly<Record<string, number | string | string[] | undefined>>

/** Said of a body that is not ours to send. */
const OF_THE_BODY: ReadonlySet<string> = new Set(['content-length', 'transfer-encoding', 'trailer'])

/** What earlier hooks have put on the reply; Fastify itself writes them only with a payload. */
function headersSoFar(reply: FastifyReply): Headers {
  const all = Object.entries(reply.getHeaders())
  return Object.fromEntries(all.filter(([name]) => !OF_THE_BODY.has(name)))
}

function withHeaders(answer: Answer, earlier: Headers): Answer {
  if (answer.kind !== 'reply') return answer
  const { reply } = answer
  const own = new Set(reply.headers.map(([name]) => name.toLowerCase()))
  const kept = Object.entries(earlier)
    .filter(([name]) => !own.has(name))
    .flatMap(([name, value]) => [value ?? []].flat().map((one): HeaderPair => [name, String(one)]))
  return { kind: 'reply', reply: { ...reply, headers: [...kept, ...reply.headers] } }
}

/** The handler was entered and left no reply that counts: Fastify's error handling makes one. */
function sendFailure(reply: FastifyReply, earlier: Headers, error: Error): void {
  if (reply.raw.headersSent) return void reply.raw.destroy(error)
  for (const name of Object.keys(reply.getHeaders())) reply.removeHeader(name)
  if (!reply.sent) return void reply.headers(earlier).send(error)
  // The handler has taken the reply away from Fastify, which would not send a thing.
  reply.log.error({ err: error })
  reply.raw.statusCode = 500
  reply.raw.end()
}

/**
 * @fastify/compress works above the bytes that are recorded, and would make them unreadable for a
 * retry that accepts another encoding.
 */
function leaveUncompressed(request: FastifyRequest, reply: FastifyReply): void {
  if (!('compress' in reply) || typeof reply.compress !== 'function') return
  request.raw.headers['accept-encoding'] = 'identity'
}

function toError(error: unknown): Error {
  return error instanceof Error ? error : new Error('the request failed', { cause: error })
}
