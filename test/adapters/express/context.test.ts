import { setImmediate as nextTurn } from 'node:timers/promises'
import type { RequestHandler } from 'express'
import multer from 'multer'
import { describe, expect, it } from 'vitest'
import { singleTenant } from '../../../src/http/guard/guard-options.ts'
import { currentIdempotency } from '../../../src/http/guard/current.ts'
import { idempotency, idempotencyOf } from '../../../src/adapters/express/index.ts'
import { memoryStore } from '../../../src/stores/memory/store.ts'
import {
  EXPRESSES,
  caught,
  guardOf,
  json,
  serve,
  type ExpressModule,
  type Send,
} from '../run-express.ts'

describe.each(EXPRESSES)('%s: idempotencyOf', (_name, express) => {
  it('returns the key, attempt and scope to a protected handler', async () => {
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

  it('throws on an unprotected route, and says what to do', async () => {
    const app = express()
    app.post('/pay', (req, res) => {
      let message = ''
      try {
        idempotencyOf(req)
      } catch (error) {
        message = (error as Error).message
      }
      res.json({ message })
    })
    const { send } = await serve(app)
    const reply = await send({ path: '/pay', key: 'k-1' })
    expect(reply.body.toString()).toContain('POST /pay is not protected: mount idempotency()')
  })
})

const FORM: Send = {
  headers: { 'Content-Type': 'multipart/form-data; boundary=x' },
  body: '--x\r\nContent-Disposition: form-data; name="a"\r\n\r\n1\r\n--x--\r\n',
}

describe.each(EXPRESSES)('%s: currentIdempotency', (_name, express) => {
  const parsers: Readonly<Record<string, (e: ExpressModule) => RequestHandler>> = {
    none: () => (_req, _res, next) => next(),
    'express.json': (e) => e.json(),
    'express.text': (e) => e.text({ type: () => true }),
    multer: () => multer().none(),
  }

  it.each(Object.entries(parsers))(
    'returns the key deep in asynchronous code, behind the parser %s',
    async (name, parser) => {
      const app = express()
      const deep = async () => {
        await nextTurn()
        return currentIdempotency().key
      }
      app.post(
        '/',
        guardOf(),
        parser(express),
        caught(async (_req, res) => {
          res.json({ key: await deep() })
        }),
      )
      const { send } = await serve(app)
      const body: Send = name === 'multer' ? FORM : { json: { a: 1 } }
      const keys = Array.from({ length: 5 }, (_one, index) => `k-${index}`)
      const replies = await Promise.all(keys.map((key) => send({ key, ...body })))
      expect(replies.map((reply) => json(reply)['key'])).toEqual(keys)
    },
  )

  it('returns the key when the body arrives in small pieces', async () => {
    const app = express()
    app.post('/', guardOf(), express.json(), (_req, res) => {
      res.json({ key: currentIdempotency().key })
    })
    const { connect } = await serve(app)
    const client = await connect({
      key: 'k',
      headers: { 'Content-Type': 'application/json', 'Content-Length': 7 },
    })
    for (const piece of ['{"a', '":1', '}']) {
      client.socket.write(piece)
      await nextTurn()
    }
    expect(await client.until(/\}$/)).toContain('{"key":"k"}')
  })

  it('throws outside a protected request, and says what to do', async () => {
    const app = express()
    app.post('/', guardOf({ keyRequired: false }), (_req, res) => {
      expect(() => currentIdempotency()).toThrow('protect the route')
      res.end()
    })
    const { send } = await serve(app)
    expect((await send({})).status).toBe(200)
    expect(() => currentIdempotency()).toThrow('was called without a protected request')
  })
})
