/** Requests that a middleware answers while their key is claimed. */
import type { ErrorRequestHandler, Response } from 'express'
import { expect, it } from 'vitest'
import { idempotency, idempotencyErrors, singleTenant } from '../../src/adapters/express.ts'
import { memoryStore } from '../../src/stores/memory/memory-store.ts'
import { EXPRESSES, gate, serve, text, turns, wrapStore } from './run-express.ts'

it.each(EXPRESSES)('run nothing on %s, and use up no key', async (_name, express) => {
  const [claiming, goOn] = [gate(), gate()]
  const memory = memoryStore()
  const store = wrapStore(memory, {
    claim: async (requests) => {
      claiming.open()
      await goOn.passed
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
  goOn.open()
  await turns()
  expect(runs).toBe(0)
  expect(text(await send({ key: 'k' }))).toBe('paid')
  expect(runs).toBe(1)
})

it.each(EXPRESSES)(
  'stay unknown on %s where a time limit hands its error on while the handler runs',
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
    app.use(idempotencyErrors(), busy)
    const { send } = await serve(app)
    expect(text(await send({ key: 'k' }))).toBe('busy')
    expect((await send({ key: 'k' })).status).toBe(409)
    isDone.open()
    await turns()
    expect(runs).toBe(1)
  },
)
