/** The order of guards, interceptors, pipes and the key. */
import type { IncomingHttpHeaders } from 'node:http'
import compress from '@fastify/compress'
import multipart from '@fastify/multipart'
import {
  Header,
  RequestTimeoutException,
  Req,
  UploadedFile,
  UseGuards,
  UseInterceptors,
  type CallHandler,
  type ExecutionContext,
  type INestApplication,
  type NestInterceptor,
} from '@nestjs/common'
import { APP_INTERCEPTOR } from '@nestjs/core'
import { FileInterceptor } from '@nestjs/platform-express'
import type { FastifyInstance, FastifyRequest } from 'fastify'
import { from, of, race, throwError } from 'rxjs'
import { catchError, first, map, mergeMap, retry, tap } from 'rxjs/operators'
import { describe, expect, inject, it } from 'vitest'
import { createEngine } from '../../../src/core/engine/engine.ts'
import { Idempotent, type NestRequest } from '../../../src/adapters/nest/index.ts'
import { memoryStore } from '../../../src/stores/memory/store.ts'
import {
  gate,
  header,
  json,
  problemOf,
  text,
  turns,
  wrapStore,
  type Reply,
  type Send,
} from '../run-express.ts'
import {
  controllerOf,
  moduleOf,
  PLATFORMS,
  serveNest,
  type NestSpec,
  type Platform,
  type RouteSpec,
} from '../run-nest.ts'

const replayed = 'idempotent-replayed'

interface Setup extends Partial<NestSpec> {
  readonly route?: Partial<RouteSpec>
}

async function setup(platform: Platform, { route, ...spec }: Setup = {}) {
  let runs = 0
  const { handle = () => ({ paid: true }), decorators = [], ...rest } = route ?? {}
  const create: RouteSpec = {
    path: 'payments',
    decorators: [Idempotent(), ...decorators],
    handle: (...args) => {
      runs++
      return handle(...args)
    },
    ...rest,
  }
  const server = await serveNest({ platform, controllers: [controllerOf({ create })], ...spec })
  const send = (options: Send = {}) => server.send({ path: '/payments', key: 'k', ...options })
  return { ...server, send, runs: () => runs }
}

function interceptor(
  intercept: (next: CallHandler, context: ExecutionContext) => ReturnType<CallHandler['handle']>,
): NestInterceptor {
  return { intercept: (context, next) => intercept(next, context) }
}

/** A logger that collects the errors that Nest logs. */
function errorLogger() {
  const errors: string[] = []
  const ignore = () => undefined
  const logger = { log: ignore, warn: ignore, error: (one: unknown) => errors.push(String(one)) }
  return { app: { logger }, errors }
}

/** Intercepts only the first request. */
function onlyFirst(intercept: Parameters<typeof interceptor>[0]): NestInterceptor {
  let isFirst = true
  return interceptor((next, context) => {
    if (!isFirst) return next.handle()
    isFirst = false
    return intercept(next, context)
  })
}

/** Works as the timeout interceptor of Nest's documentation, but with an event for the timer. */
const timedOut = (event: Promise<void>) =>
  from(event).pipe(mergeMap(() => throwError(() => new RequestTimeoutException())))

/** Adds a global interceptor around `IdempotencyInterceptor`: its module is imported first. */
async function setupAround(platform: Platform, value: NestInterceptor, extra: Setup = {}) {
  const before = [moduleOf({ providers: [{ provide: APP_INTERCEPTOR, useValue: value }] })]
  return setup(platform, { ...extra, before })
}

describe.each(PLATFORMS)('Nest on %s', (platform) => {
  it('runs guards before the key is claimed', async () => {
    let isAllowed = false
    const guard = { canActivate: () => isAllowed }
    const { send, runs } = await setup(platform, { route: { decorators: [UseGuards(guard)] } })
    expect((await send()).status).toBe(403)
    isAllowed = true
    expect(header(await send(), replayed)).toBeUndefined()
    isAllowed = false
    expect((await send()).status).toBe(403)
    expect(runs()).toBe(1)
  })

  it('runs behind interceptors of the root and of earlier modules, around others', async () => {
    const seen: string[] = []
    const named = (name: string) =>
      interceptor((next) => {
        seen.push(name)
        return next.handle()
      })
    const provided = (name: string) => ({ provide: APP_INTERCEPTOR, useValue: named(name) })
    const { send } = await setup(platform, {
      before: [moduleOf({ providers: [provided('before')] })],
      imports: [moduleOf({ providers: [provided('after')] })],
      providers: [provided('root')],
      prepare: (app) => app.useGlobalInterceptors(named('used')),
      route: { decorators: [UseInterceptors(named('route'))] },
    })
    await send()
    expect(seen.splice(0)).toEqual(['root', 'before', 'after', 'used', 'route'])
    await send()
    expect(seen).toEqual(['root', 'before'])
  })

  it('runs interceptors of the route once and records the reply that they make', async () => {
    const seen: string[] = []
    const inner = interceptor((next) => {
      seen.push('inner')
      return next.handle().pipe(map((value) => ({ data: value as unknown })))
    })
    const { send } = await setup(platform, { route: { decorators: [UseInterceptors(inner)] } })
    for (let n = 0; n < 2; n++) expect(json(await send())).toEqual({ data: { paid: true } })
    expect(seen).toEqual(['inner'])
  })

  it('completes interceptors around the guard and ignores their changes to a replay', async () => {
    const seen: unknown[] = []
    const outer = interceptor((next) =>
      next.handle().pipe(
        tap({ next: (value) => seen.push(value), complete: () => seen.push('complete') }),
        map((value: unknown) => ({ wrapped: value })),
      ),
    )
    const { app, errors } = errorLogger()
    const { send, runs } = await setupAround(platform, outer, { app })
    const [one, two] = [await send(), await send()]
    expect(json(one)).toEqual({ wrapped: { paid: true } })
    expect([two.body, header(two, replayed)]).toEqual([one.body, 'true'])
    expect(seen).toEqual([{ paid: true }, 'complete', undefined, 'complete'])
    expect(errors).toEqual([])
    expect(runs()).toBe(1)
  })

  it('sends a replay although an interceptor around the guard fails on it', async () => {
    const outer = interceptor((next) =>
      next.handle().pipe(map((value: unknown) => (value as { paid: boolean }).paid)),
    )
    const { send } = await setupAround(platform, outer)
    const [one, two] = [await send(), await send()]
    expect([one.status, text(one)]).toEqual([201, 'true'])
    expect([two.status, text(two)]).toEqual([201, 'true'])
  })

  it('leaves the outcome unknown when an interceptor around the guard fails', async () => {
    const outer = interceptor((next) =>
      next.handle().pipe(mergeMap(() => throwError(() => new Error('audit log is down')))),
    )
    const { send, runs } = await setupAround(platform, outer)
    expect((await send()).status).toBe(500)
    expect(problemOf(await send())).toEqual([409, 'idempotency_outcome_unknown'])
    expect(runs()).toBe(1)
  })

  it.each([
    ['around the guard', true],
    ['of the route', false],
  ])('leaves the outcome unknown when an interceptor %s times out', async (_at, isOuter) => {
    const [entered, finished] = [gate(), gate()]
    const timeout = onlyFirst((next) => race(next.handle(), timedOut(entered.passed)))
    const handle = () => {
      entered.open()
      return finished.passed
    }
    const decorators = isOuter ? [] : [UseInterceptors(timeout)]
    const spec: Setup = { route: { handle, decorators } }
    const { send, runs } = isOuter
      ? await setupAround(platform, timeout, spec)
      : await setup(platform, spec)
    expect((await send()).status).toBe(408)
    expect(problemOf(await send())).toEqual([409, 'idempotency_outcome_unknown'])
    expect(runs()).toBe(1)
    finished.open()
  })

  it('does not enter the handler when an interceptor times out during the claim', async () => {
    const [claiming, claimed] = [gate(), gate()]
    const memory = memoryStore()
    let claims = 0
    const store = wrapStore(memory, {
      claim: async (requests) => {
        if (++claims === 1) {
          claiming.open()
          await claimed.passed
        }
        return memory.claim(requests)
      },
    })
    const timeout = onlyFirst((next) => race(next.handle(), timedOut(claiming.passed)))
    const engine = createEngine({ store })
    const { send, runs } = await setupAround(platform, timeout, { idempotency: { engine } })
    expect((await send()).status).toBe(408)
    claimed.open()
    await turns()
    expect(runs()).toBe(0)
    expect((await send()).status).toBe(201)
    expect(runs()).toBe(1)
  })

  it('records the reply when an interceptor unsubscribes after one value', async () => {
    const { send, runs } = await setupAround(
      platform,
      interceptor((next) => next.handle().pipe(first())),
    )
    expect((await send()).status).toBe(201)
    expect(header(await send(), replayed)).toBe('true')
    expect(runs()).toBe(1)
  })

  it('records the reply that an interceptor makes from an error', async () => {
    const outer = interceptor((next) => next.handle().pipe(catchError(() => of('sorry'))))
    const handle = () => {
      throw new Error('bug')
    }
    const { send, runs } = await setupAround(platform, outer, { route: { handle } })
    for (let n = 0; n < 2; n++) expect(text(await send())).toBe('sorry')
    expect(runs()).toBe(1)
  })

  it('runs a handler once when an interceptor around the guard retries it', async () => {
    const outer = interceptor((next) => next.handle().pipe(retry(2)))
    const handle = () => {
      throw new TypeError('fetch failed')
    }
    const { app, errors } = errorLogger()
    const { send, runs } = await setupAround(platform, outer, { app, route: { handle } })
    expect((await send()).status).toBe(500)
    expect(runs()).toBe(1)
    expect(errors.join()).toContain('retry inside the handler')
  })

  it('keeps headers that were set before the guard on replays and problems', async () => {
    const prepare = (app: INestApplication) => {
      app.enableCors({ origin: 'https://shop.example', exposedHeaders: ['Idempotent-Replayed'] })
    }
    const decorators = [Header('Content-Disposition', 'attachment'), Header('X-Api', '1')]
    const { send } = await setup(platform, { prepare, route: { decorators } })
    const headers = { Origin: 'https://shop.example' }
    const all = [await send({ headers }), await send({ headers })]
    const problem = await send({ headers, key: '' })
    expect(problemOf(problem)).toEqual([400, 'idempotency_key_malformed'])
    for (const reply of [...all, problem]) {
      expect(header(reply, 'access-control-allow-origin')).toBe('https://shop.example')
      expect(header(reply, 'access-control-expose-headers')).toBe('Idempotent-Replayed')
      expect(header(reply, 'x-api')).toBe('1')
    }
    expect(all.map((reply) => header(reply, 'content-disposition'))).toEqual([
      'attachment',
      'attachment',
    ])
    expect(header(problem, 'content-disposition')).toBeUndefined()
    expect(header(problem, 'content-type')).toContain('application/problem+json')
  })

  it('replies 409 with CORS headers when a handler declares its outcome unknown', async () => {
    const prepare = (app: INestApplication) => app.enableCors({ origin: 'https://shop.example' })
    const handle = (request: NestRequest) => {
      request.idempotency!.outcomeUnknown()
      return 'fine'
    }
    const { send } = await setup(platform, { prepare, route: { params: [Req()], handle } })
    const reply = await send({ headers: { Origin: 'https://shop.example' } })
    expect(problemOf(reply)).toEqual([409, 'idempotency_outcome_unknown'])
    expect(header(reply, 'access-control-allow-origin')).toBe('https://shop.example')
  })

  it.each([
    ['as sent if rawBody is true', true, [201, 422]],
    ['as parsed if rawBody is false', false, [201, 201]],
  ])('compares the body %s', async (_what, rawBody, statuses) => {
    const { send } = await setup(platform, { app: { rawBody } })
    const headers = { 'Content-Type': 'application/json' }
    // Both parse to the same number.
    const bodies = ['{"n":9007199254740992}', '{"n":9007199254740993}']
    const replies: Reply[] = []
    for (const body of bodies) replies.push(await send({ body, headers }))
    expect(replies.map(({ status }) => status)).toEqual(statuses)
    expect((await send({ body: '{"n":1}', headers })).status).toBe(422)
  })

  it('fails without running the handler when the body was read before the guard', async () => {
    const { send, runs } = await setup(platform, {
      prepare: (app) => {
        if (platform === 'fastify') consumeBodies(app)
        else
          app.use((req: NodeJS.ReadableStream, _res: unknown, next: () => void) => {
            req.resume().on('end', next)
          })
      },
    })
    const headers = { 'Content-Type': 'application/x-own' }
    expect((await send({ body: 'x', headers })).status).toBe(500)
    expect(runs()).toBe(0)
  })

  it('keeps the keys of tenants apart, as tenant() reads them from the request', async () => {
    const tenant = (request: NestRequest) => String(request.headers['x-tenant'])
    const { send, runs } = await setup(platform, { idempotency: { tenant } })
    const as = (name: string) => send({ headers: { 'X-Tenant': name } })
    for (const name of ['acme', 'globex', 'acme']) expect((await as(name)).status).toBe(201)
    expect(runs()).toBe(2)
  })

  it('returns 503 without running the handler when the store fails', async () => {
    const store = wrapStore(memoryStore(), { claim: () => Promise.reject(new Error('down')) })
    const { send, runs } = await setup(platform, { idempotency: { store } })
    expect(problemOf(await send())).toEqual([503, 'idempotency_store_unavailable'])
    expect(runs()).toBe(0)
  })
})

it('protects an upload that multer reads behind the guard', async () => {
  const handle = (file: { readonly buffer: Buffer }) => ({ got: file.buffer.toString() })
  const decorators = [UseInterceptors(FileInterceptor('file'))]
  const { send, runs } = await setup('express', {
    route: { decorators, params: [UploadedFile()], handle },
  })
  expect(json(await send(upload('a', 'first')))).toEqual({ got: 'a' })
  expect(header(await send(upload('a', 'second')), replayed)).toBe('true')
  expect((await send(upload('b', 'third'))).status).toBe(422)
  expect(runs()).toBe(1)
})

// The plugins need Fastify 5, and Nest 10 uses Fastify 4.
const FASTIFY_PLUGINS = inject('nest') > 10 ? [['fastify 5'] as const] : []

describe.for(FASTIFY_PLUGINS)('plugins of %s', () => {
  it('protects an upload that @fastify/multipart reads behind the guard', async () => {
    const handle = async (request: FastifyRequest) => {
      const file = await request.file()
      return { got: (await file!.toBuffer()).toString() }
    }
    const { send, runs } = await setup('fastify', {
      prepare: (app) => registerOn(app, multipart),
      route: { params: [Req()], handle },
    })
    expect(json(await send(upload('a', 'first')))).toEqual({ got: 'a' })
    expect(header(await send(upload('a', 'second')), replayed)).toBe('true')
    expect((await send(upload('b', 'third'))).status).toBe(422)
    expect(runs()).toBe(1)
  })

  it('records replies uncompressed, so that every client can read them', async () => {
    const body = 'x'.repeat(5000)
    const { send } = await setup('fastify', {
      prepare: (app) => registerOn(app, compress),
      route: { handle: () => ({ body }) },
    })
    const gzip = await send({ headers: { 'Accept-Encoding': 'gzip' } })
    const plain = await send({ headers: { 'Accept-Encoding': 'identity' } })
    expect(header(gzip, 'content-encoding')).toBeUndefined()
    expect(json(plain)).toEqual({ body })
  })
})

/** A form with one file. Real clients choose another boundary for each attempt. */
function upload(content: string, boundary: string): Send & { headers: IncomingHttpHeaders } {
  const head = 'Content-Disposition: form-data; name="file"; filename="f.txt"'
  const body = `--${boundary}\r\n${head}\r\n\r\n${content}\r\n--${boundary}--\r\n`
  return { body, headers: { 'content-type': `multipart/form-data; boundary=${boundary}` } }
}

async function registerOn(app: INestApplication, plugin: unknown): Promise<void> {
  const fastify = app.getHttpAdapter().getInstance() as FastifyInstance
  await fastify.register(plugin as typeof compress)
}

function consumeBodies(app: INestApplication): void {
  const fastify = app.getHttpAdapter().getInstance() as FastifyInstance
  fastify.addContentTypeParser('application/x-own', (_request, payload, done) => {
    payload.resume().on('end', () => done(null, undefined))
  })
}
