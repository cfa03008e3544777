/**
 * The plugin for Fastify 5. The adapter only translates: `http/guard/guard.ts` decides what a key
 * means and how each outcome is answered.
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
import type { GuardControls } from '../../http/guard/guard.ts'
import { InvalidOptionsError, InvalidRequestError } from '../../core/errors.ts'
import type { GuardOptions } from '../../http/guard/guard-options.ts'
import type { HandlerContext } from '../../http/guard/handler-context.ts'
import type { RouteOptions } from '../../http/guard/route-options.ts'
import { keepRouteHooks } from './audit-authentication.ts'
import { keepOriginal } from './body.ts'
import { noteReply, protect, reportError } from './handler.ts'
import { watchPayload } from './reply-payload.ts'
import { ProtectedRoutes, registeredTwice, type RouteOf } from './protected-routes.ts'

declare module 'fastify' {
  interface FastifyRequest {
    /** The idempotency context. `undefined` on routes without a guard: see `idempotencyOf`. */
    idempotency: HandlerContext | undefined
  }

  interface FastifyInstance {
    /** Set if the plugin is registered in this context or in one around it. */
    idempotency: IdempotencyDecorator
  }

  interface FastifyContextConfig {
    /** Options of the plugin that this route overrides; `false` leaves the route unprotected. */
    idempotency?: RouteIdempotency | false
  }
}

export type IdempotencyOptions = GuardOptions<FastifyRequest>

/** The options that a route overrides in its `config.idempotency`. */
export type RouteIdempotency = RouteOptions<FastifyRequest>

/** `app.idempotency`: call `app.idempotency.close()` in an `onClose` hook. */
export type IdempotencyDecorator = GuardControls

/**
 * Runs each `Idempotency-Key` at most once and replays its reply after that. Protects the routes of
 * the context in which it is registered, and of contexts inside it. It runs after all other hooks
 * of a route, directly before the handler.
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
export const idempotency: FastifyPluginCallback<IdempotencyOptions> = Object.assign(
  (app: FastifyInstance, options: IdempotencyOptions, done: (error?: Error) => void) => {
    try {
      register(app, options)
      done()
    } catch (error) {
      done(error as Error)
    }
  },
  {
    // Adds the hooks to the context in which it is registered, not to a new one.
    [Symbol.for('skip-override')]: true,
    [Symbol.for('fastify.display-name')]: 'oncekey',
    [Symbol.for('plugin-meta')]: { name: 'oncekey', fastify: '5.x' },
  },
)

const REGISTERED = Symbol.for('oncekey.fastify')

function register(app: FastifyInstance, options: IdempotencyOptions): void {
  if (REGISTERED in app) throw registeredTwice(`routes below '${app.prefix || '/'}'`)
  if (app.initialConfig.http2) {
    throw new InvalidOptionsError(
      'oncekey/fastify cannot capture replies over HTTP/2: let a proxy terminate HTTP/2, and ' +
        'remove http2 from the options of Fastify',
    )
  }
  const routes = new ProtectedRoutes(app, options)
  const decorator: IdempotencyDecorator = routes.controls
  Object.defineProperty(app, REGISTERED, { value: true })
  app.decorate('idempotency', decorator)
  app.decorateRequest('idempotency', undefined)
  app.addHook('onRoute', keepRouteHooks)
  app.addHook('preParsing', routes.hookPerRoute(keepBody))
  app.addHook('preHandler', routes.hookPerRoute(guardRoute))
  app.addHook('onError', routes.hookPerRoute(reportErrors))
  app.addHook('onSend', routes.hookPerRoute(watchPayloads))
  app.addHook('onReady', () => routes.prepare())
}

function keepBody(routeOf: RouteOf): preParsingHookHandler {
  return (request, _reply, payload, done) => {
    const route = routeOf(request)
    if (route === undefined) return done(null, payload)
    keepOriginal(request, payload as unknown as Readable, route.requestBytesMax).then(
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

function reportErrors(): onErrorHookHandler {
  return (request, _reply, error, done) => {
    reportError(request, error)
    done()
  }
}

function watchPayloads(): onSendHookHandler {
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
 * The idempotency context of a request: its key, and the methods that its handler can call. Throws
 * if the request has none, so that the first request finds a forgotten plugin.
 */
export function idempotencyOf(request: FastifyRequest): HandlerContext {
  if (request.idempotency !== undefined) return request.idempotency
  throw new InvalidRequestError(
    `${request.method} ${request.url} is not protected: register idempotency in the context of ` +
      'its route, and send a key with the request',
  )
}
