/** How an error of a handler settles its record. The guard sees the error, not only a 500. */
import { Readable } from 'node:stream'
import type { FastifyInstance, RouteHandlerMethod, RouteShorthandOptions } from 'fastify'
import { describe, expect, it } from 'vitest'
import { idempotency, type IdempotencyOptions } from '../../../src/adapters/fastify/index.ts'
import {
  NotExecutedError,
  OutcomeUnknownError,
  StoreFailedError,
} from '../../../src/core/errors.ts'
import { memoryStore } from '../../../src/stores/memory/store.ts'
import { failing } from '../../http/reply/encryptions.ts'
import { json, problemOf, text, turns, wrapStore } from '../run-express.ts'
import { guardedApp, newApp, optionsOf, serveApp } from '../run-fastify.ts'

interface Scenario {
  readonly handler: RouteHandlerMethod
  readonly options?: Partial<IdempotencyOptions>
  readonly route?: RouteShorthandOptions
  readonly prepare?: (app: FastifyInstance) => void
}

async function setup({ handler, options, route = {}, prepare }: Scenario) {
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

/** Sends the same reply for every error, without details. */
const hideErrors = (app: FastifyInstance) =>
  app.setErrorHandler((_error, _request, reply) => reply.code(500).send({ error: 'internal' }))

describe('an error', () => {
  it.each([
    ['releases the key after an error of any kind', new Error('broken'), 'failed_retryable'],
    ['makes the record unknown after a lost call', lost(), 'unknown'],
    [
      'makes the record unknown after an OutcomeUnknownError',
      new OutcomeUnknownError('?'),
      'unknown',
    ],
    ['releases the key after a NotExecutedError', new NotExecutedError('no'), 'failed_retryable'],
    ['releases the key after a thrown undefined', undefined, 'failed_retryable'],
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
  ])('sees an error that is %s', async (_what, handler) => {
    const { send, state } = await setup({ handler, prepare: hideErrors })
    expect((await send({ key: 'k' })).status).toBe(500)
    expect(await state()).toBe('unknown')
  })

  it('sees an error before the error handler of the route', async () => {
    const errorHandler = (_error: unknown, _request: unknown, reply: { code: Function }) =>
      reply.code(503).send('later')
    const route = { errorHandler: errorHandler as never }
    const { send, state } = await setup({ handler: throwing(lost()), route })
    expect((await send({ key: 'k' })).status).toBe(503)
    expect(await state()).toBe('unknown')
  })

  it('sees an error although another onError hook fails', async () => {
    const app = newApp()
    app.addHook('onError', throwing(new Error('broken')))
    await app.register(idempotency, optionsOf())
    app.post('/', throwing(lost()))
    const { send } = await serveApp(app)
    expect((await send({ key: 'k' })).status).toBe(500)
    expect(problemOf(await send({ key: 'k' }))).toEqual([409, 'idempotency_outcome_unknown'])
  })

  it('records a success that an error handler sends for an error', async () => {
    const { send, state, runs } = await setup({
      handler: throwing(new Error('no stock')),
      prepare: (app) =>
        app.setErrorHandler((_e, _r, reply) => reply.code(200).send('waiting list')),
    })
    expect(text(await send({ key: 'k' }))).toBe('waiting list')
    expect(text(await send({ key: 'k' }))).toBe('waiting list')
    expect([await state(), runs()]).toEqual(['completed', 1])
  })

  it('treats a serialization error as an error of the handler', async () => {
    const handler = () => ({ amount: 1n })
    const { send, state } = await setup({ handler })
    expect((await send({ key: 'k' })).status).toBe(500)
    expect(await state()).toBe('failed_retryable')
  })

  it('returns 500 for a payload that cannot be sent', async () => {
    const { send, state } = await setup({
      handler: (_request, reply) => reply.type('text/plain').send(5),
    })
    expect((await send({ key: 'k' })).status).toBe(500)
    expect(await state()).toBe('failed_retryable')
  })

  it('sees an error of a not-found handler in the context of the plugin', async () => {
    const { send, state } = await setup({
      handler: (_request, reply) => reply.callNotFound(),
      prepare: (app) => void app.setNotFoundHandler(throwing(new Error('broken'))),
    })
    expect((await send({ key: 'k' })).status).toBe(500)
    expect(await state()).toBe('failed_retryable')
  })

  it('makes the record unknown after an error of a not-found handler elsewhere', async () => {
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

describe('a streamed reply that fails', () => {
  async function* broken() {
    yield Buffer.from('some')
    // Fails only after the first chunk is on its way.
    await turns()
    throw lost()
  }

  it.each([
    ['a stream', () => Readable.from(broken())],
    ['a web stream', () => ReadableStream.from(broken())],
    ['a Response', () => new Response(ReadableStream.from(broken()) as ReadableStream)],
  ])('makes the record unknown when %s fails with a lost call', async (_what, payload) => {
    const { send, state } = await setup({
      handler: (_request, reply) => reply.type('text/plain').send(payload()),
    })
    await send({ key: 'k' }).catch(() => undefined)
    expect(await state()).toBe('unknown')
    expect((await send({ key: 'k' })).status).toBe(409)
  })

  it('releases the key when a hijacked reply is destroyed without an error', async () => {
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

  it('runs nothing and returns 503 when the store fails at the claim', async () => {
    const store = wrapStore(memoryStore(), { claim: down })
    const { send, runs } = await setup({ handler: () => 'paid', options: { store } })
    expect(problemOf(await send({ key: 'k' }))).toEqual([503, 'idempotency_store_unavailable'])
    expect(runs()).toBe(0)
  })

  it('returns 503 under inject when a success cannot be recorded', async () => {
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

it('passes the error of an invalid tenant to the error handler, and runs nothing', async () => {
  const { send, runs } = await setup({ handler: () => 'paid', options: { tenant: () => '' } })
  expect((await send({ key: 'k' })).status).toBe(500)
  expect(runs()).toBe(0)
})

it('returns 500 when a sent or hijacked reply cannot be encrypted', async () => {
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
