/**
 * Requests and responses of Node must keep their fast shapes. An object that gets an accessor in
 * place of a value, or loses a property, becomes a dictionary, and every access by Node and the
 * framework takes several times as long.
 */
import { setFlagsFromString } from 'node:v8'
import { runInThisContext } from 'node:vm'
import express from 'express'
import { Hono } from 'hono'
import Koa from 'koa'
import { expect, it } from 'vitest'
import * as forExpress from '../../../src/adapters/express/index.ts'
import * as forHono from '../../../src/adapters/hono/index.ts'
import * as forKoa from '../../../src/adapters/koa/index.ts'
import * as forNode from '../../../src/adapters/node/index.ts'
import { singleTenant } from '../../../src/http/guard/guard-options.ts'
import { memoryStore } from '../../../src/stores/memory/store.ts'
import { serve, type TestServer } from '../run-express.ts'
import { guardedApp, serveApp } from '../run-fastify.ts'
import { serveHono } from '../web/serve-web.ts'

setFlagsFromString('--allow-natives-syntax')
const isFast = runInThisContext('(object) => %HasFastProperties(object)') as (
  object: object,
) => boolean

/** Receives the request, response and context objects of the handler. */
type Inspect = (...objects: readonly object[]) => void

const optionsOf = () => ({ store: memoryStore(), tenant: singleTenant })

const SERVERS: Readonly<Record<string, (inspect: Inspect) => Promise<TestServer>>> = {
  async Express(inspect) {
    const app = express()
    app.use(express.json())
    app.post('/', forExpress.idempotency(optionsOf()), (req, res) => {
      inspect(req, res)
      res.status(201).json({ paid: true })
    })
    return serve(app)
  },
  async 'Express without a parser'(inspect) {
    const app = express()
    app.post('/', forExpress.idempotency(optionsOf()), (req, res) => {
      inspect(req, res)
      res.status(201).json({ paid: true })
    })
    return serve(app)
  },
  async Fastify(inspect) {
    const app = await guardedApp()
    app.post('/', async ({ raw }, reply) => {
      inspect(raw, reply.raw)
      return reply.code(201).send({ paid: true })
    })
    return serveApp(app)
  },
  async Hono(inspect) {
    const app = new Hono()
    app.post('/', forHono.idempotency(optionsOf()), async (c) => {
      inspect(c)
      return c.json({ paid: true }, 201)
    })
    return serveHono(app)
  },
  async Koa(inspect) {
    const app = new Koa()
    app.use(forKoa.idempotency(optionsOf()))
    app.use((ctx) => {
      inspect(ctx.req, ctx.res, ctx)
      ctx.status = 201
      ctx.body = { paid: true }
    })
    const listener = app.callback()
    return serve((req, res) => void listener(req, res))
  },
  async 'a listener of Node'(inspect) {
    const options = { ...optionsOf(), operation: 'pay' }
    const listener = forNode.withIdempotency((req, res) => {
      inspect(req, res)
      res.writeHead(201).end(JSON.stringify({ paid: true }))
    }, options)
    return serve(listener)
  },
}

it.each(Object.keys(SERVERS))(
  'requests and responses of %s keep their fast shapes',
  async (name) => {
    let seen: readonly object[] = []
    let inHandler: readonly boolean[] = []
    const { port } = await SERVERS[name]!((...objects) => {
      seen = objects
      inHandler = objects.map(isFast)
    })
    const headers = { 'content-type': 'application/json', 'idempotency-key': 'k-1' }
    const url = `http://127.0.0.1:${port}/`
    const reply = await fetch(url, { method: 'POST', headers, body: '{"amount":1}' })
    expect([reply.status, await reply.json()]).toEqual([201, { paid: true }])
    expect(inHandler).toEqual(seen.map(() => true))
    expect(seen.map(isFast)).toEqual(seen.map(() => true))
    expect(seen.length).toBeGreaterThan(0)
  },
)
