/** Whether the hooks of a Fastify route authenticate its callers. */
import type { FastifyContextConfig, FastifyInstance, RouteOptions } from 'fastify'
import { InvalidOptionsError } from '../core/errors.ts'
import { authenticatesBy, type AuditOptions } from '../http/route-audit.ts'

/** The hooks that run before the handler. The guard is always the last of them. */
const HOOKS = ['onRequest', 'preParsing', 'preValidation', 'preHandler'] as const

type Hooks = { readonly [Name in (typeof HOOKS)[number]]?: unknown }

const ROUTE_HOOKS = Symbol('route hooks')

/**
 * An `onRoute` hook. Fastify binds hooks when the app is ready and drops the functions that it was
 * given; the route's `config` is the one part of its options that an audit finds again.
 */
export function keepRouteHooks(options: RouteOptions): void {
  options.config = { ...options.config, [ROUTE_HOOKS]: options } as FastifyContextConfig
}

/** What Fastify keeps for a route, as far as authentication is concerned. */
export interface AuthenticatedContext {
  readonly config: { readonly [ROUTE_HOOKS]?: Hooks }
  readonly server?: FastifyInstance
}

/** Tells of a route whether one of its hooks, or of those of its plugins, authenticates. */
export function authenticationOf(options: AuditOptions | undefined): (context: object) => boolean {
  const authenticates = authenticatesBy(options)
  if (options?.authentication === undefined) return () => false
  return (context) => {
    const { config, server } = context as AuthenticatedContext
    const lists = [hooksOf(server), config[ROUTE_HOOKS] ?? {}]
    return lists.some((hooks) => HOOKS.some((name) => [hooks[name]].flat().some(authenticates)))
  }
}

/** The hooks of an instance and of those around it, as they were given to `addHook`. */
function hooksOf(server: object | undefined): Hooks {
  for (let owner = server; owner; owner = Object.getPrototypeOf(owner) as object | undefined) {
    const symbol = Object.getOwnPropertySymbols(owner).find(
      ({ description }) => description === 'fastify.hooks',
    )
    if (symbol !== undefined) return Reflect.get(owner, symbol) as Hooks
  }
  throw new InvalidOptionsError(
    'oncekey/fastify cannot read the hooks of this version of Fastify, so it cannot tell which ' +
      'routes are authenticated: use a version of Fastify 5 that it was tested with, and report ' +
      'this',
  )
}
