import { createRequire } from 'node:module'
import type { ErrorRequestHandler, Express, NextFunction, RequestHandler } from 'express'
import { describe, expect, it, onTestFinished } from 'vitest'
import { auditRoutes, idempotencyErrors } from '../../../../src/adapters/express/index.ts'
import { stackOf } from '../../../../src/adapters/express/stack.ts'
import { NotExecutedError } from '../../../../src/core/errors.ts'
import { EXPRESSES, guardOf, header, serve, type ExpressModule } from '../../run-express.ts'

/** The error of a payment whose answer was lost. */
const lost = () => Object.assign(new Error('socket hang up'), { code: 'ECONNRESET' })

const pay: RequestHandler = () => {
  throw lost()
}
const harmless: RequestHandler = () => {
  throw new Error('cache miss')
}
const decline =
  (status: number): RequestHandler =>
  (_req, res) =>
    void res.sendStatus(status)
const recover: ErrorRequestHandler = (_error, _req, _res, next) => next()
const fail: ErrorRequestHandler = (_error, _req, res, _next) => void res.sendStatus(500)

interface Mounting {
  readonly app: Express
  readonly guard: ReturnType<typeof guardOf>
  readonly router: ReturnType<ExpressModule['Router']>
  readonly other: Express
}

/** Apps that lose a payment where the guard could miss it. */
const LOST: Readonly<Record<string, (mounting: Mounting) => void>> = {
  'middleware loses a call after a route recovered from another error': ({ app, guard }) => {
    app.post('/', guard, harmless, recover)
    app.use(pay)
  },
  'middleware loses a call after the app recovered from another error': ({ app, guard }) => {
    app.post('/', guard, harmless)
    app.use(recover)
    app.use(pay)
  },
  'a handler replies 502 after the route recovered from another error': ({ app, guard }) => {
    app.post('/', guard, harmless, recover, decline(502))
  },
  'an error handler of the route loses a call': ({ app, guard }) => {
    const payAgain: ErrorRequestHandler = (_error, _req, _res, _next) => {
      throw lost()
    }
    app.post('/', guard, harmless, payAgain)
  },
  'an error handler replaces the error of a lost call': ({ app, guard }) => {
    const replace: ErrorRequestHandler = (_error, _req, _res, next) => next(new Error('failed'))
    app.post('/', guard, pay, replace)
  },
  'a handler passes the error of a lost call to req.next': ({ app, guard }) => {
    app.post('/', guard, (req) => req.next!(lost()))
  },
}

/** The same where the guard cannot see the error, and `idempotencyErrors()` cannot either. */
const UNSEEN: Readonly<Record<string, (mounting: Mounting) => void>> = {
  'a router that a handler calls has its own error handler': ({ app, guard, router }) => {
    router.post('/', pay)
    router.use(fail)
    app.post('/', guard, (req, res, next) => router(req, res, next))
  },
  'middleware of a router that a handler calls loses a call': ({ app, guard, router }) => {
    router.use(pay)
    router.use(fail)
    app.use(guard)
    app.post('/', (req, res, next) => router(req, res, next))
  },
  'a handler sends the request through the app again': ({ app, guard }) => {
    app.post('/real', pay)
    app.post('/', guard, (req, res) => {
      req.url = '/real'
      const { handle } = app as unknown as { handle: RequestHandler }
      void handle.call(app, req, res, () => undefined)
    })
  },
  'a hidden router recovers from an error before it loses a call': ({ app, guard, router }) => {
    router.post('/', harmless)
    router.use(recover)
    router.use(pay)
    router.use(fail)
    app.use(guard, (req, res, next) => router(req, res, next))
  },
  'a handler calls another app, whose default error handler replies': ({ app, guard, other }) => {
    other.post('/', pay)
    app.post('/', guard, (req, res) => void other(req, res))
  },
  'a handler passes its error to a next() of earlier middleware': ({ app, guard }) => {
    app.use((_req, res, next) => {
      res.locals['fail'] = next
      next()
    })
    app.post('/', guard, (_req, res) => (res.locals['fail'] as NextFunction)(lost()))
  },
  'a handler fails after it has called next()': ({ app, guard }) => {
    const late: RequestHandler = (_req, _res, next) => {
      next()
      next(new Error('the audit failed'))
    }
    app.post('/', guard, late, () => new Promise(() => undefined))
  },
  'an error handler calls a router that loses a call': ({ app, guard, router }) => {
    router.post('/', pay)
    router.use(fail)
    const fallBack: ErrorRequestHandler = (_error, req, res, next) => router(req, res, next)
    app.post('/', guard, harmless, fallBack)
  },
  'middleware behind the guard fails while a handler runs': ({ app, guard }) => {
    app.use(guard, (_req, _res, next) => {
      setImmediate(() => next(lost()))
      next()
    })
    app.post('/', () => undefined)
  },
  'a timer of middleware replies 503 while a handler runs': ({ app, guard }) => {
    const limit: RequestHandler = (_req, res, next) => {
      setImmediate(() => res.sendStatus(503))
      next()
    }
    app.post('/', guard, limit, () => new Promise(() => undefined))
  },
}

describe.each(EXPRESSES)('%s: the watch of a route', (_name, express) => {
  async function stateAfter(mount: (mounting: Mounting) => void, withErrors: boolean) {
    const guard = guardOf()
    const app = express()
    mount({ app, guard, router: express.Router(), other: express() })
    if (withErrors) app.use(idempotencyErrors())
    app.use(fail)
    const { send } = await serve(app)
    expect((await send({ key: 'k' })).status).toBeGreaterThanOrEqual(500)
    const scope = { tenant: 'single', operation: 'POST /' }
    return (await guard.engine.read({ scope, key: 'k' }))?.state
  }

  it.each(Object.entries(LOST))('makes the record unknown when %s', async (_case, mount) => {
    expect(await stateAfter(mount, false)).toBe('unknown')
    expect(await stateAfter(mount, true)).toBe('unknown')
  })

  it.each(Object.entries(UNSEEN))('makes the record unknown when %s', async (_case, mount) => {
    expect(await stateAfter(mount, false)).toBe('unknown')
  })

  // The first failure makes the guard watch the error handlers of the app.
  it('judges no error that it has not seen, also when error handlers are watched', async () => {
    const guard = guardOf()
    const app = express()
    app.use(guard)
    app.post('/warm', harmless)
    app.use('/lost', pay)
    app.use(((_error, _req, _res, next) => next(new Error('failed'))) as ErrorRequestHandler)
    app.use(fail)
    const { send } = await serve(app)
    expect((await send({ key: 'warm', path: '/warm' })).status).toBe(500)
    expect((await send({ key: 'lost', path: '/lost' })).status).toBe(500)
    const states = await Promise.all(
      (['unknown', 'failed_retryable'] as const).map((state) => guard.engine.list({ state })),
    )
    expect(states.map((records) => records.map(({ key }) => key))).toEqual([['lost'], ['warm']])
  })

  it('keeps the properties that an application has put on a handler', async () => {
    const app = express()
    let roles: unknown
    const handler: RequestHandler = (req, res) => {
      const last = stackOf(req.route).at(-1)?.handle as { readonly roles?: unknown }
      roles = last.roles
      res.json({})
    }
    app.post('/', guardOf(), Object.assign(handler, { roles: ['admin'] }))
    const { send } = await serve(app)
    await send({ key: 'k' })
    expect(roles).toEqual(['admin'])
  })

  it('replays the 402 of a handler that ran after a recovered NotExecutedError', async () => {
    const app = express()
    const refuse: RequestHandler = () => {
      throw new NotExecutedError('the first provider is down')
    }
    app.post('/', guardOf(), refuse, recover, decline(402))
    const { send } = await serve(app)
    const replies = [await send({ key: 'k' }), await send({ key: 'k' })]
    expect(replies.map(({ status }) => status)).toEqual([402, 402])
    expect(header(replies[1]!, 'idempotent-replayed')).toBe('true')
  })

  it('counts the error that an error handler passes on', async () => {
    const guard = guardOf()
    const app = express()
    const refuse: ErrorRequestHandler = (_error, _req, _res, next) => {
      next(new NotExecutedError('the provider is down'))
    }
    app.post('/', guard, harmless, refuse)
    app.use(fail)
    const { send } = await serve(app)
    expect((await send({ key: 'k' })).status).toBe(500)
    const [record] = await guard.engine.list({ state: 'failed_retryable' })
    expect(record).toMatchObject({ proof: 'proven', errorCode: 'NOT_EXECUTED' })
  })

  it('leaves a returned promise that the handler has handled alone', async () => {
    const unhandled: unknown[] = []
    const note = (reason: unknown) => void unhandled.push(reason)
    process.on('unhandledRejection', note)
    onTestFinished(() => void process.off('unhandledRejection', note))
    const app = express()
    app.post('/', guardOf(), (_req, _res, next) => {
      const work = Promise.reject(new Error('failed'))
      work.catch((error: unknown) => _name === 'express 4' && next(error))
      return work
    })
    app.use(fail)
    const { send } = await serve(app)
    expect((await send({ key: 'k' })).status).toBe(500)
    expect(unhandled).toEqual([])
  })

  it('does not change what auditRoutes finds', async () => {
    const app = express()
    const authentication: RequestHandler = (_req, _res, next) => next()
    app.post('/', authentication, guardOf(), (_req, res) => void res.json({}))
    const before = auditRoutes(app, { authentication })
    const { send } = await serve(app)
    await send({ key: 'k' })
    expect(auditRoutes(app, { authentication })).toEqual(before)
  })
})

// As express-async-errors does it: every function that a layer gets is wrapped.
it('passes each error on once when a package wraps the handlers of all layers', async () => {
  const require = createRequire(import.meta.url)
  const { prototype } = require('express4/lib/router/layer') as { prototype: object }
  const functions = new WeakMap<object, RequestHandler>()
  const wrapped = (handle: RequestHandler) => {
    const wrapper = (...values: unknown[]) => {
      const result: unknown = Reflect.apply(handle, undefined, values)
      const next = values.at(-1) as NextFunction
      if (result instanceof Promise) result.catch((error: unknown) => next(error))
      return result
    }
    return Object.defineProperty(wrapper, 'length', { value: handle.length })
  }
  Object.defineProperty(prototype, 'handle', {
    configurable: true,
    get(this: object) {
      return functions.get(this)
    },
    set(this: object, handle: RequestHandler) {
      functions.set(this, wrapped(handle) as RequestHandler)
    },
  })
  onTestFinished(() => void Reflect.deleteProperty(prototype, 'handle'))
  const [, [, express4]] = EXPRESSES as [unknown, (typeof EXPRESSES)[number]]
  const app = express4()
  let errors = 0
  app.post('/', guardOf(), async () => {
    throw new Error('failed')
  })
  app.use(((_error, _req, res, _next) => {
    errors++
    res.sendStatus(500)
  }) as ErrorRequestHandler)
  const { send } = await serve(app)
  for (const key of ['a', 'b', 'c']) expect((await send({ key })).status).toBe(500)
  expect(errors).toBe(3)
})
