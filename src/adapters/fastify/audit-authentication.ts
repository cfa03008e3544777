/** Finds out whether the hooks of a Fastify route authenticate its callers. */
import type { FastifyContextConfig, FastifyInstance, RouteOptions } from 'fastify'
import { InvalidOptionsError } from '../../core/errors.ts'
import { authenticatesBy, type AuditOptions } from '../../http/guard/route-audit.ts'

/** The hooks that run before the handler. The guard is always the last of them. */
const HOOKS = ['onRequest', 'preParsing', 'preValidation', 'preHandler'] as const

type Hooks = { readonly [Name in (typeof HOOKS)[number]]?: unknown }

const ROUTE_HOOKS = Symbol('route hooks')

/**
 * An `onRoute` hook. Fastify binds hooks when the app is ready and drops the original functions; an
 * audit can read only the `config` of the route's options, so the hooks are kept there.
 */
export function keepRouteHooks(options: RouteOptions): void {
  options.config = { ...options.config, [ROUTE_HOOKS]: options } as FastifyContextConfig
}

/** The part of Fastify's route context that tells how a route authenticates. */
export interface AuthenticationContext {
  readonly config: { readonly [ROUTE_HOOKS]?: Hooks }
  readonly server?: FastifyInstance
}

/** Returns a test for whether a hook of a route, or of a plugin around it, authenticates. */
export function authenticationOf(options: AuditOptions | undefined): (context: object) => boolean {
  const authenticates = authenticatesBy(options)
  if (options?.authentication === undefined) return () => false
  return (context) => {
    const { config, server } = context as AuthenticationContext
    const lists = [hooksOf(server), config[ROUTE_HOOKS] ?? {}]
    return lists.some((hooks) => HOOKS.some((name) => [hooks[name]].flat().some(authenticates)))
  }
}

/** The hooks of an instance and of those around it, as they were passed to `addHook`. */
function hooksOf(server: object | undefined): Hooks {
  for (let owner = server; owner; owner = Object.getPrototypeOf(owner) as object | undefined) {
    const symbol = Object.getOwnPropertySymbols(owner).find(
      ({ description }) => description === 'fastify.hooks',
    )
    if (symbol !== undefined) return Reflect.get(owner, symbol) as Hooks
  }
  throw new InvalidOptionsError(
    'oncekey/fastify cannot read the hooks of this version of Fastify, so it does not know which ' +
      'routes are authenticated: use a version of Fastify 5 that it was tested with, and report ' +
      'this',
  )
}
