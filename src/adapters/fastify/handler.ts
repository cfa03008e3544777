/** One protected request in Fastify. */
import type { FastifyReply, FastifyRequest } from 'fastify'
import type { Answer, HttpExchange } from '../../http/guard/exchange.ts'
import type { Guard } from '../../http/guard/guard.ts'
import type { HeaderPair } from '../../http/reply/stored-headers.ts'
import { originalOf } from './body.ts'
import { watchTimeLimit } from './time-limit.ts'
import { NodeHandler, splitUrl } from '../node-http/node-handler.ts'
import { CapturedRequest } from '../node-http/captured-request.ts'

/** A protected route, as prepared when the app starts. */
export interface ProtectedRoute {
  readonly guard: Guard<FastifyRequest>
  readonly requestBytesMax: number
  /** The template without parameter names. */
  readonly template: string
}

/** The arguments of a `preHandler` hook. */
export interface HookCall {
  readonly request: FastifyRequest
  readonly reply: FastifyReply
  /** Continues with the handler, or with the error handling. */
  readonly done: (error?: Error) => void
}

/** Protects a request. Called in the last hook before the handler. */
export function protect(route: ProtectedRoute, { request, reply, done }: HookCall): void {
  const earlier = headersSoFar(reply)
  // From here on, the handler must not see that the client disconnects until its reply is recorded.
  const wasAborted = request.raw.destroyed && !request.raw.readableEnded
  const capturedRequest = new CapturedRequest(request.raw)
  let isEntered = false
  const fail = (error: unknown) => {
    // A second call of `done` would run the handler twice.
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
    // Not-found handlers do not run the hooks of the plugin.
    seesErrors: () => !request.is404,
    isAnswered: () => reply.sent || answered.has(request),
  })
  route.guard
    .handle(request, toExchange(route, request, wasAborted), handler)
    .then((answer) => {
      capturedRequest.restore()
      handler.act(withHeaders(answer, earlier))
      // For log lines of the response. A handler that still runs may set its own status.
      const isOver = isEntered && handler.produced()?.kind === 'reply'
      if (answer.kind === 'reply' && isOver) reply.raw.statusCode = answer.reply.status
    })
    .catch(fail)
}

/** Requests that are being answered although their handler was not entered. */
const answered = new WeakSet<FastifyRequest>()

/** Notes that a reply is being sent, unless it comes from a protected handler. */
export function noteReply(request: FastifyRequest): void {
  if (request.idempotency === undefined) answered.add(request)
}

/** Reports an error to the guard before an error handler turns it into a reply. */
export function reportError(request: FastifyRequest, error: unknown): void {
  noteReply(request)
  request.idempotency?.failed(error ?? new Error('the handler failed without an error'))
}

function toExchange(
  { template }: ProtectedRoute,
  request: FastifyRequest,
  wasAborted: boolean,
): HttpExchange {
  const { headers, body } = originalOf(request)
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

/** Headers that describe a body which is not sent. */
const BODY_FRAMING: ReadonlySet<string> = new Set([
  'content-length',
  'transfer-encoding',
  'trailer',
])

/** The headers that earlier hooks have set. Fastify writes them only together with a payload. */
function headersSoFar(reply: FastifyReply): Headers {
  const all = Object.entries(reply.getHeaders())
  return Object.fromEntries(all.filter(([name]) => !BODY_FRAMING.has(name)))
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

/** Lets Fastify's error handling reply after a handler that left no valid reply. */
function sendFailure(reply: FastifyReply, earlier: Headers, error: Error): void {
  if (reply.raw.headersSent) return void reply.raw.destroy(error)
  for (const name of Object.keys(reply.getHeaders())) reply.removeHeader(name)
  if (!reply.sent) return void reply.headers(earlier).send(error)
  // The handler has hijacked the reply, so Fastify would send nothing.
  reply.log.error({ err: error })
  reply.raw.statusCode = 500
  reply.raw.end()
}

/**
 * @fastify/compress runs before the bytes are recorded, and would make them unreadable for a retry
 * that accepts another encoding.
 */
function leaveUncompressed(request: FastifyRequest, reply: FastifyReply): void {
  if (!('compress' in reply) || typeof reply.compress !== 'function') return
  request.raw.headers['accept-encoding'] = 'identity'
}

function toError(error: unknown): Error {
  return error instanceof Error ? error : new Error('the request failed', { cause: error })
}
