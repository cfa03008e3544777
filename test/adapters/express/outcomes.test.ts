/** How the status of a reply, and what the handler declares, settle the record. */
import type { ErrorRequestHandler, Express, NextFunction, Request, Response } from 'express'
import { describe, expect, it } from 'vitest'
import { idempotencyErrors, type IdempotencyOptions } from '../../../src/adapters/express/index.ts'
import { NotExecutedError } from '../../../src/core/errors.ts'
import { memoryStore } from '../../../src/stores/memory/store.ts'
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
} from '../run-express.ts'

type Handler = (req: Request, res: Response, next: NextFunction) => unknown

async function setup(
  express: ExpressModule,
  handler: Handler,
  {
    guard: options,
    mount = (app) => app.use(idempotencyErrors()),
  }: { guard?: Partial<IdempotencyOptions>; mount?: (app: Express) => unknown } = {},
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
    'makes the record unknown after a %i when an effect has begun',
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

  it('makes the record unknown after a 408 that a lost call caused', async () => {
    const { send, state } = await setup(express, (_req, _res, next) => next(timeout(408)))
    expect((await send({ key: 'k' })).status).toBe(408)
    expect(await state()).toBe('unknown')
  })

  it("releases the key after an effect with onError: 'retry'", async () => {
    const handler: Handler = (req, res) => {
      req.idempotency!.downstreamKey()
      res.sendStatus(429)
    }
    const { send, state } = await setup(express, handler, { guard: { onError: 'retry' } })
    await send({ key: 'k' })
    expect(await state()).toBe('failed_retryable')
  })

  it('releases the key after a 429 whose status is set as a string', async () => {
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
    [
      'mounted after an error handler of the application',
      (app) => app.use(swallow, idempotencyErrors()),
    ],
    ['not mounted', (app) => app.use(swallow)],
  ])('makes the record unknown when idempotencyErrors() is %s', async (_where, mount) => {
    const { send, state, runs } = await setup(express, lost, { mount })
    expect((await send({ key: 'k' })).status).toBe(500)
    expect(await state()).toBe('unknown')
    await send({ key: 'k' })
    expect(runs()).toBe(1)
  })

  it('makes the record unknown when a router handles the error first', async () => {
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

  it('makes the record unknown when idempotencyErrors() is before the routes', async () => {
    const guard = guardOf()
    const app = express()
    app.use(idempotencyErrors())
    app.post('/', guard, caught(lost))
    app.use(swallow)
    const { send } = await serve(app)
    await send({ key: 'k' })
    expect(await guard.engine.list({ state: 'unknown' })).toHaveLength(1)
  })

  it('releases the key when the other error handler is on an unrelated router', async () => {
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

  it.each([502, 504])('makes the record unknown when the handler replies %i', async (status) => {
    const { send, state } = await setup(express, (_req, res) => res.sendStatus(status))
    expect((await send({ key: 'k' })).status).toBe(status)
    expect(await state()).toBe('unknown')
  })
})

describe.each(EXPRESSES)('%s: a success', (_name, express) => {
  it('records a success although the handler called notExecuted()', async () => {
    const { send, state, runs } = await setup(express, (req, res) => {
      req.idempotency!.notExecuted()
      res.status(201).json({ id: 1 })
    })
    expect((await send({ key: 'k' })).status).toBe(201)
    expect(await state()).toBe('completed')
    expect((await send({ key: 'k' })).status).toBe(201)
    expect(runs()).toBe(1)
  })

  it('records a success that an error handler sends for a NotExecutedError', async () => {
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

  it('sends 409 in place of a success when the handler called outcomeUnknown()', async () => {
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
  // The store fails after the duplicate has found its key in use by the first request.
  it('a duplicate never runs unprotected after it found its key in use', async () => {
    const records = memoryStore()
    let claims = 0
    const store = wrapStore(records, {
      claim: async (requests) => {
        claims++
        if (claims > 2) throw new Error('the store is down')
        return records.claim(requests)
      },
    })
    const [inside, proceed] = [gate(), gate()]
    const { send, runs } = await setup(
      express,
      async (_req, res) => {
        inside.open()
        await proceed.passed
        res.json({ ok: true })
      },
      { guard: { store, onStoreFailure: 'open', whileInProgress: { waitMs: 10_000 } } },
    )
    const first = send({ key: 'k' })
    await inside.passed
    expect(problemOf(await send({ key: 'k' }))).toEqual([503, 'idempotency_store_unavailable'])
    proceed.open()
    expect((await first).status).toBe(200)
    expect(runs()).toBe(1)
  })

  it('an accepted duplicate gets 202 without Idempotency-Expires', async () => {
    const [inside, proceed] = [gate(), gate()]
    const { send } = await setup(
      express,
      async (_req, res) => {
        inside.open()
        await proceed.passed
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
    proceed.open()
    await first
  })
})
