import type { RequestHandler } from 'express'
import { describe, expect, it } from 'vitest'
import {
  auditRoutes,
  requireProtected,
  type ExpressAuditOptions,
} from '../../src/adapters/express.ts'
import { EXPRESSES, guardOf, serve, type ExpressModule } from './run-express.ts'

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
  it('finds guards on routes, behind whatever comes before them', () => {
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

  it('counts a guard for the methods that it protects only', () => {
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

  it('follows routers, and knows what the guard of one does not reach', () => {
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

  it('counts a guard of a route for what comes after it, unless it can be passed by', () => {
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

  it('counts what is mounted on a path for all that is surely below it', () => {
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

  it('does not trust a guard whose path is read more strictly than the route', async () => {
    const { app, guard, names } = setup(express)
    app.enable('case sensitive routing')
    app.use('/pay/now', guard)
    const router = express.Router({ caseSensitive: false })
    router.post('/now', handler)
    app.use('/pay', router)
    const { send } = await serve(app)
    // This is how a request gets past it.
    expect((await send({ path: '/pay/NOW' })).status).toBe(201)
    expect(names({ mounts: ['/pay'] }).unprotected).toEqual(['POST /pay/now'])
  })

  it('lists what it is told to let go by no name', () => {
    const { app, names } = setup(express)
    app.post('/login', handler)
    app.post('/hooks/:id', handler)
    app.post('/pay', handler)
    const except = ['/login', /^\/hooks\//g]
    for (let n = 0; n < 2; n++) expect(names({ except }).unprotected).toEqual(['POST /pay'])
  })

  it('stops a server that would start with an open route', () => {
    const { app, guard } = setup(express)
    app.post('/pay', guard, handler)
    expect(() => requireProtected(auditRoutes(app))).not.toThrow()
    app.post('/refund', handler)
    expect(() => requireProtected(auditRoutes(app))).toThrow(
      'not protected against retries: POST /refund. Put idempotency() in their way',
    )
  })

  it('finds nothing in an app without routes, and looks at routers by themselves, too', () => {
    const { app, guard, names } = setup(express)
    expect(names()).toEqual({ protected: [], unprotected: [] })
    app.use(guard)
    const router = express.Router()
    router.post('/a', handler)
    expect(auditRoutes(router).unprotected).toEqual([{ method: 'POST', path: '/a' }])
  })
})

describe.each(EXPRESSES)('%s: an audit of what is mounted on paths', (name, express) => {
  /** Express 4 can be read; Express 5 has to be told. */
  const told = (...mounts: string[]) => (name === 'express 5' ? { mounts } : {})

  it('names routes by where their routers are', () => {
    const { app, guard, names } = setup(express)
    const inner = express.Router()
    inner.post('/', handler)
    inner.post('/:id/refunds', guard, handler)
    const outer = express.Router()
    outer.use('/payments', inner)
    app.use('/tenants/:t', outer)
    expect(names(told('/payments', '/tenants/:t'))).toEqual({
      protected: ['POST /tenants/:t/payments/:id/refunds'],
      unprotected: ['POST /tenants/:t/payments'],
    })
  })

  it('counts a guard that stands before the router on the same path', () => {
    const { app, guard, names } = setup(express)
    const router = express.Router()
    router.post('/:id', handler)
    app.use('/pay', guard, router)
    app.use('/refund', guard)
    app.use('/other', router)
    expect(names(told('/pay', '/refund', '/other'))).toEqual({
      protected: ['POST /pay/:id'],
      unprotected: ['POST /other/:id'],
    })
  })

  it('does not take a mount with a parameter for one without', async () => {
    const { app, guard, names } = setup(express)
    const router = express.Router()
    router.post('/orders', handler)
    app.use('/pay', guard)
    app.use('/:tenant', router)
    const { send } = await serve(app)
    expect((await send({ path: '/acme/orders' })).status).toBe(201)
    expect(names(told('/pay', '/:tenant'))).toEqual({
      protected: [],
      unprotected: ['POST /:tenant/orders'],
    })
    expect(names(told('/pay')).protected).toEqual([])
  })

  it('shows a mounted app as one open place, which is audited by itself', () => {
    const { app, guard, names } = setup(express)
    const admin = express()
    admin.post('/users', guard, handler)
    admin.post('/roles', handler)
    app.use('/admin', admin)
    expect(names(told('/admin'))).toEqual({
      protected: [],
      unprotected: ['POST /admin/*', 'PATCH /admin/*'],
    })
    expect(auditRoutes(admin)).toEqual({
      protected: [{ method: 'POST', path: '/admin/users' }],
      unprotected: [{ method: 'POST', path: '/admin/roles' }],
    })
  })

  it('trusts no guard before a mounted app that deep or odd paths get past', async () => {
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
    expect(names(told('/a')).unprotected).toContain('POST /a/*')
  })

  it('counts a mounted app behind a guard', () => {
    const { app, guard, names } = setup(express)
    const admin = express()
    admin.post('/users', handler)
    app.use('/admin', guard, admin)
    expect(names(told('/admin')).unprotected).toEqual([])
    expect(names(told('/admin')).protected).toEqual(['POST /admin/*', 'PATCH /admin/*'])
  })
})

describe('an audit of Express 5 that is told of no mounts', () => {
  it('says so by a star, and trusts no guard whose path it cannot see', () => {
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

  it('looks at optional groups and wildcards both ways', () => {
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

describe('an audit of wildcards of Express 5', () => {
  it('trusts no guard that deep or odd paths get past', async () => {
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

  it('trusts no guard that nothing but slashes get past', async () => {
    const [, express] = EXPRESSES[0]!
    const { app, guard, names } = setup(express)
    app.post('/*a/*b', guard)
    app.post('/:x/*rest', handler)
    const { send } = await serve(app)
    expect((await send({ path: '/a//' })).status).toBe(201)
    expect(names()).toEqual({ protected: [], unprotected: ['POST /:x/*rest'] })
  })

  it('takes no mount for another whose parameters have one name', async () => {
    const [, express] = EXPRESSES[0]!
    const { app, guard, names } = setup(express)
    app.use('/a/a-:x', guard)
    app.use('/:x/a-:x', express.Router().post('/pay', handler))
    const { send } = await serve(app)
    expect((await send({ path: '/b/a-b/pay' })).status).toBe(201)
    const mounts = ['/a/a-:x', '/:x/a-:x']
    expect(names({ mounts })).toEqual({ protected: [], unprotected: ['POST /:x/a-:x/pay'] })
  })
})

describe('an audit of Express 4', () => {
  it('looks at optional parameters both ways, and trusts no patterns', () => {
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
