/** Which routes the plugin protects, in which order, and what it refuses at start-up. */
import type { FastifyInstance, FastifyRequest } from 'fastify'
import { describe, expect, it, onTestFinished } from 'vitest'
import { idempotency, idempotencyOf, singleTenant } from '../../src/adapters/fastify.ts'
import { createEngine } from '../../src/core/engine.ts'
import { memoryStore } from '../../src/stores/memory/memory-store.ts'
import { guardedApp, newApp, optionsOf } from './run-fastify.ts'

const KEY = { 'idempotency-key': 'key-1' }

/** A route that says how often it ran. */
function countedRoute(app: FastifyInstance, url: string, config = {}): void {
  let runs = 0
  app.post(url, { config }, () => ({ run: ++runs }))
}

/** What each of two requests with one key gets to see: one run, or two. */
async function runsOf(app: FastifyInstance, url: string, headers: object = KEY): Promise<unknown> {
  const request = { method: 'POST', url, headers: { ...headers } } as const
  await app.inject(request)
  const { statusCode, body } = await app.inject(request)
  return statusCode === 200 ? (JSON.parse(body) as { run: unknown }).run : statusCode
}

describe('the context', () => {
  it('is protected with all that is within, and nothing beside or above it is', async () => {
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

  it('is protected although the plugin was not awaited, or came after its routes', async () => {
    const app = newApp()
    app.register(async (child) => countedRoute(child, '/child-before'))
    countedRoute(app, '/before')
    app.register(idempotency, optionsOf())
    countedRoute(app, '/after')

    expect(await runsOf(app, '/child-before')).toBe(1)
    expect(await runsOf(app, '/before')).toBe(1)
    expect(await runsOf(app, '/after')).toBe(1)
  })

  it('keeps two plugins of one app apart', async () => {
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

  it('leaves other methods and "not found" untouched', async () => {
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
  it('changes options by its config', async () => {
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

  it('is scoped by its template with prefix, whatever its parameters are called', async () => {
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

  it('is asked for its key behind all hooks that may refuse the caller', async () => {
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

  it('shows no replay to a caller whom a hook of its own refuses', async () => {
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

describe('at start-up', () => {
  it.each([
    ['an unknown option', { idempotency: { retentionMS: 1 } }, /POST \/x.*retentionMS/],
    ['a wrong value', { idempotency: { keyRequired: 'no' } }, /keyRequired.*'?no'?/],
    ['what are no options', { idempotency: true }, /must be an object/],
  ])('refuses %s of a route', async (_what, config, message) => {
    const app = newApp()
    app.register(idempotency, optionsOf())
    app.post('/x', { config: config as object }, () => 'x')
    await expect(app.ready()).rejects.toThrow(message)
  })

  it('refuses options of a route that nothing protects', async () => {
    const app = newApp()
    app.register(async (inner) => {
      await inner.register(idempotency, optionsOf())
    })
    app.post('/open', { config: { idempotency: { keyRequired: false } } }, () => 'x')
    await expect(app.ready()).rejects.toThrow(/POST \/open .* nothing protects it/)
  })

  it('refuses options of a route whose method is not protected', async () => {
    const app = await guardedApp()
    app.put('/put', { config: { idempotency: { keyRequired: false } } }, () => 'x')
    await expect(app.ready()).rejects.toThrow(/PUT \/put .* method is not protected/)
  })

  it('takes options of a route that protect its method', async () => {
    const app = await guardedApp()
    app.put('/put', { config: { idempotency: { methods: ['PUT'] } } }, () => 'x')
    await app.ready()
    const { statusCode } = await app.inject({ method: 'PUT', url: '/put' })
    expect(statusCode).toBe(400)
  })

  it.each(['the same context', 'a context within'])('refuses a second one in %s', async (where) => {
    const app = newApp()
    app.register(idempotency, optionsOf())
    const again = async (inner: FastifyInstance) => {
      await inner.register(idempotency, optionsOf())
      inner.post('/twice', () => 'x')
    }
    if (where === 'the same context') app.register(idempotency, optionsOf())
    else app.register(again, { prefix: '/inner' })
    await expect(app.ready()).rejects.toThrow(/registered twice on the way to routes below '/)
  })

  it('refuses one around a context that has one already', async () => {
    const app = newApp()
    app.register(async (inner) => {
      await inner.register(idempotency, optionsOf())
      inner.post('/twice', () => 'x')
    })
    app.register(idempotency, optionsOf())
    await expect(app.ready()).rejects.toThrow(/registered twice on the way to POST \/twice/)
  })

  it('refuses wrong options, a prefix among them', async () => {
    const noTenant = newApp()
    noTenant.register(idempotency, { store: memoryStore() } as never)
    await expect(noTenant.ready()).rejects.toThrow(/tenant must be a function/)
    const prefixed = newApp()
    prefixed.register(idempotency, { ...optionsOf(), prefix: '/v1' })
    await expect(prefixed.ready()).rejects.toThrow(/prefix/)
  })

  it('refuses HTTP/2, whose replies it could not hold back', async () => {
    const app = newApp({ http2: true } as object)
    app.register(idempotency, optionsOf())
    await expect(app.ready()).rejects.toThrow(/HTTP\/2/)
  })

  it('makes one engine, of which the app knows', async () => {
    const engine = createEngine({ store: memoryStore() })
    onTestFinished(async () => {
      await engine.close()
    })
    const app = newApp()
    await app.register(idempotency, { engine, tenant: singleTenant })
    expect(app.idempotency.engine).toBe(engine)
  })
})
