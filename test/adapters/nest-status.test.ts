/** The status decorator on both platforms; the project says on which version of Nest. */
import {
  Header,
  HttpException,
  UseGuards,
  UseInterceptors,
  VersioningType,
  type CanActivate,
  type NestInterceptor,
} from '@nestjs/common'
import { map } from 'rxjs'
import { describe, expect, expectTypeOf, it } from 'vitest'
import {
  auditRoutes,
  Idempotent,
  IdempotencyStatus,
  type IdempotencyStatusOptions,
  type NestRequest,
} from '../../src/adapters/nest.ts'
import { createEngine } from '../../src/core/engine.ts'
import type { Store } from '../../src/core/store.ts'
import { encodeHttpReply, type HttpReplyInput } from '../../src/http/http-reply.ts'
import { memoryStore } from '../../src/stores/memory/memory-store.ts'
import { claimRequest } from '../../src/testing/index.ts'
import { flipping } from '../http/encryptions.ts'
import { header, json, text } from './run-express.ts'
import { controllerOf, createNest, PLATFORMS, serveNest, type NestSpec } from './run-nest.ts'

const TENANT = claimRequest().tenant
const tenant = () => TENANT
const MISSING = '01900000-0000-7000-8000-000000000000'

/** A store with one finished record. */
async function finished(more: Pick<HttpReplyInput, 'encryption'> = {}) {
  const store = memoryStore()
  const request = claimRequest()
  await store.claim([request])
  const reply = { status: 201, headers: { Location: '/p/1' }, body: { paid: true } }
  const result = await encodeHttpReply(request, { ...reply, ...more })
  const lease = { ...request, attempt: 1 }
  await store.settle([{ kind: 'complete', lease, result, retentionMs: 3_600_000 }])
  return { store, recordId: request.recordId }
}

let calls = 0

function statusController(
  options?: IdempotencyStatusOptions,
  decorators: readonly MethodDecorator[] = [],
  path = 'operations/:id',
) {
  const handle = () => ({ never: ++calls })
  const status = { method: 'GET', path, handle }
  return controllerOf({
    status: { ...status, decorators: [IdempotencyStatus(options), ...decorators] },
  })
}

describe.each(PLATFORMS)('on %s, @IdempotencyStatus()', (platform) => {
  const serveWith = (store: Store, spec: Partial<NestSpec>) =>
    serveNest({ platform, idempotency: { store, tenant }, ...spec })

  it('answers by what the module says, in place of the method', async () => {
    const { store, recordId } = await finished({ encryption: flipping })
    const { send } = await serveNest({
      platform,
      idempotency: {
        ...{ store, tenant, encryption: flipping, profile: 'stripe', leaseMs: 1_000 },
        docsUrl: 'https://api.example/retries',
      },
      controllers: [statusController()],
    })
    const before = calls
    const reply = await send({ method: 'GET', path: `/operations/${recordId}?x=1` })
    expect([reply.status, text(reply)]).toEqual([201, '{"paid":true}'])
    expect(header(reply, 'location')).toBe('/p/1')
    expect(header(reply, 'content-length')).toBe('13')
    expect(header(reply, 'idempotent-replayed')).toBe('true')
    const missing = await send({ method: 'GET', path: `/operations/${MISSING}` })
    expect([missing.status, json(missing)['error']]).toEqual([
      404,
      expect.objectContaining({ code: 'idempotency_record_not_found' }),
    ])
    expect(header(missing, 'link')).toContain('https://api.example/retries')
    expect(calls).toBe(before)
  })

  it('answers otherwise where it says so itself, also on another store', async () => {
    const { store, recordId } = await finished()
    const idIn = ({ headers }: NestRequest) => headers['x-id']?.toString()
    const other = createEngine({ store, sweepEveryMs: 0, reapEveryMs: 0 })
    const options = { engine: other, recordId: idIn }
    const { send } = await serveWith(memoryStore(), { controllers: [statusController(options)] })
    const headers = { 'x-id': recordId }
    expect((await send({ method: 'GET', path: '/operations/x', headers })).status).toBe(201)
    expect((await send({ method: 'GET', path: '/operations/x' })).status).toBe(404)
  })

  it('takes the last part of the path where no parameter is called id', async () => {
    const { store, recordId } = await finished()
    const controllers = [statusController({}, [], 'operations/:operation')]
    const { send } = await serveWith(store, {
      controllers,
      prepare: (app) => {
        app.setGlobalPrefix('api')
        app.enableVersioning({ type: VersioningType.URI, defaultVersion: '1' })
      },
    })
    const reply = await send({ method: 'GET', path: `/api/v1/operations/${recordId}` })
    expect([reply.status, text(reply)]).toEqual([201, '{"paid":true}'])
  })

  it('comes behind guards, and leaves errors to filters', async () => {
    const { store, recordId } = await finished()
    const guard: CanActivate = {
      canActivate: (context) =>
        context.switchToHttp().getRequest<NestRequest>().headers['x-user'] !== undefined,
    }
    const refuse = () => {
      throw new HttpException('who are you?', 401)
    }
    const { send } = await serveWith(store, {
      controllers: [
        statusController({}, [UseGuards(guard)]),
        statusController({ tenant: refuse }, [], 'refused/:id'),
      ],
    })
    const path = `/operations/${recordId}`
    expect((await send({ method: 'GET', path })).status).toBe(403)
    expect((await send({ method: 'GET', path, headers: { 'x-user': 'ann' } })).status).toBe(201)
    const refused = await send({ method: 'GET', path: `/refused/${recordId}` })
    expect([refused.status, json(refused)['message']]).toEqual([401, 'who are you?'])
  })

  it('keeps what others set for the client, and nothing that they say of the body', async () => {
    const { store, recordId } = await finished()
    const wrap: NestInterceptor = {
      intercept: (_context, next) => next.handle().pipe(map((data: unknown) => ({ data }))),
    }
    const decorators = [
      Header('Content-Type', 'text/html'),
      Header('X-Request-Id', 'r-1'),
      UseInterceptors(wrap),
    ]
    const { send } = await serveWith(store, {
      controllers: [statusController({}, decorators)],
      prepare: (app) => app.enableCors({ origin: 'https://shop.example' }),
    })
    const reply = await send({ method: 'GET', path: `/operations/${recordId}` })
    expect(text(reply)).toBe('{"paid":true}')
    expect(header(reply, 'content-type')).toBe('application/json; charset=utf-8')
    expect(header(reply, 'access-control-allow-origin')).toBe('https://shop.example')
    expect(header(reply, 'x-request-id')).toBe('r-1')
  })

  it('ends the start where it could tell nothing', async () => {
    const start = async (options: object, module?: false) => {
      const spec = module === false ? { idempotency: module } : {}
      const controllers = [statusController(options)]
      const app = await createNest({ platform, ...spec, controllers })
      await app.init()
    }
    await expect(start({}, false)).rejects.toThrow('knows no records without its module')
    await expect(start({ keyHeader: 'x' })).rejects.toThrow('"keyHeader"')
    await expect(start({ tenant: 'ann' })).rejects.toThrow('tenant must be a function')
  })

  it('is nothing that an audit complains about, beside what it should', async () => {
    const pay = { path: 'pay', handle: () => ({}), decorators: [Idempotent()] }
    const app = await createNest({
      platform,
      controllers: [statusController(), controllerOf({ pay })],
    })
    await app.init()
    const audit = auditRoutes(app)
    await app.close()
    expect(audit).toEqual({ protected: [{ method: 'POST', path: '/pay' }], unprotected: [] })
  })
})

it('refuses options that are none, where they are written', () => {
  expect(() => IdempotencyStatus(true as never)).toThrow('takes an options object, got true')
})

it('is told the request of the platform', () => {
  interface Authenticated extends NestRequest {
    readonly user: { readonly account: string }
  }
  const decorate = IdempotencyStatus<Authenticated>({ tenant: ({ user }) => user.account })
  expectTypeOf(decorate).toEqualTypeOf<MethodDecorator>()
})
