/** The start-up check: which routes that change something no guard stands before. */
import type { Middleware } from 'koa'
import bodyParser from 'koa-bodyparser'
import { describe, expect, it } from 'vitest'
import { auditRoutes, requireProtected } from '../../src/adapters/koa.ts'
import { text } from './run-express.ts'
import { guardOf, KOAS, Router, serveKoa } from './run-koa.ts'

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
  it('sorts routes that change something, and leaves the others out', () => {
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

  it('takes the methods that matter, and paths that need nothing', () => {
    const router = new Router()
    router.put('/a', ok).post('/webhooks/stripe', ok).post('/b', ok).all('/c', ok)
    const options = { methods: ['PUT', 'POST'], except: ['/webhooks/stripe', /^\/b/] }
    expect(auditRoutes(router, options).unprotected).toEqual([
      { method: 'PUT', path: '/a' },
      { method: 'POST', path: '/c' },
      { method: 'PUT', path: '/c' },
    ])
  })

  it('sees a guard that the router uses, from there on and where its path reaches', () => {
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

  it('sees nested routers and their prefixes, with guards inside and outside', () => {
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

  it('takes no guard into account that stands behind the handler', () => {
    const found = audited((router) => router.post('/payments', ok, guardOf()))
    expect(found.unprotected).toEqual(['POST /payments'])
  })

  it('takes no guard into account that protects other methods', () => {
    const found = audited((router) => {
      router.post('/payments', guardOf({ methods: ['PATCH'] }), ok)
    })
    expect(found.unprotected).toEqual(['POST /payments'])
  })

  it('knows that an exclusive router runs none of its own middlewares', () => {
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

  it('throws where another spelling of the prefix goes around the guard', () => {
    const mount: Mount = (router) => router.use(guardOf()).post('/payments', ok)
    expect(() => audited(mount, { prefix: '/api' })).toThrow(
      /POST \/api\/payments, but only for the case .* sensitive: true/,
    )
    expect(audited(mount, { prefix: '/api', sensitive: true }).protected).toEqual([
      'POST /api/payments',
    ])
    expect(audited(mount, { prefix: '/:tenant' }).protected).toEqual(['POST /:tenant/payments'])
  })

  it('throws for what is no router', () => {
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

  it('sees guards that the app uses before its routers', () => {
    const path = { method: 'POST', path: '/payments' }
    const protectedApp = makeApp(guardOf(), passOn, routed().routes())
    expect(auditRoutes(protectedApp)).toEqual({ protected: [path], unprotected: [] })
    const openApp = makeApp(routed().routes(), guardOf())
    expect(auditRoutes(openApp)).toEqual({ protected: [], unprotected: [path] })
  })

  it('throws at a middleware that it cannot look into, unless it was told about it', () => {
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

  it('throws at a middleware behind a guard that does not protect all that is asked for', () => {
    const app = makeApp(guardOf({ methods: ['POST'] }), passOn)
    expect(() => auditRoutes(app)).toThrow('number 2, passOn')
    expect(auditRoutes(app, { methods: ['POST'] }).unprotected).toEqual([])
  })

  it('stops a server whose routes are open', () => {
    const audit = auditRoutes([routed(), new Router().patch('/x', guardOf(), ok)])
    expect(() => requireProtected(audit)).toThrow(/POST \/payments\. Put idempotency\(\)/)
    expect(() => requireProtected(auditRoutes(makeApp(guardOf(), routed().routes())))).not.toThrow()
  })

  it('is right about what runs', async () => {
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
