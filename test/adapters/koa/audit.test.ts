/** The start-up check: finds routes that change state without a guard. */
import type { Middleware } from 'koa'
import bodyParser from 'koa-bodyparser'
import { describe, expect, it } from 'vitest'
import { auditRoutes, requireProtected } from '../../../src/adapters/koa/index.ts'
import { text } from '../run-express.ts'
import { guardOf, KOAS, Router, serveKoa } from '../run-koa.ts'

const ok: Middleware = (ctx) => {
  ctx.body = ctx.idempotency === undefined ? 'open' : 'protected'
}
const passOn: Middleware = (_ctx, next) => next()

type Mount = (router: Router) => unknown

const audited = (mount: Mount, options: ConstructorParameters<typeof Router>[0] = {}) => {
  const router = new Router(options)
  mount(router)
  const audit = auditRoutes(router)
  const lines = (routes: typeof audit.protected) =>
    routes.map(({ method, path }) => `${method} ${path}`)
  return { protected: lines(audit.protected), unprotected: lines(audit.unprotected) }
}

describe('auditRoutes of a router', () => {
  it('sorts routes that change state and omits all others', () => {
    const found = audited((router) => {
      router.get('/payments', ok)
      router.post('/payments', passOn, guardOf(), ok)
      router.patch('/payments/:id', ok)
      router.put('/payments/:id', ok)
      router.post(['/a', '/b'], ok)
    })
    expect(found).toEqual({
      protected: ['POST /payments'],
      unprotected: ['PATCH /payments/:id', 'POST /a', 'POST /b'],
    })
  })

  it('audits the given methods and skips excepted paths', () => {
    const router = new Router()
    router.put('/a', ok).post('/webhooks/stripe', ok).post('/b', ok).all('/c', ok)
    const options = { methods: ['PUT', 'POST'], except: ['/webhooks/stripe', /^\/b/] }
    expect(auditRoutes(router, options).unprotected).toEqual([
      { method: 'PUT', path: '/a' },
      { method: 'POST', path: '/c' },
      { method: 'PUT', path: '/c' },
    ])
  })

  it('counts a guard of router.use() for later routes that its path covers', () => {
    const found = audited((router) => {
      router.post('/before', ok)
      router.use('/admin', guardOf())
      router.post('/admin/users/:id', ok)
      router.post('/admin{/:id}', ok)
      router.post('/administer', ok)
      router.use('/files/:id', guardOf())
      router.post('/files/*rest', ok)
      router.post('/files{/:id}', ok)
      router.post(/^\/admin\/.*/, ok)
      router.use(guardOf())
      router.post('/after', ok)
      router.post(/^\/u(\d+)$/, ok)
    })
    expect(found).toEqual({
      protected: [
        'POST /admin/users/:id',
        'POST /admin{/:id}',
        'POST /files/*rest',
        'POST /after',
        String.raw`POST /^\/u(\d+)$/`,
      ],
      unprotected: [
        'POST /before',
        'POST /administer',
        'POST /files{/:id}',
        String.raw`POST /^\/admin\/.*/`,
      ],
    })
  })

  it('finds routes and guards in nested routers with prefixes', () => {
    const inner = new Router({ prefix: '/cards' })
    inner.post('/open', ok)
    inner.use('/own', guardOf())
    inner.post('/own/:id', ok)
    const found = audited((router) => {
      router.use('/users/:user', inner.routes())
      router.use('/safe/:user', guardOf())
      router.use('/safe/:user', inner.routes())
    })
    expect(found.unprotected).toEqual(['POST /users/:user/cards/open'])
    expect(found.protected).toContain('POST /users/:user/cards/own/:id')
    expect(found.protected).toContain('POST /safe/:user/cards/open')
  })

  it('ignores a guard behind the handler', () => {
    const found = audited((router) => router.post('/payments', ok, guardOf()))
    expect(found.unprotected).toEqual(['POST /payments'])
  })

  it('ignores a guard that protects other methods', () => {
    const found = audited((router) => {
      router.post('/payments', guardOf({ methods: ['PATCH'] }), ok)
    })
    expect(found.unprotected).toEqual(['POST /payments'])
  })

  it('ignores middlewares of an exclusive router', () => {
    const found = audited(
      (router) => {
        router.use(guardOf())
        router.post('/used', ok)
        router.post('/own', guardOf(), ok)
      },
      { exclusive: true },
    )
    expect(found).toEqual({ protected: ['POST /own'], unprotected: ['POST /used'] })
  })

  it('throws when a prefix in another case avoids the guard', () => {
    const mount: Mount = (router) => router.use(guardOf()).post('/payments', ok)
    expect(() => audited(mount, { prefix: '/api' })).toThrow(
      /the guard of POST \/api\/payments protects only paths in the case .* sensitive: true/,
    )
    expect(audited(mount, { prefix: '/api', sensitive: true }).protected).toEqual([
      'POST /api/payments',
    ])
    expect(audited(mount, { prefix: '/:tenant' }).protected).toEqual(['POST /:tenant/payments'])
  })

  it('throws for a target that is not a router, and for wrong options', () => {
    for (const target of [undefined, {}, [], () => undefined, { stack: [{}] }, [new Router(), 7]]) {
      expect(() => auditRoutes(target)).toThrow('takes a router of @koa/router')
    }
    expect(() => auditRoutes(new Router(), { passes: 7 as never })).toThrow('passes must be')
    expect(() => auditRoutes(new Router(), { pases: 'all' } as never)).toThrow('pases')
  })
})

describe.each(KOAS)('auditRoutes of an app of %s', (_name, koa) => {
  const makeApp = (...middlewares: readonly unknown[]) => {
    const app = new koa()
    for (const one of middlewares) app.use(one as Middleware)
    return app
  }
  const routed = () => new Router().post('/payments', ok)

  it('counts guards that the app mounts before its routers', () => {
    const path = { method: 'POST', path: '/payments' }
    const protectedApp = makeApp(guardOf(), passOn, routed().routes())
    expect(auditRoutes(protectedApp)).toEqual({ protected: [path], unprotected: [] })
    const openApp = makeApp(routed().routes(), guardOf())
    expect(auditRoutes(openApp)).toEqual({ protected: [], unprotected: [path] })
  })

  it('throws for a middleware that it cannot inspect, unless passes names it', () => {
    const parser = bodyParser()
    const app = makeApp(parser, async () => undefined, routed().routes())
    expect(() => auditRoutes(app)).toThrow(
      /number 1, bodyParser; number 2, a function without a name.* passes: 'all'/,
    )
    expect(() => auditRoutes(app, { passes: [parser] })).toThrow(/app: number 2/)
    expect(auditRoutes(app, { passes: 'all' }).unprotected).toHaveLength(1)
    expect(auditRoutes(makeApp(parser, routed().routes()), { passes: [parser] })).toEqual({
      protected: [],
      unprotected: [{ method: 'POST', path: '/payments' }],
    })
  })

  it('throws for a middleware behind a guard that protects only some audited methods', () => {
    const app = makeApp(guardOf({ methods: ['POST'] }), passOn)
    expect(() => auditRoutes(app)).toThrow('number 2, passOn')
    expect(auditRoutes(app, { methods: ['POST'] }).unprotected).toEqual([])
  })

  it('makes requireProtected throw for unprotected routes', () => {
    const audit = auditRoutes([routed(), new Router().patch('/x', guardOf(), ok)])
    expect(() => requireProtected(audit)).toThrow(/POST \/payments\. Mount idempotency\(\)/)
    expect(() => requireProtected(auditRoutes(makeApp(guardOf(), routed().routes())))).not.toThrow()
  })

  it('agrees with the routes that the guard protects at run time', async () => {
    const inner = new Router()
    inner.post('/:id', ok)
    const router = new Router()
    router.use('/safe', guardOf({ keyRequired: false }))
    router.use('/safe', inner.routes())
    router.use('/open', inner.routes())
    const { send } = await serveKoa(koa, router.routes())
    const { protected: safe, unprotected: open } = auditRoutes(router)
    expect(safe.map(({ path }) => path)).toEqual(['/safe/:id'])
    expect(open.map(({ path }) => path)).toEqual(['/open/:id'])
    for (const path of ['/safe/7', '/SAFE/7', '/safe/7/']) {
      expect(text(await send({ path, key: path }))).toBe('protected')
    }
    expect(text(await send({ path: '/open/7', key: 'k' }))).toBe('open')
  })
})
