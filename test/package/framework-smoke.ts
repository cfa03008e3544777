/**
 * A user's program for each framework except Express (`adapter-smoke.ts`): sends one payment twice,
 * and then once without a key, to the packed adapter. The argument names the framework, and only
 * that one is imported. Runs with its types stripped on every Node that the package supports.
 */
import assert from 'node:assert/strict'
import { once } from 'node:events'
import http, { type RequestListener } from 'node:http'
import type { AddressInfo } from 'node:net'
import { json } from 'node:stream/consumers'
import { memoryStore, singleTenant } from 'oncekey'

const options = { store: memoryStore(), tenant: singleTenant }
let runs = 0

/** The reply of each handler. Shows that the handler has read the body and knows the key. */
function paid(body: unknown, { key }: { readonly key: string }): object {
  return { run: ++runs, body, key }
}

const FRAMEWORKS: Readonly<Record<string, () => Promise<RequestListener>>> = {
  async node() {
    const { idempotencyOf, withIdempotency } = await import('oncekey/node')
    return withIdempotency(async (req, res) => {
      res.writeHead(201, { 'content-type': 'application/json' })
      res.end(JSON.stringify(paid(await json(req), idempotencyOf(req))))
    }, options)
  },

  async fetch() {
    const { idempotencyOf, withIdempotency } = await import('oncekey/fetch')
    const { getRequestListener } = await import('@hono/node-server')
    const handler = withIdempotency(async (request) => {
      return Response.json(paid(await request.json(), idempotencyOf(request)), { status: 201 })
    }, options)
    return toListener(getRequestListener((request) => handler(request)))
  },

  async hono() {
    const { idempotency, idempotencyOf } = await import('oncekey/hono')
    const { getRequestListener } = await import('@hono/node-server')
    const { Hono } = await import('hono')
    const app = new Hono()
    app.post('/payments', idempotency(options), async (c) => {
      return c.json(paid(await c.req.json(), idempotencyOf(c)), 201)
    })
    return toListener(getRequestListener((request, env) => app.fetch(request, env)))
  },

  async koa() {
    const { default: Koa } = await import('koa')
    const { idempotency, idempotencyOf } = await import('oncekey/koa')
    const app = new Koa()
    app.use(idempotency(options))
    app.use(async (ctx) => {
      ctx.status = 201
      ctx.body = paid(await json(ctx.req), idempotencyOf(ctx))
    })
    return toListener(app.callback())
  },

  async fastify() {
    const { default: fastify } = await import('fastify')
    const { idempotency, idempotencyOf } = await import('oncekey/fastify')
    const app = fastify()
    await app.register(idempotency, options)
    app.post('/payments', async (request, reply) => {
      return reply.code(201).send(paid(request.body, idempotencyOf(request)))
    })
    await app.ready()
    return (req, res) => app.routing(req, res)
  },

  async nest() {
    await import('reflect-metadata')
    const { Body, Controller, Module, Post } = await import('@nestjs/common')
    const { NestFactory } = await import('@nestjs/core')
    const { IdempotencyContext, IdempotencyModule, Idempotent } = await import('oncekey/nest')
    class Payments {
      pay(body: unknown, context: { readonly key: string }): object {
        return paid(body, context)
      }
    }
    const pay = Object.getOwnPropertyDescriptor(Payments.prototype, 'pay')!
    for (const decorate of [Post('payments'), Idempotent()]) {
      decorate(Payments.prototype, 'pay', pay)
    }
    Body()(Payments.prototype, 'pay', 0)
    IdempotencyContext()(Payments.prototype, 'pay', 1)
    Controller()(Payments)
    class App {
      readonly isModule = true
    }
    Module({ imports: [IdempotencyModule.forRoot(options)], controllers: [Payments] })(App)
    const app = await NestFactory.create(App, { logger: false })
    await app.init()
    return app.getHttpAdapter().getInstance() as RequestListener
  },
}

/** Discards the promise that the listeners of Koa and of web-standard frameworks return. */
function toListener(
  listener: (req: http.IncomingMessage, res: http.ServerResponse) => unknown,
): RequestListener {
  return (req, res) => void listener(req, res)
}

async function post(port: number, key?: string): Promise<[number | undefined, string, string]> {
  const headers = { 'Content-Type': 'application/json', ...(key && { 'Idempotency-Key': key }) }
  const path = { host: '127.0.0.1', port, path: '/payments', method: 'POST' }
  const request = http.request({ ...path, headers, agent: false }).end('{"amount":1}')
  const [response] = (await once(request, 'response')) as [http.IncomingMessage]
  const chunks: Buffer[] = []
  for await (const chunk of response) chunks.push(chunk as Buffer)
  const replayed = response.headers['idempotent-replayed'] ?? ''
  return [response.statusCode, Buffer.concat(chunks).toString(), String(replayed)]
}

const framework = process.argv[2]!
const server = http.createServer(await FRAMEWORKS[framework]!())
server.listen(0, '127.0.0.1')
await once(server, 'listening')
const { port } = server.address() as AddressInfo

const body = '{"run":1,"body":{"amount":1},"key":"key-1"}'
assert.deepEqual(await post(port, 'key-1'), [201, body, ''])
assert.deepEqual(await post(port, 'key-1'), [201, body, 'true'])
const [status, problem] = await post(port)
assert.deepEqual([status, JSON.parse(problem).code], [400, 'idempotency_key_missing'])
assert.equal(runs, 1)
console.log(framework)

server.close()
server.closeAllConnections()
