import type { ErrorRequestHandler, Express, NextFunction, Request, Response } from 'express'
import { describe, expect, it, onTestFinished } from 'vitest'
import { idempotencyErrors, type ExpressOptions } from '../../src/adapters/express.ts'
import { NotExecutedError, OutcomeUnknownError } from '../../src/core/errors.ts'
import {
  EXPRESSES,
  caught,
  guardOf,
  header,
  json,
  problemOf,
  serve,
  type ExpressModule,
} from './run-express.ts'

type Handler = (req: Request, res: Response, next: NextFunction) => unknown

interface Options {
  readonly guard?: Partial<ExpressOptions>
  /** What is mounted behind the routes. @default idempotencyErrors() */
  readonly mount?: (app: Express) => void
  /** Leaves out the wrapper that gives rejections to `next`. */
  readonly bare?: boolean
}

/** A handler that fails on its first run and replies on every later one. */
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

const httpError = (status: number) => Object.assign(new Error(`said ${status}`), { status })
const named = (name: string) => Object.assign(new Error('gone'), { name })
const coded = (code: string) => Object.assign(new Error('gone'), { code })

const thrown =
  (error: unknown): Handler =>
  () => {
    throw error
  }

const ways: Readonly<Record<string, (error: Error) => Handler>> = {
  'thrown at once': (error) => thrown(error),
  'a rejection': (error) => async () => {
    await Promise.resolve()
    throw error
  },
  'given to next': (error) => (_req, _res, next) => next(error),
}

describe.each(EXPRESSES)('%s: an error', (_name, express) => {
  describe.each(Object.entries(ways))('%s', (_way, fail) => {
    it('without an effect may be retried', async () => {
      const { send, record, runs } = await setup(express, fail(new Error('card declined')))
      const failed = await send({ key: 'k' })
      expect(failed.status).toBe(500)
      expect(failed.headers.has('idempotency-expires')).toBe(false)
      expect(await record()).toMatchObject({ state: 'failed_retryable', proof: 'declared' })
      expect(json(await send({ key: 'k' }))).toEqual({ run: 2 })
      expect(header(await send({ key: 'k' }), 'idempotent-replayed')).toBe('true')
      expect(runs()).toBe(2)
    })

    it('that is a NotExecutedError proves that a retry is safe', async () => {
      const { send, record } = await setup(express, (req, res, next) => {
        req.idempotency!.downstreamKey()
        return fail(new NotExecutedError('no funds'))(req, res, next)
      })
      expect((await send({ key: 'k' })).status).toBe(500)
      expect(await record()).toMatchObject({ state: 'failed_retryable', proof: 'proven' })
      expect(json(await send({ key: 'k' }))).toEqual({ run: 2 })
    })

    it('that is an OutcomeUnknownError is never run again', async () => {
      const { send, record, runs } = await setup(express, fail(new OutcomeUnknownError()))
      expect((await send({ key: 'k' })).status).toBe(500)
      expect(await record()).toMatchObject({ state: 'unknown' })
      const retry = await send({ key: 'k' })
      expect(problemOf(retry)).toEqual([409, 'idempotency_outcome_unknown'])
      expect(Number(header(retry, 'retry-after'))).toBeGreaterThanOrEqual(1)
      expect(Number(header(retry, 'retry-after'))).toBeLessThanOrEqual(60)
      expect(runs()).toBe(1)
    })

    it('with a status of its own is an answer like any other', async () => {
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
  ])('that looks like a lost call (%s) is unknown', async (_what, error) => {
    const { send, record, runs } = await setup(express, thrown(error))
    expect((await send({ key: 'k' })).status).toBe(500)
    expect(await record()).toMatchObject({ state: 'unknown' })
    expect(problemOf(await send({ key: 'k' }))).toEqual([409, 'idempotency_outcome_unknown'])
    expect(runs()).toBe(1)
  })

  it('from a call that was never sent may be retried', async () => {
    const { send } = await setup(express, thrown(coded('ECONNREFUSED')))
    await send({ key: 'k' })
    expect(json(await send({ key: 'k' }))).toEqual({ run: 2 })
  })

  it('after an outside effect has begun is unknown', async () => {
    const { send, record } = await setup(express, (req, res) => {
      expect(req.idempotency!.downstreamKey('charge').length).toBeLessThanOrEqual(64)
      res.status(502).json({ error: 'provider' })
    })
    expect((await send({ key: 'k' })).status).toBe(502)
    expect(await record()).toMatchObject({ state: 'unknown' })
  })

  it('that a handler turns into a reply itself can be reported', async () => {
    const { send, record } = await setup(express, (req, res) => {
      req.idempotency!.failed(new TypeError('fetch failed'))
      res.status(502).json({ error: 'provider' })
    })
    await send({ key: 'k' })
    expect(await record()).toMatchObject({ state: 'unknown', errorCode: 'TypeError' })
  })

  it('can be declared harmless, or doubtful, whatever its status', async () => {
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

  it('leaves the reply of the application’s own error handler as it is', async () => {
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

  it('that the application’s handler makes a 4xx is recorded', async () => {
    const own: ErrorRequestHandler = (_error, _req, res, _next) => {
      res.status(402).json({ declined: true })
    }
    const { send, runs } = await setup(express, thrown(new Error('declined')), {
      mount: (app) => app.use(idempotencyErrors(), own),
    })
    for (let n = 0; n < 2; n++) expect((await send({ key: 'k' })).status).toBe(402)
    expect(runs()).toBe(1)
  })

  it('says more than the status that the application gives it', async () => {
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

  it('of a 5xx reply follows onError', async () => {
    const replies500: Handler = (_req, res) => res.status(500).json({ run: 1 })
    const stored = await setup(express, replies500, { guard: { onError: 'store' } })
    for (let n = 0; n < 2; n++) expect((await stored.send({ key: 'k' })).status).toBe(500)
    expect(stored.runs()).toBe(1)

    const doubted = await setup(express, replies500, { guard: { onError: 'unknown' } })
    await doubted.send({ key: 'k' })
    expect((await doubted.send({ key: 'k' })).status).toBe(409)

    const asked: unknown[] = []
    const decided = await setup(express, thrown(new Error('declined')), {
      guard: { onError: (failure) => (asked.push(failure), 'retry') },
    })
    await decided.send({ key: 'k' })
    expect(asked).toEqual([
      expect.objectContaining({ error: new Error('declined'), blind: false, attempt: 1 }),
    ])
    expect((await decided.send({ key: 'k' })).status).toBe(200)
  })

  it.each([401, 403, 408, 425, 429])('%i is the gatekeeper’s, and is not kept', async (status) => {
    const { send, record, runs } = await setup(express, (_req, res) => res.sendStatus(status))
    const refused = await send({ key: 'k' })
    expect(refused.status).toBe(status)
    expect(refused.headers.has('idempotency-expires')).toBe(false)
    expect(await record()).toMatchObject({ state: 'failed_retryable' })
    expect(json(await send({ key: 'k' }))).toEqual({ run: 2 })
    expect(runs()).toBe(2)
  })

  it.each([400, 402, 404, 409, 410, 412, 422])('%i is an answer, and is kept', async (status) => {
    const { send, runs } = await setup(express, (_req, res) => res.sendStatus(status))
    for (let n = 0; n < 2; n++) expect((await send({ key: 'k' })).status).toBe(status)
    expect(runs()).toBe(1)
  })

  it('for want of a route is recorded like any other 404', async () => {
    const app = express()
    app.use(guardOf())
    const { send } = await serve(app)
    expect((await send({ key: 'k', path: '/nowhere' })).status).toBe(404)
    const replay = await send({ key: 'k', path: '/nowhere' })
    expect([replay.status, header(replay, 'idempotent-replayed')]).toEqual([404, 'true'])
  })
})

describe('express 5', () => {
  it('catches what an async handler throws by itself', async () => {
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

describe('without idempotencyErrors()', () => {
  it('a 5xx is unknown, and the developer is told once', async () => {
    const warnings: Error[] = []
    const onWarning = (warning: Error) => {
      // Each engine also says that a record became unknown.
      if (!warning.message.startsWith('Record ')) warnings.push(warning)
    }
    process.on('warning', onWarning)
    onTestFinished(() => {
      process.off('warning', onWarning)
    })
    for (const [, express] of [...EXPRESSES, ...EXPRESSES]) {
      const fail = thrown(new Error('declined'))
      const { send, record } = await setup(express, fail, { mount: () => undefined })
      expect((await send({ key: 'k' })).status).toBe(500)
      expect(await record()).toMatchObject({ state: 'unknown' })
    }
    expect(warnings).toHaveLength(1)
    expect(warnings[0]).toMatchObject({
      name: 'OncekeyWarning',
      message: expect.stringContaining('app.use(idempotencyErrors())'),
    })
  })

  it.each(EXPRESSES)('a reply below 500 needs none on %s', async (_name, express) => {
    const { send } = await setup(express, thrown(httpError(409)), { mount: () => undefined })
    for (let n = 0; n < 2; n++) expect((await send({ key: 'k' })).status).toBe(409)
  })
})

describe.each(EXPRESSES)('%s: idempotencyErrors() is found', (_name, express) => {
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
    'two routers down': (app, handler, guard) => {
      const inner = express.Router()
      inner.post('/', guard, caught(handler), idempotencyErrors())
      inner.use(idempotencyErrors())
      const outer = express.Router()
      outer.use(inner)
      app.use(outer)
    },
    'on the app that this one is mounted on': (app, handler, guard) => {
      const child = express()
      child.post('/', guard, caught(handler))
      app.use('/', child)
      app.use(idempotencyErrors())
    },
    'on an app within the guarded one': (app, handler, guard) => {
      const child = express()
      child.post('/', caught(handler))
      child.use(idempotencyErrors())
      app.use(guard)
      app.use('/', child)
    },
  }

  it.each(Object.entries(places))('%s', async (_where, mount) => {
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
    // Without an error: there was none to be seen, and it would have been seen.
    await send({ key: 'plain' })
    expect(await guard.engine.list({ state: 'unknown' })).toEqual([])
    expect(await guard.engine.list({ state: 'failed_retryable' })).toHaveLength(2)
  })
})
