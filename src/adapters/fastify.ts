/**
 * Fastify adapter (5). Translates only: what a key means and what each outcome answers is decided
 * in `http/guard.ts`.
 *
 * @module
 */
import type {
  FastifyInstance,
  FastifyPluginCallback,
  FastifyRequest,
  onErrorHookHandler,
  onSendHookHandler,
  preHandlerHookHandler,
  preParsingHookHandler,
} from 'fastify'
import type { Readable } from 'node:stream'
import type { Engine } from '../core/engine.ts'
import { InvalidOptionsError, InvalidRequestError } from '../core/errors.ts'
import type { GuardOptions } from '../http/guard-options.ts'
import type { HandlerContext } from '../http/handler-context.ts'
import type { RouteOptions } from '../http/route-options.ts'
import { keepRouteHooks } from './fastify-authentication.ts'
import { keepArrival } from './fastify-body.ts'
import { noteReply, protect, reportError } from './fastify-guard.ts'
import { watchPayload } from './fastify-payload.ts'
import { ProtectedRoutes, registeredTwice, type RouteOf } from './fastify-plugin.ts'

export { currentIdempotency } from '../http/current.ts'
export { singleTenant } from '../http/guard-options.ts'
export { requireProtected } from '../http/route-audit.ts'
export { auditRoutes } from './fastify-routes.ts'
export { idempotencyStatus } from './fastify-status.ts'
export type { HandlerContext } from '../http/handler-context.ts'
export type { GivenReply } from '../http/http-reply.ts'
export type { AuditedRoute, AuditOptions, RouteAudit } from '../http/route-audit.ts'
export type { RouteOptions } from '../http/route-options.ts'
export type { FastifyStatusOptions, StatusHandler } from './fastify-status.ts'

declare module 'fastify' {
  interface FastifyRequest {
    /** The key of this request and what its handler may do about it; absent where unprotected. */
    idempotency: HandlerContext | undefined
  }

  interface FastifyInstance {
    /** Where the plugin is registered in this context or around it. */
    idempotency: IdempotencyDecorator
  }

  interface FastifyContextConfig {
    /** What this route wants otherwise; `false` leaves it alone. */
    idempotency?: RouteIdempotency | false
  }
}

export type FastifyOptions = GuardOptions<FastifyRequest>

/** What a route says in its `config.idempotency`. */
export type RouteIdempotency = RouteOptions<FastifyRequest>

export interface IdempotencyDecorator {
  /** The engine of the plugin: `await app.idempotency.engine.close()` belongs into `onClose`. */
  readonly engine: Engine
}

/**
 * Runs each `Idempotency-Key` at most once and replays its reply after that. Protects the routes
 * of the context in which it is registered, and of those within. It comes behind all hooks of a
 * route, right before its handler.
 *
 * @example
 * ```ts
 * const store = sqliteStore({ path: 'data/keys.db' })
 * app.addHook('onRequest', authenticate)
 * app.register(idempotency, { store, tenant: (request) => request.user.account })
 * app.post('/payments', pay)
 * app.post('/search', { config: { idempotency: false } }, search)
 * ```
 */
export const idempotency: FastifyPluginCallback<FastifyOptions> = Object.assign(
  (app: FastifyInstance, options: FastifyOptions, done: (error?: Error) => void) => {
    try {
      register(app, options)
      done()
    } catch (error) {
      done(error as Error)
    }
  },
  {
    // Its hooks are for the context in which it is registered, not for one of its own.
    [Symbol.for('skip-override')]: true,
    [Symbol.for('fastify.display-name')]: 'oncekey',
    [Symbol.for('plugin-meta')]: { name: 'oncekey', fastify: '5.x' },
  },
)

const REGISTERED = Symbol.for('oncekey.fastify')

function register(app: FastifyInstance, options: FastifyOptions): void {
  if (REGISTERED in app) throw registeredTwice(`routes below '${app.prefix || '/'}'`)
  if (app.initialConfig.http2) {
    throw new InvalidOptionsError(
      'oncekey/fastify cannot hold back replies over HTTP/2: let a proxy speak it, and remove ' +
        'http2 from the options of Fastify',
    )
  }
  const routes = new ProtectedRoutes(app, options)
  const decorator: IdempotencyDecorator = { engine: routes.engine }
  Object.defineProperty(app, REGISTERED, { value: true })
  app.decorate('idempotency', decorator)
  app.decorateRequest('idempotency', undefined)
  app.addHook('onRoute', keepRouteHooks)
  app.addHook('preParsing', routes.hookPerRoute(keepBody))
  app.addHook('preHandler', routes.hookPerRoute(guardRoute))
  app.addHook('onError', routes.hookPerRoute(seeErrors))
  app.addHook('onSend', routes.hookPerRoute(seePayloads))
  app.addHook('onReady', () => routes.prepare())
}

function keepBody(routeOf: RouteOf): preParsingHookHandler {
  return (request, _reply, payload, done) => {
    const route = routeOf(request)
    if (route === undefined) return done(null, payload)
    keepArrival(request, payload as unknown as Readable, route.requestBytesMax).then(
      () => done(null, payload),
      (error: unknown) => done(error as Error),
    )
  }
}

function guardRoute(routeOf: RouteOf): preHandlerHookHandler {
  return (request, reply, done) => {
    const route = routeOf(request)
    if (route === undefined) done()
    else protect(route, { request, reply, done })
  }
}

function seeErrors(): onErrorHookHandler {
  return (request, _reply, error, done) => {
    reportError(request, error)
    done()
  }
}

function seePayloads(): onSendHookHandler {
  return (request, _reply, payload, done) => {
    const { idempotency } = request
    noteReply(request)
    if (idempotency === undefined) return done()
    done(
      null,
      watchPayload(payload, (error) => idempotency.failed(error)),
    )
  }
}

/**
 * The key of this request and what its handler may do about it. Throws where the route is not
 * protected, so that a forgotten plugin is found by the first request.
 */
export function idempotencyOf(request: FastifyRequest): HandlerContext {
  if (request.idempotency !== undefined) return request.idempotency
  throw new InvalidRequestError(
    `${request.method} ${request.url} is not protected: register idempotency in the context of ` +
      'its route, and send a key with the request',
  )
}
