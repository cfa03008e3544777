/** The name of an operation: the template of `@koa/router`, or the path. */
import type { Middleware } from 'koa'
import { describe, expect, it } from 'vitest'
import { memoryStore } from '../../../src/stores/memory/store.ts'
import type { Send } from '../run-express.ts'
import { guardOf, KOAS, Router, serveKoa, type KoaModule } from '../run-koa.ts'

const ok: Middleware = (ctx) => {
  ctx.body = ctx.idempotency?.scope.operation
}

type Served = Parameters<typeof serveKoa>[1]

async function operations(koa: KoaModule, middlewares: readonly Served[], sends: readonly Send[]) {
  const { send } = await serveKoa(koa, ...middlewares)
  const replies = await Promise.all(sends.map((one, n) => send({ key: `k${n}`, ...one })))
  return replies.map(({ body }) => body.toString())
}

describe.each(KOAS)('%s', (_name, koa) => {
  it('names an operation by its template without parameter names', async () => {
    const router = new Router()
    const guard = guardOf()
    router.post('/users/:id/cards/:card', guard, ok)
    router.patch('/files/*path', guard, ok)
    router.post('/reports{/:year}', guard, ok)
    const sends = [
      { path: '/users/7/cards/8' },
      { path: '/files/a/b', method: 'PATCH' },
      { path: '/reports' },
    ]
    expect(await operations(koa, [router.routes()], sends)).toEqual([
      'POST /users/:/cards/:',
      'PATCH /files/*',
      'POST /reports{/:}',
    ])
  })

  it('includes the prefixes of nested routers in the operation', async () => {
    const inner = new Router({ prefix: '/cards' })
    inner.post('/:card', guardOf(), ok)
    const outer = new Router({ prefix: '/v1' })
    outer.use('/users/:id', inner.routes())
    expect(await operations(koa, [outer.routes()], [{ path: '/v1/users/7/cards/8' }])).toEqual([
      'POST /v1/users/:/cards/:',
    ])
  })

  it('names the operation by the route when router.use() mounts the guard', async () => {
    const router = new Router({ prefix: '/v1/:tenant' })
    router.get('/users/:id', ok)
    router.use(guardOf())
    router.post('/users/:id', ok)
    router.post('/users/:id/cards', ok)
    const sends = [{ path: '/v1/t/users/7' }, { path: '/v1/t/users/7/cards' }]
    expect(await operations(koa, [router.routes()], sends)).toEqual([
      'POST /v1/:/users/:',
      'POST /v1/:/users/:/cards',
    ])
  })

  it('names the operation by the first of several matching routes', async () => {
    const router = new Router()
    const guard = guardOf()
    router.post('/users/me', guard, ok)
    router.post('/users/:id', guard, ok)
    const sends = [{ path: '/users/me' }, { path: '/users/7' }]
    expect(await operations(koa, [router.routes()], sends)).toEqual([
      'POST /users/me',
      'POST /users/:',
    ])
  })

  it('normalises case and trailing slash as the router compares them', async () => {
    const [loose, exact] = [new Router(), new Router({ sensitive: true, strict: true })]
    loose.post('/Users', guardOf(), ok)
    exact.post('/Cards/', guardOf(), ok)
    const sends = [{ path: '/USERS' }, { path: '/users/' }, { path: '/Cards/' }]
    expect(await operations(koa, [loose.routes(), exact.routes()], sends)).toEqual([
      'POST /users',
      'POST /users',
      'POST /Cards/',
    ])
  })

  it('includes a path prefix that was removed before the router', async () => {
    const mount: Middleware = async (ctx, next) => {
      ctx.path = ctx.path.replace(/^\/api/, '') || '/'
      await next()
    }
    const router = new Router()
    router.post('/users/:id', guardOf(), ok)
    router.post('/', guardOf(), ok)
    const sends = [{ path: '/api/users/7' }, { path: '/api' }, { path: '/api/' }]
    expect(await operations(koa, [mount, router.routes()], sends)).toEqual([
      'POST /api/users/:',
      'POST /api',
      'POST /api',
    ])
  })

  it('names the operation by the regular expression of a route', async () => {
    const router = new Router()
    router.post(/^\/u(\d+)$/, guardOf(), ok)
    expect(await operations(koa, [router.routes()], [{ path: '/u7' }])).toEqual([
      String.raw`POST /^\/u(\d+)$/`,
    ])
  })

  it('names the operation by the path when no router has matched', async () => {
    const router = new Router()
    router.post('/users/:id', ok)
    const sends = [{ path: '/users/7?a=1' }]
    expect(await operations(koa, [guardOf(), router.routes()], sends)).toEqual(['POST /users/7'])
    expect(await operations(koa, [guardOf(), ok], [{ path: '/A/' }])).toEqual(['POST /A/'])
  })

  it('uses the operation option as the name', async () => {
    const router = new Router()
    const guard = guardOf({ store: memoryStore() })
    router.post('/payments', guard.with({ operation: 'pay' }), ok)
    router.post('/refunds', guard.with({ operation: (ctx) => `to ${ctx.path}` }), ok)
    const sends = [{ path: '/payments' }, { path: '/refunds' }]
    expect(await operations(koa, [router.routes()], sends)).toEqual(['pay', 'to /refunds'])
  })
})
