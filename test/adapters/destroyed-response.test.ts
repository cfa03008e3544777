/** Handlers that destroy their response. Clients that go away: `connection-cases.ts`. */
import type { ServerResponse } from 'node:http'
import { describe, expect, it } from 'vitest'
import { idempotency, idempotencyErrors, singleTenant } from '../../src/adapters/express.ts'
import { idempotency as onFastify } from '../../src/adapters/fastify.ts'
import { createEngine, type Engine } from '../../src/core/engine.ts'
import type { HandlerContext } from '../../src/http/handler-context.ts'
import { memoryStore } from '../../src/stores/memory/memory-store.ts'
import {
  caught,
  EXPRESSES,
  gate,
  header,
  problemOf,
  serve,
  text,
  type TestServer,
} from './run-express.ts'
import { newApp, serveApp } from './run-fastify.ts'

type Handle = (res: ServerResponse, context: HandlerContext) => unknown

interface Framework {
  readonly name: string
  serve(engine: Engine, handle: Handle): Promise<TestServer>
}

const FRAMEWORKS: readonly Framework[] = [
  ...EXPRESSES.map(([name, express]) => ({
    name,
    serve: async (engine: Engine, handle: Handle) => {
      const app = express()
      const guard = idempotency({ engine, tenant: singleTenant })
      app.post(
        '/',
        guard,
        caught((req, res) => handle(res, req.idempotency!)),
      )
      app.use(idempotencyErrors())
      return serve(app)
    },
  })),
  ...[true, false].map((isHijacked) => ({
    name: isHijacked ? 'fastify, hijacked' : 'fastify',
    serve: async (engine: Engine, handle: Handle) => {
      const app = newApp()
      await app.register(onFastify, { engine, tenant: singleTenant })
      app.post('/', async (request, reply) => {
        if (isHijacked) void reply.hijack()
        await handle(reply.raw, request.idempotency!)
        return reply
      })
      return serveApp(app)
    },
  })),
]

/** `destroy` is what the first run does; the others reply. */
async function setup({ serve: start }: Framework, destroy: Handle) {
  let runs = 0
  const engine = createEngine({ store: memoryStore(), onEvent: () => undefined })
  const { send } = await start(engine, (res, context) => {
    runs++
    if (runs === 1) return destroy(res, context)
    return void res.end(`run ${runs}`)
  })
  const scope = { tenant: 'single', operation: 'POST /' }
  const record = () => engine.read({ scope, key: 'k' })
  return { send: () => send({ key: 'k' }), record, runs: () => runs }
}

describe.each(FRAMEWORKS)('$name: a response that its handler destroys', (framework) => {
  it('is a failure of the handler: the client is cut off, and a retry runs', async () => {
    const { send, record } = await setup(framework, (res) => void res.destroy())
    await expect(send()).rejects.toThrow('socket hang up')
    expect(await record()).toMatchObject({ state: 'failed_retryable', proof: 'declared' })
    expect(text(await send())).toBe('run 2')
  })

  it('half way through its reply is the same: nothing of it has left', async () => {
    const { send, record } = await setup(framework, (res) => {
      res.write('half')
      res.destroy()
    })
    await expect(send()).rejects.toThrow('socket hang up')
    expect((await record())?.state).toBe('failed_retryable')
    expect(text(await send())).toBe('run 2')
  })

  it('leaves the outcome unknown once an effect has begun', async () => {
    const { send, record, runs } = await setup(framework, (res, context) => {
      context.downstreamKey('charge')
      res.destroy()
    })
    await expect(send()).rejects.toThrow('socket hang up')
    expect((await record())?.state).toBe('unknown')
    expect(problemOf(await send())).toEqual([409, 'idempotency_outcome_unknown'])
    expect(runs()).toBe(1)
  })

  it('leaves the outcome unknown where it is destroyed with the error of a lost call', async () => {
    const { send, record } = await setup(framework, (res) => {
      res.destroy(Object.assign(new Error('read ECONNRESET'), { code: 'ECONNRESET' }))
    })
    await expect(send()).rejects.toThrow('socket hang up')
    expect((await record())?.state).toBe('unknown')
  })

  it('after its whole reply changes nothing: the reply is recorded and sent', async () => {
    const { send, record, runs } = await setup(framework, (res) => {
      res.end('whole')
      res.destroy()
    })
    expect(text(await send())).toBe('whole')
    expect((await record())?.state).toBe('completed')
    expect(text(await send())).toBe('whole')
    expect(runs()).toBe(1)
  })

  it('above the cap is recorded without its body, and its client is cut off', async () => {
    const { send, record, runs } = await setup(framework, (res) => {
      res.write('x'.repeat(1_100_000), () => void res.destroy())
    })
    await expect(send()).rejects.toThrow(/aborted|hang up/)
    expect((await record())?.state).toBe('completed')
    expect(header(await send(), 'idempotent-body-elided')).toBe('true')
    expect(runs()).toBe(1)
  })

  it('frees the key although its handler goes on, so that a retry runs beside it', async () => {
    const [retried, ended] = [gate(), gate()]
    const { send, runs } = await setup(framework, async (res) => {
      res.destroy()
      await retried.passed
      ended.open()
    })
    await expect(send()).rejects.toThrow('socket hang up')
    expect(text(await send())).toBe('run 2')
    retried.open()
    await ended.passed
    expect(runs()).toBe(2)
  })
})
