import { Hono, type Context, type Next } from 'hono'
import { every } from 'hono/combine'
import { cors } from 'hono/cors'
import { mount } from 'hono/mount'
import { expect, it } from 'vitest'
import { singleTenant } from '../../../src/http/guard/guard-options.ts'
import { auditRoutes, idempotency, requireProtected } from '../../../src/adapters/hono/index.ts'
import { memoryStore } from '../../../src/stores/memory/store.ts'

const guard = idempotency({ store: memoryStore(), tenant: singleTenant })
const done = (c: Context) => c.text('done')
const auth = async (_c: Context, next: Next) => next()

function audit(build: (app: Hono) => unknown) {
  const app = new Hono()
  build(app)
  const { protected: closed, unprotected: open } = auditRoutes(app)
  const named = (routes: typeof open) => routes.map(({ method, path }) => `${method} ${path}`)
  return { closed: named(closed), open: named(open) }
}

it('lists protected and unprotected routes, and omits routes of other methods', () => {
  const found = audit((app) => {
    app.use(cors())
    app.get('/orders', done)
    app.post('/orders', auth, guard, done)
    app.patch('/orders/:id', guard, auth, done)
    app.post('/refunds', auth, done)
    app.put('/orders/:id', done)
  })
  expect(found).toEqual({ closed: ['POST /orders', 'PATCH /orders/:id'], open: ['POST /refunds'] })
})

it('counts a guard only for routes that are added after it', () => {
  const found = audit((app) => {
    app.post('/early', done)
    app.use(guard)
    app.post('/late', done)
    app.post('/twice', done, guard, done)
  })
  expect(found).toEqual({ closed: ['POST /late', 'POST /twice'], open: ['POST /early'] })
  expect(audit((app) => app.post('/twice', done, guard, done)).open).toEqual(['POST /twice'])
})

it('finds guards on wider paths, methods and base paths, and in nested apps', () => {
  const found = audit((app) => {
    app.use('/api/*', guard)
    app.post('/api', done)
    app.post('/api/a/:id', done)
    app.post('/other', done)
    app.on('POST', '/on/*', guard)
    app.on(['POST', 'PATCH'], '/on/x', done)
    const nested = new Hono().use(guard).post('/x', done)
    app.route('/nested', nested)
    app.basePath('/base').post('/y', guard, done)
    app.use('/param/:a', guard)
    app.post('/param/:b', done)
    app.post('/param/literal', done)
  })
  expect(found.closed).toEqual([
    'POST /api',
    'POST /api/a/:id',
    'POST /on/x',
    'POST /nested/x',
    'POST /base/y',
    'POST /param/:b',
    'POST /param/literal',
  ])
  expect(found.open).toEqual(['POST /other', 'PATCH /on/x'])
})

it('finds the guards of a nested app that has its own onError', () => {
  const inner = new Hono().onError((_error, c) => c.text('inner', 500))
  inner.post('/safe', guard, done)
  inner.post('/open', done)
  const found = audit((app) => app.route('/in', inner))
  expect(found).toEqual({ closed: ['POST /in/safe'], open: ['POST /in/open'] })
})

it('ignores a guard that may not match every request of a route', () => {
  const found = audit((app) => {
    app.use('/a/:x', guard)
    app.post('/a/*', done)
    app.use('/b/one', guard)
    app.post('/b/:x', done)
    app.use('/c/:x', guard)
    app.post('/c/:x{.+}', done)
    app.use('/d/:x', guard)
    app.post('/d/:x?', done)
    app.use('/e/:x{[0-9]+}', guard)
    app.post('/e/:x', done)
    app.use('/f', every(auth, guard))
    app.post('/f', done)
    app.use('/g', guard.with({ methods: ['PUT'] }))
    app.post('/g', done)
  })
  expect(found.closed).toEqual([])
  expect(found.open).toEqual(
    ['a/*', 'b/:x', 'c/:x{.+}', 'd/:x?', 'e/:x', 'f', 'g'].map((path) => `POST /${path}`),
  )
})

it('lists handlers for all methods, and a last handler that takes next', () => {
  const found = audit((app) => {
    app.all('/all', done)
    app.post('/last', auth)
    app.all(
      '/legacy/*',
      mount(() => new Response('legacy')),
    )
  })
  expect(found.open).toEqual([
    'POST /all',
    'PATCH /all',
    'POST /last',
    'POST /legacy/*',
    'PATCH /legacy/*',
  ])
})

it('requireProtected throws if a route is unprotected', () => {
  const app = new Hono().post('/pay', done).post('/hook', done)
  expect(() => requireProtected(auditRoutes(app))).toThrow(/POST \/pay, POST \/hook/)
  expect(() => requireProtected(auditRoutes(app, { except: ['/hook', '/pay'] }))).not.toThrow()
  expect(() => auditRoutes(app, { methods: 'POST' as never })).toThrow(/list of HTTP methods/)
  expect(auditRoutes(app, { methods: ['PUT'] })).toEqual({ protected: [], unprotected: [] })
})
