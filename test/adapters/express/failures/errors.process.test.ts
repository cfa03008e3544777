import { AsyncLocalStorage } from 'node:async_hooks'
import type {
  ErrorRequestHandler,
  Express,
  NextFunction,
  Request,
  RequestHandler,
  Response,
} from 'express'
import { describe, expect, it, onTestFinished } from 'vitest'
import {
  idempotencyErrors,
  type IdempotencyOptions,
} from '../../../../src/adapters/express/index.ts'
import { NotExecutedError, OutcomeUnknownError } from '../../../../src/core/errors.ts'
import {
  EXPRESSES,
  caught,
  guardOf,
  header,
  json,
  problemOf,
  serve,
  type ExpressModule,
} from '../../run-express.ts'

type Handler = (req: Request, res: Response, next: NextFunction) => unknown

interface Options {
  readonly guard?: Partial<IdempotencyOptions>
  /** Mounts error handlers after the routes. @default idempotencyErrors() */
  readonly mount?: (app: Express) => void
  /** Mounts the handler without the wrapper that passes rejections to `next`. */
  readonly bare?: boolean
}

/** Serves a handler that fails on its first run and replies on every later one. */
async function setup(express: ExpressModule, fail: Handler, options: Options = {}) {
  const { guard: guardOptions, mount, bare } = options
  const guard = guardOf(guardOptions)
  const app = express()
  let runs = 0
  const handler: Handler = (req, res, next) => {
    runs++
    return runs === 1 ? fail(req, res, next) : res.json({ run: runs })
  }
  app.post('/', guard, bare === true ? (handler as never) : caught(handler))
  if (mount === undefined) app.use(idempotencyErrors())
  else mount(app)
  const { send } = await serve(app)
  const record = () =>
    guard.engine.read({ scope: { tenant: 'single', operation: 'POST /' }, key: 'k' })
  return { send, record, engine: guard.engine, runs: () => runs }
}

const httpError = (status: number) => Object.assign(new Error(`status ${status}`), { status })
const named = (name: string) => Object.assign(new Error('gone'), { name })
const coded = (code: string) => Object.assign(new Error('gone'), { code })

const thrown =
  (error: unknown): Handler =>
  () => {
    throw error
  }

const ways: Readonly<Record<string, (error: Error) => Handler>> = {
  'thrown synchronously': (error) => thrown(error),
  'as a rejection': (error) => async () => {
    await Promise.resolve()
    throw error
  },
  'passed to next': (error) => (_req, _res, next) => next(error),
}

describe.each(EXPRESSES)('%s: an error', (_name, express) => {
  describe.each(Object.entries(ways))('%s', (_way, fail) => {
    it('releases the key after an error without an effect', async () => {
      const { send, record, runs } = await setup(express, fail(new Error('card declined')))
      const failed = await send({ key: 'k' })
      expect(failed.status).toBe(500)
      expect(failed.headers.has('idempotency-expires')).toBe(false)
      expect(await record()).toMatchObject({ state: 'failed_retryable', proof: 'declared' })
      expect(json(await send({ key: 'k' }))).toEqual({ run: 2 })
      expect(header(await send({ key: 'k' }), 'idempotent-replayed')).toBe('true')
      expect(runs()).toBe(2)
    })

    it('releases the key as proven after a NotExecutedError', async () => {
      const { send, record } = await setup(express, (req, res, next) => {
        req.idempotency!.downstreamKey()
        return fail(new NotExecutedError('no funds'))(req, res, next)
      })
      expect((await send({ key: 'k' })).status).toBe(500)
      expect(await record()).toMatchObject({ state: 'failed_retryable', proof: 'proven' })
      expect(json(await send({ key: 'k' }))).toEqual({ run: 2 })
    })

    it('never runs the handler again after an OutcomeUnknownError', async () => {
      const { send, record, runs } = await setup(express, fail(new OutcomeUnknownError()))
      expect((await send({ key: 'k' })).status).toBe(500)
      expect(await record()).toMatchObject({ state: 'unknown' })
      const retry = await send({ key: 'k' })
      expect(problemOf(retry)).toEqual([409, 'idempotency_outcome_unknown'])
      expect(Number(header(retry, 'retry-after'))).toBeGreaterThanOrEqual(1)
      expect(Number(header(retry, 'retry-after'))).toBeLessThanOrEqual(60)
      expect(runs()).toBe(1)
    })

    it('records an error with a 4xx status like any other reply', async () => {
      const { send, record, runs } = await setup(express, fail(httpError(404)))
      expect((await send({ key: 'k' })).status).toBe(404)
      expect(await record()).toMatchObject({ state: 'completed' })
      const replay = await send({ key: 'k' })
      expect([replay.status, header(replay, 'idempotent-replayed')]).toEqual([404, 'true'])
      expect(runs()).toBe(1)
    })
  })

  it.each([
    ['fetch failed', new TypeError('fetch failed')],
    ['a timeout', named('TimeoutError')],
    ['an abort', named('AbortError')],
    ['a reset', coded('ECONNRESET')],
    ['a lost call as a cause', new Error('payment failed', { cause: coded('ETIMEDOUT') })],
  ])('makes the record unknown after a lost call: %s', async (_what, error) => {
    const { send, record, runs } = await setup(express, thrown(error))
    expect((await send({ key: 'k' })).status).toBe(500)
    expect(await record()).toMatchObject({ state: 'unknown' })
    expect(problemOf(await send({ key: 'k' }))).toEqual([409, 'idempotency_outcome_unknown'])
    expect(runs()).toBe(1)
  })

  it('releases the key after the error of a call that was never sent', async () => {
    const { send } = await setup(express, thrown(coded('ECONNREFUSED')))
    await send({ key: 'k' })
    expect(json(await send({ key: 'k' }))).toEqual({ run: 2 })
  })

  it('makes the record unknown after a 502 when an effect has begun', async () => {
    const { send, record } = await setup(express, (req, res) => {
      expect(req.idempotency!.downstreamKey('charge').length).toBeLessThanOrEqual(64)
      res.status(502).json({ error: 'provider' })
    })
    expect((await send({ key: 'k' })).status).toBe(502)
    expect(await record()).toMatchObject({ state: 'unknown' })
  })

  it('a handler that turns an error into a reply can report it with failed()', async () => {
    const { send, record } = await setup(express, (req, res) => {
      req.idempotency!.failed(new TypeError('fetch failed'))
      res.status(502).json({ error: 'provider' })
    })
    await send({ key: 'k' })
    expect(await record()).toMatchObject({ state: 'unknown', errorCode: 'TypeError' })
  })

  it('notExecuted() and outcomeUnknown() decide regardless of the status', async () => {
    const harmless = await setup(express, (req, res) => {
      req.idempotency!.notExecuted()
      res.status(404).json({ found: false })
    })
    expect((await harmless.send({ key: 'k' })).status).toBe(404)
    expect(await harmless.record()).toMatchObject({ state: 'failed_retryable', proof: 'proven' })
    const doubtful = await setup(express, (req, res) => {
      req.idempotency!.outcomeUnknown()
      res.status(422).json({ maybe: true })
    })
    expect((await doubtful.send({ key: 'k' })).status).toBe(422)
    expect(await doubtful.record()).toMatchObject({ state: 'unknown' })
  })

  it('does not change the reply of an error handler of the application', async () => {
    const own: ErrorRequestHandler = (error, _req, res, _next) => {
      res
        .status(503)
        .set('X-Mine', 'yes')
        .json({ error: (error as Error).message })
    }
    const { send, record } = await setup(express, thrown(new Error('no room')), {
      mount: (app) => app.use(idempotencyErrors(), own),
    })
    const failed = await send({ key: 'k' })
    expect([failed.status, json(failed)]).toEqual([503, { error: 'no room' }])
    expect(header(failed, 'x-mine')).toBe('yes')
    expect(await record()).toMatchObject({ state: 'failed_retryable', errorCode: 'Error' })
    expect(json(await send({ key: 'k' }))).toEqual({ run: 2 })
  })

  it('records the 4xx reply of an error handler of the application', async () => {
    const own: ErrorRequestHandler = (_error, _req, res, _next) => {
      res.status(402).json({ declined: true })
    }
    const { send, runs } = await setup(express, thrown(new Error('declined')), {
      mount: (app) => app.use(idempotencyErrors(), own),
    })
    for (let n = 0; n < 2; n++) expect((await send({ key: 'k' })).status).toBe(402)
    expect(runs()).toBe(1)
  })

  it('NotExecutedError and OutcomeUnknownError decide regardless of the reply status', async () => {
    const own: ErrorRequestHandler = (_error, _req, res, _next) => {
      res.status(422).json({ sorry: true })
    }
    const mount = (app: Express) => {
      app.use(idempotencyErrors(), own)
    }
    const harmless = await setup(express, thrown(new NotExecutedError()), { mount })
    expect((await harmless.send({ key: 'k' })).status).toBe(422)
    expect(await harmless.record()).toMatchObject({ state: 'failed_retryable', proof: 'proven' })
    const doubtful = await setup(express, thrown(new OutcomeUnknownError()), { mount })
    expect((await doubtful.send({ key: 'k' })).status).toBe(422)
    expect(await doubtful.record()).toMatchObject({ state: 'unknown' })
  })

  it('settles a 5xx as onError decides', async () => {
    const replies500: Handler = (_req, res) => res.status(500).json({ run: 1 })
    const stored = await setup(express, replies500, { guard: { onError: 'store' } })
    for (let n = 0; n < 2; n++) expect((await stored.send({ key: 'k' })).status).toBe(500)
    expect(stored.runs()).toBe(1)

    const doubted = await setup(express, replies500, { guard: { onError: 'unknown' } })
    await doubted.send({ key: 'k' })
    expect((await doubted.send({ key: 'k' })).status).toBe(409)

    const failures: unknown[] = []
    const decided = await setup(express, thrown(new Error('declined')), {
      guard: { onError: (failure) => (failures.push(failure), 'retry') },
    })
    await decided.send({ key: 'k' })
    expect(failures).toEqual([
      expect.objectContaining({ error: new Error('declined'), blind: false, attempt: 1 }),
    ])
    expect((await decided.send({ key: 'k' })).status).toBe(200)
  })

  it.each([401, 403, 408, 425, 429])('releases the key after a %i', async (status) => {
    const { send, record, runs } = await setup(express, (_req, res) => res.sendStatus(status))
    const refused = await send({ key: 'k' })
    expect(refused.status).toBe(status)
    expect(refused.headers.has('idempotency-expires')).toBe(false)
    expect(await record()).toMatchObject({ state: 'failed_retryable' })
    expect(json(await send({ key: 'k' }))).toEqual({ run: 2 })
    expect(runs()).toBe(2)
  })

  it.each([400, 402, 404, 409, 410, 412, 422])('records and replays a %i', async (status) => {
    const { send, runs } = await setup(express, (_req, res) => res.sendStatus(status))
    for (let n = 0; n < 2; n++) expect((await send({ key: 'k' })).status).toBe(status)
    expect(runs()).toBe(1)
  })

  it('records the 404 of a path without a route', async () => {
    const app = express()
    app.use(guardOf())
    const { send } = await serve(app)
    expect((await send({ key: 'k', path: '/nowhere' })).status).toBe(404)
    const replay = await send({ key: 'k', path: '/nowhere' })
    expect([replay.status, header(replay, 'idempotent-replayed')]).toEqual([404, 'true'])
  })
})

describe('express 5', () => {
  it('sees the rejection of an async handler without a wrapper', async () => {
    const [, express] = EXPRESSES[0]!
    const fail: Handler = async () => {
      await Promise.resolve()
      throw new NotExecutedError()
    }
    const { send, record } = await setup(express, fail, { bare: true })
    expect((await send({ key: 'k' })).status).toBe(500)
    expect(await record()).toMatchObject({ state: 'failed_retryable', proof: 'proven' })
  })
})

/** Collects the warnings during a test, except those about single unknown records. */
function warningsOf(): Error[] {
  const warnings: Error[] = []
  const onWarning = (warning: Error) => {
    if (!warning.message.startsWith('Record ')) warnings.push(warning)
  }
  process.on('warning', onWarning)
  onTestFinished(() => {
    process.off('warning', onWarning)
  })
  return warnings
}

describe('without idempotencyErrors()', () => {
  it('warns once about a 5xx from outside a route', async () => {
    const warnings = warningsOf()
    for (const [, express] of [...EXPRESSES, ...EXPRESSES]) {
      const app = express()
      app.use(guardOf(), (_req, _res, next) => next(new Error('declined')))
      const { send } = await serve(app)
      expect((await send({ key: 'k' })).status).toBe(500)
    }
    expect(warnings).toHaveLength(1)
    expect(warnings[0]).toMatchObject({
      name: 'OncekeyWarning',
      message: expect.stringContaining('app.use(idempotencyErrors())'),
    })
  })
})

/** Runs outside the async context of a handler, like a timer that was set before the guard. */
const timeoutElsewhere = AsyncLocalStorage.snapshot() as (run: () => void) => void

describe.each(EXPRESSES)('%s without idempotencyErrors()', (_name, express) => {
  type Mount = (app: Express, handler: Handler, guard: ReturnType<typeof guardOf>) => void

  const swallow: ErrorRequestHandler = (_error, _req, res, _next) => {
    res.sendStatus(500)
  }
  const pass: Handler = (_req, _res, next) => next()

  const routes: Readonly<Record<string, Mount>> = {
    'a guard on the route': (app, handler, guard) => app.post('/', guard, caught(handler)),
    'middleware between guard and handler': (app, handler, guard) =>
      app.post('/', guard, pass as never, caught(handler)),
    'an error handler in the route': (app, handler, guard) =>
      app.post('/', guard, caught(handler), swallow),
    'an error handler on the app': (app, handler, guard) => {
      app.post('/', guard, caught(handler))
      app.use(swallow)
    },
    'a guard on the app': (app, handler, guard) => {
      app.use(guard)
      app.post('/', caught(handler))
      app.use(swallow)
    },
    'a guard in a route before the route': (app, handler, guard) => {
      app.all('/', guard)
      app.post('/', caught(handler))
    },
    "a handler that calls next('route')": (app, handler, guard) => {
      app.post('/', guard, (_req, _res, next) => next('route'))
      app.post('/', caught(handler))
    },
    'a guard before a router': (app, handler, guard) => {
      const router = express.Router()
      router.post('/', caught(handler))
      router.use(swallow)
      app.use('/', guard, router)
    },
    'a guard in a route before a router': (app, handler, guard) => {
      const router = express.Router()
      router.post('/', caught(handler))
      router.use(swallow)
      app.post('/', guard, router)
    },
    'a guard that a function calls': (app, handler, guard) => {
      app.post('/', (req, res, next) => guard(req, res, next), caught(handler))
    },
    'a body parser behind the guard': (app, handler, guard) => {
      app.post('/', guard, express.json(), caught(handler))
    },
    'a handler that runs in a later turn': (app, handler, guard) => {
      app.post('/', guard, (req, res, next) => {
        setImmediate(() => {
          try {
            handler(req, res, next)
          } catch (error) {
            next(error)
          }
        })
      })
    },
    'a guard before a mounted app': (app, handler, guard) => {
      const child = express()
      child.post('/', caught(handler))
      child.use(swallow)
      app.use(guard)
      app.use('/', child)
    },
  }

  describe.each(Object.entries(routes))('with %s', (_where, mount) => {
    const body = { json: { amount: 1 } }

    async function started() {
      const guard = guardOf()
      const app = express()
      mount(
        app,
        (req, res) => {
          if (req.query['lost'] !== undefined) throw new TypeError('fetch failed')
          if (req.query['throws'] !== undefined) throw new NotExecutedError()
          res.sendStatus(500)
        },
        guard,
      )
      return { guard, ...(await serve(app)) }
    }

    it('sees the error of a route handler', async () => {
      const { guard, send } = await started()
      expect((await send({ key: 'k', path: '/?throws' })).status).toBe(500)
      const [proven] = await guard.engine.list({ state: 'failed_retryable' })
      expect(proven).toMatchObject({ proof: 'proven', errorCode: 'NOT_EXECUTED' })
      expect((await send({ ...body, key: 'lost', path: '/?lost' })).status).toBe(500)
      const [unknown] = await guard.engine.list({ state: 'unknown' })
      expect(unknown).toMatchObject({ errorCode: 'TypeError' })
    })

    it('releases the key after a 5xx that a route handler sends without an error', async () => {
      const { guard, send } = await started()
      expect((await send({ ...body, key: 'plain' })).status).toBe(500)
      expect(await guard.engine.list({ state: 'unknown' })).toEqual([])
      expect(await guard.engine.list({ state: 'failed_retryable' })).toHaveLength(1)
    })
  })

  it('makes the record unknown when a timeout sends 503 while the handler runs', async () => {
    const guard = guardOf()
    const app = express()
    let timeout = (): void => undefined
    app.use((_req, res, next) => {
      timeout = () => void res.sendStatus(503)
      next()
    })
    app.post('/', guard, () => timeoutElsewhere(() => timeout()))
    const { send } = await serve(app)
    expect((await send({ key: 'k' })).status).toBe(503)
    expect(await guard.engine.list({ state: 'unknown' })).toHaveLength(1)
  })

  /** The error of a lost call that no route handler made. */
  const lost = () => new TypeError('fetch failed')

  const outside: Readonly<Record<string, Mount>> = {
    'middleware behind the guard': (app, handler, guard) => {
      app.use(guard, (_req, _res, next) => next(lost()))
      app.post('/', caught(handler))
    },
    'a parameter callback behind the guard': (app, handler, guard) => {
      app.use(guard)
      app.param('id', (_req, _res, next) => next(lost()))
      app.post('/:id', caught(handler))
    },
    'middleware after a route that called next()': (app, _handler, guard) => {
      app.post('/x', guard, (_req, _res, next) => next())
      app.use((_req, _res, next) => next(lost()))
    },
    "middleware after a route that called next('route')": (app, _handler, guard) => {
      app.use(guard)
      app.post('/x', (_req, _res, next) => next('route'))
      app.use((_req, _res, next) => next(lost()))
    },
    'middleware of a router in the route': (app, _handler, guard) => {
      const router = express.Router()
      router.use((_req, _res, next) => next(lost()))
      router.use(swallow)
      app.post('/x', guard, router)
    },
  }

  it.each(Object.entries(outside))(
    'makes the record unknown after a 5xx caused by %s',
    async (_where, mount) => {
      const guard = guardOf()
      const app = express()
      mount(app, (_req, res) => void res.sendStatus(200), guard)
      app.use(swallow)
      const { send } = await serve(app)
      expect((await send({ key: 'k', path: '/x' })).status).toBe(500)
      expect(await guard.engine.list({ state: 'unknown' })).toHaveLength(1)
    },
  )

  it('calls each handler once when the watch of a route starts during a request', async () => {
    const guard = guardOf()
    const app = express()
    const calls: string[] = []
    const note =
      (name: string): RequestHandler =>
      (_req, _res, next) => {
        calls.push(name)
        next()
      }
    let proceed = (): void => undefined
    const reached = new Promise<void>((resolve) => {
      app
        .route('/')
        .post(
          guard,
          caught((_req, res) => void res.json({})),
        )
        .get(note('first'), (_req, _res, next) => {
          proceed = next
          resolve()
        })
        .get(note('second'), (_req, res) => void res.json({}))
    })
    const { send } = await serve(app)
    const get = send({ method: 'GET' })
    await reached
    await send({ key: 'k' })
    proceed()
    expect((await get).status).toBe(200)
    expect(calls).toEqual(['first', 'second'])
  })

  it('runs no returned lazy query in Express 4, and sees it fail in Express 5', async () => {
    let queries = 0
    const query = {
      // oxlint-disable-next-line unicorn/no-thenable -- Query builders are thenable.
      then(_resolved: unknown, rejected: (error: Error) => void) {
        queries++
        rejected(new NotExecutedError())
      },
    }
    const isFour = _name === 'express 4'
    const fail: Handler = (_req, res) => {
      if (isFour) res.sendStatus(500)
      return query
    }
    const { send, record } = await setup(express, fail, { mount: () => undefined, bare: true })
    await send({ key: 'k' })
    expect(queries).toBe(isFour ? 0 : 1)
    expect(await record()).toMatchObject({ proof: isFour ? 'declared' : 'proven' })
  })

  it('replays a 409 that comes from the status of an error', async () => {
    const { send } = await setup(express, thrown(httpError(409)), { mount: () => undefined })
    for (let n = 0; n < 2; n++) expect((await send({ key: 'k' })).status).toBe(409)
  })
})

describe.each(EXPRESSES)('%s: idempotencyErrors()', (_name, express) => {
  type Mount = (app: Express, handler: Handler, guard: ReturnType<typeof guardOf>) => void

  const places: Readonly<Record<string, Mount>> = {
    'on the app': (app, handler, guard) => {
      app.post('/', guard, caught(handler))
      app.use(idempotencyErrors())
    },
    'on the router of the route': (app, handler, guard) => {
      const router = express.Router()
      router.post('/', guard, caught(handler))
      router.use(idempotencyErrors())
      app.use('/', router)
    },
    'on a nested router': (app, handler, guard) => {
      const inner = express.Router()
      inner.post('/', guard, caught(handler), idempotencyErrors())
      inner.use(idempotencyErrors())
      const outer = express.Router()
      outer.use(inner)
      app.use(outer)
    },
    'on the parent app': (app, handler, guard) => {
      const child = express()
      child.post('/', guard, caught(handler))
      app.use('/', child)
      app.use(idempotencyErrors())
    },
    'on an app that is mounted behind the guard': (app, handler, guard) => {
      const child = express()
      child.post('/', caught(handler))
      child.use(idempotencyErrors())
      app.use(guard)
      app.use('/', child)
    },
  }

  it.each(Object.entries(places))('reports errors when it is mounted %s', async (_where, mount) => {
    const guard = guardOf()
    const app = express()
    mount(
      app,
      (req, res) => {
        if (req.query['throws'] !== undefined) throw new NotExecutedError()
        res.sendStatus(500)
      },
      guard,
    )
    const { send } = await serve(app)
    expect((await send({ key: 'k', path: '/?throws' })).status).toBe(500)
    const [proven] = await guard.engine.list({ state: 'failed_retryable' })
    expect(proven).toMatchObject({ proof: 'proven', errorCode: 'NOT_EXECUTED' })
    // No error was thrown. The guard would have seen one, so it releases the key.
    await send({ key: 'plain' })
    expect(await guard.engine.list({ state: 'unknown' })).toEqual([])
    expect(await guard.engine.list({ state: 'failed_retryable' })).toHaveLength(2)
  })
})
