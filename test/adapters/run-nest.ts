/** Nest apps on both platforms, built without decorator syntax. */
import type http from 'node:http'
import {
  Controller,
  Module,
  RequestMapping,
  RequestMethod,
  type INestApplication,
  type ModuleMetadata,
  type NestApplicationOptions,
  type Type,
} from '@nestjs/common'
import { NestFactory } from '@nestjs/core'
import { ExpressAdapter } from '@nestjs/platform-express'
import { FastifyAdapter } from '@nestjs/platform-fastify'
import type { FastifyInstance, FastifyServerOptions } from 'fastify'
import { onTestFinished } from 'vitest'
import { singleTenant } from '../../src/http/guard/guard-options.ts'
import { IdempotencyModule, type IdempotencyOptions } from '../../src/adapters/nest/index.ts'
import { memoryStore } from '../../src/stores/memory/store.ts'
import { serve, type TestServer } from './run-express.ts'

declare module 'vitest' {
  interface ProvidedContext {
    /** The major version of Nest that the test project runs on. */
    nest: number
  }
}

export type Platform = 'express' | 'fastify'

export const PLATFORMS: readonly Platform[] = ['express', 'fastify']

export interface RouteSpec {
  /** @default 'POST' */
  readonly method?: string
  /** @default '/' */
  readonly path?: string | string[]
  readonly decorators?: readonly MethodDecorator[]
  /** One decorator for each argument. */
  readonly params?: readonly ParameterDecorator[]
  readonly handle: (...args: never[]) => unknown
}

export function controllerOf(
  routes: Readonly<Record<string, RouteSpec>>,
  decorators: readonly ClassDecorator[] = [],
  path: string | string[] = '',
): Type {
  class TestController {
    readonly isController = true
  }
  for (const [name, spec] of Object.entries(routes)) addRoute(TestController, name, spec)
  // The caller's decorators come last, so that they can replace the path.
  for (const decorate of [Controller(path), ...decorators]) decorate(TestController)
  return TestController
}

function addRoute(target: Type, name: string, spec: RouteSpec): void {
  const { method = 'POST', path = '/', decorators = [], params = [], handle } = spec
  // Each route needs a separate function, because metadata is stored on it.
  const value = function (this: unknown, ...args: never[]) {
    return handle.apply(this, args)
  }
  const prototype = target.prototype as object
  const descriptor = { value, configurable: true, writable: true }
  Object.defineProperty(prototype, name, descriptor)
  const mapping = RequestMapping({ path, method: RequestMethod[method as 'POST'] })
  for (const decorate of [mapping, ...decorators]) decorate(prototype, name, descriptor)
  params.forEach((decorate, index) => decorate(prototype, name, index))
}

export function moduleOf(metadata: ModuleMetadata): Type {
  class TestModule {
    readonly isModule = true
  }
  Module(metadata)(TestModule)
  return TestModule
}

export interface NestSpec extends ModuleMetadata {
  readonly platform: Platform
  /** `false` leaves the module out. */
  readonly idempotency?: Partial<IdempotencyOptions> | false
  /** Modules that are imported before `IdempotencyModule`. Their interceptors run around it. */
  readonly before?: ModuleMetadata['imports']
  /** Called before the app is initialised. */
  readonly prepare?: (app: INestApplication) => unknown
  readonly app?: NestApplicationOptions
  /** Options of Fastify itself. */
  readonly fastify?: FastifyServerOptions
}

/** Creates an app without initialising it. */
export async function createNest(spec: NestSpec): Promise<INestApplication> {
  const { platform, idempotency, prepare, app: options, fastify, ...rest } = spec
  const { before = [], imports = [], ...metadata } = rest
  const own = idempotency === false ? [] : [IdempotencyModule.forRoot(optionsOf(idempotency))]
  const app = await NestFactory.create(
    moduleOf({ ...metadata, imports: [...before, ...own, ...imports] }),
    platform === 'express' ? new ExpressAdapter() : new FastifyAdapter(fastify as object),
    { logger: false, abortOnError: false, ...options },
  )
  await prepare?.(app)
  return app
}

export interface NestServer extends TestServer {
  readonly app: INestApplication
}

export async function serveNest(spec: NestSpec): Promise<NestServer> {
  const app = await createNest(spec)
  await app.init()
  const server = await serve(await listenerOf(app, spec.platform))
  onTestFinished(() => app.close())
  return { ...server, app }
}

async function listenerOf(
  app: INestApplication,
  platform: Platform,
): Promise<http.RequestListener> {
  if (platform === 'express') return app.getHttpAdapter().getInstance() as http.RequestListener
  const fastify = app.getHttpAdapter().getInstance() as FastifyInstance
  await fastify.ready()
  return (req, res) => fastify.routing(req, res)
}

export function optionsOf(options: Partial<IdempotencyOptions> = {}): IdempotencyOptions {
  const hasStore = options.engine !== undefined || options.store !== undefined
  return { tenant: singleTenant, ...(hasStore ? {} : { store: memoryStore() }), ...options }
}
