/** Requests that a middleware answers while their key is claimed. */
import type { Response } from 'express'
import { expect, it } from 'vitest'
import { idempotency, singleTenant } from '../../src/adapters/express.ts'
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
