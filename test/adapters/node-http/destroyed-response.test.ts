/** Handlers that destroy their response. `connection-cases.ts` tests clients that disconnect. */
import type { ServerResponse } from 'node:http'
import { describe, expect, it } from 'vitest'
import { singleTenant } from '../../../src/http/guard/guard-options.ts'
import { idempotency } from '../../../src/adapters/express/index.ts'
import { idempotency as onFastify } from '../../../src/adapters/fastify/index.ts'
import { createEngine } from '../../../src/core/engine/engine.ts'
import type { Engine } from '../../../src/core/engine/engine-contract.ts'
import type { HandlerContext } from '../../../src/http/guard/handler-context.ts'
import { memoryStore } from '../../../src/stores/memory/store.ts'
import {
  caught,
  EXPRESSES,
  gate,
  header,
  problemOf,
  serve,
  text,
  type TestServer,
} from '../run-express.ts'
import { newApp, serveApp } from '../run-fastify.ts'

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

/** The first run calls `destroy`; later runs reply. */
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

describe.each(FRAMEWORKS)('$name: a handler that destroys its response', (framework) => {
  it('closes the connection and releases the key, and a retry runs the handler', async () => {
    const { send, record } = await setup(framework, (res) => void res.destroy())
    await expect(send()).rejects.toThrow('socket hang up')
    expect(await record()).toMatchObject({ state: 'failed_retryable', proof: 'declared' })
    expect(text(await send())).toBe('run 2')
  })

  it('sends nothing of a half-written reply, and a retry runs the handler', async () => {
    const { send, record } = await setup(framework, (res) => {
      res.write('half')
      res.destroy()
    })
    await expect(send()).rejects.toThrow('socket hang up')
    expect((await record())?.state).toBe('failed_retryable')
    expect(text(await send())).toBe('run 2')
  })

  it('makes the record unknown when an effect has begun', async () => {
    const { send, record, runs } = await setup(framework, (res, context) => {
      context.downstreamKey('charge')
      res.destroy()
    })
    await expect(send()).rejects.toThrow('socket hang up')
    expect((await record())?.state).toBe('unknown')
    expect(problemOf(await send())).toEqual([409, 'idempotency_outcome_unknown'])
    expect(runs()).toBe(1)
  })

  it('makes the record unknown when it destroys the response with a connection error', async () => {
    const { send, record } = await setup(framework, (res) => {
      res.destroy(Object.assign(new Error('read ECONNRESET'), { code: 'ECONNRESET' }))
    })
    await expect(send()).rejects.toThrow('socket hang up')
    expect((await record())?.state).toBe('unknown')
  })

  it('records and sends a complete reply that is destroyed after its end', async () => {
    const { send, record, runs } = await setup(framework, (res) => {
      res.end('whole')
      res.destroy()
    })
    expect(text(await send())).toBe('whole')
    expect((await record())?.state).toBe('completed')
    expect(text(await send())).toBe('whole')
    expect(runs()).toBe(1)
  })

  it('records a reply above the cap without its body, and closes the connection', async () => {
    const { send, record, runs } = await setup(framework, (res) => {
      res.write('x'.repeat(1_100_000), () => void res.destroy())
    })
    await expect(send()).rejects.toThrow(/aborted|hang up/)
    expect((await record())?.state).toBe('completed')
    expect(header(await send(), 'idempotent-body-elided')).toBe('true')
    expect(runs()).toBe(1)
  })

  it('releases the key while it still runs, so a retry runs at the same time', async () => {
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
