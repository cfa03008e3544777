/**
 * Objects of a request must be collected in the young space. An object that an old object refers
 * to is copied to the old space, in a pause for all requests, and lives until a full collection.
 */
import { randomUUID } from 'node:crypto'
import { getHeapSpaceStatistics } from 'node:v8'
import express from 'express'
import { Hono } from 'hono'
import Koa from 'koa'
import { expect, it } from 'vitest'
import { exchange } from '../../../bench/run/raw-client.ts'
import * as forExpress from '../../../src/adapters/express/index.ts'
import * as forHono from '../../../src/adapters/hono/index.ts'
import * as forKoa from '../../../src/adapters/koa/index.ts'
import * as forNode from '../../../src/adapters/node/index.ts'
import { singleTenant } from '../../../src/http/guard/guard-options.ts'
import { memoryStore } from '../../../src/stores/memory/store.ts'
import { serve, type TestServer } from '../run-express.ts'
import { guardedApp, serveApp } from '../run-fastify.ts'
import { serveHono } from '../web/serve-web.ts'

const REPLY = { paid: true }

const SERVERS: Readonly<Record<string, () => Promise<TestServer>>> = {
  async Express() {
    const app = express()
    app.use(express.json())
    app.post('/', forExpress.idempotency(optionsOf()), (_req, res) => {
      res.status(201).json(REPLY)
    })
    return serve(app)
  },
  async Fastify() {
    const app = await guardedApp()
    app.post('/', async (_request, reply) => reply.code(201).send(REPLY))
    return serveApp(app)
  },
  async Hono() {
    const app = new Hono()
    app.post('/', forHono.idempotency(optionsOf()), async (c) => c.json(REPLY, 201))
    return serveHono(app)
  },
  async Koa() {
    const app = new Koa()
    app.use(forKoa.idempotency(optionsOf()))
    app.use((ctx) => {
      ctx.status = 201
      ctx.body = REPLY
    })
    const listener = app.callback()
    return serve((req, res) => void listener(req, res))
  },
  async 'a listener of Node'() {
    const options = { ...optionsOf(), operation: 'pay' }
    const listener = forNode.withIdempotency((_req, res) => {
      res.writeHead(201).end(JSON.stringify(REPLY))
    }, options)
    return serve(listener)
  },
}

function optionsOf() {
  return { tenant: singleTenant, store: memoryStore() }
}

const BODY = '{"amount":1}'
const WARM_UP = 3_000
const REQUESTS = 2_000
/** A record of the memory store takes 1 to 2 kB; a request in the old space takes 10 kB or more. */
const BYTES_MAX = 5_000

it.each(Object.keys(SERVERS))(
  'requests through %s are not promoted to the old space',
  async (name) => {
    const { port } = await SERVERS[name]!()
    await sendMany(port, WARM_UP)
    const measured = []
    for (let round = 0; round < 3; round++) {
      const before = oldBytes()
      await sendMany(port, REQUESTS)
      measured.push((oldBytes() - before) / REQUESTS)
    }
    // A full collection during a round makes its value small or negative.
    expect(Math.max(...measured)).toBeLessThan(BYTES_MAX)
  },
)

async function sendMany(port: number, count: number): Promise<void> {
  let sent = 0
  const next = () => (sent++ < count ? requestOf(randomUUID()) : undefined)
  const { statuses } = await exchange({ port, connections: 32, until: Infinity, next })
  expect([...statuses.keys()]).toEqual([201])
}

function requestOf(key: string): string {
  return (
    'POST / HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n' +
    `Content-Length: ${BODY.length}\r\nIdempotency-Key: ${key}\r\n\r\n${BODY}`
  )
}

function oldBytes(): number {
  return getHeapSpaceStatistics().find(({ space_name: name }) => name === 'old_space')!
    .space_used_size
}
