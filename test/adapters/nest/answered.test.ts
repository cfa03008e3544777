/** Requests that other code answers without waiting for the handler. */
import type { ServerResponse } from 'node:http'
import {
  ForbiddenException,
  Res,
  type CallHandler,
  type INestApplication,
  type NestInterceptor,
} from '@nestjs/common'
import { APP_INTERCEPTOR } from '@nestjs/core'
import type { FastifyInstance, FastifyReply } from 'fastify'
import type { Observable } from 'rxjs'
import { finalize, map, repeat } from 'rxjs/operators'
import { describe, expect, inject, it } from 'vitest'
import { Idempotent } from '../../../src/adapters/nest/index.ts'
import { memoryStore } from '../../../src/stores/memory/store.ts'
import { gate, header, problemOf, text, turns, wrapStore } from '../run-express.ts'
import {
  controllerOf,
  moduleOf,
  PLATFORMS,
  serveNest,
  type NestSpec,
  type Platform,
  type RouteSpec,
} from '../run-nest.ts'

interface Setup extends Partial<NestSpec> {
  readonly handle?: RouteSpec['handle']
  readonly params?: RouteSpec['params']
}

async function setup(platform: Platform, options: Setup = {}) {
  const { handle = () => 'paid', params = [], ...spec } = options
  const count = { runs: 0 }
  const pay: RouteSpec = {
    decorators: [Idempotent()],
    params,
    handle: (...args) => {
      count.runs++
      return handle(...args)
    },
  }
  const server = await serveNest({ platform, controllers: [controllerOf({ pay })], ...spec })
  return { ...server, runs: () => count.runs }
}

/** A middleware that answers the first request when `event` resolves. */
function answering(status: number, event: Promise<void>) {
  let isFirst = true
  return (app: INestApplication) =>
    app.use((_req: unknown, res: ServerResponse, next: () => void) => {
      if (isFirst) {
        void event.then(() => {
          res.statusCode = status
          res.end('late')
        })
      }
      isFirst = false
      next()
    })
}

/** Adds an interceptor around `IdempotencyInterceptor`: its module is imported first. */
const around = (
  intercept: (next: CallHandler) => Observable<unknown>,
): Pick<NestSpec, 'before'> => {
  const useValue: NestInterceptor = { intercept: (_context, next) => intercept(next) }
  return { before: [moduleOf({ providers: [{ provide: APP_INTERCEPTOR, useValue }] })] }
}

describe.each(PLATFORMS)('Nest on %s', (platform) => {
  it.each([503, 408])(
    'runs no retry while a handler still runs after a middleware sent %i',
    async (status) => {
      const [entered, goOn] = [gate(), gate()]
      const handle = () => {
        entered.open()
        return goOn.passed
      }
      const prepare = answering(status, entered.passed)
      const { send, runs } = await setup(platform, { handle, prepare })
      expect((await send({ key: 'k' })).status).toBe(status)
      expect(problemOf(await send({ key: 'k' }))).toEqual([409, 'idempotency_outcome_unknown'])
      goOn.open()
      expect(runs()).toBe(1)
    },
  )

  it('runs a retry after a handler replied 500 by itself', async () => {
    const handle = async (response: FastifyReply) => {
      await turns()
      response.status(500).send('failed')
    }
    const { send, runs } = await setup(platform, { handle, params: [Res()] })
    for (let n = 0; n < 2; n++) expect(text(await send({ key: 'k' }))).toBe('failed')
    expect(runs()).toBe(2)
  })

  it('runs no retry after an interceptor around the guard replied 403', async () => {
    const refuse = map(() => {
      throw new ForbiddenException()
    })
    const { send, runs } = await setup(
      platform,
      around((next) => next.handle().pipe(refuse)),
    )
    expect((await send({ key: 'k' })).status).toBe(403)
    expect(problemOf(await send({ key: 'k' }))).toEqual([409, 'idempotency_outcome_unknown'])
    expect(runs()).toBe(1)
  })

  it.each([403, 500])('runs a retry after a handler set the status %i', async (status) => {
    const handle = (response: FastifyReply) => {
      response.status(status)
      return 'no'
    }
    const { send, runs } = await setup(platform, { handle, params: [Res({ passthrough: true })] })
    for (let n = 0; n < 2; n++) expect((await send({ key: 'k' })).status).toBe(status)
    expect(runs()).toBe(2)
  })

  it('does not run the handler when the request is answered during the claim', async () => {
    const [claiming, goOn] = [gate(), gate()]
    const memory = memoryStore()
    const store = wrapStore(memory, {
      claim: async (requests) => {
        claiming.open()
        await goOn.passed
        return memory.claim(requests)
      },
    })
    const prepare = answering(503, claiming.passed)
    const ended = gate()
    const outer = around((next) => next.handle().pipe(finalize(() => ended.open())))
    const { send, runs } = await setup(platform, { prepare, idempotency: { store }, ...outer })
    expect((await send({ key: 'k' })).status).toBe(503)
    goOn.open()
    await ended.passed
    expect(runs()).toBe(0)
    expect(text(await send({ key: 'k' }))).toBe('paid')
    expect(runs()).toBe(1)
  })

  it('does not run the handler when an interceptor calls it twice at once', async () => {
    let isFirst = true
    const twice = around((next) => {
      if (isFirst) next.handle().subscribe()
      isFirst = false
      return next.handle()
    })
    const { send, runs } = await setup(platform, twice)
    expect((await send({ key: 'k' })).status).toBe(500)
    await turns()
    expect(runs()).toBe(0)
    expect(text(await send({ key: 'k' }))).toBe('paid')
  })

  it('sends a replay once when an interceptor repeats the call', async () => {
    let isFirst = true
    const outer = around((next) => {
      const handled = next.handle()
      if (!isFirst) return handled.pipe(repeat(2))
      isFirst = false
      return handled
    })
    const { send, runs } = await setup(platform, outer)
    expect(text(await send({ key: 'k' }))).toBe('paid')
    const replay = await send({ key: 'k' })
    expect([replay.status, text(replay), runs()]).toEqual([201, 'paid', 1])
    expect(header(replay, 'idempotent-replayed')).toBe('true')
  })
})

// Nest 10 uses Fastify 4, which has no handlerTimeout.
const LIMITED: readonly Platform[] = inject('nest') > 10 ? ['fastify'] : []

describe.each(LIMITED)('handlerTimeout of %s', (platform) => {
  it.each([
    ['returns a value', []],
    ['replies by itself', [Res()]],
  ])(
    'runs no retry of a handler that %s after handlerTimeout has passed',
    async (_what, params) => {
      const goOn = gate()
      const handle = () => goOn.passed
      const fastify = { handlerTimeout: 20 }
      const { send, runs } = await setup(platform, { handle, params, fastify })
      expect((await send({ key: 'k' })).status).toBe(503)
      expect(problemOf(await send({ key: 'k' }))).toEqual([409, 'idempotency_outcome_unknown'])
      goOn.open()
      expect(runs()).toBe(1)
    },
  )

  it('does not run the handler when handlerTimeout passes during the claim', async () => {
    const [claimed, left] = [gate(), gate()]
    const memory = memoryStore()
    const store = wrapStore(memory, {
      claim: async (requests) => {
        await claimed.passed
        return memory.claim(requests)
      },
    })
    const prepare = (app: INestApplication) => {
      // The 503 of the timeout is being sent, but has not left, when the key is claimed.
      const fastify = app.getHttpAdapter().getInstance() as FastifyInstance
      fastify.addHook('onSend', async () => {
        claimed.open()
        await left.passed
      })
    }
    const spec = { prepare, idempotency: { store }, fastify: { handlerTimeout: 20 } }
    const { send, runs } = await setup(platform, spec)
    const first = send({ key: 'k' })
    await claimed.passed
    await turns()
    left.open()
    expect((await first).status).toBe(503)
    expect(runs()).toBe(0)
  })
})
