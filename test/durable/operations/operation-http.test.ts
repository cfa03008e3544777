/** Operations behind a guard in every framework, over real sockets. */
import express, { type ErrorRequestHandler, type Response } from 'express'
import { Hono } from 'hono'
import Koa from 'koa'
import { describe, expect, it, onTestFinished } from 'vitest'
import * as onExpress from '../../../src/adapters/express/index.ts'
import * as onFastify from '../../../src/adapters/fastify/index.ts'
import * as onFetch from '../../../src/adapters/fetch/index.ts'
import * as onHono from '../../../src/adapters/hono/index.ts'
import * as onKoa from '../../../src/adapters/koa/index.ts'
import * as onNode from '../../../src/adapters/node/index.ts'
import { createEngine } from '../../../src/core/engine/engine.ts'
import type { Engine } from '../../../src/core/engine/engine-contract.ts'
import { StoreFailedError } from '../../../src/core/errors.ts'
import { createWorker, defineOperation, type Operation } from '../../../src/durable/index.ts'
import type { OperationContext } from '../../../src/durable/operations/operation-contract.ts'
import type { HandlerContext } from '../../../src/http/guard/handler-context.ts'
import type { ReplyInit } from '../../../src/http/reply/http-reply.ts'
import { singleTenant } from '../../../src/http/guard/guard-options.ts'
import { sqliteStore, type SqliteTransaction } from '../../../src/stores/sqlite/index.ts'
import { problemOf, serve, text, type Reply, type TestServer } from '../../adapters/run-express.ts'
import { newApp, serveApp } from '../../adapters/run-fastify.ts'
import { serveHono, serveWeb } from '../../adapters/web/serve-web.ts'
import { scratchFolder } from '../../stores/scratch-folder.ts'

/** The work of a handler, the same in every framework. */
type Handle = (context: HandlerContext) => Promise<unknown>

interface Framework {
  readonly name: string
  serve(engine: Engine, route: Operation<never>['route'], handle: Handle): Promise<TestServer>
}

/** An error handler that replies without console output. */
const quiet: ErrorRequestHandler = (error: Error & { status?: number }, _req, res, _next) => {
  res.status(error.status ?? 500).json({ error: error.message })
}

const statusUrl = (recordId: string) => `/operations/${recordId}`

const FRAMEWORKS: readonly Framework[] = [
  {
    name: 'express',
    serve: async (engine, route, handle) => {
      const app = express()
      const guard = onExpress.idempotency({ engine, tenant: singleTenant, statusUrl })
      app.post('/', guard.with(route), async (req) => {
        await handle(onExpress.idempotencyOf(req))
      })
      app.use(quiet)
      return serve(app)
    },
  },
  {
    name: 'fastify',
    serve: async (engine, route, handle) => {
      const app = newApp()
      await app.register(onFastify.idempotency, {
        engine,
        tenant: singleTenant,
        statusUrl,
      })
      app.post('/', { config: { idempotency: route } }, async (request, reply) => {
        await handle(onFastify.idempotencyOf(request))
        return reply
      })
      return serveApp(app)
    },
  },
  {
    name: 'koa',
    serve: async (engine, route, handle) => {
      const app = new Koa()
      app.on('error', () => undefined)
      const guard = onKoa.idempotency({ engine, tenant: singleTenant, statusUrl })
      app.use(guard.with(route))
      app.use(async (ctx) => {
        await handle(onKoa.idempotencyOf(ctx))
      })
      return serve((req, res) => void app.callback()(req, res))
    },
  },
  {
    name: 'hono',
    serve: async (engine, route, handle) => {
      const app = new Hono()
      const guard = onHono.idempotency({ engine, tenant: singleTenant, statusUrl })
      app.post('/', guard.with(route), async (c) => {
        await handle(onHono.idempotencyOf(c))
        return c.body(null)
      })
      return serveHono(app)
    },
  },
  {
    name: 'fetch',
    serve: async (engine, route, handle) => {
      const protect = onFetch.idempotency({ engine, tenant: singleTenant, statusUrl })
      return serveWeb(
        protect.with(route)(async (request: Request) => {
          await handle(onFetch.idempotencyOf(request))
          return new Response(null)
        }),
      )
    },
  },
  {
    name: 'node',
    serve: async (engine, route, handle) => {
      const protect = onNode.idempotency({ engine, tenant: singleTenant, statusUrl })
      return serve(
        protect.with(route)(async (req) => {
          await handle(onNode.idempotencyOf(req))
        }),
      )
    },
  },
]

function setup() {
  const folder = scratchFolder()
  const store = sqliteStore({ path: folder.file('test.db') })
  const engine = createEngine({ store, sweepEveryMs: 0, reapEveryMs: 0 })
  onTestFinished(async () => {
    await engine.close({ graceMs: 0 })
    await store.close()
    folder.remove()
  })
  return { engine, store }
}

function counting() {
  const runs = { count: 0, failures: 0 }
  const count = defineOperation({
    name: 'count',
    async run(op, input: { by: number }) {
      const id = await op.transaction('count', (tx: SqliteTransaction) => {
        tx.exec('CREATE TABLE IF NOT EXISTS counted (by INT)')
        tx.prepare('INSERT INTO counted VALUES (?)').run(input.by)
        return ++runs.count
      })
      if (runs.failures-- > 0) throw new Error('not now')
      return op.finish('reply', () => ({
        status: 201,
        headers: { location: `/counts/${id}` },
        body: { id, by: input.by },
      }))
    },
  })
  return { count, runs }
}

/** Fails the transactions of these steps, counted from 1. */
function failSteps({ durable }: ReturnType<typeof setup>['store'], steps: readonly number[]): void {
  const { phases } = durable
  const advance = phases.advance.bind(phases)
  let count = 0
  phases.advance = async (lease, work, signal) => {
    if (!steps.includes(++count)) return advance(lease, work, signal)
    const cause = new Error('connection refused')
    throw new StoreFailedError({ store: 'sqlite', operation: 'advance', cause })
  }
}

const header = (reply: Reply, name: string) => reply.headers.get(name)?.[0]

describe.each(FRAMEWORKS)('an operation in $name', ({ serve: start }) => {
  it('sends the reply of an operation, and replays it', async () => {
    const { engine } = setup()
    const { count, runs } = counting()
    const { send } = await start(engine, count.route, (context) => count.run(context, { by: 2 }))
    const first = await send({ key: 'k', json: {} })
    expect([first.status, text(first)]).toEqual([201, '{"id":1,"by":2}'])
    expect(header(first, 'location')).toBe('/counts/1')
    expect(header(first, 'idempotency-expires')).toBeDefined()
    const again = await send({ key: 'k', json: {} })
    expect([again.status, text(again)]).toEqual([201, '{"id":1,"by":2}'])
    expect(header(again, 'idempotent-replayed')).toBe('true')
    expect(runs.count).toBe(1)
  })

  it('resumes a failed operation with the retry', async () => {
    const { engine } = setup()
    const { count, runs } = counting()
    runs.failures = 1
    const { send } = await start(engine, count.route, (context) => count.run(context, { by: 2 }))
    expect((await send({ key: 'k', json: {} })).status).toBe(500)
    expect((await send({ key: 'k', json: {} })).status).toBe(201)
    expect(runs.count).toBe(1)
  })

  it('replies that nothing was executed if the store fails at the first step', async () => {
    const { engine, store } = setup()
    const { count } = counting()
    failSteps(store, [1])
    const { send } = await start(engine, count.route, (context) => count.run(context, { by: 2 }))
    expect(problemOf(await send({ key: 'k', json: {} }))).toEqual([
      503,
      'idempotency_store_unavailable',
    ])
    expect((await send({ key: 'k', json: {} })).status).toBe(201)
  })

  it('replies that the outcome is not recorded if the store fails at a later step', async () => {
    const { engine, store } = setup()
    const { count, runs } = counting()
    failSteps(store, [2])
    const { send } = await start(engine, count.route, (context) => count.run(context, { by: 2 }))
    expect(problemOf(await send({ key: 'k', json: {} }))).toEqual([
      503,
      'idempotency_outcome_not_recorded',
    ])
    expect((await send({ key: 'k', json: {} })).status).toBe(201)
    expect(runs.count).toBe(1)
  })

  it('accepts an operation with 202 and a Location, and a worker completes it', async () => {
    const { engine } = setup()
    const { count } = counting()
    const { send } = await start(engine, count.route, (context) => count.accept(context, { by: 3 }))
    const first = await send({ key: 'k', json: {} })
    expect(first.status).toBe(202)
    expect(header(first, 'location')).toMatch(/^\/operations\/[0-9a-f-]{36}$/)
    expect(Number(header(first, 'retry-after'))).toBeGreaterThan(0)
    const again = await send({ key: 'k', json: {} })
    expect([again.status, header(again, 'location')]).toEqual([202, header(first, 'location')])
    await createWorker({ engine, operations: [count] }).runOnce()
    const done = await send({ key: 'k', json: {} })
    expect([done.status, text(done)]).toEqual([201, '{"id":1,"by":3}'])
  })
})

describe('an operation that fails', () => {
  it('never reports a failed operation as done, even if its handler replies with 200', async () => {
    const { engine } = setup()
    const { count, runs } = counting()
    runs.failures = 1
    const app = express()
    const guard = onExpress.idempotency({ engine, tenant: singleTenant, statusUrl })
    app.post('/', guard.with(count.route), async (req, res) => {
      await count.run(onExpress.idempotencyOf(req), { by: 2 }).catch(() => undefined)
      res.json({ done: true })
    })
    const { send } = await serve(app)
    const first = await send({ key: 'k', json: {} })
    expect(first.status).toBe(202)
    expect(header(first, 'location')).toMatch(/^\/operations\//)
    expect((await send({ key: 'k', json: {} })).status).toBe(201)
    expect(runs.count).toBe(1)
  })
})

describe('the reply to the first request', () => {
  type Run = () => Promise<unknown>
  const handlers: readonly [string, (run: Run, res: Response) => Promise<void>][] = [
    [
      'the handler replies before',
      async (run, res) => {
        res.json({ mine: true })
        await run().catch(() => undefined)
      },
    ],
    [
      'the handler does not await',
      async (run, res) => {
        void run().catch(() => undefined)
        res.json({ mine: true })
      },
    ],
    [
      'the handler replies as well',
      async (run, res) => {
        await run().catch(() => undefined)
        res.json({ mine: true })
      },
    ],
    [
      'the handler turns every error into 402',
      async (run, res) => {
        await run().catch(() => undefined)
        res.status(402).json({ mine: true })
      },
    ],
  ]
  const finish = (op: OperationContext) =>
    op.finish('only', () => ({ status: 201, body: { count: 1 } }))
  const ends: readonly [string, (op: OperationContext) => Promise<ReplyInit>][] = [
    ['succeeds', finish],
    [
      'changes its reply afterwards',
      async (op) => {
        const reply = await finish(op)
        ;(reply.body as { count: number }).count = 2
        return reply
      },
    ],
    [
      'fails afterwards',
      async (op) => {
        await finish(op)
        throw new Error('no mail today')
      },
    ],
  ]
  const cases = handlers.flatMap(([name, handle]) =>
    ends.map(([end, run]) => ({ name, handle, end, run })),
  )
  it.each(cases)(
    'sends the recorded reply if $name and the operation $end',
    async ({ handle, run }) => {
      const { engine } = setup()
      const count = defineOperation({ name: 'count', run: (op) => run(op) })
      const app = express()
      const guard = onExpress.idempotency({ engine, tenant: singleTenant })
      app.post('/', guard.with(count.route), (req, res) =>
        handle(() => count.run(onExpress.idempotencyOf(req), undefined), res),
      )
      app.use(quiet)
      const { send } = await serve(app)
      for (let n = 0; n < 2; n++) {
        const reply = await send({ key: 'k', json: {} })
        expect([reply.status, text(reply)]).toEqual([201, '{"count":1}'])
      }
    },
  )
})

describe('a handler that replies while its operation is open', () => {
  async function failedOnce(profile: 'ietf' | 'stripe', answer: (res: Response) => void) {
    const { engine } = setup()
    const { count, runs } = counting()
    runs.failures = 1
    const app = express()
    const guard = onExpress.idempotency({
      engine,
      tenant: singleTenant,
      profile,
      statusUrl,
    })
    let isFirst = true
    app.post('/', guard.with(count.route), async (req, res) => {
      if (!isFirst) return answer(res)
      isFirst = false
      await count.run(onExpress.idempotencyOf(req), { by: 2 })
    })
    app.use(quiet)
    const { send } = await serve(app)
    expect((await send({ key: 'k', json: {} })).status).toBe(500)
    return { engine, count, send: () => send({ key: 'k', json: {} }) }
  }

  const answers: readonly [string, number, number][] = [
    ['a success', 200, 202],
    ['a refusal', 402, 202],
    ['a failure', 500, 500],
    ['a rejection before any work', 429, 429],
  ]
  describe.each(['ietf', 'stripe'] as const)('under the %s profile', (profile) => {
    it.each(answers)(
      'keeps the operation open after %s of the handler, and a worker completes it',
      async (_name, given, seen) => {
        const { engine, count, send } = await failedOnce(profile, (res) => {
          res.status(given).json({ mine: true })
        })
        expect((await send()).status).toBe(seen)
        expect(await createWorker({ engine, operations: [count] }).runOnce()).toEqual({
          completed: 1,
          failed: 0,
          missed: 0,
        })
        const done = await send()
        expect([done.status, text(done)]).toEqual([201, '{"id":1,"by":2}'])
      },
    )
  })

  it('replies 409 in place of a 402 of the handler while an effect is unknown', async () => {
    const { engine } = setup()
    const pay = defineOperation({
      name: 'pay',
      effects: {
        charge: {
          send: () => {
            throw new Error('socket hang up')
          },
        },
      },
      async run(op) {
        await op.external('charge', undefined)
        return { status: 201 }
      },
    })
    const app = express()
    const guard = onExpress.idempotency({ engine, tenant: singleTenant })
    app.post('/', guard.with(pay.route), async (req, res) => {
      await pay.run(onExpress.idempotencyOf(req), undefined).catch(() => undefined)
      res.status(402).json({ declined: true })
    })
    const { send } = await serve(app)
    for (let n = 0; n < 2; n++) {
      const reply = await send({ key: 'k', json: {} })
      expect([reply.status, text(reply)]).toEqual([
        409,
        expect.stringContaining('idempotency_outcome_unknown') as string,
      ])
    }
  })
})

describe('a reply without a body', () => {
  const bare = FRAMEWORKS.flatMap(({ name, serve: start }) =>
    [204, 304].map((status) => ({ name, status, start })),
  )
  it.each(bare)(
    'sends and replays an empty body with $status in $name',
    async ({ status, start }) => {
      const { engine } = setup()
      const note = defineOperation({ name: 'note', run: () => ({ status, body: 'goes nowhere' }) })
      const { send } = await start(engine, note.route, (context) => note.run(context, undefined))
      for (let n = 0; n < 2; n++) {
        const reply = await send({ key: 'k', json: {} })
        expect([reply.status, text(reply)]).toEqual([status, ''])
      }
    },
  )
})

describe('an invalid input', () => {
  it('replies 400 to an invalid input, and records it', async () => {
    const { engine } = setup()
    const strict = defineOperation({
      name: 'strict',
      input: {
        '~standard': {
          version: 1,
          vendor: 'test',
          validate: (value: unknown) =>
            typeof value === 'number' ? { value } : { issues: [{ message: 'must be a number' }] },
        },
      },
      run: () => ({ status: 200, body: {} }),
    })
    const [framework] = FRAMEWORKS
    const { send } = await framework!.serve(engine, strict.route, (context) =>
      strict.run(context, 'x' as never),
    )
    const first = await send({ key: 'k', json: {} })
    expect([first.status, text(first)]).toEqual([
      400,
      expect.stringContaining('must be a number') as string,
    ])
    const again = await send({ key: 'k', json: {} })
    expect([again.status, header(again, 'idempotent-replayed')]).toEqual([400, 'true'])
  })
})

describe('a schema that throws', () => {
  it('runs the request again after its schema threw an error', async () => {
    const { engine } = setup()
    let failures = 1
    const strict = defineOperation({
      name: 'strict',
      input: {
        '~standard': {
          version: 1,
          vendor: 'test',
          validate: async (value: unknown) => {
            if (failures-- > 0) throw new Error('cannot look it up')
            return { value }
          },
        },
      },
      run: () => ({ status: 201, body: {} }),
    })
    const [framework] = FRAMEWORKS
    const { send } = await framework!.serve(engine, strict.route, (context) =>
      strict.run(context, undefined),
    )
    expect((await send({ key: 'k', json: {} })).status).toBe(500)
    expect((await send({ key: 'k', json: {} })).status).toBe(201)
  })
})

describe('replies of an operation', () => {
  const flip = (bytes: Uint8Array) => bytes.map((byte) => byte ^ 0xff)

  it('encrypts a reply in the completing process, and decrypts it in the route', async () => {
    const { engine, store } = setup()
    const encrypted: string[] = []
    const secret = defineOperation({
      name: 'secret',
      encryption: {
        encrypt: (bytes, { purpose }) => {
          encrypted.push(purpose)
          return flip(bytes)
        },
        decrypt: flip,
      },
      run: () => ({ status: 200, body: 'a secret' }),
    })
    const [framework] = FRAMEWORKS
    const { send } = await framework!.serve(engine, secret.route, (context) =>
      secret.accept(context, undefined),
    )
    await send({ key: 'k', json: {} })
    await createWorker({ engine, operations: [secret] }).runOnce()
    expect(text(await send({ key: 'k', json: {} }))).toBe('a secret')
    const [record] = await store.list({ state: 'completed', limit: 1 })
    const { result } = (await store.read({ recordId: record!.recordId }))!
    expect(Buffer.from(result!).includes('a secret')).toBe(false)
    // The 202 is not encrypted: `encrypt` may be a remote call, which can fail after the commit.
    expect(encrypted).toEqual(['operation_input', 'reply'])
  })

  it('rejects a route with another encryption or replyVersion than its operation', () => {
    const { engine } = setup()
    const plain = defineOperation({ name: 'plain', run: () => ({ status: 200 }) })
    const tenant = singleTenant
    const encryption = { encrypt: flip, decrypt: flip }
    const encrypting = onExpress.idempotency({ engine, tenant, encryption })
    expect(() => encrypting.with(plain.route)).toThrow(
      /encryption of the route contradicts operation/,
    )
    const own = createEngine({ store: engine.store, encryption, sweepEveryMs: 0, reapEveryMs: 0 })
    const same = onExpress.idempotency({ engine: own, tenant, encryption })
    expect(same.with(plain.route)).toBeTypeOf('function')
    expect(() =>
      onExpress.idempotency({ engine, tenant, replyVersion: 7 }).with(plain.route),
    ).toThrow(/replyVersion of the route contradicts/)
    expect(() => onExpress.idempotency({ engine, tenant, durable: {} as never })).toThrow(
      /must come from an operation's route/,
    )
  })
})
