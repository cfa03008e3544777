/**
 * What a request has used must die young. Whatever old objects refer to lives until a full
 * collection, and is copied to the old space first, in pauses that every other request waits for.
 */
import { randomUUID } from 'node:crypto'
import { getHeapSpaceStatistics } from 'node:v8'
import express from 'express'
import { Hono } from 'hono'
import Koa from 'koa'
import { expect, it } from 'vitest'
import { exchange } from '../../bench/run/raw-client.ts'
import * as forExpress from '../../src/adapters/express.ts'
import * as forHono from '../../src/adapters/hono.ts'
import * as forKoa from '../../src/adapters/koa.ts'
import * as forNode from '../../src/adapters/node.ts'
import { memoryStore } from '../../src/stores/memory/memory-store.ts'
import { serve, type TestServer } from './run-express.ts'
import { guardedApp, serveApp } from './run-fastify.ts'
import { serveHono } from './serve-web.ts'

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
  return { tenant: forExpress.singleTenant, store: memoryStore() }
}

const BODY = '{"amount":1}'
const WARM_UP = 3_000
const REQUESTS = 2_000
/** A record of the memory store takes one or two; a request that lives on, ten and more. */
const BYTES_MAX = 5_000

it.each(Object.keys(SERVERS))('requests through %s die young', async (name) => {
  const { port } = await SERVERS[name]!()
  await sendMany(port, WARM_UP)
  const measured = []
  for (let round = 0; round < 3; round++) {
    const before = oldBytes()
    await sendMany(port, REQUESTS)
    measured.push((oldBytes() - before) / REQUESTS)
  }
  // A full collection in between makes one of them small, or less than nothing.
  expect(Math.max(...measured)).toBeLessThan(BYTES_MAX)
})

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
