import type { ErrorRequestHandler, Request, RequestHandler } from 'express'
import { describe, expect, it } from 'vitest'
import { singleTenant } from '../../../src/http/guard/guard-options.ts'
import type { IdempotencyOptions } from '../../../src/adapters/express/index.ts'
import { memoryStore } from '../../../src/stores/memory/store.ts'
import { EXPRESSES, guardOf, header, json, serve, type ExpressModule } from '../run-express.ts'

const tenantHeader = (req: Request) => String(req.headers['x-tenant'])

/** A handler that counts its runs, and replies with the count and its operation. */
function counter() {
  let runs = 0
  const handler: RequestHandler = (req, res) => {
    runs++
    res.json({ run: runs, operation: req.idempotency?.scope.operation })
  }
  return { handler, runs: () => runs }
}

function setup(express: ExpressModule) {
  const store = memoryStore()
  const app = express()
  const guard = (options: Partial<IdempotencyOptions> = {}) => guardOf({ store, ...options })
  return { ...counter(), app, store, guard }
}

async function recorded(store: ReturnType<typeof memoryStore>): Promise<number> {
  const states = ['in_progress', 'completed', 'failed_retryable', 'unknown'] as const
  const lists = await Promise.all(states.map((state) => store.list({ state, limit: 100 })))
  return lists.flat().length
}

describe.each(EXPRESSES)('%s: tenants', (_name, express) => {
  it('tenants do not share keys', async () => {
    const { app, guard, handler, runs } = setup(express)
    app.post('/', guard({ tenant: tenantHeader }), handler)
    const { send } = await serve(app)
    const as = (tenant: string, body = 'x') =>
      send({ key: 'k', body, headers: { 'X-Tenant': tenant } })
    expect(json(await as('acme'))).toMatchObject({ run: 1 })
    expect(json(await as('globex'))).toMatchObject({ run: 2 })
    expect(json(await as('acme'))).toMatchObject({ run: 1 })
    // A mismatch would reveal that another tenant has used the key.
    expect((await as('initech', 'y')).status).toBe(200)
    expect(runs()).toBe(3)
  })

  it('accepts an asynchronous tenant function', async () => {
    const { app, guard, handler, runs } = setup(express)
    app.post('/', guard({ tenant: async () => 'acme' }), handler)
    const { send } = await serve(app)
    for (let n = 0; n < 2; n++) expect(json(await send({ key: 'k' }))).toMatchObject({ run: 1 })
    expect(runs()).toBe(1)
  })

  const wrong: Readonly<Record<string, () => unknown>> = {
    throws: () => {
      throw new Error('no session')
    },
    rejects: () => Promise.reject(new Error('no session')),
    'is empty': () => '',
    'is undefined': () => undefined,
    'is null': () => null,
    'is the text undefined': () => 'undefined',
    'is the text null': () => 'null',
    'is a number': () => 42,
    'is an object': () => ({ id: 'acme' }),
    'resolves to undefined': () => Promise.resolve(undefined),
    'resolves to the text undefined': () => Promise.resolve('undefined'),
    'is too long': () => 'x'.repeat(256),
    'contains NUL': () => 'a\0b',
    'is an unpaired surrogate': () => '\ud800',
  }

  it.each(Object.entries(wrong))(
    'fails and runs nothing when the tenant %s',
    async (_what, tenant) => {
      const { app, store, guard, handler, runs } = setup(express)
      const errors: Error[] = []
      const report: ErrorRequestHandler = (error, _req, res, _next) => {
        errors.push(error as Error)
        res.sendStatus(500)
      }
      app.post(
        '/',
        guard({ tenant: tenant as () => string, onStoreFailure: 'open' }),
        handler,
        report,
      )
      const { send } = await serve(app)
      for (let n = 0; n < 2; n++) expect((await send({ key: 'k' })).status).toBe(500)
      expect(errors[0]?.message).toMatch(/tenant|no session/)
      expect(await recorded(store)).toBe(0)
      expect(runs()).toBe(0)
    },
  )

  it('does not replay the reply of one user to another when principal is set', async () => {
    const { app, guard, handler, runs } = setup(express)
    const principal = (req: Request) => req.headers['x-user'] as string | undefined
    app.post('/', guard({ principal }), handler)
    const { send } = await serve(app)
    const as = (user?: string) =>
      send({ key: 'k', headers: user === undefined ? {} : { 'X-User': user } })
    expect((await as('ann')).status).toBe(200)
    expect((await as('bob')).status).toBe(422)
    expect((await as()).status).toBe(422)
    expect(header(await as('ann'), 'idempotent-replayed')).toBe('true')
    expect(runs()).toBe(1)
  })
})

describe.each(EXPRESSES)('%s: one key', (_name, express) => {
  it('one key may be used on two routes', async () => {
    const { app, guard, handler, runs } = setup(express)
    app.post('/payments', guard(), handler)
    app.post('/refunds', guard(), handler)
    app.patch('/payments', guard(), handler)
    const { send } = await serve(app)
    const paths = [
      ['POST', '/payments'],
      ['POST', '/refunds'],
      ['PATCH', '/payments'],
    ] as const
    for (let n = 0; n < 2; n++) {
      for (const [index, [method, path]] of paths.entries()) {
        expect(json(await send({ key: 'k', method, path }))).toMatchObject({ run: index + 1 })
      }
    }
    expect(runs()).toBe(3)
  })

  it("one key may be used on a single route only with scopeBy: 'tenant'", async () => {
    const { app, guard, handler, runs } = setup(express)
    app.post('/payments', guard({ scopeBy: 'tenant' }), handler)
    app.post('/refunds', guard({ scopeBy: 'tenant' }), handler)
    const { send } = await serve(app)
    expect((await send({ key: 'k', path: '/payments' })).status).toBe(200)
    expect((await send({ key: 'k', path: '/refunds' })).status).toBe(422)
    expect(runs()).toBe(1)
  })

  it('returns 422 for a key that is reused with another path or query', async () => {
    const { app, guard, handler, runs } = setup(express)
    app.post('/accounts/:id/close', guard(), handler)
    const { send } = await serve(app)
    const on = (path: string) => send({ key: 'k', path })
    expect((await on('/accounts/1/close?fee=2')).status).toBe(200)
    expect((await on('/accounts/2/close?fee=2')).status).toBe(422)
    expect((await on('/accounts/1/close?fee=3')).status).toBe(422)
    expect((await on('/accounts/1/close')).status).toBe(422)
    expect(header(await on('/accounts/1/close?fee=2'), 'idempotent-replayed')).toBe('true')
    expect(runs()).toBe(1)
  })

  it('replays the reply after a route parameter was renamed', async () => {
    const { app, store, handler, runs } = setup(express)
    app.post('/accounts/:id/close', guardOf({ store }), handler)
    const renamed = express()
    renamed.post('/accounts/:accountId/close', guardOf({ store }), handler)
    const [before, after] = [await serve(app), await serve(renamed)]
    const first = await before.send({ key: 'k', path: '/accounts/1/close' })
    expect(json(first)).toMatchObject({ operation: 'POST /accounts/:/close' })
    const replay = await after.send({ key: 'k', path: '/accounts/1/close' })
    expect(header(replay, 'idempotent-replayed')).toBe('true')
    expect(runs()).toBe(1)
  })

  it('scopes the key by the operation option on all paths', async () => {
    const { app, guard, handler, runs } = setup(express)
    app.post('/v1', guard({ operation: 'pay' }), handler)
    app.post('/v2', guard({ operation: () => 'pay' }), handler)
    const { send } = await serve(app)
    expect(json(await send({ key: 'k', path: '/v1' }))).toMatchObject({ operation: 'pay' })
    // The key and the operation are the same, but the path makes it another request.
    expect((await send({ key: 'k', path: '/v2' })).status).toBe(422)
    expect(runs()).toBe(1)
  })
})

describe.each(EXPRESSES)('%s: a guard', (_name, express) => {
  it('a guard that is mounted twice throws, instead of returning 409 each time', async () => {
    const { app, guard, handler, runs } = setup(express)
    const errors: Error[] = []
    const report: ErrorRequestHandler = (error, _req, res, _next) => {
      errors.push(error as Error)
      res.sendStatus(500)
    }
    app.use(guard())
    app.post('/', guard(), handler)
    app.use(report)
    const { send } = await serve(app)
    expect((await send({ key: 'k' })).status).toBe(500)
    expect(errors[0]?.message).toContain('mounted twice')
    expect(runs()).toBe(0)
    // Unprotected methods pass both guards.
    expect((await send({ method: 'GET' })).status).toBe(404)
  })

  it('sets req.idempotency on protected requests only', async () => {
    const { app, guard } = setup(express)
    const seen: unknown[] = []
    app.use(guard({ keyRequired: false }), (req, res) => {
      seen.push(req.idempotency?.key)
      res.end()
    })
    const { send } = await serve(app)
    await send({ key: 'k' })
    await send({})
    await send({ method: 'GET', key: 'k' })
    expect(seen).toEqual(['k', undefined, undefined])
  })
})

describe.each(EXPRESSES)('%s: an operation without a template', (_name, express) => {
  it('normalizes the path as the router matches it', async () => {
    const { app, guard, handler, runs } = setup(express)
    app.use(guard())
    app.post('/payments', handler)
    const { send } = await serve(app)
    const first = await send({ key: 'k', path: '/payments' })
    expect(json(first)).toMatchObject({ operation: 'POST /payments' })
    for (const path of ['/Payments', '/payments/', '/PAYMENTS/']) {
      // The operation is the same, so the key is in use. The path differs, so it is no retry.
      expect((await send({ key: 'k', path })).status).toBe(422)
    }
    expect(runs()).toBe(1)
  })

  it('keeps the path unchanged when the router is strict', async () => {
    const { app, guard, handler } = setup(express)
    app.enable('case sensitive routing')
    app.enable('strict routing')
    app.use(guard(), handler)
    const { send } = await serve(app)
    for (const path of ['/payments', '/Payments', '/payments/']) {
      expect(json(await send({ key: 'k', path }))).toMatchObject({ operation: `POST ${path}` })
    }
  })

  it('accepts a very long path as the operation', async () => {
    const { app, guard, handler, runs } = setup(express)
    app.use(guard(), handler)
    const { send } = await serve(app)
    const long = (end: string) => `/${'x'.repeat(3000)}${end}`
    expect(json(await send({ key: 'k', path: long('a') }))).toMatchObject({ run: 1 })
    expect(json(await send({ key: 'k', path: long('b') }))).toMatchObject({ run: 2 })
    expect(json(await send({ key: 'k', path: long('a') }))).toMatchObject({ run: 1 })
    expect(runs()).toBe(2)
  })

  it('includes the mount paths of its routers in the operation', async () => {
    const { app, guard, handler, runs } = setup(express)
    const router = express.Router()
    const inner = express.Router()
    inner.post('/:id', guard(), handler)
    router.use('/payments', inner)
    app.use('/v1', router)
    app.use('/v2', router)
    const { send } = await serve(app)
    const first = await send({ key: 'k', path: '/v1/payments/7' })
    expect(json(first)).toMatchObject({ run: 1, operation: 'POST /v1/payments/:' })
    expect(json(await send({ key: 'k', path: '/v2/payments/7' }))).toMatchObject({ run: 2 })
    expect((await send({ key: 'k', path: '/v1/payments/8' })).status).toBe(422)
    expect(runs()).toBe(2)
  })

  it('omits the values of parameters in mount paths from the operation', async () => {
    const { app, guard, handler, runs } = setup(express)
    const inner = express.Router({ mergeParams: true })
    inner.post('/', guard(), handler)
    inner.post('/:id', guard(), handler)
    const outer = express.Router()
    outer.use('/:kind/payments', inner)
    app.use('/Tenants/:t', outer)
    const { send } = await serve(app)
    const operationOf = async (path: string) => json(await send({ key: path, path }))['operation']
    expect(await operationOf('/tenants/acme/card/payments/7')).toBe('POST /tenants/:/:/payments/:')
    expect(await operationOf('/Tenants/a%20b/card/payments/')).toBe('POST /tenants/:/:/payments')
    // Values that equal the text around them.
    expect(await operationOf('/tenants/tenants/payments/payments/7')).toBe(
      'POST /tenants/:/:/payments/:',
    )
    expect(runs()).toBe(3)
    // Both paths are one operation, so the same key with the other path is another request.
    expect((await send({ key: 'k', path: '/tenants/a/card/payments' })).status).toBe(200)
    expect((await send({ key: 'k', path: '/tenants/b/card/payments' })).status).toBe(422)
  })

  it('omits the values of parameters also in the mount paths of nested apps', async () => {
    const { app, guard, handler } = setup(express)
    const shop = express()
    const router = express.Router()
    router.post('/:id', guard(), handler)
    shop.use('/:area', router)
    app.use('/shops/:shop', shop)
    const { send } = await serve(app)
    const reply = await send({ key: 'k', path: '/shops/1/west/7' })
    expect(json(reply)).toMatchObject({ operation: 'POST /shops/:/:/:' })
  })

  it('keeps an escaped colon, and the case of a pattern, in the operation', async () => {
    const { app, guard, handler } = setup(express)
    const isFive = _name === 'express 5'
    const [escaped, path] = isFive ? ['/a\\:b/:c', '/a:b/1'] : ['/x/:c(\\D+)', '/x/abc']
    app.post(escaped, guard(), handler)
    const { send } = await serve(app)
    const operation = isFive ? 'POST /a\\:b/:' : 'POST /x/:(\\D+)'
    expect(json(await send({ key: 'k', path }))).toMatchObject({ operation })
  })

  it('joins several templates to one operation, and keeps a regular expression', async () => {
    const { app, guard, handler } = setup(express)
    app.post(['/a/:x', '/b/:y'], guard(), handler)
    app.post(/^\/c\/\d+$/, guard(), handler)
    const { send } = await serve(app)
    expect(json(await send({ key: 'k', path: '/a/1' }))).toMatchObject({
      operation: 'POST /a/:|/b/:',
    })
    expect((await send({ key: 'k', path: '/b/1' })).status).toBe(422)
    const pattern = await send({ key: 'k', path: '/c/1' })
    expect(json(pattern)).toMatchObject({ operation: 'POST /^\\/c\\/\\d+$/' })
  })
})

describe('express 5: an operation', () => {
  it('keeps optional groups and wildcards in the operation, without their names', async () => {
    const [, express] = EXPRESSES[0]!
    const { app, guard, handler } = setup(express)
    app.post('/a{/:b}', guard(), handler)
    app.post('/files/*rest', guard(), handler)
    const { send } = await serve(app)
    for (const path of ['/a', '/a/1']) {
      expect(json(await send({ key: path, path }))).toMatchObject({ operation: 'POST /a{/:}' })
    }
    const files = await send({ key: 'k', path: '/files/x/y' })
    expect(json(files)).toMatchObject({ operation: 'POST /files/*' })
  })
})

describe.each(EXPRESSES)('%s: the source of the key', (_name, express) => {
  it('reads the key from keyHeader, and names that header in the problem', async () => {
    const { app, guard, handler } = setup(express)
    app.post('/', guard({ keyHeader: 'PayPal-Request-Id' }), handler)
    const { send } = await serve(app)
    const missing = await send({ key: 'k' })
    expect([missing.status, json(missing)['detail']]).toEqual([
      400,
      expect.stringContaining('in the header PayPal-Request-Id,'),
    ])
    expect((await send({ headers: { 'PayPal-Request-Id': 'k' } })).status).toBe(200)
  })

  it('reads the key with keyFrom from a parsed body', async () => {
    const { app, guard, handler, runs } = setup(express)
    const keyFrom = (req: Request) => (req.body as { key?: string }).key
    app.post('/', express.json(), guard({ keyFrom }), handler)
    const { send } = await serve(app)
    for (let n = 0; n < 2; n++) {
      expect((await send({ json: { key: 'schlüssel' } })).status).toBe(200)
    }
    expect((await send({ json: {} })).status).toBe(400)
    expect((await send({ json: { key: '' } })).status).toBe(400)
    expect((await send({ json: { key: 42 } })).status).toBe(400)
    expect(runs()).toBe(1)
  })

  it('reads the key from keyField without a parser', async () => {
    const { app, guard, handler, runs } = setup(express)
    app.post('/', guard({ keyField: 'meta.requestId' }), handler)
    const { send } = await serve(app)
    for (let n = 0; n < 2; n++) {
      const reply = await send({ json: { meta: { requestId: 'k' }, amount: 1 } })
      expect(json(reply)).toMatchObject({ run: 1 })
    }
    expect((await send({ json: { meta: { requestId: 'k' }, amount: 2 } })).status).toBe(422)
    const missing = await send({ json: { meta: {} }, key: 'k' })
    expect([missing.status, json(missing)['detail']]).toEqual([
      400,
      expect.stringContaining('the field meta.requestId of the body'),
    ])
    expect(runs()).toBe(1)
  })

  it('reads the key from keyField of a parsed body or of a form', async () => {
    const { app, guard, handler, runs } = setup(express)
    app.post('/', express.json(), guard({ keyField: 'id' }), handler)
    app.post('/form', guard({ keyField: 'id' }), handler)
    const { send } = await serve(app)
    for (let n = 0; n < 2; n++) expect((await send({ json: { id: 'k' } })).status).toBe(200)
    const form = (body: string) =>
      send({
        path: '/form',
        body,
        headers: { 'Content-Type': 'application/x-www-form-urlencoded' },
      })
    for (let n = 0; n < 2; n++) expect((await form('id=k&amount=1')).status).toBe(200)
    expect((await form('id=k&id=l')).status).toBe(400)
    expect(runs()).toBe(2)
  })

  it('with() overrides the source of the key for one route', async () => {
    const { app, guard, handler, runs } = setup(express)
    const all = guard({ keyHeader: 'X-Key' })
    app.post('/', all, handler)
    app.post('/field', all.with({ keyField: 'id' }), handler)
    const { send } = await serve(app)
    expect((await send({ headers: { 'X-Key': 'k' } })).status).toBe(200)
    expect((await send({ path: '/field', headers: { 'X-Key': 'k' } })).status).toBe(400)
    expect((await send({ path: '/field', json: { id: 'k' } })).status).toBe(200)
    expect(all.with({}).engine).toBe(all.engine)
    expect(runs()).toBe(2)
  })

  it('runs requests without a key when keyRequired is false', async () => {
    const { app, guard, handler, runs } = setup(express)
    app.post('/', guard({ keyRequired: false }), handler)
    const { send } = await serve(app)
    for (let n = 0; n < 2; n++) expect((await send({})).status).toBe(200)
    expect(runs()).toBe(2)
    for (let n = 0; n < 2; n++) expect(json(await send({ key: 'k' }))).toMatchObject({ run: 3 })
    expect((await send({ key: '' })).status).toBe(400)
  })

  it('applies the rules for length, pattern and personal data to keys', async () => {
    const { app, guard, handler } = setup(express)
    const rules = { keyLengthMin: 4, keyLengthMax: 8, keyPattern: /^[a-z]+$/ }
    app.post('/', guard(rules), handler)
    app.post('/personal', guard({ refusePersonalKeys: true }), handler)
    const { send } = await serve(app)
    const statusOf = async (key: string, path = '/') => (await send({ key, path })).status
    expect(await statusOf('abcd')).toBe(200)
    for (const key of ['abc', 'abcdefghi', 'abc1']) expect(await statusOf(key)).toBe(400)
    for (const key of ['ann@example.org', '+49 30 1234567', '078-05-1120']) {
      expect(await statusOf(key, '/personal')).toBe(400)
    }
  })

  it('protects only the methods that the methods option names', async () => {
    const { app, guard, handler, runs } = setup(express)
    app.use(guard({ methods: ['PUT', 'DELETE'], tenant: singleTenant }), handler)
    const { send } = await serve(app)
    for (const method of ['PUT', 'DELETE']) {
      expect((await send({ method })).status).toBe(400)
      for (let n = 0; n < 2; n++) expect((await send({ method, key: 'k' })).status).toBe(200)
    }
    expect((await send({ method: 'POST' })).status).toBe(200)
    expect(runs()).toBe(3)
  })
})
