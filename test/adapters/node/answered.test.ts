/** Requests that middleware answers during the claim, or while the handler runs. */
import type { ErrorRequestHandler, Response } from 'express'
import { expect, it } from 'vitest'
import { singleTenant } from '../../../src/http/guard/guard-options.ts'
import { idempotency } from '../../../src/adapters/express/index.ts'
import { memoryStore } from '../../../src/stores/memory/store.ts'
import { EXPRESSES, gate, serve, text, turns, wrapStore } from '../run-express.ts'

it.each(EXPRESSES)(
  'runs nothing on %s when middleware replies during the claim',
  async (_name, express) => {
    const [claiming, proceed] = [gate(), gate()]
    const memory = memoryStore()
    const store = wrapStore(memory, {
      claim: async (requests) => {
        claiming.open()
        await proceed.passed
        return memory.claim(requests)
      },
    })
    const app = express()
    let [isFirst, runs] = [true, 0]
    app.use((_req, res: Response, next) => {
      if (isFirst) void claiming.passed.then(() => res.status(503).send('busy'))
      isFirst = false
      next()
    })
    app.post('/', idempotency({ store, tenant: singleTenant }), (_req, res) => {
      runs++
      res.send('paid')
    })
    const { send } = await serve(app)
    expect(text(await send({ key: 'k' }))).toBe('busy')
    proceed.open()
    await turns()
    expect(runs).toBe(0)
    expect(text(await send({ key: 'k' }))).toBe('paid')
    expect(runs).toBe(1)
  },
)

it.each(EXPRESSES)(
  'makes the record unknown on %s when a timeout passes its error on while the handler runs',
  async (_name, express) => {
    const [running, isDone] = [gate(), gate()]
    const app = express()
    let [isFirst, runs] = [true, 0]
    app.use((_req, _res, next) => {
      const error = Object.assign(new Error('too slow'), { code: 'ETIMEDOUT' })
      if (isFirst) void running.passed.then(() => next(error))
      isFirst = false
      next()
    })
    app.post(
      '/',
      idempotency({ store: memoryStore(), tenant: singleTenant }),
      async (_req, res) => {
        runs++
        running.open()
        await isDone.passed
        if (!res.headersSent) res.send('paid')
      },
    )
    const busy: ErrorRequestHandler = (_error, _req, res, _next) => {
      res.status(503).send('busy')
    }
    app.use(busy)
    const { send } = await serve(app)
    expect(text(await send({ key: 'k' }))).toBe('busy')
    expect((await send({ key: 'k' })).status).toBe(409)
    isDone.open()
    await turns()
    expect(runs).toBe(1)
  },
)
