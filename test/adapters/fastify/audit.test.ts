/** The audit finds every route that changes state, or throws if it cannot. */
import type { FastifyInstance } from 'fastify'
import { describe, expect, it } from 'vitest'
import { auditRoutes, idempotency, requireProtected } from '../../../src/adapters/fastify/index.ts'
import { guardedApp, newApp, optionsOf } from '../run-fastify.ts'

const nothing = () => 'ok'

const named = (routes: readonly { method: string; path: string }[]): string[] =>
  routes.map(({ method, path }) => `${method} ${path}`).toSorted()

it('finds routes before, after and beside the plugin, nested ones and opted-out ones', async () => {
  const app = newApp()
  app.post('/before', nothing)
  app.register(async (beside) => beside.post('/beside', nothing))
  app.register(
    async (inner) => {
      inner.patch('/early/:id', nothing)
      inner.register(idempotency, optionsOf())
      inner.post('/', nothing)
      inner.post('/alone', { config: { idempotency: false } }, nothing)
      inner.route({ method: ['GET', 'POST'], url: '/both', handler: nothing })
      inner.register(async (child) => child.all('/all', nothing), { prefix: '/child' })
      inner.post('/versioned', { constraints: { version: '1.0.0' } }, nothing)
      inner.post('/versioned', { constraints: { version: '2.0.0' } }, nothing)
    },
    { prefix: '/v1' },
  )
  app.get('/get', nothing)
  await app.ready()
  const audit = auditRoutes(app)
  expect(named(audit.protected)).toEqual([
    'PATCH /v1/child/all',
    'PATCH /v1/early/:id',
    'POST /v1',
    'POST /v1/',
    'POST /v1/both',
    'POST /v1/child/all',
    'POST /v1/versioned',
    'POST /v1/versioned',
  ])
  expect(named(audit.unprotected)).toEqual(['POST /before', 'POST /beside', 'POST /v1/alone'])
  expect(() => requireProtected(audit)).toThrow(/POST \/before, POST \/beside, POST \/v1\/alone/)
  const except = ['/before', '/beside', /alone$/]
  expect(() => requireProtected(auditRoutes(app, { except }))).not.toThrow()
})

it('audits the given methods, and lists those that the plugin does not protect', async () => {
  const app = await guardedApp({ methods: ['POST', 'PUT'] })
  app.put('/put', nothing)
  app.delete('/delete', nothing)
  app.patch('/patch', nothing)
  await app.ready()
  const audit = auditRoutes(app, { methods: ['PUT', 'DELETE', 'PATCH'] })
  expect(named(audit.protected)).toEqual(['PUT /put'])
  expect(named(audit.unprotected)).toEqual(['DELETE /delete', 'PATCH /patch'])
})

it('lists the routes of an app without the plugin as unprotected', async () => {
  const app = newApp()
  app.post('/open', nothing)
  await app.ready()
  expect(named(auditRoutes(app).unprotected)).toEqual(['POST /open'])
})

it('works in an onReady hook, also in one that runs before that of the plugin', async () => {
  const app = newApp()
  const seen: string[][] = []
  const audit = async () => void seen.push(named(auditRoutes(app).protected))
  app.addHook('onReady', audit)
  app.register(idempotency, optionsOf())
  app.post('/', nothing)
  app.register(async (child) => child.addHook('onReady', audit))
  await app.ready()
  expect(seen).toEqual([['POST /'], ['POST /']])
})

it('fails the start when an onReady hook finds an unprotected route', async () => {
  const app = newApp()
  app.post('/open', nothing)
  app.addHook('onReady', async () => requireProtected(auditRoutes(app)))
  await expect(app.ready()).rejects.toThrow(/not protected against retries: POST \/open/)
})

describe('an audit that cannot see all routes', () => {
  it('throws before the app is ready', () => {
    const withRoute = newApp()
    withRoute.post('/', nothing)
    expect(() => auditRoutes(withRoute)).toThrow(/after await app\.ready\(\)/)
    const withPlugin = newApp()
    withPlugin.register(async (inner) => inner.post('/later', nothing))
    expect(() => auditRoutes(withPlugin)).toThrow(
      /found no route: call it after await app\.ready\(\)/,
    )
  })

  it('throws when the router prints no routes, or unknown ones', async () => {
    const app = newApp()
    app.post('/', nothing)
    await app.ready()
    const silent = Object.create(app, { printRoutes: { value: () => '└── / (POST)\n' } })
    expect(() => auditRoutes(silent as FastifyInstance)).toThrow(/cannot read the routes/)
    const strange = Object.create(app, {
      printRoutes: {
        value: (options: { buildPrettyMeta: (route: unknown) => unknown }) =>
          String(options.buildPrettyMeta({ method: 'POST' })),
      },
    })
    expect(() => auditRoutes(strange as FastifyInstance)).toThrow(/cannot read the routes/)
  })
})
