/** Requests that somebody else answers, who does not wait for the handler. */
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
import { Idempotent } from '../../src/adapters/nest.ts'
import { memoryStore } from '../../src/stores/memory/memory-store.ts'
import { gate, header, problemOf, text, turns, wrapStore } from './run-express.ts'
import {
  controllerOf,
  moduleOf,
  PLATFORMS,
  serveNest,
  type NestSpec,
  type Platform,
  type RouteSpec,
} from './run-nest.ts'

interface Stage extends Partial<NestSpec> {
  readonly handle?: RouteSpec['handle']
  readonly params?: RouteSpec['params']
}

async function setup(platform: Platform, stage: Stage = {}) {
  const { handle = () => 'paid', params = [], ...spec } = stage
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

/** A middleware that answers the first request once `event` has come. */
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

/** With an interceptor around ours: its module comes first. */
const around = (
  intercept: (next: CallHandler) => Observable<unknown>,
): Pick<NestSpec, 'before'> => {
  const useValue: NestInterceptor = { intercept: (_context, next) => intercept(next) }
  return { before: [moduleOf({ providers: [{ provide: APP_INTERCEPTOR, useValue }] })] }
}

describe.each(PLATFORMS)('on %s', (platform) => {
  it.each([503, 408])('a handler that runs on after a %i is not run twice', async (status) => {
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
  })

  it('a handler that replies by itself may say that it failed', async () => {
    const handle = async (response: FastifyReply) => {
      await turns()
      response.status(500).send('failed')
    }
    const { send, runs } = await setup(platform, { handle, params: [Res()] })
    for (let n = 0; n < 2; n++) expect(text(await send({ key: 'k' }))).toBe('failed')
    expect(runs()).toBe(2)
  })

  it('a handler whose reply is refused around it is not run twice', async () => {
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

  it.each([403, 500])('a handler that sets the status %i is run again', async (status) => {
    const handle = (response: FastifyReply) => {
      response.status(status)
      return 'no'
    }
    const { send, runs } = await setup(platform, { handle, params: [Res({ passthrough: true })] })
    for (let n = 0; n < 2; n++) expect((await send({ key: 'k' })).status).toBe(status)
    expect(runs()).toBe(2)
  })

  it('nothing runs for a request that is answered while its key is claimed', async () => {
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

  it('nothing runs where an interceptor calls the handler twice at once', async () => {
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

  it('a replay is sent once though an interceptor wants it twice', async () => {
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

// Fastify 4, on which Nest 10 stands, has no such limit.
const LIMITED: readonly Platform[] = inject('nest') > 10 ? ['fastify'] : []

describe.each(LIMITED)('the time limit of %s', (platform) => {
  it.each([
    ['a value', []],
    ['a reply of its own', [Res()]],
  ])('lets no handler with %s run twice', async (_what, params) => {
    const goOn = gate()
    const handle = () => goOn.passed
    const fastify = { handlerTimeout: 20 }
    const { send, runs } = await setup(platform, { handle, params, fastify })
    expect((await send({ key: 'k' })).status).toBe(503)
    expect(problemOf(await send({ key: 'k' }))).toEqual([409, 'idempotency_outcome_unknown'])
    goOn.open()
    expect(runs()).toBe(1)
  })

  it('runs nothing once it has passed while a key was claimed', async () => {
    const [claimed, left] = [gate(), gate()]
    const memory = memoryStore()
    const store = wrapStore(memory, {
      claim: async (requests) => {
        await claimed.passed
        return memory.claim(requests)
      },
    })
    const prepare = (app: INestApplication) => {
      // Its answer is on its way, but has not left, when the key is there.
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
