/** What a reply may and may not say about the work behind it. */
import type { ErrorRequestHandler, Express, NextFunction, Request, Response } from 'express'
import { describe, expect, it } from 'vitest'
import { idempotencyErrors, type ExpressOptions } from '../../src/adapters/express.ts'
import { NotExecutedError } from '../../src/core/errors.ts'
import { memoryStore } from '../../src/stores/memory/memory-store.ts'
import {
  EXPRESSES,
  caught,
  gate,
  guardOf,
  header,
  json,
  problemOf,
  serve,
  wrapStore,
  type ExpressModule,
} from './run-express.ts'

type Handler = (req: Request, res: Response, next: NextFunction) => unknown

async function setup(
  express: ExpressModule,
  handler: Handler,
  {
    guard: options,
    mount = (app) => app.use(idempotencyErrors()),
  }: { guard?: Partial<ExpressOptions>; mount?: (app: Express) => unknown } = {},
) {
  const guard = guardOf(options)
  const app = express()
  let runs = 0
  app.post(
    '/',
    guard,
    caught((req, res, next) => {
      runs++
      return handler(req, res, next)
    }),
  )
  mount(app)
  const { send } = await serve(app)
  const state = async () => {
    const scope = { tenant: 'single', operation: 'POST /' }
    return (await guard.engine.read({ scope, key: 'k' }))?.state
  }
  return { send, state, engine: guard.engine, runs: () => runs }
}

const timeout = (status: number) =>
  Object.assign(new Error('no answer'), { code: 'ETIMEDOUT', status })

describe.each(EXPRESSES)('%s: a refusal', (_name, express) => {
  it.each([401, 403, 408, 425, 429])(
    'with %i after an outside effect has begun does not free the key',
    async (status) => {
      const { send, state, runs } = await setup(express, (req, res) => {
        req.idempotency!.downstreamKey()
        res.sendStatus(status)
      })
      expect((await send({ key: 'k' })).status).toBe(status)
      expect(await state()).toBe('unknown')
      expect(problemOf(await send({ key: 'k' }))).toEqual([409, 'idempotency_outcome_unknown'])
      expect(runs()).toBe(1)
    },
  )

  it('that comes of a lost call does not free the key', async () => {
    const { send, state } = await setup(express, (_req, _res, next) => next(timeout(408)))
    expect((await send({ key: 'k' })).status).toBe(408)
    expect(await state()).toBe('unknown')
  })

  it('after an effect may be retried where the route says so', async () => {
    const handler: Handler = (req, res) => {
      req.idempotency!.downstreamKey()
      res.sendStatus(429)
    }
    const { send, state } = await setup(express, handler, { guard: { onError: 'retry' } })
    await send({ key: 'k' })
    expect(await state()).toBe('failed_retryable')
  })

  it('whose status is given as text is a refusal too', async () => {
    const { send, state } = await setup(express, (_req, res) => {
      res.statusCode = '429' as unknown as number
      res.end()
    })
    expect((await send({ key: 'k' })).status).toBe(429)
    expect(await state()).toBe('failed_retryable')
  })
})

describe.each(EXPRESSES)('%s: a 5xx of unknown cause', (_name, express) => {
  const swallow: ErrorRequestHandler = (_error, _req, res, _next) => {
    res.status(500).json({ sorry: true })
  }
  const lost: Handler = () => {
    throw new TypeError('fetch failed')
  }

  it.each<[string, (app: Express) => unknown]>([
    ['behind a handler of the application', (app) => app.use(swallow, idempotencyErrors())],
    ['nowhere', (app) => app.use(swallow)],
  ])('leaves the outcome unknown where idempotencyErrors() is %s', async (_where, mount) => {
    const { send, state, runs } = await setup(express, lost, { mount })
    expect((await send({ key: 'k' })).status).toBe(500)
    expect(await state()).toBe('unknown')
    await send({ key: 'k' })
    expect(runs()).toBe(1)
  })

  it('leaves it unknown where a router handles its errors before ours', async () => {
    const guard = guardOf()
    const app = express()
    const router = express.Router()
    router.post('/', guard, caught(lost))
    router.use(swallow)
    app.use(router)
    app.use(idempotencyErrors())
    const { send } = await serve(app)
    await send({ key: 'k' })
    expect(await guard.engine.list({ state: 'unknown' })).toHaveLength(1)
  })

  it('leaves it unknown where ours is mounted before the routes', async () => {
    const guard = guardOf()
    const app = express()
    app.use(idempotencyErrors())
    app.post('/', guard, caught(lost))
    app.use(swallow)
    const { send } = await serve(app)
    await send({ key: 'k' })
    expect(await guard.engine.list({ state: 'unknown' })).toHaveLength(1)
  })

  it('is not blamed on the handlers of routers that it never meets', async () => {
    const guard = guardOf()
    const app = express()
    app.post('/', guard, (_req, res) => {
      res.sendStatus(500)
    })
    const other = express.Router()
    other.use(swallow)
    app.use('/other', other)
    app.use(idempotencyErrors())
    const { send } = await serve(app)
    await send({ key: 'k' })
    expect(await guard.engine.list({ state: 'failed_retryable' })).toHaveLength(1)
  })

  it.each([502, 504])('is a lost call where the handler itself says %i', async (status) => {
    const { send, state } = await setup(express, (_req, res) => res.sendStatus(status))
    expect((await send({ key: 'k' })).status).toBe(status)
    expect(await state()).toBe('unknown')
  })
})

describe.each(EXPRESSES)('%s: a success', (_name, express) => {
  it('is recorded although the handler says that it has done nothing', async () => {
    const { send, state, runs } = await setup(express, (req, res) => {
      req.idempotency!.notExecuted()
      res.status(201).json({ id: 1 })
    })
    expect((await send({ key: 'k' })).status).toBe(201)
    expect(await state()).toBe('completed')
    expect((await send({ key: 'k' })).status).toBe(201)
    expect(runs()).toBe(1)
  })

  it('is recorded although an error handler made it out of NotExecutedError', async () => {
    const soften: ErrorRequestHandler = (_error, _req, res, _next) => {
      res.status(200).json({ nothing: 'to do' })
    }
    const { send, state } = await setup(
      express,
      () => {
        throw new NotExecutedError()
      },
      { mount: (app) => app.use(idempotencyErrors(), soften) },
    )
    expect((await send({ key: 'k' })).status).toBe(200)
    expect(await state()).toBe('completed')
  })

  it('is not shown where the handler says that nobody can know', async () => {
    const { send, state } = await setup(express, (req, res) => {
      req.idempotency!.outcomeUnknown()
      res.status(202).json({ pending: true })
    })
    const reply = await send({ key: 'k' })
    expect(problemOf(reply)).toEqual([409, 'idempotency_outcome_unknown'])
    expect(header(reply, 'retry-after')).toBe('60')
    expect(await state()).toBe('unknown')
  })
})

describe.each(EXPRESSES)('%s: a duplicate', (_name, express) => {
  // The first request holds the key, the duplicate learns that, and then the store fails.
  it('never runs unprotected once its key is known to be in use', async () => {
    const records = memoryStore()
    let claims = 0
    const store = wrapStore(records, {
      claim: async (requests) => {
        claims++
        if (claims > 2) throw new Error('the store is down')
        return records.claim(requests)
      },
    })
    const [inside, held] = [gate(), gate()]
    const { send, runs } = await setup(
      express,
      async (_req, res) => {
        inside.open()
        await held.passed
        res.json({ ok: true })
      },
      { guard: { store, storeFailure: 'open', whileInProgress: { waitMs: 10_000 } } },
    )
    const first = send({ key: 'k' })
    await inside.passed
    expect(problemOf(await send({ key: 'k' }))).toEqual([503, 'idempotency_store_unavailable'])
    held.open()
    expect((await first).status).toBe(200)
    expect(runs()).toBe(1)
  })

  it('that is accepted learns how long the key is kept', async () => {
    const [inside, held] = [gate(), gate()]
    const { send } = await setup(
      express,
      async (_req, res) => {
        inside.open()
        await held.passed
        res.json({ ok: true })
      },
      { guard: { whileInProgress: 'accepted' } },
    )
    const first = send({ key: 'k' })
    await inside.passed
    const reply = await send({ key: 'k' })
    expect(reply.status).toBe(202)
    expect(json(reply)['code']).toBe('idempotency_accepted')
    expect(header(reply, 'idempotency-expires')).toBeUndefined()
    held.open()
    await first
  })
})
