/** What failed handlers mean for their key: the guard sees the error itself, not only a 500. */
import { Readable } from 'node:stream'
import type { FastifyInstance, RouteHandlerMethod, RouteShorthandOptions } from 'fastify'
import { describe, expect, it } from 'vitest'
import { idempotency, type FastifyOptions } from '../../src/adapters/fastify.ts'
import { NotExecutedError, OutcomeUnknownError, StoreFailedError } from '../../src/core/errors.ts'
import { memoryStore } from '../../src/stores/memory/memory-store.ts'
import { failing } from '../http/encryptions.ts'
import { json, problemOf, text, turns, wrapStore } from './run-express.ts'
import { guardedApp, newApp, optionsOf, serveApp } from './run-fastify.ts'

interface Stage {
  readonly handler: RouteHandlerMethod
  readonly options?: Partial<FastifyOptions>
  readonly route?: RouteShorthandOptions
  readonly prepare?: (app: FastifyInstance) => void
}

async function setup({ handler, options, route = {}, prepare }: Stage) {
  const app = await guardedApp(options)
  const count = { runs: 0 }
  prepare?.(app)
  app.post('/', route, function (request, reply) {
    count.runs++
    return handler.call(this, request, reply)
  })
  const server = await serveApp(app)
  const state = async () => {
    const scope = { tenant: 'single', operation: 'POST /' }
    return (await app.idempotency.engine.read({ scope, key: 'k' }))?.state
  }
  return { ...server, app, state, runs: () => count.runs }
}

const lost = () => Object.assign(new Error('no answer'), { code: 'ETIMEDOUT' })

const throwing = (error: unknown): RouteHandlerMethod => {
  return async () => {
    throw error
  }
}

const throwingAtOnce: RouteHandlerMethod = () => {
  throw lost()
}

const sendingError: RouteHandlerMethod = (_request, reply) => reply.send(lost())

/** Makes of every error the same reply, which says nothing about it. */
const hideErrors = (app: FastifyInstance) =>
  app.setErrorHandler((_error, _request, reply) => reply.code(500).send({ error: 'internal' }))

describe('an error', () => {
  it.each([
    ['of any kind frees the key', new Error('broken'), 'failed_retryable'],
    ['of a lost call leaves the outcome unknown', lost(), 'unknown'],
    ['that says so leaves the outcome unknown', new OutcomeUnknownError('?'), 'unknown'],
    [
      'that proves that nothing was done frees the key',
      new NotExecutedError('no'),
      'failed_retryable',
    ],
    ['that is none frees the key', undefined, 'failed_retryable'],
  ])('%s', async (_what, error, expected) => {
    const { send, state, runs } = await setup({ handler: throwing(error), prepare: hideErrors })
    const first = await send({ key: 'k' })
    expect([first.status, json(first)]).toEqual([500, { error: 'internal' }])
    expect(await state()).toBe(expected)
    const retry = await send({ key: 'k' })
    expect(retry.status).toBe(expected === 'unknown' ? 409 : 500)
    expect(runs()).toBe(expected === 'unknown' ? 1 : 2)
  })

  it.each([
    ['thrown by a synchronous handler', throwingAtOnce],
    ['sent by a handler', sendingError],
  ])('%s is seen', async (_what, handler) => {
    const { send, state } = await setup({ handler, prepare: hideErrors })
    expect((await send({ key: 'k' })).status).toBe(500)
    expect(await state()).toBe('unknown')
  })

  it('is seen before the error handler of the route itself', async () => {
    const errorHandler = (_error: unknown, _request: unknown, reply: { code: Function }) =>
      reply.code(503).send('later')
    const route = { errorHandler: errorHandler as never }
    const { send, state } = await setup({ handler: throwing(lost()), route })
    expect((await send({ key: 'k' })).status).toBe(503)
    expect(await state()).toBe('unknown')
  })

  it('is seen though another hook that sees it fails', async () => {
    const app = newApp()
    app.addHook('onError', throwing(new Error('broken')))
    await app.register(idempotency, optionsOf())
    app.post('/', throwing(lost()))
    const { send } = await serveApp(app)
    expect((await send({ key: 'k' })).status).toBe(500)
    expect(problemOf(await send({ key: 'k' }))).toEqual([409, 'idempotency_outcome_unknown'])
  })

  it('of which an error handler makes a success is recorded as that', async () => {
    const { send, state, runs } = await setup({
      handler: throwing(new Error('no stock')),
      prepare: (app) =>
        app.setErrorHandler((_e, _r, reply) => reply.code(200).send('waiting list')),
    })
    expect(text(await send({ key: 'k' }))).toBe('waiting list')
    expect(text(await send({ key: 'k' }))).toBe('waiting list')
    expect([await state(), runs()]).toEqual(['completed', 1])
  })

  it('of serialisation is one of the handler', async () => {
    const handler = () => ({ amount: 1n })
    const { send, state } = await setup({ handler })
    expect((await send({ key: 'k' })).status).toBe(500)
    expect(await state()).toBe('failed_retryable')
  })

  it('of a payload that cannot be sent still gets an answer', async () => {
    const { send, state } = await setup({
      handler: (_request, reply) => reply.type('text/plain').send(5),
    })
    expect((await send({ key: 'k' })).status).toBe(500)
    expect(await state()).toBe('failed_retryable')
  })

  it('in the handler of "not found" is seen where the plugin is in its context', async () => {
    const { send, state } = await setup({
      handler: (_request, reply) => reply.callNotFound(),
      prepare: (app) => void app.setNotFoundHandler(throwing(new Error('broken'))),
    })
    expect((await send({ key: 'k' })).status).toBe(500)
    expect(await state()).toBe('failed_retryable')
  })

  it('in the handler of "not found" elsewhere is not, so the outcome is unknown', async () => {
    const app = newApp()
    app.setNotFoundHandler(throwing(new Error('broken')))
    app.register(async (inner) => {
      await inner.register(idempotency, optionsOf())
      inner.post('/', (_request, reply) => reply.callNotFound())
    })
    const server = await serveApp(app)
    expect((await server.send({ key: 'k' })).status).toBe(500)
    expect(problemOf(await server.send({ key: 'k' }))).toEqual([409, 'idempotency_outcome_unknown'])
  })
})

describe('a streamed reply that breaks off', () => {
  async function* broken() {
    yield Buffer.from('some')
    // Only when that is on its way.
    await turns()
    throw lost()
  }

  it.each([
    ['a stream', () => Readable.from(broken())],
    ['a web stream', () => ReadableStream.from(broken())],
    ['a Response', () => new Response(ReadableStream.from(broken()) as ReadableStream)],
  ])('(%s) tells the guard why', async (_what, payload) => {
    const { send, state } = await setup({
      handler: (_request, reply) => reply.type('text/plain').send(payload()),
    })
    await send({ key: 'k' }).catch(() => undefined)
    expect(await state()).toBe('unknown')
    expect((await send({ key: 'k' })).status).toBe(409)
  })

  it('frees the key where it is just broken', async () => {
    const { send, state } = await setup({
      handler: (_request, reply) => {
        void reply.hijack()
        reply.raw.write('some')
        reply.raw.destroy()
      },
    })
    await expect(send({ key: 'k' })).rejects.toThrow(/socket hang up/)
    expect(await state()).toBe('failed_retryable')
  })
})

describe('the store', () => {
  const down = async () => {
    throw new StoreFailedError({ store: 'memory', operation: 'x', cause: new Error('down') })
  }

  it('that cannot answer runs nothing, and the reply is a problem', async () => {
    const store = wrapStore(memoryStore(), { claim: down })
    const { send, runs } = await setup({ handler: () => 'paid', options: { store } })
    expect(problemOf(await send({ key: 'k' }))).toEqual([503, 'idempotency_store_unavailable'])
    expect(runs()).toBe(0)
  })

  it('that cannot record hides a success, also from inject', async () => {
    const store = wrapStore(memoryStore(), { settle: down })
    const { app, runs } = await setup({
      handler: (_request, reply) => reply.code(201).header('x-own', '1').send('paid'),
      options: { store, settleTimeoutMs: 1 },
    })
    const headers = { 'idempotency-key': 'k' }
    const {
      statusCode,
      body,
      headers: got,
    } = await app.inject({ method: 'POST', url: '/', headers })
    expect([statusCode, (JSON.parse(body) as { code: string }).code]).toEqual([
      503,
      'idempotency_outcome_not_recorded',
    ])
    expect(got['x-own']).toBeUndefined()
    expect(runs()).toBe(1)
  })
})

it('gives an error about the tenant to the error handling, and runs nothing', async () => {
  const { send, runs } = await setup({ handler: () => 'paid', options: { tenant: () => '' } })
  expect((await send({ key: 'k' })).status).toBe(500)
  expect(runs()).toBe(0)
})

it('answers with an error where the reply of a hijacked handler cannot be recorded', async () => {
  for (const hijacks of [true, false]) {
    const { send, state } = await setup({
      options: { encryption: failing },
      handler: (_request, reply) => {
        void reply.code(201).header('x-own', '1')
        if (hijacks) reply.hijack().raw.end('paid')
        else void reply.send('paid')
      },
    })
    const failed = await send({ key: 'k' })
    expect([failed.status, failed.headers.get('x-own')]).toEqual([500, undefined])
    expect(text(failed)).not.toContain('paid')
    expect(await state()).toBe('unknown')
  }
})
