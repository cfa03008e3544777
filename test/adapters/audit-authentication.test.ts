/** The audit lists protected routes whose guard runs before authentication, or without any. */
import express, { type RequestHandler } from 'express'
import type { FastifyRequest } from 'fastify'
import { Hono, type Context as HonoContext, type Next as HonoNext } from 'hono'
import type { Middleware } from 'koa'
import { describe, expect, it } from 'vitest'
import { auditRoutes as auditExpress, requireProtected } from '../../src/adapters/express/index.ts'
import { auditRoutes as auditFastify, idempotency } from '../../src/adapters/fastify/index.ts'
import { auditRoutes as auditHono, idempotency as onHono } from '../../src/adapters/hono/index.ts'
import { auditRoutes as auditKoa } from '../../src/adapters/koa/index.ts'
import type { RouteAudit } from '../../src/http/guard/route-audit.ts'
import { memoryStore } from '../../src/stores/memory/store.ts'
import { EXPRESSES, guardOf, serve, text } from './run-express.ts'
import { guardedApp, newApp, optionsOf } from './run-fastify.ts'
import { guardOf as koaGuardOf, KOAS, Router } from './run-koa.ts'

const open = ({ unauthenticated }: RouteAudit) =>
  unauthenticated?.map(({ method, path }) => `${method} ${path}`)

describe.each(EXPRESSES)('%s', (_name, module) => {
  const handler: RequestHandler = (_req, res) => void res.sendStatus(201)
  const authentication: RequestHandler = (_req, _res, next) => next()
  const other: RequestHandler = (_req, _res, next) => next()

  it('lists Express routes without authentication before the guard', () => {
    const app = module()
    app.post('/right', authentication, guardOf(), handler)
    app.post('/wrong', guardOf(), authentication, handler)
    app.post('/none', other, guardOf(), handler)
    app.post('/unprotected', authentication, handler)
    const audit = auditExpress(app, { authentication })
    expect(open(audit)).toEqual(['POST /wrong', 'POST /none'])
    expect(audit.protected).toHaveLength(3)
    expect(auditExpress(app).unauthenticated).toBeUndefined()
  })

  it('finds authentication on the app, on a router and on a path', () => {
    const app = module()
    const early = module.Router().post('/early', guardOf(), handler)
    const inner = module.Router()
    inner.use(authentication)
    inner.post('/inner', guardOf(), handler)
    app.use(early)
    app.use('/routed', inner)
    app.use('/paths', authentication)
    app.post('/paths/a', guardOf(), handler)
    app.post('/elsewhere', guardOf(), handler)
    app.use(authentication)
    app.post('/late', guardOf(), handler)
    const mounts = ['/routed', '/paths']
    expect(open(auditExpress(app, { authentication, mounts }))).toEqual([
      'POST /early',
      'POST /elsewhere',
    ])
  })

  it('lists routes behind a guard that the app mounts before authentication', () => {
    const app = module()
    app.use(guardOf())
    app.post('/on-route', authentication, handler)
    app.use(authentication)
    app.post('/late', handler)
    expect(open(auditExpress(app, { authentication }))).toEqual(['POST /on-route', 'POST /late'])
  })

  it('accepts each of several authentication middlewares', () => {
    const app = module()
    app.post('/a', authentication, guardOf(), handler)
    app.post('/b', [other, guardOf()], handler)
    expect(open(auditExpress(app, { authentication: [authentication, other] }))).toEqual([])
  })
})

it('fails requireProtected when a replay skips the authentication', async () => {
  const app = express()
  const authenticate: RequestHandler = (req, res, next) => {
    if (req.headers.authorization === 'secret') next()
    else res.sendStatus(401)
  }
  app.post('/payments', guardOf(), authenticate, (_req, res) => void res.send('card 4242'))
  const { send } = await serve(app)
  const first = await send({
    path: '/payments',
    key: 'k',
    json: {},
    headers: { authorization: 'secret' },
  })
  const stranger = await send({ path: '/payments', key: 'k', json: {} })
  expect([text(first), stranger.status, text(stranger)]).toEqual(['card 4242', 200, 'card 4242'])
  const audit = auditExpress(app, { authentication: authenticate })
  expect(() => requireProtected(audit)).toThrow(
    'the guard comes before authentication: POST /payments. A replay skips everything behind the ' +
      'guard',
  )
})

it.each([
  ['"requireUser"', 'requireUser'],
  ['undefined', [undefined]],
  ['an empty list', []],
])('refuses %s as the authentication option', (shown, authentication) => {
  expect(() => auditExpress(express(), { authentication: authentication as object })).toThrow(
    `auditRoutes.authentication must be the middleware, hook or guard that authenticates ` +
      `callers, or a list of them, got ${shown}`,
  )
})

describe('Koa', () => {
  const handler: Middleware = (ctx) => {
    ctx.body = 'ok'
  }
  const authentication: Middleware = (_ctx, next) => next()

  it('lists Koa routes without authentication before the guard', () => {
    const router = new Router()
    router.post('/right', authentication, koaGuardOf(), handler)
    router.post('/wrong', koaGuardOf(), authentication, handler)
    router.use('/part', authentication)
    router.post('/part/a', koaGuardOf(), handler)
    router.post('/none', koaGuardOf(), handler)
    router.use(authentication)
    router.post('/late', koaGuardOf(), handler)
    expect(open(auditKoa(router, { authentication }))).toEqual(['POST /wrong', 'POST /none'])
    expect(auditKoa(router).unauthenticated).toBeUndefined()
  })

  it.each(KOAS)('follows the order of app.use() in %s', (_name, koa) => {
    const router = new Router().post('/a', authentication, handler)
    const guardFirst = new koa().use(koaGuardOf()).use(authentication).use(router.routes())
    expect(open(auditKoa(guardFirst, { authentication }))).toEqual(['POST /a'])
    const guardSecond = new koa().use(authentication).use(koaGuardOf()).use(router.routes())
    expect(open(auditKoa(guardSecond, { authentication }))).toEqual([])
  })
})

it('lists Hono routes without authentication before the guard', () => {
  const guard = onHono({ store: memoryStore(), tenant: () => 't' })
  const handler = (c: HonoContext) => c.text('done')
  const authentication = async (_c: HonoContext, next: HonoNext) => next()
  const app = new Hono()
  app.post('/right', authentication, guard, handler)
  app.post('/wrong', guard, authentication, handler)
  app.use('/part/*', authentication)
  app.post('/part/:id', guard, handler)
  app.post('/none', guard, handler)
  app.use('/mixed/:id', guard)
  app.use(authentication)
  app.post('/late', guard, handler)
  app.post('/mixed/:id', handler)
  const audit = auditHono(app, { authentication })
  expect(open(audit)).toEqual(['POST /wrong', 'POST /none', 'POST /mixed/:id'])
  expect(auditHono(app).unauthenticated).toBeUndefined()
})

describe('Fastify', () => {
  const handler = () => 'ok'
  const authentication = async (_request: FastifyRequest) => undefined

  it('lists Fastify routes without an authentication hook', async () => {
    const app = await guardedApp()
    for (const hook of ['onRequest', 'preValidation', 'preHandler'] as const) {
      app.post(`/${hook}`, { [hook]: [authentication] }, handler)
    }
    app.post('/single', { onRequest: authentication }, handler)
    app.post('/none', handler)
    app.post('/too-late', { preSerialization: async () => undefined }, handler)
    app.register(async (inner) => {
      inner.post('/inner', handler)
      inner.addHook('onRequest', authentication)
      inner.register(async (child) => child.post('/child', handler))
    })
    await app.ready()
    expect(open(auditFastify(app, { authentication }))).toEqual(['POST /none', 'POST /too-late'])
    expect(auditFastify(app).unauthenticated).toBeUndefined()
  })

  it('finds hooks of the app for routes that were added before the plugin', async () => {
    const app = newApp()
    app.post('/older', handler)
    app.register(idempotency, optionsOf())
    app.addHook('onRequest', authentication)
    await app.ready()
    expect(open(auditFastify(app, { authentication }))).toEqual([])
  })

  it('lists a route that was added before the plugin and has its own hook', async () => {
    const app = newApp()
    app.post('/older', { onRequest: authentication }, handler)
    app.register(idempotency, optionsOf())
    await app.ready()
    expect(open(auditFastify(app, { authentication }))).toEqual(['POST /older'])
  })

  it('leaves the config of a Fastify route unchanged', async () => {
    const app = await guardedApp()
    app.post('/a', { config: { idempotency: { keyRequired: false } } }, (request) => ({
      ...request.routeOptions.config,
    }))
    const { payload } = await app.inject({ method: 'POST', url: '/a' })
    expect(JSON.parse(payload)).toEqual({
      idempotency: { keyRequired: false },
      url: '/a',
      method: 'POST',
    })
  })
})
