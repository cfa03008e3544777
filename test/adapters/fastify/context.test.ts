/** The idempotency context of handlers, transactions, and clients that disconnect. */
import { once } from 'node:events'
import http from 'node:http'
import type { AddressInfo } from 'node:net'
import { DatabaseSync } from 'node:sqlite'
import { Readable } from 'node:stream'
import { text as body } from 'node:stream/consumers'
import type { FastifyInstance, RouteHandlerMethod } from 'fastify'
import { describe, expect, it, onTestFinished } from 'vitest'
import { currentIdempotency } from '../../../src/http/guard/current.ts'
import {
  idempotency,
  idempotencyOf,
  type IdempotencyOptions,
} from '../../../src/adapters/fastify/index.ts'
import { sqliteStore, type SqliteTransaction } from '../../../src/stores/sqlite/index.ts'
import { scratchFolder } from '../../stores/scratch-folder.ts'
import {
  gate,
  header,
  json,
  problemOf,
  text,
  turns,
  type Reply,
  type Send,
} from '../run-express.ts'
import { guardedApp, newApp, optionsOf, serveApp } from '../run-fastify.ts'

describe('a handler', () => {
  it('gets the same record from request.idempotency and currentIdempotency()', async () => {
    const app = await guardedApp()
    const deep = async () => {
      await turns(2)
      return currentIdempotency().recordId
    }
    app.post('/users/:id', async (request) => {
      const { key, attempt, scope, recordId } = request.idempotency!
      return { key, attempt, scope, same: recordId === (await deep()) }
    })
    const server = await serveApp(app)
    expect(json(await server.send({ path: '/users/7', key: 'k' }))).toEqual({
      key: 'k',
      attempt: 1,
      scope: { tenant: 'single', operation: 'POST /users/:' },
      same: true,
    })
  })

  it('idempotencyOf() and currentIdempotency() throw in an unprotected handler', async () => {
    const app = await guardedApp({ keyRequired: false })
    app.post('/', (request) => {
      expect(request.idempotency).toBeUndefined()
      expect(() => currentIdempotency()).toThrow(/protect/)
      return idempotencyOf(request).key
    })
    app.setErrorHandler((error: Error, _request, reply) => reply.code(500).send(error.message))
    const reply = await (await serveApp(app)).send()
    expect(text(reply)).toMatch(/^POST \/ is not protected/)
  })

  it('releases the key when the handler calls notExecuted()', async () => {
    const app = await guardedApp()
    let runs = 0
    app.post('/', (request, reply) => {
      runs++
      request.idempotency!.downstreamKey()
      request.idempotency!.notExecuted()
      return reply.code(503).send('busy')
    })
    const server = await serveApp(app)
    await server.send({ key: 'k' })
    expect((await server.send({ key: 'k' })).status).toBe(503)
    expect(runs).toBe(2)
  })
})

it('separates tenants, and returns 422 to another principal of one tenant', async () => {
  const app = await guardedApp({
    tenant: (request) => String(request.headers['x-tenant']),
    principal: (request) => String(request.headers['x-user']),
  })
  let runs = 0
  app.post('/', () => `run ${++runs}`)
  const server = await serveApp(app)
  const by = (tenant: string, user: string): Promise<Reply> =>
    server.send({ key: 'k', headers: { 'x-tenant': tenant, 'x-user': user } })
  expect(text(await by('a', '1'))).toBe('run 1')
  expect(text(await by('b', '1'))).toBe('run 2')
  expect(text(await by('a', '1'))).toBe('run 1')
  expect((await by('a', '2')).status).toBe(422)
})

it('returns 409 while the first request runs, and 422 to another request', async () => {
  const app = await guardedApp()
  const entered = gate()
  const proceed = gate()
  app.post('/', async () => {
    entered.open()
    await proceed.passed
    return 'done'
  })
  const server = await serveApp(app)
  const first = server.send({ key: 'k', json: 1 })
  await entered.passed
  expect(problemOf(await server.send({ key: 'k', json: 1 }))[0]).toBe(409)
  expect(problemOf(await server.send({ key: 'k', json: 2 }))[0]).toBe(422)
  proceed.open()
  expect(text(await first)).toBe('done')
  expect(header(await server.send({ key: 'k', json: 1 }), 'idempotent-replayed')).toBe('true')
})

describe('a transaction', () => {
  async function setup(handler: RouteHandlerMethod, options: Partial<IdempotencyOptions> = {}) {
    const folder = scratchFolder()
    onTestFinished(folder.remove)
    const path = folder.file('app.db')
    const store = sqliteStore({ path, synchronous: 'normal' })
    onTestFinished(() => store.close())
    const db = new DatabaseSync(path)
    onTestFinished(() => db.close())
    db.exec('CREATE TABLE payment (amount INTEGER)')
    const app = newApp()
    const statuses: number[] = []
    app.addHook('onResponse', async (_request, reply) => void statuses.push(reply.statusCode))
    await app.register(idempotency, optionsOf({ store, ...options }))
    app.post('/', handler)
    const rows = () => db.prepare('SELECT amount FROM payment').all().length
    return { ...(await serveApp(app)), app, rows, statuses }
  }

  const insert = (tx: SqliteTransaction) => tx.prepare('INSERT INTO payment VALUES (1)').run()

  it('commits and sends the reply that a transaction returns', async () => {
    const { send, app, rows, statuses } = await setup(async (request) => {
      await request.idempotency!.transaction<SqliteTransaction>((tx) => {
        insert(tx)
        return { status: 201, headers: { location: '/payments/1' }, body: 'paid' }
      })
    })
    for (const replayed of [undefined, 'true']) {
      const reply = await send({ key: 'k' })
      expect([reply.status, text(reply), header(reply, 'location')]).toEqual([
        201,
        'paid',
        '/payments/1',
      ])
      expect(header(reply, 'idempotent-replayed')).toBe(replayed)
    }
    const headers = { 'idempotency-key': 'injected' }
    const injected = await app.inject({ method: 'POST', url: '/', headers })
    expect([injected.statusCode, injected.body]).toEqual([201, 'paid'])
    expect(rows()).toBe(2)
    await turns()
    expect(statuses).toEqual([201, 201, 201])
  })

  it('commits the reply that is sent in a transaction', async () => {
    const { send, rows } = await setup(async (request, reply) => {
      await idempotencyOf(request).transaction<SqliteTransaction>((tx) => {
        insert(tx)
        void reply.code(201).send({ paid: true })
      })
      return reply
    })
    const [first, replay] = [await send({ key: 'k' }), await send({ key: 'k' })]
    expect([first.status, text(first)]).toEqual([201, '{"paid":true}'])
    expect([replay.status, text(replay)]).toEqual([201, '{"paid":true}'])
    expect(rows()).toBe(1)
  })

  it('rolls back a transaction that throws, and releases the key', async () => {
    let runs = 0
    const { send, rows } = await setup(async (request) => {
      await request.idempotency!.transaction<SqliteTransaction>((tx) => {
        insert(tx)
        if (++runs === 1) throw new Error('no funds')
        return { status: 201, body: 'paid' }
      })
    })
    expect((await send({ key: 'k' })).status).toBe(500)
    expect(rows()).toBe(0)
    expect((await send({ key: 'k' })).status).toBe(201)
    expect(rows()).toBe(1)
  })
})

describe('a client that disconnects', () => {
  async function leave(app: FastifyInstance, entered: Promise<void>, request: Send) {
    const server = await serveApp(app)
    const gone = gate()
    server.server.once('connection', (socket) => socket.once('close', () => gone.open()))
    const client = await server.connect({ key: 'k', ...request })
    await entered
    client.cut()
    await gone.passed
    await turns()
    return server
  }

  /** Ways to reply after the client has disconnected. */
  const WAYS: Readonly<Record<string, RouteHandlerMethod>> = {
    'returns its reply': async () => 'done',
    'sends its reply': (_request, reply) => reply.send('done'),
    'streams its reply': (_request, reply) =>
      reply.type('text/plain').send(Readable.from(['do', 'ne'])),
    'returns nothing': async () => undefined,
  }
  const BODIES: Readonly<Record<string, Send>> = { 'a body': { json: { a: 1 } }, 'no body': {} }
  const cases = Object.keys(WAYS).flatMap((way) =>
    Object.keys(BODIES).map((body): [string, string] => [way, body]),
  )

  it.each(cases)(
    'records the reply of a handler that %s, for a request with %s',
    async (way, body) => {
      const app = await guardedApp()
      const entered = gate()
      const left = gate()
      let runs = 0
      app.post('/', async function (request, reply) {
        runs++
        entered.open()
        await left.passed
        return WAYS[way]!.call(this, request, reply)
      })
      const server = await leave(app, entered.passed, BODIES[body]!)
      left.open()
      await turns()
      const retry = await server.send({ key: 'k', ...BODIES[body] })
      expect([retry.status, header(retry, 'idempotent-replayed')]).toEqual([200, 'true'])
      expect(text(retry)).toBe(way === 'returns nothing' ? '' : 'done')
      expect(runs).toBe(1)
    },
  )

  it('runs nothing and claims no key when the client leaves before the handler', async () => {
    const app = newApp()
    const hookEntered = gate()
    const left = gate()
    app.addHook('onRequest', async () => {
      hookEntered.open()
      await left.passed
    })
    let failed = 0
    app.addHook('onError', async () => void failed++)
    await app.register(idempotency, optionsOf())
    let runs = 0
    app.post('/', () => `run ${++runs}`)
    const server = await leave(app, hookEntered.passed, {})
    left.open()
    await turns()
    expect([runs, failed]).toEqual([0, 1])
    expect(text(await server.send({ key: 'k' }))).toBe('run 1')
  })
})

it('app.close() waits for running requests, and then for the engine', async () => {
  const app = newApp()
  await app.register(idempotency, optionsOf())
  const order: string[] = []
  app.addHook('onClose', async () => {
    await app.idempotency.engine.close({ graceMs: 1000 })
    order.push('engine closed')
  })
  const entered = gate()
  const proceed = gate()
  app.post('/', async () => {
    entered.open()
    await proceed.passed
    order.push('handler')
    return 'done'
  })
  await app.listen({ port: 0, host: '127.0.0.1' })
  const { port } = app.server.address() as AddressInfo
  // Without keep-alive, because Fastify would wait for the client to close the connection.
  const headers = { 'Idempotency-Key': 'k' }
  const request = http.request({ port, method: 'POST', headers, agent: false }).end()
  const answered = once(request, 'response') as Promise<[http.IncomingMessage]>
  await entered.passed
  const closed = app.close()
  proceed.open()
  const [response] = await answered
  expect(await body(response)).toBe('done')
  await closed
  expect(order).toEqual(['handler', 'engine closed'])
})
