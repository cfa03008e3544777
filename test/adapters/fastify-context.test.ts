/** What handlers know of their key, what they commit with it, and clients that go away. */
import { once } from 'node:events'
import http from 'node:http'
import type { AddressInfo } from 'node:net'
import { DatabaseSync } from 'node:sqlite'
import { Readable } from 'node:stream'
import { text as body } from 'node:stream/consumers'
import type { FastifyInstance, RouteHandlerMethod } from 'fastify'
import { describe, expect, it, onTestFinished } from 'vitest'
import {
  currentIdempotency,
  idempotency,
  idempotencyOf,
  type FastifyOptions,
} from '../../src/adapters/fastify.ts'
import { sqliteStore, type SqliteTransaction } from '../../src/stores/sqlite/index.ts'
import { scratchFolder } from '../stores/scratch-folder.ts'
import { gate, header, json, problemOf, text, turns, type Reply, type Send } from './run-express.ts'
import { guardedApp, newApp, optionsOf, serveApp } from './run-fastify.ts'

describe('a handler', () => {
  it('is told of its key by the request, by idempotencyOf and wherever it calls', async () => {
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

  it('hears that it is not protected', async () => {
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

  it('can say that it has done nothing', async () => {
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

it('keeps tenants apart, and principals of one tenant', async () => {
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

it('answers 409 while the first is under way, and 422 to another request', async () => {
  const app = await guardedApp()
  const entered = gate()
  const goOn = gate()
  app.post('/', async () => {
    entered.open()
    await goOn.passed
    return 'done'
  })
  const server = await serveApp(app)
  const first = server.send({ key: 'k', json: 1 })
  await entered.passed
  expect(problemOf(await server.send({ key: 'k', json: 1 }))[0]).toBe(409)
  expect(problemOf(await server.send({ key: 'k', json: 2 }))[0]).toBe(422)
  goOn.open()
  expect(text(await first)).toBe('done')
  expect(header(await server.send({ key: 'k', json: 1 }), 'idempotent-replayed')).toBe('true')
})

describe('a transaction', () => {
  async function setup(handler: RouteHandlerMethod, options: Partial<FastifyOptions> = {}) {
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

  it('commits the reply that is returned to it, and that one leaves', async () => {
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

  it('commits the reply that is sent in it', async () => {
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

  it('that throws is rolled back, and frees the key', async () => {
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

describe('a client that goes away', () => {
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

  /** How the reply is made once nobody is there to get it. */
  const WAYS: Readonly<Record<string, RouteHandlerMethod>> = {
    'returns it': async () => 'done',
    'sends it': (_request, reply) => reply.send('done'),
    'streams it': (_request, reply) => reply.type('text/plain').send(Readable.from(['do', 'ne'])),
    'returns nothing': async () => undefined,
  }
  const BODIES: Readonly<Record<string, Send>> = { 'a body': { json: { a: 1 } }, 'no body': {} }
  const cases = Object.keys(WAYS).flatMap((way) =>
    Object.keys(BODIES).map((body): [string, string] => [way, body]),
  )

  it.each(cases)('lets a handler finish that %s, sent with %s', async (way, body) => {
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
  })

  it('before its handler was entered runs nothing, and uses up no key', async () => {
    const app = newApp()
    const asked = gate()
    const left = gate()
    app.addHook('onRequest', async () => {
      asked.open()
      await left.passed
    })
    let failed = 0
    app.addHook('onError', async () => void failed++)
    await app.register(idempotency, optionsOf())
    let runs = 0
    app.post('/', () => `run ${++runs}`)
    const server = await leave(app, asked.passed, {})
    left.open()
    await turns()
    expect([runs, failed]).toEqual([0, 1])
    expect(text(await server.send({ key: 'k' }))).toBe('run 1')
  })
})

it('waits in app.close() for the requests under way, and then for the engine', async () => {
  const app = newApp()
  await app.register(idempotency, optionsOf())
  const order: string[] = []
  app.addHook('onClose', async () => {
    await app.idempotency.engine.close({ graceMs: 1000 })
    order.push('engine closed')
  })
  const entered = gate()
  const goOn = gate()
  app.post('/', async () => {
    entered.open()
    await goOn.passed
    order.push('handler')
    return 'done'
  })
  await app.listen({ port: 0, host: '127.0.0.1' })
  const { port } = app.server.address() as AddressInfo
  // Not kept alive: Fastify would wait for the client of one that is.
  const headers = { 'Idempotency-Key': 'k' }
  const request = http.request({ port, method: 'POST', headers, agent: false }).end()
  const answered = once(request, 'response') as Promise<[http.IncomingMessage]>
  await entered.passed
  const closed = app.close()
  goOn.open()
  const [response] = await answered
  expect(await body(response)).toBe('done')
  await closed
  expect(order).toEqual(['handler', 'engine closed'])
})
