import { describe, expect, it } from 'vitest'
import type { SqliteTransaction } from '../../../src/stores/sqlite/index.ts'
import { insert, payingApp } from '../paying-app.ts'
import { flippingLater } from '../../http/reply/encryptions.ts'
import { EXPRESSES, gate, header, json, problemOf, text, turns, wrapStore } from '../run-express.ts'

const PAID = { status: 201, headers: { 'X-Paid': 'yes' }, body: { paid: true } }

describe.each(EXPRESSES)('%s: a reply that a transaction returns', (_name, express) => {
  it.each(['synchronously', 'asynchronously'])(
    'sends a reply returned %s, and replays it',
    async (when) => {
      const { send, amounts, record, runs } = await payingApp(express, async ({ pay }) => {
        await pay<SqliteTransaction>((tx) => {
          insert(tx, 5)
          return when === 'asynchronously' ? Promise.resolve(PAID) : PAID
        })
      })
      const first = await send({ key: 'k' })
      const replay = await send({ key: 'k' })
      for (const reply of [first, replay]) {
        expect([reply.status, json(reply)]).toEqual([201, { paid: true }])
        expect(header(reply, 'content-type')).toBe('application/json; charset=utf-8')
        expect(header(reply, 'idempotency-expires')).toBeDefined()
        // All headers of a returned reply are recorded, also those that storeHeaders does not name.
        expect(header(reply, 'x-paid')).toBe('yes')
      }
      expect(header(first, 'idempotent-replayed')).toBeUndefined()
      expect(header(replay, 'idempotent-replayed')).toBe('true')
      expect(amounts()).toEqual([5])
      expect(await record()).toMatchObject({ state: 'completed', attempt: 1 })
      expect(runs()).toBe(1)
    },
  )

  it('sends the returned reply, not what the handler sends before, within or after', async () => {
    const { send, amounts } = await payingApp(express, async ({ res, pay }) => {
      res.set('X-Early', '1').status(202)
      await pay<SqliteTransaction>((tx) => {
        insert(tx, 5)
        res.json({ sent: 'within' })
        return PAID
      })
      if (!res.headersSent) res.json({ sent: 'after' })
    })
    for (let n = 0; n < 2; n++) {
      const reply = await send({ key: 'k' })
      expect([reply.status, json(reply)]).toEqual([201, { paid: true }])
      expect(reply.headers.has('x-early')).toBe(false)
    }
    expect(amounts()).toEqual([5])
  })

  it('sends the returned reply although the handler fails after the commit', async () => {
    const { send, amounts, errors, record } = await payingApp(express, async ({ pay }) => {
      const paid = pay<SqliteTransaction>((tx) => {
        insert(tx, 5)
        return PAID
      })
      await paid
      throw new Error('after the commit')
    })
    for (let n = 0; n < 2; n++) expect((await send({ key: 'k' })).status).toBe(201)
    expect(errors).toEqual([expect.objectContaining({ message: 'after the commit' })])
    expect((await record())?.state).toBe('completed')
    expect(amounts()).toEqual([5])
  })

  it('sends the returned reply although the handler does not await the transaction', async () => {
    const { send, amounts } = await payingApp(express, ({ pay }) => {
      pay<SqliteTransaction>((tx) => {
        insert(tx, 5)
        return PAID
      }).catch(() => undefined)
    })
    for (let n = 0; n < 2; n++) expect((await send({ key: 'k' })).status).toBe(201)
    expect(amounts()).toEqual([5])
  })

  it('sends nothing before the commit, even if the handler has sent another reply', async () => {
    const inside = gate()
    const proceed = gate()
    const { connect, amounts } = await payingApp(express, ({ res, pay }) => {
      pay<SqliteTransaction>(async (tx) => {
        insert(tx, 5)
        inside.open()
        await proceed.passed
        return PAID
      }).catch(() => undefined)
      res.status(202).json({ hasty: true })
    })
    const client = await connect({ key: 'k' })
    await inside.passed
    await turns()
    expect(client.received).toBe('')
    proceed.open()
    expect(await client.until(/\}$/)).toMatch(/^HTTP\/1.1 201 [^]*\{"paid":true\}$/)
    expect(amounts()).toEqual([5])
  })

  it.each([500, 503, 401, 429])(
    'rolls back for a returned %i, sends it, and lets a retry run',
    async (status) => {
      const { send, record, amounts } = await payingApp(express, async ({ pay, run }) => {
        await pay<SqliteTransaction>((tx) => {
          insert(tx, run)
          return { status: run === 1 ? status : 201, body: { run } }
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

  it("records a returned 5xx with onError: 'store', and rolls back its rows", async () => {
    const { send, amounts, runs } = await payingApp(
      express,
      async ({ pay }) => {
        await pay<SqliteTransaction>((tx) => {
          insert(tx, 5)
          return { status: 500, headers: { 'X-Why': 'full' }, body: 'no room' }
        })
      },
      { onError: 'store' },
    )
    const [first, second] = [await send({ key: 'k' }), await send({ key: 'k' })]
    expect([first.status, text(first)]).toEqual([500, 'no room'])
    expect([second.status, header(second, 'x-why')]).toEqual([500, 'full'])
    expect(runs()).toBe(1)
    expect(amounts()).toEqual([])
  })

  it('rolls back a returned success of unknown outcome, and sends 409', async () => {
    const { send, record, amounts } = await payingApp(express, async ({ pay, context }) => {
      const { OutcomeUnknownError } = await import('../../../src/core/errors.ts')
      context.failed(new OutcomeUnknownError('the provider was silent'))
      await pay<SqliteTransaction>((tx) => {
        insert(tx, 5)
        return PAID
      })
    })
    expect(problemOf(await send({ key: 'k' }))).toEqual([409, 'idempotency_outcome_unknown'])
    expect((await record())?.state).toBe('unknown')
    expect(amounts()).toEqual([])
  })

  it('sends a returned reply above the cap, and replays it without its body', async () => {
    const { send, amounts, runs } = await payingApp(express, async ({ pay }) => {
      await pay<SqliteTransaction>((tx) => {
        insert(tx, 5)
        return { status: 201, headers: { 'X-Id': '7' }, body: 'x'.repeat(2000) }
      })
    })
    expect(text(await send({ key: 'k' }))).toBe('x'.repeat(2000))
    const replay = await send({ key: 'k' })
    expect([replay.status, header(replay, 'x-id')]).toEqual([201, '7'])
    expect(header(replay, 'idempotent-body-elided')).toBe('true')
    expect(amounts()).toEqual([5])
    expect(runs()).toBe(1)
  })

  it('waits for an asynchronous encryption hook', async () => {
    const { send, record } = await payingApp(
      express,
      async ({ pay }) => {
        await pay<SqliteTransaction>((tx) => {
          insert(tx, 5)
          return PAID
        })
      },
      {
        encryption: {
          encrypt: async (bytes, context) => {
            await turns(2)
            return flippingLater.encrypt(bytes, context)
          },
          decrypt: flippingLater.decrypt,
        },
      },
    )
    for (let n = 0; n < 2; n++) expect(json(await send({ key: 'k' }))).toEqual({ paid: true })
    expect(Buffer.from((await record())!.result!).includes('paid')).toBe(false)
  })

  it('sends the reply of a second transaction after the first one failed', async () => {
    const { send, amounts, runs } = await payingApp(express, async ({ res, pay }) => {
      const attempt = (amount: number) =>
        pay<SqliteTransaction>((tx) => {
          insert(tx, amount)
          res.status(200).json({ taken: 'back' })
          if (amount === 1) throw new Error('serialization failure')
          return { status: 201, body: { amount } }
        })
      await attempt(1).catch(() => attempt(2))
    })
    for (let n = 0; n < 2; n++) {
      const reply = await send({ key: 'k' })
      expect([reply.status, json(reply)]).toEqual([201, { amount: 2 }])
    }
    expect(amounts()).toEqual([2])
    expect(runs()).toBe(1)
  })

  it('rejects a second transaction after one that returned its reply', async () => {
    const { send, amounts, errors } = await payingApp(express, async ({ pay }) => {
      for (const amount of [1, 2]) {
        await pay<SqliteTransaction>((tx) => {
          insert(tx, amount)
          return { status: 201, body: { amount } }
        })
      }
    })
    for (let n = 0; n < 2; n++) expect(json(await send({ key: 'k' }))).toEqual({ amount: 1 })
    expect(amounts()).toEqual([1])
    await turns()
    expect(errors).toEqual([
      expect.objectContaining({
        message: expect.stringMatching(/has committed its result already|has ended already/),
      }),
    ])
  })

  it('rejects a second transaction also after a returned reply was rolled back', async () => {
    const refused = gate<unknown[]>()
    const { send, amounts, record } = await payingApp(
      express,
      async ({ res, run, pay, context }) => {
        await pay<SqliteTransaction>((tx) => {
          insert(tx, run)
          return run === 1 ? { status: 503, body: { run } } : PAID
        })
        if (run > 1) return
        const second = pay<SqliteTransaction>((tx) => {
          insert(tx, 10)
          res.json({ second: true })
        })
        const tries = [second, context.completeIn({}, PAID)]
        refused.open(await Promise.all(tries.map((one) => one.catch(String))))
      },
    )
    const first = await send({ key: 'k' })
    expect([first.status, json(first)]).toEqual([503, { run: 1 }])
    const error = expect.stringContaining('an earlier transaction has returned')
    expect(await refused.passed).toEqual([error, error])
    expect(amounts()).toEqual([])
    expect((await record())?.state).toBe('failed_retryable')
    expect((await send({ key: 'k' })).status).toBe(201)
    expect(amounts()).toEqual([2])
  })

  it('sends no reply before its transaction ends, even if a second one was rejected', async () => {
    const { send, amounts, record } = await payingApp(express, async ({ res, run, pay }) => {
      const proceed = gate()
      const first = pay<SqliteTransaction>(async (tx) => {
        insert(tx, run)
        res.status(201).json({ run })
        await proceed.passed
        if (run === 1) throw new Error('constraint failed')
      })
      await expect(pay(() => PAID)).rejects.toThrow('still open')
      await turns()
      proceed.open()
      await first
    })
    expect((await send({ key: 'k' })).status).toBe(500)
    expect((await record())?.state).toBe('failed_retryable')
    expect(amounts()).toEqual([])
    expect(json(await send({ key: 'k' }))).toEqual({ run: 2 })
    expect(amounts()).toEqual([2])
  })

  it('sends the returned reply when only the answer to the commit was lost', async () => {
    const { send, amounts, runs } = await payingApp(
      express,
      async ({ pay }) => {
        await pay<SqliteTransaction>((tx) => {
          insert(tx, 5)
          return PAID
        })
      },
      {
        wrap: (store) =>
          wrapStore(store, {
            transaction: async (lease, work) => {
              await store.transaction!(lease, work)
              throw new Error('connection lost')
            },
          }),
      },
    )
    for (let n = 0; n < 2; n++) expect((await send({ key: 'k' })).status).toBe(201)
    expect(amounts()).toEqual([5])
    expect(runs()).toBe(1)
  })

  const wrong: Readonly<Record<string, unknown>> = {
    'without a status': { body: 'x' },
    'with an invalid status': { status: 42 },
    'with a cookie': { status: 201, headers: { 'Set-Cookie': 'a=b' } },
    'that is a web response': new globalThis.Response('x', { status: 201 }),
    'with a stream as its body': { status: 201, body: new ReadableStream() },
    'that is a string': 'paid',
  }

  it.each(Object.entries(wrong))(
    'rejects a returned reply %s, and rolls back',
    async (_what, reply) => {
      const { send, amounts, errors } = await payingApp(express, async ({ pay }) => {
        await pay<SqliteTransaction>((tx) => {
          insert(tx, 5)
          return reply as typeof PAID
        })
      })
      expect((await send({ key: 'k' })).status).toBe(500)
      expect(errors).toEqual([expect.objectContaining({ code: 'INVALID_OPTIONS' })])
      expect(amounts()).toEqual([])
    },
  )

  it('treats the result of `return res.json()` as sent, not as a returned reply', async () => {
    const { send, amounts } = await payingApp(express, async ({ res, pay }) => {
      await pay<SqliteTransaction>((tx) => {
        insert(tx, 5)
        return res.status(201).json({ sent: true }) as unknown as typeof PAID
      })
    })
    for (let n = 0; n < 2; n++) expect(json(await send({ key: 'k' }))).toEqual({ sent: true })
    expect(amounts()).toEqual([5])
  })
})
