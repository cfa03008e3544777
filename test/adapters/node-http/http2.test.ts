/** Protected requests over HTTP/2: Hono serves them, the other frameworks refuse them. */
import http2 from 'node:http2'
import type { AddressInfo } from 'node:net'
import { once } from 'node:events'
import { serve } from '@hono/node-server'
import type { ErrorRequestHandler, RequestHandler } from 'express'
import { Hono } from 'hono'
import { describe, expect, it, onTestFinished, vi } from 'vitest'
import { singleTenant } from '../../../src/http/guard/guard-options.ts'
import { idempotency as honoIdempotency } from '../../../src/adapters/hono/index.ts'
import { memoryStore } from '../../../src/stores/memory/store.ts'
import { EXPRESSES, guardOf, type ExpressModule } from '../run-express.ts'
import { http2Client, serveHttp2 } from './run-http2.ts'
import { guardOf as koaGuardOf, KOAS, listenerOf } from '../run-koa.ts'

const REFUSAL = /over HTTP\/2 is refused and its handler does not run: let a proxy speak HTTP\/2/

describe.each(EXPRESSES)('%s over node:http2', (_name, express) => {
  it('refuses a protected request before it claims the key', async () => {
    const store = memoryStore()
    const claim = vi.spyOn(store, 'claim')
    const errors: unknown[] = []
    const app = onHttp2(express)
    app.post('/bare', ((_req, res) => void res.status(201).send('bare')) as RequestHandler)
    app.post('/', guardOf({ store }), () => expect.fail('ran'))
    app.use(((error, _req, res, _next) => {
      errors.push(error)
      res.status(500).send('failed')
    }) as ErrorRequestHandler)

    const { send } = await serveHttp2(app)
    expect(await send('/bare')).toMatchObject({ status: 201, body: 'bare' })
    expect(await send()).toMatchObject({ status: 500, body: 'failed' })
    expect(errors).toEqual([expect.objectContaining({ message: expect.stringMatching(REFUSAL) })])
    expect(claim).not.toHaveBeenCalled()
  })
})

describe.each(KOAS)('%s over node:http2', (_name, koa) => {
  it('refuses a protected request before it claims the key', async () => {
    const store = memoryStore()
    const claim = vi.spyOn(store, 'claim')
    const errors: Error[] = []
    const app = new koa()
    app.on('error', (error: Error) => errors.push(error))
    app.use(koaGuardOf({ store }))
    app.use(() => expect.fail('ran'))

    const { send } = await serveHttp2(listenerOf(app))
    expect((await send()).status).toBe(500)
    expect(errors.map(({ message }) => message)).toEqual([expect.stringMatching(REFUSAL)])
    expect(claim).not.toHaveBeenCalled()
  })
})

describe('Hono over node:http2', () => {
  it('runs a key once and replays its reply', async () => {
    let runs = 0
    const app = new Hono()
    const guard = honoIdempotency({ store: memoryStore(), tenant: singleTenant })
    app.post('/', guard, async (c) => c.json({ sent: await c.req.json(), run: ++runs }, 201))
    const server = serve({ fetch: app.fetch, port: 0, createServer: http2.createServer as never })
    onTestFinished(() => void server.close())
    if (!server.listening) await once(server, 'listening')

    const { send } = http2Client((server.address() as AddressInfo).port)
    const first = await send()
    expect(first).toMatchObject({ status: 201, body: '{"sent":{"amount":1},"run":1}' })
    const replay = await send()
    expect(replay).toMatchObject({ status: 201, body: first.body })
    expect(replay.headers['idempotent-replayed']).toBe('true')
  })
})

/**
 * Express sets the prototypes of requests and responses to those of `node:http`, so its routes do
 * not run over HTTP/2. This app uses those of `node:http2`, as bridge packages do.
 */
function onHttp2(express: ExpressModule): ReturnType<ExpressModule> {
  const app = express()
  const bridge = (own: object, above: object, prototype: object) =>
    Object.create(prototype, {
      ...Object.getOwnPropertyDescriptors(above),
      ...Object.getOwnPropertyDescriptors(own),
    })
  app.request = bridge(app.request, express.request, http2.Http2ServerRequest.prototype)
  app.response = bridge(app.response, express.response, http2.Http2ServerResponse.prototype)
  return app
}
