/** Requests that somebody else answers: a time limit, or a hook that does not wait. */
import { Readable } from 'node:stream'
import type { FastifyInstance, RouteHandlerMethod, RouteShorthandOptions } from 'fastify'
import { describe, expect, it } from 'vitest'
import { idempotency, type FastifyOptions } from '../../src/adapters/fastify.ts'
import { memoryStore } from '../../src/stores/memory/memory-store.ts'
import { gate, header, problemOf, text, turns, wrapStore } from './run-express.ts'
import { newApp, optionsOf, serveApp } from './run-fastify.ts'

interface Stage {
  readonly handler?: RouteHandlerMethod
  readonly options?: Partial<FastifyOptions>
  readonly route?: RouteShorthandOptions
  readonly prepare?: ((app: FastifyInstance) => unknown) | undefined
}

async function setup({ handler = () => 'paid', options, route = {}, prepare }: Stage) {
  const app = newApp()
  await prepare?.(app)
  await app.register(idempotency, optionsOf(options))
  const count = { runs: 0 }
  app.post('/', route, function (request, reply) {
    count.runs++
    return handler.call(this, request, reply)
  })
  const server = await serveApp(app)
  const state = async () => {
    const scope = { tenant: 'single', operation: 'POST /' }
    return (await app.idempotency.engine.read({ scope, key: 'k' }))?.state
  }
  return { ...server, state, runs: () => count.runs }
}

/** A store whose claim with this number waits for `goOn`. */
function slowStore(number: number) {
  const [claiming, goOn] = [gate(), gate()]
  const memory = memoryStore()
  let claims = 0
  const store = wrapStore(memory, {
    claim: async (requests) => {
      if (++claims === number) {
        claiming.open()
        await goOn.passed
      }
      return memory.claim(requests)
    },
  })
  return { store, claiming, goOn }
}

describe('a handler that its time limit has answered for', () => {
  // Errors of these handlers may be retried, but not while they run.
  const options = { onError: 'retry' } as const
  const route = { handlerTimeout: 20 }

  it.each([
    ['with an error', undefined, 503],
    [
      'with a status that is never recorded',
      (app: FastifyInstance) =>
        app.setErrorHandler((_error, _request, reply) => reply.code(408).send('late')),
      408,
    ],
  ])('%s is not run twice', async (_what, prepare, status) => {
    const goOn = gate()
    const handler = async () => {
      await goOn.passed
      return 'late'
    }
    const { send, runs } = await setup({ handler, options, route, prepare })
    expect((await send({ key: 'k' })).status).toBe(status)
    expect(problemOf(await send({ key: 'k' }))).toEqual([409, 'idempotency_outcome_unknown'])
    goOn.open()
    expect(runs()).toBe(1)
  })

  it('by cutting off its reply is not run twice', async () => {
    const goOn = gate()
    async function* slow() {
      yield 'some'
      await goOn.passed
    }
    const handler: RouteHandlerMethod = (_request, reply) =>
      reply.type('text/plain').send(Readable.from(slow()))
    const { send, runs } = await setup({ handler, options, route })
    await expect(send({ key: 'k' })).rejects.toThrow(/socket hang up/)
    expect(problemOf(await send({ key: 'k' }))).toEqual([409, 'idempotency_outcome_unknown'])
    goOn.open()
    expect(runs()).toBe(1)
  })
})

describe('a request that is answered while its key is claimed', () => {
  it('by its time limit runs nothing, and uses up no key', async () => {
    const { store, goOn } = slowStore(1)
    const { send, runs } = await setup({ options: { store }, route: { handlerTimeout: 20 } })
    expect((await send({ key: 'k' })).status).toBe(503)
    goOn.open()
    await turns()
    expect(runs()).toBe(0)
    expect(text(await send({ key: 'k' }))).toBe('paid')
    expect(runs()).toBe(1)
  })

  it.each([
    ['by a reply', false],
    ['by a reply that takes its time', true],
  ])('%s of a hook runs nothing', async (_what, isSlow) => {
    const { store, claiming, goOn } = slowStore(1)
    const sent = gate()
    const { send, runs } = await setup({
      options: { store },
      prepare: (app) => {
        app.addHook('onRequest', (_request, reply, done) => {
          void claiming.passed.then(() => reply.code(503).send(new Error('busy')))
          done()
        })
        if (!isSlow) return
        app.setErrorHandler(async (_error, _request, reply) => {
          goOn.open()
          await sent.passed
          return reply.code(503).send('busy')
        })
      },
    })
    const first = send({ key: 'k' })
    if (isSlow) await goOn.passed
    else expect((await first).status).toBe(503)
    goOn.open()
    await turns()
    sent.open()
    expect((await first).status).toBe(503)
    expect(runs()).toBe(0)
  })

  it('by a hook that does not wait for its reply runs nothing', async () => {
    const { send, runs } = await setup({
      prepare: (app) => {
        // What is slow before a reply leaves: of sessions, for example.
        app.addHook('onSend', () => turns())
        app.addHook('preHandler', async (_request, reply) => void reply.code(401).send('who?'))
      },
    })
    expect((await send({ key: 'k' })).status).toBe(401)
    expect(runs()).toBe(0)
  })

  it('by one who has taken its reply runs nothing, and that reply is not recorded', async () => {
    const { store, claiming, goOn } = slowStore(1)
    const { send, state, runs } = await setup({
      options: { store },
      prepare: (app) =>
        app.addHook('onRequest', (_request, reply, done) => {
          void claiming.passed.then(async () => {
            reply.hijack()
            goOn.open()
            await turns()
            reply.raw.end('mine')
          })
          done()
        }),
    })
    expect(text(await send({ key: 'k' }))).toBe('mine')
    expect([await state(), runs()]).toEqual(['failed_retryable', 0])
  })

  it('is not answered once more by a replay', async () => {
    const { store, goOn } = slowStore(2)
    const { send } = await setup({ options: { store }, route: { handlerTimeout: 20 } })
    expect(text(await send({ key: 'k' }))).toBe('paid')
    expect((await send({ key: 'k' })).status).toBe(503)
    goOn.open()
    await turns()
    expect(header(await send({ key: 'k' }), 'idempotent-replayed')).toBe('true')
  })
})
