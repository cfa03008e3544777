/** The status decorator on both platforms. The vitest project decides the version of Nest. */
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
} from '../../../src/adapters/nest/index.ts'
import { createEngine } from '../../../src/core/engine/engine.ts'
import type { Store } from '../../../src/core/store/store.ts'
import { encodeHttpReply, type HttpReplyInput } from '../../../src/http/reply/http-reply.ts'
import { memoryStore } from '../../../src/stores/memory/store.ts'
import { claimRequest } from '../../../src/testing/index.ts'
import { flipping } from '../../http/reply/encryptions.ts'
import { header, json, text } from '../run-express.ts'
import { controllerOf, createNest, PLATFORMS, serveNest, type NestSpec } from '../run-nest.ts'

const TENANT = claimRequest().tenant
const tenant = () => TENANT
const MISSING = '01900000-0000-7000-8000-000000000000'

/** A store with one completed record. */
async function completed(more: Pick<HttpReplyInput, 'encryption'> = {}) {
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

describe.each(PLATFORMS)('@IdempotencyStatus() on %s', (platform) => {
  const serveWith = (store: Store, spec: Partial<NestSpec>) =>
    serveNest({ platform, idempotency: { store, tenant }, ...spec })

  it('replies with the options of the module, without calling the method', async () => {
    const { store, recordId } = await completed({ encryption: flipping })
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

  it('lets the decorator override the options of the module, including the engine', async () => {
    const { store, recordId } = await completed()
    const idIn = ({ headers }: NestRequest) => headers['x-id']?.toString()
    const other = createEngine({ store, sweepEveryMs: 0, reapEveryMs: 0 })
    const options = { engine: other, recordId: idIn }
    const { send } = await serveWith(memoryStore(), { controllers: [statusController(options)] })
    const headers = { 'x-id': recordId }
    expect((await send({ method: 'GET', path: '/operations/x', headers })).status).toBe(201)
    expect((await send({ method: 'GET', path: '/operations/x' })).status).toBe(404)
  })

  it('reads the record id from the end of the path if no parameter is named id', async () => {
    const { store, recordId } = await completed()
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

  it('runs behind guards and passes errors to exception filters', async () => {
    const { store, recordId } = await completed()
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

  it('keeps headers that were set earlier, except those that describe the body', async () => {
    const { store, recordId } = await completed()
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

  it('fails the start of the app without the module or with wrong options', async () => {
    const start = async (options: object, module?: false) => {
      const spec = module === false ? { idempotency: module } : {}
      const controllers = [statusController(options)]
      const app = await createNest({ platform, ...spec, controllers })
      await app.init()
    }
    await expect(start({}, false)).rejects.toThrow('finds no records without its module')
    await expect(start({ keyHeader: 'x' })).rejects.toThrow('"keyHeader"')
    await expect(start({ tenant: 'ann' })).rejects.toThrow('tenant must be a function')
  })

  it('omits the status route from auditRoutes', async () => {
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

it('throws when @IdempotencyStatus() gets a value that is not an object', () => {
  expect(() => IdempotencyStatus(true as never)).toThrow('takes an options object, got true')
})

it('accepts options for any request type', () => {
  interface Authenticated extends NestRequest {
    readonly user: { readonly account: string }
  }
  const decorate = IdempotencyStatus<Authenticated>({ tenant: ({ user }) => user.account })
  expectTypeOf(decorate).toEqualTypeOf<MethodDecorator>()
})
