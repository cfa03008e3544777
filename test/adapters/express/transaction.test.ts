import { once } from 'node:events'
import type { ErrorRequestHandler, Request, Response } from 'express'
import { describe, expect, it } from 'vitest'
import { StoreFailedError } from '../../../src/core/errors.ts'
import type { Store } from '../../../src/core/store/store.ts'
import { memoryStore } from '../../../src/stores/memory/store.ts'
import type { SqliteTransaction } from '../../../src/stores/sqlite/index.ts'
import { insert, payingApp } from '../paying-app.ts'
import {
  EXPRESSES,
  caught,
  gate,
  guardOf,
  header,
  json,
  problemOf,
  serve,
  text,
  turns,
  wrapStore,
  type ExpressModule,
} from '../run-express.ts'

type Handler = (req: Request, res: Response, run: number) => unknown

function setup(express: ExpressModule, handler: Handler, wrap?: (store: Store) => Store) {
  const options = wrap === undefined ? {} : { wrap }
  return payingApp(express, ({ req, res, run }) => handler(req, res, run), options)
}

describe.each(EXPRESSES)('%s: a second transaction', (_name, express) => {
  const commit = (req: Request, res: Response, amount: number) =>
    req.idempotency!.transaction<SqliteTransaction>((tx) => {
      insert(tx, amount)
      res.status(201).json({ amount })
    })

  it('rejects a second transaction, and keeps the reply of the first', async () => {
    const { send, record, amounts } = await setup(express, async (req, res) => {
      await commit(req, res, 1)
      await expect(commit(req, res, 2)).rejects.toThrow('has committed its result already')
    })
    const first = await send({ key: 'k' })
    expect([first.status, json(first)]).toEqual([201, { amount: 1 }])
    expect((await record())?.state).toBe('completed')
    expect(amounts()).toEqual([1])
    expect(text(await send({ key: 'k' }))).toBe(text(first))
  })

  it('rejects a transaction that begins after the reply, and keeps the reply', async () => {
    const late = gate<unknown>()
    const { send, amounts } = await setup(express, (req, res) => {
      res.status(201).json({ plain: true })
      res.on('finish', () => {
        commit(req, res, 2).then(late.open, late.open)
      })
    })
    const first = await send({ key: 'k' })
    expect([first.status, json(first)]).toEqual([201, { plain: true }])
    expect(await late.passed).toMatchObject({ message: expect.stringContaining('has ended') })
    expect(amounts()).toEqual([])
    expect(text(await send({ key: 'k' }))).toBe(text(first))
  })
})

describe.each(EXPRESSES)('%s: a transaction', (_name, express) => {
  it.each(['synchronous', 'asynchronous'])(
    'commits the row, the key and the reply of %s work together',
    async (kind) => {
      const { send, record, amounts, runs } = await setup(express, async (req, res) => {
        await req.idempotency!.transaction<SqliteTransaction>((tx) => {
          insert(tx, 5)
          if (kind === 'synchronous') {
            res.status(201).json({ paid: 5 })
            return undefined
          }
          return Promise.resolve().then(() => {
            res.status(201).json({ paid: 5 })
          })
        })
      })
      for (let n = 0; n < 3; n++) {
        const reply = await send({ key: 'k' })
        expect([reply.status, json(reply)]).toEqual([201, { paid: 5 }])
        expect(header(reply, 'idempotency-expires')).toBeDefined()
      }
      expect(amounts()).toEqual([5])
      expect(await record()).toMatchObject({ state: 'completed', attempt: 1 })
      expect(runs()).toBe(1)
    },
  )

  it('rolls back row and reply when a transaction throws, and a retry runs', async () => {
    const { send, record, amounts, runs } = await setup(express, async (req, res, run) => {
      await req.idempotency!.transaction<SqliteTransaction>((tx) => {
        insert(tx, run)
        res.status(201).set('X-Run', String(run)).json({ run })
        if (run === 1) throw new Error('constraint failed')
      })
    })
    const failed = await send({ key: 'k' })
    expect(failed.status).toBe(500)
    expect(text(failed)).not.toContain('"run"')
    // The error contains nothing of the discarded reply.
    expect(failed.headers.has('x-run')).toBe(false)
    expect(await record()).toMatchObject({ state: 'failed_retryable', proof: 'proven' })
    expect(amounts()).toEqual([])

    expect(json(await send({ key: 'k' }))).toEqual({ run: 2 })
    expect(header(await send({ key: 'k' }), 'idempotent-replayed')).toBe('true')
    expect(amounts()).toEqual([2])
    expect(runs()).toBe(2)
  })

  it.each(['before', 'after'])(
    'records the 402 of a handler whose transaction throws %s replying',
    async (when) => {
      const { send, amounts, runs } = await setup(express, async (req, res) => {
        try {
          await req.idempotency!.transaction<SqliteTransaction>((tx) => {
            insert(tx, 5)
            if (when === 'after') res.status(201).json({ paid: 5 })
            throw new Error('no funds')
          })
        } catch {
          res.status(402).json({ declined: true })
        }
      })
      for (let n = 0; n < 2; n++) {
        const reply = await send({ key: 'k' })
        expect([reply.status, json(reply)]).toEqual([402, { declined: true }])
      }
      expect(amounts()).toEqual([])
      expect(runs()).toBe(1)
    },
  )

  it.each([500, 503, 401, 429])(
    'rolls back a transaction that replies %i, and a retry runs',
    async (status) => {
      const { send, record, amounts } = await setup(express, async (req, res, run) => {
        await req.idempotency!.transaction<SqliteTransaction>((tx) => {
          insert(tx, run)
          res.status(run === 1 ? status : 201).json({ run })
        })
      })
      const refused = await send({ key: 'k' })
      expect([refused.status, json(refused)]).toEqual([status, { run: 1 }])
      expect(await record()).toMatchObject({ state: 'failed_retryable' })
      expect(amounts()).toEqual([])
      expect(json(await send({ key: 'k' }))).toEqual({ run: 2 })
      expect(amounts()).toEqual([2])
    },
  )

  it('rejects a transaction that sends and returns no reply', async () => {
    const { send, amounts, errors } = await setup(express, async (req) => {
      await req.idempotency!.transaction<SqliteTransaction>((tx) => {
        insert(tx, 5)
      })
    })
    expect((await send({ key: 'k' })).status).toBe(500)
    expect(errors).toEqual([
      expect.objectContaining({
        code: 'INVALID_REQUEST',
        message: expect.stringContaining(
          'must return the reply, or send the whole of it before it returns',
        ),
      }),
    ])
    expect(amounts()).toEqual([])
  })

  it('commits the head of a reply above the cap with the transaction', async () => {
    const { send, amounts, runs } = await setup(express, async (req, res) => {
      await req.idempotency!.transaction<SqliteTransaction>((tx) => {
        insert(tx, 5)
        res.end('x'.repeat(2000))
      })
    })
    expect(text(await send({ key: 'k' }))).toBe('x'.repeat(2000))
    expect(header(await send({ key: 'k' }), 'idempotent-body-elided')).toBe('true')
    expect(amounts()).toEqual([5])
    expect(runs()).toBe(1)
  })

  it('commits a transaction that the handler does not await before the reply is sent', async () => {
    const { send, amounts } = await setup(express, (req, res) => {
      req
        .idempotency!.transaction<SqliteTransaction>((tx) => {
          insert(tx, 5)
          res.json({ paid: 5 })
        })
        .catch(() => undefined)
    })
    expect((await send({ key: 'k' })).status).toBe(200)
    expect(amounts()).toEqual([5])
  })

  it('commits a second transaction after the first one failed', async () => {
    const { send, amounts, runs } = await setup(express, async (req, res) => {
      const pay = (amount: number) =>
        req.idempotency!.transaction<SqliteTransaction>((tx) => {
          insert(tx, amount)
          res.status(200 + amount).json({ amount })
          if (amount === 1) throw new Error('serialization failure')
        })
      await pay(1).catch(() => pay(2))
    })
    for (let n = 0; n < 2; n++) {
      const reply = await send({ key: 'k' })
      expect([reply.status, json(reply)]).toEqual([202, { amount: 2 }])
    }
    expect(amounts()).toEqual([2])
    expect(runs()).toBe(1)
  })

  // The first transaction fails after its reply. While the guard reads the record, the second reply
  // is sent already, and its transaction is about to fail as well.
  it('sends the last reply of the handler when two transactions fail', async () => {
    const { send, amounts, runs } = await setup(express, async (req, res) => {
      const pay = (amount: number) => {
        res.status(200 + amount).json({ amount })
        return req.idempotency!.transaction<SqliteTransaction>(async (tx) => {
          insert(tx, amount)
          await turns(2)
          throw new Error('serialization failure')
        })
      }
      await pay(1)
        .catch(() => pay(2))
        .catch(() => res.status(402).json({ declined: true }))
    })
    for (let n = 0; n < 2; n++) {
      const reply = await send({ key: 'k' })
      expect([reply.status, json(reply)]).toEqual([402, { declined: true }])
    }
    expect(amounts()).toEqual([])
    expect(runs()).toBe(1)
  })

  it('rejects a transaction that begins after the reply has left', async () => {
    const caughtErrors: unknown[] = []
    const { send, amounts } = await setup(express, async (req, res) => {
      const sent = once(res, 'finish')
      res.json({ early: true })
      await sent
      await req
        .idempotency!.transaction<SqliteTransaction>((tx) => {
          insert(tx, 5)
        })
        .catch((error: unknown) => caughtErrors.push(error))
    })
    expect((await send({ key: 'k' })).status).toBe(200)
    await turns()
    const code: unknown = expect.stringMatching(/^(INVALID_OPTIONS|LEASE_LOST)$/)
    expect(caughtErrors).toEqual([expect.objectContaining({ code })])
    expect(amounts()).toEqual([])
  })

  it('returns 503 when the commit fails, and a retry runs', async () => {
    let breaks = true
    const { send, amounts, record, runs } = await setup(
      express,
      async (req, res, run) => {
        await req.idempotency!.transaction<SqliteTransaction>((tx) => {
          insert(tx, run)
          res.status(201).json({ run })
        })
      },
      (store) =>
        wrapStore(store, {
          transaction: async (lease, work) => {
            if (!breaks) return store.transaction!(lease, work)
            // The work runs, and then the commit fails.
            await store.transaction!(lease, async (tx) => {
              await work(tx)
              throw new Error('disk full')
            }).catch(() => undefined)
            const cause = new Error('disk full')
            throw new StoreFailedError({ store: 'sqlite', operation: 'commit', cause })
          },
        }),
    )
    const failed = await send({ key: 'k' })
    expect(problemOf(failed)).toEqual([503, 'idempotency_store_unavailable'])
    expect(amounts()).toEqual([])
    await turns()
    expect((await record())?.state).toBe('failed_retryable')
    breaks = false
    expect(json(await send({ key: 'k' }))).toEqual({ run: 2 })
    expect(amounts()).toEqual([2])
    expect(runs()).toBe(2)
  })

  it('sends the reply when only the answer to the commit was lost', async () => {
    const { send, amounts, runs } = await setup(
      express,
      async (req, res) => {
        await req.idempotency!.transaction<SqliteTransaction>((tx) => {
          insert(tx, 5)
          res.status(201).json({ paid: 5 })
        })
      },
      (store) =>
        wrapStore(store, {
          transaction: async (lease, work) => {
            await store.transaction!(lease, work)
            throw new Error('connection lost')
          },
        }),
    )
    for (let n = 0; n < 2; n++) expect((await send({ key: 'k' })).status).toBe(201)
    expect(amounts()).toEqual([5])
    expect(runs()).toBe(1)
  })

  it('rejects a transaction when the store does not support them', async () => {
    const app = express()
    const errors: Error[] = []
    const report: ErrorRequestHandler = (error, _req, res, _next) => {
      errors.push(error as Error)
      res.sendStatus(500)
    }
    app.post(
      '/',
      guardOf({ store: memoryStore() }),
      caught((req) => req.idempotency!.transaction(() => undefined)),
    )
    app.use(report)
    const { send } = await serve(app)
    expect((await send({ key: 'k' })).status).toBe(500)
    expect(errors[0]?.message).toContain('the memory store has no transactions')
  })
})
