/** Middlewares before the guard that do not await it, and handlers that exceed `runTimeoutMs`. */
import { PassThrough } from 'node:stream'
import type { Middleware } from 'koa'
import { describe, expect, it, onTestFinished } from 'vitest'
import { createEngine } from '../../../src/core/engine/engine.ts'
import { memoryStore } from '../../../src/stores/memory/store.ts'
import { FakeClock } from '../../../src/testing/index.ts'
import { gate, header, problemOf, text, turns, wrapStore } from '../run-express.ts'
import { counted, guardOf, KOAS, serveKoa } from '../run-koa.ts'

/** Collects unhandled rejections. Each of them would end the process. */
function unhandled(): unknown[] {
  const seen: unknown[] = []
  const listen = (reason: unknown) => void seen.push(reason)
  process.on('unhandledRejection', listen)
  onTestFinished(() => void process.off('unhandledRejection', listen))
  return seen
}

/** A store whose claims wait until `answer` is called. */
function slowStore() {
  const isBusy = gate()
  const store = memoryStore()
  const slow = wrapStore(store, {
    claim: async (requests) => {
      await isBusy.passed
      return store.claim(requests)
    },
  })
  return { store, slow, answer: () => isBusy.open() }
}

const hasty: Middleware = (ctx, next) => {
  void next()
  ctx.status = 202
}

describe.each(KOAS)('%s', (_name, koa) => {
  it('emits an error and runs nothing when a middleware does not await next()', async () => {
    const seen = unhandled()
    const handler = counted(() => undefined)
    const { send, errors } = await serveKoa(koa, hasty, guardOf(), handler)
    expect((await send({ key: 'k' })).status).toBe(202)
    await turns()
    expect([seen, handler.runs]).toEqual([[], 0])
    expect(errors.map(({ message }) => message)).toEqual([
      expect.stringMatching(/answered before its handler.* await next\(\)/),
    ])
  })

  it.each([
    ['a new request', 'other'],
    ['a replay', 'k'],
  ])('does not disturb a reply that streams during the claim of %s', async (_what, key) => {
    const seen = unhandled()
    const { store, slow, answer } = slowStore()
    const stream = new PassThrough()
    const streaming: Middleware = async (ctx, next) => {
      const isOver = gate()
      setImmediate(isOver.open)
      await Promise.race([next(), isOver.passed])
      ctx.body = stream
    }
    const handler = counted((ctx) => {
      ctx.body = 'done'
    })
    await (await serveKoa(koa, guardOf({ store }), handler)).send({ key: 'k' })
    const { connect } = await serveKoa(koa, streaming, guardOf({ store: slow }), handler)
    const client = await connect({ key })
    stream.write('one ')
    await client.until(/one /)
    answer()
    await turns()
    stream.end('two')
    expect(await client.until(/two/)).toMatch(/two/)
    expect([seen, handler.runs]).toEqual([[], 1])
  })

  it('records the reply of a handler that ends after runTimeoutMs', async () => {
    const clock = new FakeClock()
    const engine = createEngine({ store: memoryStore({ clock }), clock, sweepEveryMs: 0 })
    const [entered, go] = [gate(), gate()]
    const handler = counted(async (ctx) => {
      entered.open()
      await go.passed
      ctx.body = 'late'
    })
    const guard = guardOf({ engine, runTimeoutMs: 60_000 })
    const { send, errors } = await serveKoa(koa, guard, handler)
    const first = send({ key: 'k' })
    await entered.passed
    clock.advance(60_000)
    expect(problemOf(await first)).toEqual([409, 'idempotency_outcome_unknown'])
    go.open()
    await turns()
    const retry = await send({ key: 'k' })
    expect([retry.status, text(retry)]).toEqual([200, 'late'])
    expect(header(retry, 'idempotent-replayed')).toBe('true')
    expect([handler.runs, errors]).toEqual([1, []])
  })
})
