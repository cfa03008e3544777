/** Requests that a timeout or a hook answers while the guard or the handler still runs. */
import { Readable } from 'node:stream'
import type { FastifyInstance, RouteHandlerMethod, RouteShorthandOptions } from 'fastify'
import { describe, expect, it } from 'vitest'
import { idempotency, type IdempotencyOptions } from '../../../src/adapters/fastify/index.ts'
import { memoryStore } from '../../../src/stores/memory/store.ts'
import { gate, header, problemOf, text, turns, wrapStore } from '../run-express.ts'
import { newApp, optionsOf, serveApp } from '../run-fastify.ts'

interface Scenario {
  readonly handler?: RouteHandlerMethod
  readonly options?: Partial<IdempotencyOptions>
  readonly route?: RouteShorthandOptions
  readonly prepare?: ((app: FastifyInstance) => unknown) | undefined
}

async function setup({ handler = () => 'paid', options, route = {}, prepare }: Scenario) {
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

/** A store in which the claim with this number waits for `proceed`. */
function slowStore(number: number) {
  const [claiming, proceed] = [gate(), gate()]
  const memory = memoryStore()
  let claims = 0
  const store = wrapStore(memory, {
    claim: async (requests) => {
      if (++claims === number) {
        claiming.open()
        await proceed.passed
      }
      return memory.claim(requests)
    },
  })
  return { store, claiming, proceed }
}

describe('a handler whose timeout has replied', () => {
  // Releases the key after an error, but not while the handler still runs.
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
  ])(
    'does not run the handler twice when its timeout replies %s',
    async (_what, prepare, status) => {
      const proceed = gate()
      const handler = async () => {
        await proceed.passed
        return 'late'
      }
      const { send, runs } = await setup({ handler, options, route, prepare })
      expect((await send({ key: 'k' })).status).toBe(status)
      expect(problemOf(await send({ key: 'k' }))).toEqual([409, 'idempotency_outcome_unknown'])
      proceed.open()
      expect(runs()).toBe(1)
    },
  )

  it('does not run the handler twice when its timeout cuts off the reply', async () => {
    const proceed = gate()
    async function* slow() {
      yield 'some'
      await proceed.passed
    }
    const handler: RouteHandlerMethod = (_request, reply) =>
      reply.type('text/plain').send(Readable.from(slow()))
    const { send, runs } = await setup({ handler, options, route })
    await expect(send({ key: 'k' })).rejects.toThrow(/socket hang up/)
    expect(problemOf(await send({ key: 'k' }))).toEqual([409, 'idempotency_outcome_unknown'])
    proceed.open()
    expect(runs()).toBe(1)
  })
})

describe('a request that is answered during its claim', () => {
  it('runs nothing and frees the key when the timeout replies during the claim', async () => {
    const { store, proceed } = slowStore(1)
    const { send, runs } = await setup({ options: { store }, route: { handlerTimeout: 20 } })
    expect((await send({ key: 'k' })).status).toBe(503)
    proceed.open()
    await turns()
    expect(runs()).toBe(0)
    expect(text(await send({ key: 'k' }))).toBe('paid')
    expect(runs()).toBe(1)
  })

  it.each([
    ['an immediate reply', false],
    ['a slow reply', true],
  ])('runs nothing after %s of a hook during the claim', async (_what, isSlow) => {
    const { store, claiming, proceed } = slowStore(1)
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
          proceed.open()
          await sent.passed
          return reply.code(503).send('busy')
        })
      },
    })
    const first = send({ key: 'k' })
    if (isSlow) await proceed.passed
    else expect((await first).status).toBe(503)
    proceed.open()
    await turns()
    sent.open()
    expect((await first).status).toBe(503)
    expect(runs()).toBe(0)
  })

  it('runs nothing when a hook sends a reply without waiting for it', async () => {
    const { send, runs } = await setup({
      prepare: (app) => {
        // Delays the reply, as a session plugin does.
        app.addHook('onSend', () => turns())
        app.addHook('preHandler', async (_request, reply) => void reply.code(401).send('who?'))
      },
    })
    expect((await send({ key: 'k' })).status).toBe(401)
    expect(runs()).toBe(0)
  })

  it('runs and records nothing when a hook hijacks the reply during the claim', async () => {
    const { store, claiming, proceed } = slowStore(1)
    const { send, state, runs } = await setup({
      options: { store },
      prepare: (app) =>
        app.addHook('onRequest', (_request, reply, done) => {
          void claiming.passed.then(async () => {
            reply.hijack()
            proceed.open()
            await turns()
            reply.raw.end('mine')
          })
          done()
        }),
    })
    expect(text(await send({ key: 'k' }))).toBe('mine')
    expect([await state(), runs()]).toEqual(['failed_retryable', 0])
  })

  it('sends no replay after the timeout has replied', async () => {
    const { store, proceed } = slowStore(2)
    const { send } = await setup({ options: { store }, route: { handlerTimeout: 20 } })
    expect(text(await send({ key: 'k' }))).toBe('paid')
    expect((await send({ key: 'k' })).status).toBe(503)
    proceed.open()
    await turns()
    expect(header(await send({ key: 'k' }), 'idempotent-replayed')).toBe('true')
  })
})
