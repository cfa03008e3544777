/** Which routes the plugin protects, in which order, and what it rejects at startup. */
import type { FastifyInstance, FastifyRequest } from 'fastify'
import { describe, expect, it, onTestFinished } from 'vitest'
import { singleTenant } from '../../../src/http/guard/guard-options.ts'
import { idempotency, idempotencyOf } from '../../../src/adapters/fastify/index.ts'
import { createEngine } from '../../../src/core/engine/engine.ts'
import { memoryStore } from '../../../src/stores/memory/store.ts'
import { guardedApp, newApp, optionsOf } from '../run-fastify.ts'

const KEY = { 'idempotency-key': 'key-1' }

/** Adds a route that replies with the number of its run. */
function countedRoute(app: FastifyInstance, url: string, config = {}): void {
  let runs = 0
  app.post(url, { config }, () => ({ run: ++runs }))
}

/** Sends a request twice. Returns the run number in the second reply, or its error status. */
async function runsOf(app: FastifyInstance, url: string, headers: object = KEY): Promise<unknown> {
  const request = { method: 'POST', url, headers: { ...headers } } as const
  await app.inject(request)
  const { statusCode, body } = await app.inject(request)
  return statusCode === 200 ? (JSON.parse(body) as { run: unknown }).run : statusCode
}

describe('the context', () => {
  it('protects its context and those within, and none beside or above it', async () => {
    const app = newApp()
    countedRoute(app, '/above')
    app.register(async (inner) => {
      await inner.register(idempotency, optionsOf())
      countedRoute(inner, '/own')
      inner.register(async (child) => countedRoute(child, '/within'), { prefix: '/deep' })
    })
    app.register(async (beside) => countedRoute(beside, '/beside'))

    expect(await runsOf(app, '/own')).toBe(1)
    expect(await runsOf(app, '/deep/within')).toBe(1)
    expect(await runsOf(app, '/beside')).toBe(2)
    expect(await runsOf(app, '/above')).toBe(2)
    expect(await runsOf(app, '/above', {})).toBe(4)
  })

  it('protects routes before and after the plugin, also if it is not awaited', async () => {
    const app = newApp()
    app.register(async (child) => countedRoute(child, '/child-before'))
    countedRoute(app, '/before')
    app.register(idempotency, optionsOf())
    countedRoute(app, '/after')

    expect(await runsOf(app, '/child-before')).toBe(1)
    expect(await runsOf(app, '/before')).toBe(1)
    expect(await runsOf(app, '/after')).toBe(1)
  })

  it('protects the routes of two registrations in one app', async () => {
    const app = newApp()
    for (const prefix of ['/a', '/b']) {
      const register = async (inner: FastifyInstance) => {
        await inner.register(idempotency, optionsOf())
        countedRoute(inner, '/route')
      }
      app.register(register, { prefix })
    }
    expect(await runsOf(app, '/a/route')).toBe(1)
    expect(await runsOf(app, '/b/route')).toBe(1)
  })

  it('does not affect other methods and unknown routes', async () => {
    const app = await guardedApp()
    let runs = 0
    app.get('/', () => ({ run: ++runs }))
    app.put('/', () => ({ run: ++runs }))
    const get = async (method: 'GET' | 'HEAD' | 'PUT') =>
      (await app.inject({ method, url: '/', headers: KEY })).statusCode
    expect([await get('GET'), await get('HEAD'), await get('PUT')]).toEqual([200, 200, 200])
    expect(runs).toBe(3)
    expect((await app.inject({ method: 'POST', url: '/none' })).statusCode).toBe(404)
    expect((await app.inject({ method: 'POST', url: '/none', headers: KEY })).statusCode).toBe(404)
  })
})

describe('a route', () => {
  it('overrides options in the config of a route', async () => {
    const app = await guardedApp()
    countedRoute(app, '/usual')
    countedRoute(app, '/optional', { idempotency: { keyRequired: false } })
    countedRoute(app, '/alone', { idempotency: false })
    countedRoute(app, '/named', { idempotency: { keyHeader: 'x-request-id' } })

    expect(await runsOf(app, '/usual', {})).toBe(400)
    expect(await runsOf(app, '/optional', {})).toBe(2)
    expect(await runsOf(app, '/optional')).toBe(3)
    expect(await runsOf(app, '/alone')).toBe(2)
    expect(await runsOf(app, '/named', { 'x-request-id': '1' })).toBe(1)
  })

  it('scopes keys by the route template with its prefix, without parameter names', async () => {
    const app = await guardedApp()
    const answer = (request: FastifyRequest) => ({
      operation: idempotencyOf(request).scope.operation,
    })
    const templates = {
      '/users/:userId/cards/:cardId': '/users/1/cards/2',
      '/at/:hour(^\\d{2})h:minute(^(?:\\d{2}))m': '/at/10h20m',
      '/files/:name.:ext': '/files/a.txt',
      '/things/:id?': '/things',
      '/jobs::run': '/jobs:run',
      '/rest/*': '/rest/of/it',
    }
    const add = async (inner: FastifyInstance) => {
      for (const url of Object.keys(templates)) inner.post(url, answer)
      inner.post('/', answer)
    }
    app.register(add, { prefix: '/v1' })
    const operations = []
    for (const path of [...Object.values(templates), '', '/']) {
      const url = `/v1${path}`
      const headers = { 'idempotency-key': url }
      const { body } = await app.inject({ method: 'POST', url, headers })
      operations.push((JSON.parse(body) as { operation: string }).operation)
    }
    expect(operations).toEqual([
      'POST /v1/users/:/cards/:',
      'POST /v1/at/:(^\\d{2})h:(^(?:\\d{2}))m',
      'POST /v1/files/:.:',
      'POST /v1/things/:?',
      'POST /v1/jobs::run',
      'POST /v1/rest/*',
      'POST /v1',
      'POST /v1',
    ])
  })

  it('runs the guard after all hooks that may reject the caller', async () => {
    const app = newApp()
    const seen: string[] = []
    const hook = (name: string) => async () => void seen.push(name)
    app.register(idempotency, {
      ...optionsOf(),
      tenant: () => {
        seen.push('tenant')
        return 'one'
      },
    })
    app.addHook('onRequest', hook('onRequest'))
    app.addHook('preHandler', hook('preHandler of the app'))
    app.post('/', { preHandler: [hook('preHandler of the route')] }, () => {
      seen.push('handler')
      return 'ok'
    })
    await app.inject({ method: 'POST', url: '/', headers: KEY })
    await app.inject({ method: 'POST', url: '/', headers: KEY })
    const hooks = ['onRequest', 'preHandler of the app', 'preHandler of the route', 'tenant']
    expect(seen).toEqual([...hooks, 'handler', ...hooks])
  })

  it('sends no replay to a caller that a hook of the route rejects', async () => {
    const app = await guardedApp()
    const authorise = async (request: FastifyRequest) => {
      if (request.headers.authorization !== 'yes') {
        throw Object.assign(new Error('who?'), { statusCode: 401 })
      }
    }
    app.post('/', { preHandler: authorise }, () => 'secret')
    const url = '/'
    const allowed = { ...KEY, authorization: 'yes' }
    expect((await app.inject({ method: 'POST', url, headers: allowed })).body).toBe('secret')
    expect((await app.inject({ method: 'POST', url, headers: KEY })).statusCode).toBe(401)
  })
})

describe('startup', () => {
  it.each([
    ['an unknown option', { idempotency: { retentionMS: 1 } }, /POST \/x.*retentionMS/],
    ['a wrong value', { idempotency: { keyRequired: 'no' } }, /keyRequired.*'?no'?/],
    ['a value that is no object', { idempotency: true }, /must be an object/],
  ])('rejects %s in the config of a route', async (_what, config, message) => {
    const app = newApp()
    app.register(idempotency, optionsOf())
    app.post('/x', { config: config as object }, () => 'x')
    await expect(app.ready()).rejects.toThrow(message)
  })

  it('rejects options of a route outside the context of the plugin', async () => {
    const app = newApp()
    app.register(async (inner) => {
      await inner.register(idempotency, optionsOf())
    })
    app.post('/open', { config: { idempotency: { keyRequired: false } } }, () => 'x')
    await expect(app.ready()).rejects.toThrow(/POST \/open .* no plugin protects it/)
  })

  it('rejects options of a route whose method is not protected', async () => {
    const app = await guardedApp()
    app.put('/put', { config: { idempotency: { keyRequired: false } } }, () => 'x')
    await expect(app.ready()).rejects.toThrow(/PUT \/put .* method is not protected/)
  })

  it('accepts options of a route that protect its method', async () => {
    const app = await guardedApp()
    app.put('/put', { config: { idempotency: { methods: ['PUT'] } } }, () => 'x')
    await app.ready()
    const { statusCode } = await app.inject({ method: 'PUT', url: '/put' })
    expect(statusCode).toBe(400)
  })

  it.each(['the same context', 'a nested context'])(
    'rejects a second plugin in %s',
    async (where) => {
      const app = newApp()
      app.register(idempotency, optionsOf())
      const again = async (inner: FastifyInstance) => {
        await inner.register(idempotency, optionsOf())
        inner.post('/twice', () => 'x')
      }
      if (where === 'the same context') app.register(idempotency, optionsOf())
      else app.register(again, { prefix: '/inner' })
      await expect(app.ready()).rejects.toThrow(/registered twice on the way to routes below '/)
    },
  )

  it('rejects a plugin around a context that already has one', async () => {
    const app = newApp()
    app.register(async (inner) => {
      await inner.register(idempotency, optionsOf())
      inner.post('/twice', () => 'x')
    })
    app.register(idempotency, optionsOf())
    await expect(app.ready()).rejects.toThrow(/registered twice on the way to POST \/twice/)
  })

  it('rejects invalid options, such as a prefix', async () => {
    const noTenant = newApp()
    noTenant.register(idempotency, { store: memoryStore() } as never)
    await expect(noTenant.ready()).rejects.toThrow(/tenant must be a function/)
    const prefixed = newApp()
    prefixed.register(idempotency, { ...optionsOf(), prefix: '/v1' })
    await expect(prefixed.ready()).rejects.toThrow(/prefix/)
  })

  it('rejects HTTP/2, whose replies it cannot hold', async () => {
    const app = newApp({ http2: true } as object)
    app.register(idempotency, optionsOf())
    await expect(app.ready()).rejects.toThrow(/HTTP\/2/)
  })

  it('exposes the engine as app.idempotency.engine', async () => {
    const engine = createEngine({ store: memoryStore() })
    onTestFinished(async () => {
      await engine.close()
    })
    const app = newApp()
    await app.register(idempotency, { engine, tenant: singleTenant })
    expect(app.idempotency.engine).toBe(engine)
  })
})
