import type { NextFunction, Request, RequestHandler, Response } from 'express'
import { describe, expect, it } from 'vitest'
import {
  auditRoutes,
  idempotencyErrors,
  requireProtected,
  type ExpressAuditOptions,
} from '../../../src/adapters/express/index.ts'
import { EXPRESSES, guardOf, serve, type ExpressModule } from '../run-express.ts'

const handler: RequestHandler = (_req, res) => {
  res.sendStatus(201)
}
const pass: RequestHandler = (_req, _res, next) => {
  next()
}

function setup(express: ExpressModule) {
  const app = express()
  const guard = guardOf()
  const names = (options?: ExpressAuditOptions) => {
    const audit = auditRoutes(app, options)
    const list = (routes: typeof audit.protected) =>
      routes.map(({ method, path }) => `${method} ${path}`)
    return { protected: list(audit.protected), unprotected: list(audit.unprotected) }
  }
  return { app, guard, names }
}

describe.each(EXPRESSES)('%s: an audit', (_name, express) => {
  it('finds guards on routes, also behind other middleware', () => {
    const { app, guard, names } = setup(express)
    app.post('/a', guard, handler)
    app.post('/b/:id', pass, guard, pass, handler)
    app.patch('/c', [pass, guard], handler)
    app.route('/d').all(guard).post(handler).patch(handler)
    app.route('/e').post(guard, handler).patch(handler)
    app.all('/f', guard, handler)
    app.post('/open', pass, handler)
    app.get('/read', handler)
    app.put('/put', handler)
    expect(names()).toEqual({
      protected: ['POST /a', 'POST /b/:id', 'POST /d', 'POST /e', 'POST /f'].concat([
        'PATCH /c',
        'PATCH /d',
        'PATCH /f',
      ]),
      unprotected: ['POST /open', 'PATCH /e'],
    })
  })

  it('does not count a guard that comes after the handler', () => {
    const { app, guard, names } = setup(express)
    app.post('/a', handler, guard)
    app.post('/b', handler)
    app.use(guard)
    app.post('/c', handler)
    expect(names()).toEqual({ protected: ['POST /c'], unprotected: ['POST /a', 'POST /b'] })
  })

  it('counts a guard only for the methods that it protects', () => {
    const { app, names } = setup(express)
    app.put('/a', guardOf({ methods: ['PUT'] }), handler)
    app.post('/a', guardOf({ methods: ['PUT'] }), handler)
    app.delete('/a', guardOf(), handler)
    app.all('/b', guardOf({ methods: ['POST', 'DELETE'] }), handler)
    expect(names({ methods: ['POST', 'PUT', 'DELETE'] })).toEqual({
      protected: ['POST /b', 'PUT /a', 'DELETE /b'],
      unprotected: ['POST /a', 'PUT /b', 'DELETE /a'],
    })
  })

  it('follows nested routers, and counts a guard only for the routes behind it', () => {
    const { app, guard, names } = setup(express)
    const inner = express.Router()
    inner.post('/:id', handler)
    const guarded = express.Router()
    guarded.post('/early', handler)
    guarded.use(guard)
    guarded.use(inner)
    const open = express.Router()
    open.post('/', handler)
    app.use(guarded)
    app.use(open)
    expect(names()).toEqual({
      protected: ['POST /:id'],
      unprotected: ['POST /early', 'POST /'],
    })
  })

  it('counts the guard of a route for later routes, unless a request can skip it', () => {
    const { app, guard, names } = setup(express)
    app.post('/a/:id', guard)
    app.post('/a/:name', handler)
    app.post('/a', handler)
    app.post('/b', pass, guard)
    app.post('/b', handler)
    expect(names()).toEqual({
      protected: ['POST /a/:name'],
      unprotected: ['POST /a', 'POST /b', 'POST /b'],
    })
  })

  it('counts a guard mounted on a path for routes that are certainly below it', () => {
    const { app, guard, names } = setup(express)
    app.use('/pay', guard)
    app.use('/tenants/:t/pay', guard)
    app.use(/^\/odd\/[a-z0-9]+/i, guard)
    app.post('/pay', handler)
    app.post('/pay/:id', handler)
    app.post('/payments', handler)
    app.post('/:any', handler)
    app.post('/tenants/:id/pay/now', handler)
    app.post('/tenants/:id', handler)
    app.post('/odd/:id', handler)
    app.post(/^\/pay\/\d+$/, handler)
    app.post(['/pay/x', '/x'], handler)
    expect(names()).toEqual({
      protected: ['POST /pay', 'POST /pay/:id', 'POST /tenants/:id/pay/now', 'POST /pay/x'],
      unprotected: [
        'POST /payments',
        'POST /:any',
        'POST /tenants/:id',
        'POST /odd/:id',
        'POST /^\\/pay\\/\\d+$/',
        'POST /x',
      ],
    })
  })

  it('does not count a guard whose path matches more strictly than the route', async () => {
    const { app, guard, names } = setup(express)
    app.enable('case sensitive routing')
    app.use('/pay/now', guard)
    const router = express.Router({ caseSensitive: false })
    router.post('/now', handler)
    app.use('/pay', router)
    const { send } = await serve(app)
    // The router matches any case, so this request does not pass the guard.
    expect((await send({ path: '/pay/NOW' })).status).toBe(201)
    expect(names({ mounts: ['/pay'] }).unprotected).toEqual(['POST /pay/now'])
  })

  it('omits routes that match except, even with a global regular expression', () => {
    const { app, names } = setup(express)
    app.post('/login', handler)
    app.post('/hooks/:id', handler)
    app.post('/pay', handler)
    const except = ['/login', /^\/hooks\//g]
    for (let n = 0; n < 2; n++) expect(names({ except }).unprotected).toEqual(['POST /pay'])
  })

  it('requireProtected throws for an unprotected route', () => {
    const { app, guard } = setup(express)
    app.post('/pay', guard, handler)
    expect(() => requireProtected(auditRoutes(app))).not.toThrow()
    app.post('/refund', handler)
    expect(() => requireProtected(auditRoutes(app))).toThrow(
      'not protected against retries: POST /refund. Mount idempotency() before their handlers',
    )
  })

  it('returns empty lists for an app without routes, and audits a router by itself', () => {
    const { app, guard, names } = setup(express)
    expect(names()).toEqual({ protected: [], unprotected: [] })
    app.use(guard)
    const router = express.Router()
    router.post('/a', handler)
    expect(auditRoutes(router).unprotected).toEqual([{ method: 'POST', path: '/a' }])
  })
})

describe.each(EXPRESSES)('%s: an audit of mount paths', (name, express) => {
  /** The audit reads mount paths from Express 4. For Express 5 they are an option. */
  const withMounts = (...mounts: string[]) => (name === 'express 5' ? { mounts } : {})

  it('names a route by its full path, with the mount paths of its routers', () => {
    const { app, guard, names } = setup(express)
    const inner = express.Router()
    inner.post('/', handler)
    inner.post('/:id/refunds', guard, handler)
    const outer = express.Router()
    outer.use('/payments', inner)
    app.use('/tenants/:t', outer)
    expect(names(withMounts('/payments', '/tenants/:t'))).toEqual({
      protected: ['POST /tenants/:t/payments/:id/refunds'],
      unprotected: ['POST /tenants/:t/payments'],
    })
  })

  it('counts a guard that is mounted before the router on the same path', () => {
    const { app, guard, names } = setup(express)
    const router = express.Router()
    router.post('/:id', handler)
    app.use('/pay', guard, router)
    app.use('/refund', guard)
    app.use('/other', router)
    expect(names(withMounts('/pay', '/refund', '/other'))).toEqual({
      protected: ['POST /pay/:id'],
      unprotected: ['POST /other/:id'],
    })
  })

  it('distinguishes a mount path with a parameter from one without', async () => {
    const { app, guard, names } = setup(express)
    const router = express.Router()
    router.post('/orders', handler)
    app.use('/pay', guard)
    app.use('/:tenant', router)
    const { send } = await serve(app)
    expect((await send({ path: '/acme/orders' })).status).toBe(201)
    expect(names(withMounts('/pay', '/:tenant'))).toEqual({
      protected: [],
      unprotected: ['POST /:tenant/orders'],
    })
    expect(names(withMounts('/pay')).protected).toEqual([])
  })

  it('lists a mounted app as one unprotected wildcard, and audits it separately', () => {
    const { app, guard, names } = setup(express)
    const admin = express()
    admin.post('/users', guard, handler)
    admin.post('/roles', handler)
    app.use('/admin', admin)
    expect(names(withMounts('/admin'))).toEqual({
      protected: [],
      unprotected: ['POST /admin/*', 'PATCH /admin/*'],
    })
    expect(auditRoutes(admin)).toEqual({
      protected: [{ method: 'POST', path: '/admin/users' }],
      unprotected: [{ method: 'POST', path: '/admin/roles' }],
    })
  })

  it('does not count a guard before a mounted app if deep or unusual paths avoid it', async () => {
    const { app, guard, names } = setup(express)
    const admin = express()
    admin.use(handler)
    const optional = name === 'express 5' ? '/a{/:x}{/:y}' : '/a/:x?/:y?'
    app.post(optional, guard)
    app.use('/a', admin)
    const { send } = await serve(app)
    expect((await send({ path: '/a/x/y/z' })).status).toBe(201)
    expect((await send({ path: '/a//x' })).status).toBe(201)
    expect((await send({ path: '/a/x/y' })).status).toBe(400)
    expect(names(withMounts('/a')).unprotected).toContain('POST /a/*')
  })

  it('lists a mounted app behind a guard as protected', () => {
    const { app, guard, names } = setup(express)
    const admin = express()
    admin.post('/users', handler)
    app.use('/admin', guard, admin)
    expect(names(withMounts('/admin')).unprotected).toEqual([])
    expect(names(withMounts('/admin')).protected).toEqual(['POST /admin/*', 'PATCH /admin/*'])
  })
})

describe('an audit of Express 5 without its mounts', () => {
  it('shows an unknown mount path as a star, and counts no guard on such a path', () => {
    const [, express] = EXPRESSES[0]!
    const { app, guard, names } = setup(express)
    const router = express.Router()
    router.post('/:id', handler)
    router.post('/:id/refunds', guard, handler)
    app.use('/pay', guard, router)
    expect(names({ mounts: ['/elsewhere'] })).toEqual({
      protected: ['POST /*/:id/refunds'],
      unprotected: ['POST /*/:id'],
    })
    const behindAll = express()
    behindAll.use(guard)
    behindAll.use('/pay', router)
    expect(auditRoutes(behindAll).unprotected).toEqual([])
  })

  it('checks every form that an optional group or a wildcard can match', () => {
    const [, express] = EXPRESSES[0]!
    const { app, guard, names } = setup(express)
    app.use('/a/:x', guard)
    app.use('/files', guard)
    app.post('/a{/:x}', handler)
    app.post('/a/:x{/more}', handler)
    app.post('/files/*rest', handler)
    app.post('/*rest', handler)
    expect(names()).toEqual({
      protected: ['POST /a/:x{/more}', 'POST /files/*rest'],
      unprotected: ['POST /a{/:x}', 'POST /*rest'],
    })
  })
})

describe('an audit of Express 5 wildcards', () => {
  it('does not count a guard that deep or unusual paths avoid', async () => {
    const [, express] = EXPRESSES[0]!
    const { app, guard, names } = setup(express)
    app.use('/files/:id', guard)
    app.post('/files/*rest', handler)
    app.post('/deep{/:x}{/:y}', guard)
    app.post('/deep/*rest', handler)
    const { send } = await serve(app)
    expect((await send({ path: '/files//x' })).status).toBe(201)
    expect((await send({ path: '/deep/x/y/z' })).status).toBe(201)
    expect(names()).toEqual({
      protected: [],
      unprotected: ['POST /files/*rest', 'POST /deep/*rest'],
    })
  })

  it('does not count a guard that a path with repeated slashes avoids', async () => {
    const [, express] = EXPRESSES[0]!
    const { app, guard, names } = setup(express)
    app.post('/*a/*b', guard)
    app.post('/:x/*rest', handler)
    const { send } = await serve(app)
    expect((await send({ path: '/a//' })).status).toBe(201)
    expect(names()).toEqual({ protected: [], unprotected: ['POST /:x/*rest'] })
  })

  it('distinguishes two mounts when one of them repeats a parameter name', async () => {
    const [, express] = EXPRESSES[0]!
    const { app, guard, names } = setup(express)
    app.use('/a/a-:x', guard)
    app.use('/:x/a-:x', express.Router().post('/pay', handler))
    const { send } = await serve(app)
    expect((await send({ path: '/b/a-b/pay' })).status).toBe(201)
    const mounts = ['/a/a-:x', '/:x/a-:x']
    expect(names({ mounts })).toEqual({ protected: [], unprotected: ['POST /:x/a-:x/pay'] })
  })

  it('distinguishes a mount with optional groups from the same path without them', async () => {
    const [, express] = EXPRESSES[0]!
    const { app, guard, names } = setup(express)
    app.use('/b', guard)
    app.use('{/:z}{/a}/b', express.Router().post('/pay', handler))
    const { send } = await serve(app)
    expect((await send({ path: '/x/b/pay' })).status).toBe(201)
    expect(names({ mounts: ['/b', '{/:z}{/a}/b'] }).protected).toEqual([])
  })
})

describe('an audit of Express 4', () => {
  it('checks optional parameters present and absent, and trusts no pattern in a path', () => {
    const [, express] = EXPRESSES[1]!
    const { app, guard, names } = setup(express)
    app.use('/a/:x', guard)
    app.use('/b/:x(\\w+)', guard)
    app.post('/a/:x?', handler)
    app.post('/a/:x/:y?', handler)
    app.post('/b/:x', handler)
    app.post('/a/:x(\\d+)', handler)
    expect(names()).toEqual({
      protected: ['POST /a/:x/:y?'],
      unprotected: ['POST /a/:x?', 'POST /b/:x', 'POST /a/:x(\\d+)'],
    })
  })
})

describe.each(EXPRESSES)('%s: an audit of unseen errors', (_name, express) => {
  function json(_req: Request, _res: Response, next: NextFunction) {
    next()
  }

  it('lists the middleware and parameter callbacks between a guard and a route', () => {
    const app = express()
    app.use(json, guardOf(), json)
    const router = express.Router()
    router.use(json)
    router.param('id', (_req, _res, next) => next())
    router.post('/:id', handler)
    router.post('/plain', handler)
    app.use(router)
    app.post('/first', handler)
    expect(auditRoutes(app).unseenErrors).toEqual([
      { method: 'POST', path: '/:id', from: ['use(json)', 'use(json)', 'param(id)'] },
      { method: 'POST', path: '/plain', from: ['use(json)', 'use(json)'] },
      { method: 'POST', path: '/first', from: ['use(json)'] },
    ])
  })

  it('lists no unseen errors where the guard sees every error', () => {
    const app = express()
    app.use(json)
    app.param('id', (_req, _res, next) => next())
    app.post('/:id', guardOf(), json, handler)
    expect(auditRoutes(app)).not.toHaveProperty('unseenErrors')
    const shown = express()
    shown.use(guardOf(), json)
    shown.post('/', handler)
    shown.use(idempotencyErrors())
    expect(auditRoutes(shown)).not.toHaveProperty('unseenErrors')
  })
})
