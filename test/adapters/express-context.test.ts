import { describe, expect, it } from 'vitest'
import { idempotency, idempotencyOf, singleTenant } from '../../src/adapters/express.ts'
import { memoryStore } from '../../src/stores/memory/memory-store.ts'
import { EXPRESSES, serve } from './run-express.ts'

describe.each(EXPRESSES)('%s: idempotencyOf', (_name, express) => {
  it('gives a protected handler its key', async () => {
    const app = express()
    const guard = idempotency({ store: memoryStore(), tenant: singleTenant })
    app.post('/pay', guard, (req, res) => {
      const { key, attempt, scope } = idempotencyOf(req)
      res.json({ key, attempt, scope })
    })
    const { send } = await serve(app)
    const reply = await send({ path: '/pay', key: '"k-1"' })
    expect(JSON.parse(reply.body.toString())).toEqual({
      key: 'k-1',
      attempt: 1,
      scope: { tenant: 'single', operation: 'POST /pay' },
    })
  })

  it('says what to do where the route is not protected', async () => {
    const app = express()
    app.post('/pay', (req, res) => {
      let said = ''
      try {
        idempotencyOf(req)
      } catch (error) {
        said = (error as Error).message
      }
      res.json({ said })
    })
    const { send } = await serve(app)
    const reply = await send({ path: '/pay', key: 'k-1' })
    expect(reply.body.toString()).toContain('POST /pay is not protected: mount idempotency()')
  })
})
