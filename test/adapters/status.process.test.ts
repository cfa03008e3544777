/** The status handler on each framework, beyond the shared adapter cases. */
import type http from 'node:http'
import compress from '@fastify/compress'
import compression from 'compression'
import express from 'express'
import { Hono } from 'hono'
import { cors } from 'hono/cors'
import type { Context, Next } from 'koa'
import koaCompress from 'koa-compress'
import { describe, expect, expectTypeOf, it, onTestFinished, vi } from 'vitest'
import * as onExpress from '../../src/adapters/express/index.ts'
import * as onFastify from '../../src/adapters/fastify/index.ts'
import * as onFetch from '../../src/adapters/fetch/index.ts'
import * as onHono from '../../src/adapters/hono/index.ts'
import * as onKoa from '../../src/adapters/koa/index.ts'
import * as onNode from '../../src/adapters/node/index.ts'
import type { Store } from '../../src/core/store/store.ts'
import { encodeHttpReply, type HttpReplyInput } from '../../src/http/reply/http-reply.ts'
import { encodeReply } from '../../src/http/reply/reply-codec.ts'
import { memoryStore } from '../../src/stores/memory/store.ts'
import { claimRequest } from '../../src/testing/index.ts'
import { EXPRESSES, header, serve, text, type Reply, type TestServer } from './run-express.ts'
import { newApp, serveApp } from './run-fastify.ts'
import { KOAS, Router, serveKoa } from './run-koa.ts'
import { serveHono, serveWeb } from './web/serve-web.ts'

const { tenant: TENANT } = claimRequest()
const tenant = () => TENANT
const MISSING = '01900000-0000-7000-8000-000000000000'

/** A store with one completed record. */
async function completed(reply: HttpReplyInput): Promise<{ store: Store; recordId: string }> {
  const store = memoryStore()
  const request = claimRequest()
  await store.claim([request])
  const result = await encodeHttpReply(request, reply)
  const lease = { ...request, attempt: 1 }
  await store.settle([{ kind: 'complete', lease, result, retentionMs: 3_600_000 }])
  return { store, recordId: request.recordId }
}

interface Mount {
  readonly store: Store
  /** A header that a middleware sets before the handler. */
  readonly before?: readonly [name: string, value: string]
  /** The error that `tenant` rejects with. */
  readonly refusal?: Error
}

interface Framework {
  /** Serves `/operations/:id`, and `/by-path/…` without a parameter. */
  readonly serve: (mount: Mount) => Promise<TestServer>
  /** Whether the framework has route parameters. */
  readonly hasParams: boolean
}

const optionsOf = ({ store, refusal }: Mount) => ({
  store,
  tenant: refusal === undefined ? tenant : () => Promise.reject(refusal),
})

const FRAMEWORKS: readonly (readonly [string, Framework])[] = [
  ...EXPRESSES.map(([name, express]): readonly [string, Framework] => [
    name,
    {
      hasParams: true,
      serve: (mount) => {
        const app = express()
        const status = onExpress.idempotencyStatus(optionsOf(mount))
        app.use((_req, res, next) => {
          if (mount.before) res.setHeader(...mount.before)
          next()
        })
        const router = express.Router()
        router.get('/:id/status', status)
        router.get('/:id', status)
        app.use('/operations', router)
        app.use('/by-path', status)
        app.use(((error, _req, res, _next) => {
          res.status((error as { status?: number }).status ?? 500).end('refused')
        }) as express.ErrorRequestHandler)
        return serve(app)
      },
    },
  ]),
  ...KOAS.map(([name, koa]): readonly [string, Framework] => [
    name,
    {
      hasParams: true,
      serve: (mount) => {
        const status = onKoa.idempotencyStatus(optionsOf(mount))
        const router = new Router({ prefix: '/operations' })
        router.get('/:id/status', status)
        router.get('/:id', status)
        return serveKoa(
          koa,
          async (ctx: Context, next: Next) => {
            if (mount.before) ctx.set(...mount.before)
            await next()
          },
          router.routes(),
          async (ctx: Context) => {
            if (ctx.path.startsWith('/by-path/')) await status(ctx)
          },
        )
      },
    },
  ]),
  [
    'fastify',
    {
      hasParams: true,
      serve: async (mount) => {
        const app = newApp()
        const status = onFastify.idempotencyStatus(optionsOf(mount))
        app.addHook('onRequest', async (_request, reply) => {
          if (mount.before) reply.header(...mount.before)
        })
        app.get('/operations/:id/status', status)
        app.get('/operations/:id', status)
        app.get('/by-path/*', status)
        return serveApp(app)
      },
    },
  ],
  [
    'hono',
    {
      hasParams: true,
      serve: (mount) => {
        const app = new Hono()
        const status = onHono.idempotencyStatus(optionsOf(mount))
        app.use(async (c, next) => {
          if (mount.before) c.header(...mount.before)
          await next()
        })
        app.get('/operations/:id/status', status)
        app.get('/operations/:id', status)
        app.get('/by-path/*', status)
        app.onError((error, c) => c.text('refused', (error as { status?: 401 }).status ?? 500))
        return serveHono(app)
      },
    },
  ],
  [
    'fetch',
    {
      hasParams: false,
      serve: (mount) => {
        const status = onFetch.idempotencyStatus(optionsOf(mount))
        return serveWeb(async (request) => {
          try {
            return await status(request)
          } catch (error) {
            return new Response('refused', { status: (error as { status: number }).status })
          }
        })
      },
    },
  ],
  [
    'node:http',
    {
      hasParams: false,
      serve: (mount) => {
        const onRequestError = (error: unknown, _req: unknown, res: http.ServerResponse) =>
          res.writeHead((error as { status: number }).status).end('refused')
        const status = onNode.idempotencyStatus({ ...optionsOf(mount), onRequestError })
        return serve((req, res) => {
          if (mount.before) res.setHeader(...mount.before)
          status(req, res)
        })
      },
    },
  ],
]

const sendTo = ({ send }: TestServer, path: string, method = 'GET'): Promise<Reply> =>
  send({ method, path })

describe.each(FRAMEWORKS)('status handler on %s', (name, { serve: serveWith, hasParams }) => {
  it('finds the record id in a parameter or at the end of the path', async () => {
    const { store, recordId } = await completed({ status: 201, body: 'paid' })
    const server = await serveWith({ store })
    const paths = [`/operations/${recordId}?full=1`, `/by-path/${recordId}/`]
    if (hasParams) paths.push(`/operations/${recordId}/status`)
    for (const path of paths) {
      const reply = await sendTo(server, path)
      expect([path, reply.status, text(reply)]).toEqual([path, 201, 'paid'])
    }
    expect((await sendTo(server, `/by-path/${MISSING}/`)).status).toBe(404)
    expect((await sendTo(server, '/by-path/')).status).toBe(404)
  })

  it('adds no content type to a reply that was recorded without one', async () => {
    for (const body of [Uint8Array.of(0, 255, 10), undefined]) {
      const { store, recordId } = await completed({ status: 200 })
      // A handler may send this reply. `encodeHttpReply` would add a content type.
      const headers = [['vary', 'Accept']] as const
      const plain = { status: 200, headers, body: body ?? new Uint8Array(0), schemaVersion: 1 }
      const untyped: Store = new Proxy(store, {
        get: (target, key) => {
          const value: unknown = Reflect.get(target, key)
          if (key !== 'read') return typeof value === 'function' ? value.bind(target) : value
          return async (ref: Parameters<Store['read']>[0]) => {
            const record = await target.read(ref)
            return record && { ...record, result: encodeReply({ ...plain, elided: false }, record) }
          }
        },
      })
      const server = await serveWith({ store: untyped })
      const reply = await sendTo(server, `/operations/${recordId}`)
      expect(reply.body).toEqual(Buffer.from(body ?? []))
      // @hono/node-server adds a content type to every response without one.
      if (name !== 'hono') expect(header(reply, 'content-type')).toBeUndefined()
      expect(header(reply, 'vary')).toBe('Accept')
      const head = await sendTo(server, `/operations/${recordId}`, 'HEAD')
      expect([head.status, head.body.length]).toEqual([200, 0])
      if (name !== 'hono') expect(header(head, 'content-type')).toBeUndefined()
    }
  })

  it('keeps the headers that earlier middlewares have set', async () => {
    if (name === 'fetch') return
    const { store, recordId } = await completed({ status: 200, body: 'paid' })
    const server = await serveWith({ store, before: ['access-control-allow-origin', '*'] })
    for (const id of [recordId, MISSING]) {
      const reply = await sendTo(server, `/operations/${id}`)
      expect(header(reply, 'access-control-allow-origin')).toBe('*')
      expect(reply.headers.get('content-type')).toHaveLength(1)
    }
  })

  it('passes an error of tenant() to the error handling of the framework', async () => {
    const { store, recordId } = await completed({ status: 200, body: 'secret' })
    const refusal = Object.assign(new Error('who are you?'), { status: 401, expose: false })
    const reply = await sendTo(await serveWith({ store, refusal }), `/operations/${recordId}`)
    expect(reply.status).toBe(401)
    expect(text(reply)).not.toContain('secret')
  })
})

describe('other methods', () => {
  it('returns 405 to methods other than GET and HEAD', async () => {
    const { store, recordId } = await completed({ status: 200 })
    const handlers: readonly Promise<TestServer>[] = [
      serve(onNode.idempotencyStatus({ store, tenant })),
      serveWeb(onFetch.idempotencyStatus({ store, tenant })),
      serve(express().use(onExpress.idempotencyStatus({ store, tenant }))),
      serveHono(new Hono().all('/*', onHono.idempotencyStatus({ store, tenant }))),
      ...KOAS.map(([, koa]) => serveKoa(koa, onKoa.idempotencyStatus({ store, tenant }))),
      serveApp(newApp().all('/*', onFastify.idempotencyStatus({ store, tenant }))),
    ]
    for (const server of await Promise.all(handlers)) {
      for (const method of ['POST', 'DELETE']) {
        const reply = await sendTo(server, `/${recordId}`, method)
        expect([reply.status, header(reply, 'allow'), text(reply)]).toEqual([405, 'GET, HEAD', ''])
      }
    }
  })
})

describe('compression', () => {
  const big = { status: 200, headers: { 'Content-Type': 'text/plain' }, body: 'x'.repeat(5_000) }
  const gzip = { headers: { 'accept-encoding': 'gzip' } }

  it('lets middlewares of Express, Koa and Fastify compress the status reply', async () => {
    const { store, recordId } = await completed(big)
    const fastify = newApp()
    await fastify.register(compress)
    fastify.get('/:id', onFastify.idempotencyStatus({ store, tenant }))
    const servers = [
      await serve(express().use(compression(), onExpress.idempotencyStatus({ store, tenant }))),
      await serveKoa(KOAS[0]![1], koaCompress(), onKoa.idempotencyStatus({ store, tenant })),
      await serveApp(fastify),
    ]
    for (const { send } of servers) {
      const plain = await send({ method: 'GET', path: `/${recordId}` })
      expect(text(plain)).toBe(big.body)
      const small = await send({ method: 'GET', path: `/${recordId}`, ...gzip })
      expect(header(small, 'content-encoding')).toBe('gzip')
      expect(small.body.length).toBeLessThan(1_000)
    }
  })
})

it('keeps headers that a Hono middleware sets on the response', async () => {
  const { store, recordId } = await completed({ status: 201, body: { paid: true } })
  const app = new Hono()
  app.use(cors({ origin: 'https://shop.example' }))
  app.get('/operations/:id', onHono.idempotencyStatus({ store, tenant }))
  const { send } = await serveHono(app)
  const headers = { origin: 'https://shop.example' }
  const reply = await send({ method: 'GET', path: `/operations/${recordId}`, headers })
  expect([reply.status, text(reply)]).toEqual([201, '{"paid":true}'])
  expect(header(reply, 'access-control-allow-origin')).toBe('https://shop.example')
  expect(header(reply, 'content-type')).toBe('application/json; charset=utf-8')
})

it('does not reply after a timeout has replied, on Express and node:http', async () => {
  const { promise: read, resolve: goOn } = Promise.withResolvers<undefined>()
  const reading = Promise.withResolvers<void>()
  const store = new Proxy(memoryStore(), {
    get: (target, name) => {
      const value: unknown = Reflect.get(target, name)
      if (name !== 'read') return typeof value === 'function' ? value.bind(target) : value
      return () => {
        reading.resolve()
        return read
      }
    },
  })
  const errors: unknown[] = []
  const late = vi.fn<(error: unknown) => void>()
  const app = express().use(onExpress.idempotencyStatus({ store, tenant }))
  app.use(((error, _req, _res, _next) => {
    errors.push(error)
  }) as express.ErrorRequestHandler)
  const node = onNode.idempotencyStatus({ store, tenant, onRequestError: late })
  const handlers: http.RequestListener[] = [app, node]
  const replies = handlers.map(async (handler) => {
    const { send } = await serve((req, res) => {
      handler(req, res)
      void reading.promise.then(() => res.writeHead(503).end('too slow'))
    })
    return send({ method: 'GET', path: `/${MISSING}` })
  })
  for (const reply of await Promise.all(replies)) expect(reply.status).toBe(503)
  goOn(undefined)
  await new Promise((resolve) => {
    setImmediate(resolve)
  })
  expect(errors).toEqual([])
  expect(late).not.toHaveBeenCalled()
})

it('returns 500 without details on node:http if onRequestError is not set', async () => {
  const warned = vi.spyOn(process, 'emitWarning').mockReturnValue()
  onTestFinished(() => warned.mockRestore())
  const server = await serve(
    onNode.idempotencyStatus({ store: memoryStore(), tenant: () => undefined as never }),
  )
  const reply = await sendTo(server, `/${MISSING}`)
  expect([reply.status, text(reply)]).toEqual([500, 'Internal Server Error'])
  expect(warned).toHaveBeenCalledOnce()
})

it('omits status routes of Express, Hono, Koa and Fastify from auditRoutes', async () => {
  const options = { store: memoryStore(), tenant }
  const nothing = { protected: [], unprotected: [] }

  const app = express().get('/operations/:id', onExpress.idempotencyStatus(options))
  expect(onExpress.auditRoutes(app)).toEqual(nothing)

  const hono = new Hono().get('/operations/:id', onHono.idempotencyStatus(options))
  expect(onHono.auditRoutes(hono)).toEqual(nothing)

  const router = new Router().get('/operations/:id', onKoa.idempotencyStatus(options))
  const koa = new KOAS[0]![1]()
  koa.use(router.routes())
  expect(onKoa.auditRoutes(koa)).toEqual(nothing)

  const fastify = newApp()
  await fastify.register(onFastify.idempotency, options)
  fastify.get('/operations/:id', onFastify.idempotencyStatus(options))
  await fastify.ready()
  expect(onFastify.auditRoutes(fastify)).toEqual(nothing)
})

it.each(FRAMEWORKS.map(([name]) => name))('throws for a wrong option on %s', (name) => {
  const adapters = { express: onExpress, koa: onKoa, fastify: onFastify, hono: onHono }
  const all = { ...adapters, fetch: onFetch, 'node:http': onNode }
  const { idempotencyStatus } = all[name.replace(/ \d$/, '') as keyof typeof all]
  const make = idempotencyStatus as (options: object) => unknown
  expect(() => make({ store: memoryStore() })).toThrow('tenant must be a function')
  expect(() => make({ store: memoryStore(), tenant, keyHeader: 'x' })).toThrow('"keyHeader"')
})

it('accepts the route types of every framework', () => {
  interface Authed {
    Variables: { account: string }
  }
  const store = memoryStore()
  const app = new Hono<Authed>()
  const status = onHono.idempotencyStatus<Authed>({ store, tenant: (c) => c.get('account') })
  app.get('/operations/:id', status)

  const router = express.Router()
  const handler = onExpress.idempotencyStatus({ store, tenant })
  router.get<{ id: string }, { paid: boolean }>('/operations/:id', handler)

  newApp().get<{ Params: { id: string } }>(
    '/operations/:id',
    onFastify.idempotencyStatus({ store, tenant: ({ ip }) => ip }),
  )
  interface State {
    account: string
  }
  const koa = new KOAS[0]![1]<State>()
  koa.use(onKoa.idempotencyStatus<State>({ store, tenant: (ctx) => ctx.state.account }))

  class NextRequest extends Request {
    readonly account = 'a'
  }
  const get = onFetch.idempotencyStatus<NextRequest>({ store, tenant: ({ account }) => account })
  expectTypeOf(get).parameter(0).toEqualTypeOf<NextRequest>()
  expectTypeOf(get).returns.toEqualTypeOf<Promise<Response>>()
})
