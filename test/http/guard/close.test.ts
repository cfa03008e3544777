import fastify from 'fastify'
import { describe, expect, it } from 'vitest'
import { idempotency as express } from '../../../src/adapters/express/index.ts'
import { idempotency as fastifyPlugin } from '../../../src/adapters/fastify/index.ts'
import { idempotency as fetchGuard, withIdempotency } from '../../../src/adapters/fetch/index.ts'
import { idempotency as hono } from '../../../src/adapters/hono/index.ts'
import { idempotency as koa } from '../../../src/adapters/koa/index.ts'
import { idempotency as node } from '../../../src/adapters/node/index.ts'
import { createEngine } from '../../../src/core/engine/engine.ts'
import { EngineClosedError } from '../../../src/core/errors.ts'
import { singleTenant } from '../../../src/http/guard/guard-options.ts'
import { memoryStore } from '../../../src/stores/memory/store.ts'

const tenant = singleTenant
const GUARDS = [
  ['express', (store) => express({ store, tenant })],
  ['hono', (store) => hono({ store, tenant })],
  ['koa', (store) => koa({ store, tenant })],
  ['node', (store) => node({ store, tenant })],
  ['node, a listener', (store) => node({ store, tenant })(() => undefined)],
  ['fetch', (store) => fetchGuard({ store, tenant })],
  ['fetch, a handler', (store) => withIdempotency(() => new Response(), { store, tenant })],
] as const satisfies readonly (readonly [
  string,
  (store: ReturnType<typeof memoryStore>) => object,
])[]

describe.each(GUARDS)('guard.close() of %s', (_name, make) => {
  it('closes the engine that the guards of one store share, as often as it is called', async () => {
    const store = memoryStore()
    const [guard, other] = [make(store), make(store)]
    expect(other.engine).toBe(guard.engine)
    await Promise.all([guard.close(), other.close()])
    await guard.close({ graceMs: 0 })
    expect(guard.engine.isClosed).toBe(true)
  })
})

const run = { scope: { tenant: 'a', operation: 'pay' }, key: 'k', fingerprint: 'f' }

describe('guard.close()', () => {
  it('waits for running work and records it', async () => {
    const guard = express({ store: memoryStore(), tenant })
    let finish = (): void => undefined
    const finished = new Promise<void>((resolve) => {
      finish = resolve
    })
    const outcome = guard.engine.run(run, async () => {
      await finished
      return new Uint8Array(0)
    })
    const closed = guard.close()
    finish()
    await closed
    expect(await outcome).toMatchObject({ kind: 'ran' })
  })

  it('makes the next request to any guard of the store fail with ENGINE_CLOSED', async () => {
    const store = memoryStore()
    const [guard, other] = [express({ store, tenant }), koa({ store, tenant })]
    await guard.close()
    await expect(other.engine.run(run, () => new Uint8Array(0))).rejects.toThrow(EngineClosedError)
    expect(express({ store, tenant }).engine.isClosed).toBe(false)
  })

  it('leaves an engine open that was passed in', async () => {
    const engine = createEngine({ store: memoryStore() })
    await express({ engine, tenant }).close()
    expect(engine.isClosed).toBe(false)
    await engine.close()
  })

  it('rejects an unknown option', async () => {
    const guard = express({ store: memoryStore(), tenant })
    await expect(guard.close({ grace: 1 } as never)).rejects.toThrow(/grace/)
    await guard.close()
  })
})

it('closes the engine of a Fastify plugin by app.idempotency.close()', async () => {
  const app = fastify()
  await app.register(fastifyPlugin, { store: memoryStore(), tenant })
  app.addHook('onClose', () => app.idempotency.close())
  const { engine } = app.idempotency
  await app.close()
  expect(engine.isClosed).toBe(true)
})
