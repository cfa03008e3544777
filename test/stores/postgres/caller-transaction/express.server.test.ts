import type { ErrorRequestHandler, Request, Response } from 'express'
import type pg from 'pg'
import { describe, expect, it } from 'vitest'
import { idempotencyOf } from '../../../../src/adapters/express/index.ts'
import {
  caught,
  EXPRESSES,
  gate,
  guardOf,
  header,
  json,
  problemOf,
  serve,
  text,
  type ExpressModule,
} from '../../../adapters/run-express.ts'
import type { OpenTransaction } from '../../caller-transaction/join-tools.ts'
import { withPg } from './tools.ts'
import { usePostgres } from '../setup.ts'

const openDatabase = usePostgres()

interface Scene {
  readonly req: Request
  readonly res: Response
  /** How often the handler has run. */
  readonly run: number
  readonly transact: <Result>(body: (open: OpenTransaction) => Promise<Result>) => Promise<Result>
}

async function setup(express: ExpressModule, handler: (scene: Scene) => Promise<unknown>) {
  const { open, connect, paid } = await openDatabase()
  const store = await open()
  const { transact } = withPg(connect())
  const guard = guardOf({ store, replyBytesMax: 1000 })
  const app = express()
  const errors: unknown[] = []
  let run = 0
  app.use((_req, res, next) => {
    res.set('X-Before', 'kept')
    next()
  })
  app.post(
    '/',
    guard,
    caught((req, res) => handler({ req, res, run: ++run, transact })),
  )
  const report: ErrorRequestHandler = (error, _req, res, _next) => {
    errors.push(error)
    res.status(500).json({ error: true })
  }
  app.use(report)
  const { send } = await serve(app)
  const record = () =>
    guard.engine.read({ scope: { tenant: 'single', operation: 'POST /' }, key: 'k' })
  return { send, record, paid, errors, runs: () => run }
}

describe.each(EXPRESSES)('%s: completeIn', (_name, express) => {
  it('commits the row, the key and the reply together', async () => {
    const { send, paid, runs } = await setup(express, async ({ req, res, transact }) => {
      const order = { id: 7 }
      await transact(async ({ tx, pay }) => {
        await pay('paid')
        const headers = { Location: '/orders/7', 'X-Order': '7' }
        await idempotencyOf(req).completeIn(tx, { status: 201, headers, body: order })
      })
      res.status(201).json(order)
    })
    const first = await send({ key: 'k' })
    expect([first.status, json(first)]).toEqual([201, { id: 7 }])
    expect(header(first, 'idempotent-replayed')).toBeUndefined()
    const second = await send({ key: 'k' })
    expect(header(second, 'idempotent-replayed')).toBe('true')
    expect([second.status, text(second)]).toEqual([201, text(first)])
    for (const name of ['location', 'x-order', 'content-type', 'idempotency-expires', 'x-before']) {
      expect(header(first, name)).toBeDefined()
      expect(header(second, name)).toBe(header(first, name))
    }
    expect(await paid()).toEqual(['paid'])
    expect(runs()).toBe(1)
  })

  it('sends the reply of completeIn after the commit, and not that of the handler', async () => {
    for (const sent of [200, 500]) {
      const { send } = await setup(express, async ({ req, res, transact }) => {
        await transact(({ tx }) => req.idempotency!.completeIn(tx, { status: 201, body: 'one' }))
        res.status(sent).set('X-Sent', 'yes').send('another')
      })
      for (let n = 0; n < 2; n++) {
        const reply = await send({ key: 'k' })
        expect([reply.status, text(reply)]).toEqual([201, 'one'])
        expect(header(reply, 'x-sent')).toBeUndefined()
      }
    }
  })

  it('sends the response of the handler if the transaction was rolled back', async () => {
    const { send, paid, record } = await setup(express, async ({ req, res, transact }) => {
      await transact(async ({ tx, pay }) => {
        await pay('paid')
        await req.idempotency!.completeIn(tx, { status: 201, body: 'paid' })
        throw new Error('declined')
      }).catch(() => res.status(402).send('declined'))
    })
    for (let n = 0; n < 2; n++) {
      const reply = await send({ key: 'k' })
      expect([reply.status, text(reply)]).toEqual([402, 'declined'])
    }
    expect(await paid()).toEqual([])
    expect(await record()).toMatchObject({ state: 'completed', attempt: 1 })
  })

  it('runs the handler again if an error rolled its transaction back', async () => {
    const { send, paid, record } = await setup(express, async ({ req, res, run, transact }) => {
      await transact(async ({ tx, pay }) => {
        await pay(`run ${run}`)
        await req.idempotency!.completeIn(tx, { status: 201, body: `run ${run}` })
        if (run === 1) throw new Error('constraint failed')
      })
      res.status(201).send(`run ${run}`)
    })
    expect((await send({ key: 'k' })).status).toBe(500)
    expect(await record()).toMatchObject({ state: 'failed_retryable', proof: 'declared' })
    expect(text(await send({ key: 'k' }))).toBe('run 2')
    expect(await paid()).toEqual(['run 2'])
  })

  // The handler ignores an SQL error, so PostgreSQL turns its COMMIT into a ROLLBACK.
  it('sends no success if the transaction did not commit', async () => {
    const { send, paid, errors, runs } = await setup(express, async ({ req, res, transact }) => {
      await transact(async ({ tx, pay }) => {
        await pay('paid')
        await req.idempotency!.completeIn(tx, { status: 201, body: 'paid' })
        await (tx as pg.Client).query('SELECT 1 / 0').catch(() => undefined)
      })
      res.status(200).send('done')
    })
    expect((await send({ key: 'k' })).status).toBe(500)
    expect(errors).toEqual([expect.objectContaining({ code: 'OUTCOME_UNKNOWN' })])
    expect(problemOf(await send({ key: 'k' }))).toEqual([409, 'idempotency_outcome_unknown'])
    expect(await paid()).toEqual([])
    expect(runs()).toBe(1)
  })

  it('rejects a reply that is never recorded, and a reply above the size limit', async () => {
    const refused: unknown[] = []
    const { send, paid } = await setup(express, async ({ req, res, transact }) => {
      const replies = [
        { status: 503 },
        { status: 401 },
        { status: 201, body: 'x'.repeat(1001) },
        { status: 201, headers: { 'Set-Cookie': 'a=b' } },
        { status: 99 },
        { status: 201, boody: 'misspelt' },
      ]
      for (const reply of replies) {
        const work = transact(async ({ tx, pay }) => {
          await pay('never')
          await req.idempotency!.completeIn(tx, reply)
        })
        await work.catch((error: unknown) => refused.push((error as { code?: unknown }).code))
      }
      res.status(402).end()
    })
    expect((await send({ key: 'k' })).status).toBe(402)
    expect(refused).toEqual(Array.from({ length: 6 }, () => 'INVALID_OPTIONS'))
    expect(await paid()).toEqual([])
  })

  it('answers a duplicate at once while the transaction stays open', async () => {
    const joined = gate()
    const held = gate()
    const { send, paid } = await setup(express, async ({ req, res, transact }) => {
      await transact(async ({ tx, pay }) => {
        await pay('paid')
        await req.idempotency!.completeIn(tx, { status: 201, body: 'paid' })
        joined.open()
        await held.passed
      })
      res.status(201).send('paid')
    })
    const first = send({ key: 'k' })
    await joined.passed
    expect(problemOf(await send({ key: 'k' }))).toEqual([409, 'idempotency_key_in_progress'])
    held.open()
    expect((await first).status).toBe(201)
    expect(await paid()).toEqual(['paid'])
  })
})
