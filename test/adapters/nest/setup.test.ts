/** Setup of the module and the decorator, and the mistakes that fail the start of the app. */
import {
  All,
  Controller,
  Get,
  Global,
  HttpCode,
  Inject,
  Injectable,
  Patch,
  Post,
  Put,
  RequestMethod,
  SetMetadata,
  Version,
  VERSION_NEUTRAL,
  VersioningType,
  type INestApplication,
  type Type,
} from '@nestjs/common'
import { NestFactory, REQUEST, RouterModule } from '@nestjs/core'
import nestCore from '@nestjs/core/package.json' with { type: 'json' }
import { ExpressAdapter } from '@nestjs/platform-express'
import type { Application } from 'express'
import { describe, expect, inject, it, onTestFinished } from 'vitest'
import { createEngine } from '../../../src/core/engine/engine.ts'
import type { Engine } from '../../../src/core/engine/engine-contract.ts'
import {
  auditRoutes,
  IDEMPOTENCY_ENGINE,
  IdempotencyContext,
  IdempotencyModule,
  Idempotent,
  requireProtected,
  type IdempotencyOptions,
  type NestRequest,
} from '../../../src/adapters/nest/index.ts'
import { memoryStore } from '../../../src/stores/memory/store.ts'
import { gate, header, json, problemOf, turns } from '../run-express.ts'
import {
  controllerOf,
  createNest,
  moduleOf,
  optionsOf,
  PLATFORMS,
  serveNest,
  type NestSpec,
  type RouteSpec,
} from '../run-nest.ts'

const replayed = 'idempotent-replayed'
const pay: RouteSpec = { path: 'payments', decorators: [Idempotent()], handle: () => 'paid' }

/** The error message of a failed start, or `started`. */
async function startError(spec: Partial<NestSpec>): Promise<string> {
  try {
    const app = await createNest({ platform: 'express', ...spec })
    onTestFinished(() => app.close())
    await app.init()
    return 'started'
  } catch (error) {
    return (error as Error).message
  }
}

it('runs on the version of Nest that the vitest project names', async () => {
  const app = await createNest({ platform: 'express', controllers: [controllerOf({ pay })] })
  onTestFinished(() => app.close())
  await app.init()
  const express = app.getHttpAdapter().getInstance() as Application & { _router?: unknown }
  // Nest 10 uses Express 4.
  expect(express._router === undefined).toBe(inject('nest') > 10)
  expect(nestCore.version).toMatch(new RegExp(`^${inject('nest')}\\.`))
})

it('refuses @Idempotent on a method without parentheses', () => {
  const decorate = Idempotent as unknown as MethodDecorator
  expect(() => decorate({}, 'pay', { value: () => 'paid' })).toThrow(
    '@Idempotent is used on a method without being called, so it would protect nothing: write ' +
      '@Idempotent()',
  )
})

describe('the start of the app', () => {
  it('fails the start when the decorator is used without the module', async () => {
    const controllers = [controllerOf({ pay })]
    const message = await startError({ idempotency: false, controllers })
    expect(message).toContain('IdempotencyModule.forRoot({ store, tenant })')
    const onClass = controllerOf({ pay: { ...pay, decorators: [] } }, [Idempotent()])
    expect(await startError({ idempotency: false, controllers: [onClass] })).toBe(message)
  })

  it('fails the start when the module is imported twice', async () => {
    const again = IdempotencyModule.forRoot(optionsOf())
    expect(await startError({ imports: [again] })).toContain('imported twice')
  })

  it('starts when one module instance is imported in several places', async () => {
    const once = IdempotencyModule.forRoot(optionsOf())
    const imports = [once, moduleOf({ imports: [once], controllers: [controllerOf({ pay })] })]
    expect(await startError({ idempotency: false, imports })).toBe('started')
  })

  it.each([
    ['no tenant', { tenant: undefined as never }, 'tenant'],
    ['an unknown option', { ttl: 1 } as never, 'ttl'],
    ['no store', { store: undefined as never, engine: undefined as never }, 'store'],
  ])('fails the start when the module has %s', async (_what, options, message) => {
    const idempotencyOptions = { ...optionsOf(), ...(options as object) }
    expect(
      await startError({ idempotency: false, imports: [forRoot(idempotencyOptions)] }),
    ).toContain(message)
  })

  it.each([
    ['an unknown option', { ttl: 1 }, '@Idempotent() of TestController.pay: '],
    ['a wrong value', { keyLengthMin: 0 }, 'keyLengthMin'],
    ['contradicting options', { keyField: 'a', keyFrom: () => 'k' }, 'contradict'],
  ])('fails the start when a route has %s', async (_what, options, message) => {
    const decorators = [Idempotent(options as never)]
    const controllers = [controllerOf({ pay: { ...pay, decorators } })]
    expect(await startError({ controllers })).toContain(message)
  })

  it('fails the start when the HTTP method of a decorated method is not protected', async () => {
    const put: RouteSpec = { ...pay, method: 'PUT' }
    expect(await startError({ controllers: [controllerOf({ put })] })).toContain(
      'TestController.put serves PUT, which @Idempotent() does not protect: name it in',
    )
    const named: RouteSpec = { ...put, decorators: [Idempotent({ methods: ['PUT'] })] }
    expect(await startError({ controllers: [controllerOf({ named })] })).toBe('started')
    // A controller may have routes that only read.
    const get: RouteSpec = { ...pay, method: 'GET', decorators: [] }
    expect(await startError({ controllers: [controllerOf({ get }, [Idempotent()])] })).toBe(
      'started',
    )
  })

  it('fails the start when a message handler or its controller is decorated', async () => {
    // The metadata of @MessagePattern() of @nestjs/microservices.
    const pattern = SetMetadata('microservices:pattern', ['payments.create'])
    const withMethod = (decorators: MethodDecorator[], ofClass: ClassDecorator[]): Type => {
      const controller = controllerOf({ pay: { ...pay, decorators: [] } }, ofClass)
      const descriptor = { value: () => undefined, configurable: true, writable: true }
      Object.defineProperty(controller.prototype, 'onMessage', descriptor)
      for (const decorate of [pattern, ...decorators]) {
        decorate(controller.prototype as object, 'onMessage', descriptor)
      }
      return controller
    }
    const message = 'TestController.onMessage handles no HTTP requests'
    const alone = withMethod([Idempotent()], [])
    expect(await startError({ controllers: [alone] })).toContain(message)
    const together = withMethod([], [Idempotent()])
    expect(await startError({ controllers: [together] })).toContain(message)
    const apart = withMethod([Idempotent(false)], [Idempotent()])
    expect(await startError({ controllers: [apart] })).toBe('started')
  })

  it('fails the start when a provider is decorated, such as a gateway or a resolver', async () => {
    class PaymentsResolver {
      pay() {}
    }
    Injectable()(PaymentsResolver)
    expect(await startError({ providers: [PaymentsResolver] })).toBe('started')
    const descriptor = Object.getOwnPropertyDescriptor(PaymentsResolver.prototype, 'pay')!
    Idempotent()(PaymentsResolver.prototype, 'pay', descriptor)
    expect(await startError({ providers: [PaymentsResolver] })).toContain(
      'PaymentsResolver.pay is not part of a controller',
    )
  })

  it('fails the start when the options depend on a request-scoped provider', async () => {
    const imports = [
      IdempotencyModule.forRootAsync({
        inject: [REQUEST],
        useFactory: (_request: NestRequest) => optionsOf(),
      }),
    ]
    expect(await startError({ idempotency: false, imports })).toContain('request-scoped')
  })

  it('throws when forRootAsync has none or several of its factories', () => {
    expect(() => IdempotencyModule.forRootAsync({})).toThrow('got none')
    const useFactory = () => optionsOf()
    expect(() => IdempotencyModule.forRootAsync({ useFactory, useExisting: 'x' })).toThrow('got 2')
    expect(() => Idempotent(true as never)).toThrow('true')
  })
})

const forRoot = (options: unknown) => IdempotencyModule.forRoot(options as IdempotencyOptions)

describe.each(PLATFORMS)('Nest on %s', (platform) => {
  it.each(['useFactory', 'useClass', 'useExisting'] as const)(
    'reads the module options from %s',
    async (way) => {
      class Settings {
        createIdempotencyOptions() {
          return optionsOf({ keyHeader: 'x-request-id' })
        }
      }
      Injectable()(Settings)
      const settings = moduleOf({ providers: [Settings], exports: [Settings] })
      const useFactory = async (from: Settings) => from.createIdempotencyOptions()
      const ours = {
        useFactory: { imports: [settings], inject: [Settings], useFactory },
        useClass: { useClass: Settings },
        useExisting: { imports: [settings], useExisting: Settings },
      }[way]
      const { send } = await serveNest({
        platform,
        idempotency: false,
        imports: [IdempotencyModule.forRootAsync(ours)],
        controllers: [controllerOf({ pay })],
      })
      expect((await send({ path: '/payments', key: 'k' })).status).toBe(400)
      for (const expected of [undefined, 'true']) {
        const reply = await send({ path: '/payments', headers: { 'X-Request-Id': 'k' } })
        expect([reply.status, header(reply, replayed)]).toEqual([201, expected])
      }
    },
  )

  it('lets a method override its controller, and both override the module', async () => {
    const controller = controllerOf(
      {
        plain: { path: 'plain', handle: () => 'plain' },
        own: {
          path: 'own',
          decorators: [Idempotent({ keyField: 'id' })],
          handle: () => 'own',
        },
        open: { path: 'open', decorators: [Idempotent(false)], handle: () => 'open' },
        read: { path: 'read', method: 'GET', handle: () => 'read' },
      },
      [Idempotent({ keyHeader: 'x-key', keyLengthMin: 3 })],
    )
    const { send } = await serveNest({
      platform,
      controllers: [controller],
      idempotency: { keyLengthMin: 8 },
    })
    const plain = (key: string) => send({ path: '/plain', headers: { 'X-Key': key } })
    expect(problemOf(await plain('ab'))).toEqual([400, 'idempotency_key_malformed'])
    expect((await plain('abc')).status).toBe(201)
    expect((await send({ path: '/own', json: { id: 'ab' } })).status).toBe(400)
    expect((await send({ path: '/own', json: { id: 'abc' } })).status).toBe(201)
    expect((await send({ path: '/open' })).status).toBe(201)
    expect((await send({ path: '/read', method: 'GET' })).status).toBe(200)
  })

  it('runs requests without a key on routes with keyRequired: false', async () => {
    const decorators = [Idempotent({ keyRequired: false }), HttpCode(200)]
    const params = [IdempotencyContext({ optional: true })]
    const handle = (context: unknown) => ({ protected: context !== undefined })
    const strict = { path: 'strict', decorators, params: [IdempotencyContext()], handle }
    const controllers = [controllerOf({ pay: { ...pay, decorators, params, handle }, strict })]
    const { send } = await serveNest({ platform, controllers })
    expect(json(await send({ path: '/payments' }))).toEqual({ protected: false })
    expect(json(await send({ path: '/payments', key: 'k' }))).toEqual({ protected: true })
    expect((await send({ path: '/strict' })).status).toBe(500)
  })

  it('names an operation by its route template, with prefix and version', async () => {
    const store = memoryStore()
    const seen: string[] = []
    const engine = createEngine({ store })
    const handle = (context: { scope: { operation: string } }) => {
      seen.push(context.scope.operation)
    }
    const route = { decorators: [Idempotent()], params: [IdempotencyContext()], handle }
    const controller = controllerOf(
      { refund: { ...route, path: ':paymentId/refunds' }, own: ownVersion(route, '2') },
      [Controller({ path: 'payments', version: '1' })],
    )
    const { send } = await serveNest({
      platform,
      controllers: [controller],
      idempotency: { engine },
      prepare: (app) => {
        app.setGlobalPrefix('api')
        app.enableVersioning({ type: VersioningType.URI })
      },
    })
    await send({ path: '/api/v1/payments/7/refunds', key: 'a' })
    await send({ path: '/api/v2/payments/own', key: 'a' })
    expect(seen).toEqual(['POST /api/v1/payments/:/refunds', 'POST /api/v2/payments/own'])
  })

  it('keeps the keys of two versions apart when a header selects the version', async () => {
    const { send } = await serveNest({
      platform,
      controllers: [
        controllerOf({ one: ownVersion({ handle: () => 'one' }, '1') }, [Idempotent()]),
        controllerOf({ two: ownVersion({ handle: () => 'two' }, '2') }, [Idempotent()]),
      ],
      prepare: (app) => app.enableVersioning({ type: VersioningType.HEADER, header: 'x-version' }),
    })
    const get = (version: string) =>
      send({ path: '/own', key: 'k', headers: { 'x-version': version } })
    for (const [version, body] of [
      ['1', 'one'],
      ['2', 'two'],
      ['1', 'one'],
    ] as const) {
      expect((await get(version)).body.toString()).toBe(body)
    }
  })

  it('provides the engine for injection and leaves an engine of the caller open', async () => {
    const engine = createEngine({ store: memoryStore() })
    class Jobs {
      readonly engine: Engine

      constructor(one: Engine) {
        this.engine = one
      }
    }
    Injectable()(Jobs)
    Inject(IDEMPOTENCY_ENGINE)(Jobs, undefined, 0)
    const app = await createNest({ platform, idempotency: { engine }, providers: [Jobs] })
    await app.init()
    expect(app.get(Jobs).engine).toBe(engine)
    await app.close()
    expect(engine.isClosed).toBe(false)
  })

  it('waits for running handlers at shutdown, before other providers shut down', async () => {
    const [entered, finished] = [gate(), gate()]
    const order: string[] = []
    const handle = async () => {
      entered.open()
      await finished.passed
      order.push('handled')
      return 'paid'
    }
    class Database {
      onApplicationShutdown() {
        order.push('closed')
      }
    }
    Injectable()(Database)
    const store = memoryStore()
    const app = await createNest({
      platform,
      idempotency: { store },
      providers: [Database],
      controllers: [controllerOf({ pay: { ...pay, handle } })],
    })
    await app.listen(0, '127.0.0.1')
    const url = `${await app.getUrl()}/payments`
    const post = (key: string) =>
      fetch(url, { method: 'POST', headers: { 'Idempotency-Key': key, Connection: 'close' } })
    const first = post('a')
    await entered.passed
    const closing = app.close()
    await turns()
    expect((await post('b')).status).toBe(503)
    finished.open()
    expect(await (await first).text()).toBe('paid')
    await closing
    expect(order).toEqual(['handled', 'closed'])
    const [record] = await store.list({ state: 'completed', limit: 10 })
    expect(record?.key).toBe('a')
  })

  it('audits the routes of all modules as protected or unprotected', async () => {
    const app = await createNest(auditedApp(platform))
    onTestFinished(() => app.close())
    configureAudited(app)
    const { protected: safe, unprotected } = auditRoutes(app)
    expect(safe.map(({ method, path }) => `${method} ${path}`).toSorted()).toEqual([
      'PATCH /api/v1/payments/:id',
      'PATCH /api/v2/payments/:id',
      'POST /api/v1/payments',
      'POST /api/v2/payments',
    ])
    expect(unprotected.map(({ method, path }) => `${method} ${path}`).toSorted()).toEqual([
      'PATCH /api/anything',
      'POST /api/admin/users',
      'POST /api/admin/users/bulk',
      'POST /api/anything',
      'POST /health',
    ])
    expect(() => requireProtected(auditRoutes(app))).toThrow('POST /health')
    const except = ['/health', '/api/anything', /^\/api\/admin/]
    expect(() => requireProtected(auditRoutes(app, { except }))).not.toThrow()
    expect(auditRoutes(app, { methods: ['PUT'] }).unprotected.map(({ path }) => path)).toEqual([
      '/api/v1/payments/:id',
      '/api/v2/payments/:id',
      '/api/anything',
    ])
  })

  it('serves every path that the audit lists', async () => {
    const app = await createNest(auditedApp(platform))
    onTestFinished(() => app.close())
    configureAudited(app)
    await app.listen(0, '127.0.0.1')
    const url = await app.getUrl()
    const all = auditRoutes(app)
    for (const { method, path } of [...all.protected, ...all.unprotected]) {
      const headers = { 'Idempotency-Key': 'k', Connection: 'close' }
      const reply = await fetch(`${url}${path.replace(':id', '7')}`, { method, headers })
      expect([path, reply.ok]).toEqual([path, true])
    }
  })
})

it('returns 500 without running the handler behind a second guard', async () => {
  let runs = 0
  const { send } = await serveNest({
    platform: 'express',
    controllers: [controllerOf({ pay: { ...pay, handle: () => ++runs } })],
    // The middleware of oncekey/express sets the same property.
    prepare: (app) =>
      app.use((request: object, _response: unknown, next: () => void) => {
        Object.assign(request, { idempotency: {} })
        next()
      }),
  })
  expect((await send({ path: '/payments', key: 'k' })).status).toBe(500)
  expect(runs).toBe(0)
})

it('audits all routes of an app without the module as unprotected', async () => {
  const open = controllerOf({ pay: { ...pay, decorators: [] } })
  const app = await NestFactory.create(moduleOf({ controllers: [open] }), new ExpressAdapter(), {
    logger: false,
  })
  onTestFinished(() => app.close())
  expect(auditRoutes(app).unprotected).toEqual([{ method: 'POST', path: '/payments' }])
})

it('accepts options for any request type', () => {
  interface Authenticated extends NestRequest {
    readonly user: { readonly account: string }
  }
  const tenant = (request: Authenticated) => request.user.account
  expect(IdempotencyModule.forRoot({ store: memoryStore(), tenant }).global).toBe(true)
  Idempotent({ principal: (request: Authenticated) => request.user.account })
  IdempotencyModule.forRootAsync({ useFactory: () => ({ store: memoryStore(), tenant }) })
  // @ts-expect-error: a tenant is a string
  IdempotencyModule.forRoot({ store: memoryStore(), tenant: () => 1 })
  // @ts-expect-error: unknown option
  Idempotent({ ttl: 1 })
  // @ts-expect-error: only `false` and options are allowed
  expect(() => Idempotent(true)).toThrow('true')
})

function ownVersion(route: RouteSpec, version: string): RouteSpec {
  return { ...route, path: 'own', decorators: [...(route.decorators ?? []), Version(version)] }
}

/** An app with nested modules, several paths and versions, a global module and a router module. */
function auditedApp(platform: NestSpec['platform']): NestSpec {
  class Payments {
    create() {}
    update() {}
    replace() {}
    list() {}
  }
  const decorate = (target: Type, name: string, ...decorators: MethodDecorator[]) => {
    const descriptor = Object.getOwnPropertyDescriptor(target.prototype, name)!
    for (const one of decorators) one(target.prototype as object, name, descriptor)
  }
  decorate(Payments, 'create', Post())
  decorate(Payments, 'update', Patch(':id'))
  decorate(Payments, 'replace', Put(':id'))
  decorate(Payments, 'list', Get())
  Controller({ path: 'payments', version: ['1', '2'] })(Payments)
  Idempotent()(Payments)

  class Admin {
    users() {}
  }
  decorate(Admin, 'users', Post(['users', 'users/bulk']))
  Controller({ version: VERSION_NEUTRAL })(Admin)
  const admin = moduleOf({ controllers: [Admin] })

  class Health {
    check() {}
    anything() {}
  }
  decorate(Health, 'check', Post('health'))
  decorate(Health, 'anything', All('anything'))
  Controller()(Health)
  const deep = moduleOf({ controllers: [Health] })
  Global()(deep)
  const router = RouterModule.register([{ path: 'admin', module: admin }])
  return {
    platform,
    imports: [moduleOf({ imports: [moduleOf({ imports: [deep] })] }), admin, router],
    controllers: [Payments],
  }
}

function configureAudited(app: INestApplication): void {
  app.setGlobalPrefix('api', { exclude: [{ path: 'health', method: RequestMethod.POST }] })
  app.enableVersioning({ type: VersioningType.URI })
}
