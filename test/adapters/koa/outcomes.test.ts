/** Keys, tenants, stores and transactions in Koa. */
import { DatabaseSync } from 'node:sqlite'
import type { Middleware } from 'koa'
import { describe, expect, it, onTestFinished } from 'vitest'
import { idempotencyOf } from '../../../src/adapters/koa/index.ts'
import { StoreFailedError } from '../../../src/core/errors.ts'
import { memoryStore } from '../../../src/stores/memory/store.ts'
import { sqliteStore, type SqliteTransaction } from '../../../src/stores/sqlite/index.ts'
import { scratchFolder } from '../../stores/scratch-folder.ts'
import { gate, header, problemOf, text, wrapStore } from '../run-express.ts'
import { counted, guardOf, KOAS, Router, serveKoa, tempStore, type KoaModule } from '../run-koa.ts'

const done = () =>
  counted((ctx, run) => {
    ctx.status = 201
    ctx.body = `run ${run}`
  })

const broken = (operation: 'claim' | 'settle') => () =>
  Promise.reject(new StoreFailedError({ store: 'test', operation, cause: new Error('down') }))

/** Serves a handler with a table in the database that holds the keys. */
async function withPayments(koa: KoaModule, handle: Middleware) {
  const folder = scratchFolder()
  const path = folder.file('app.db')
  const store = sqliteStore({ path, synchronous: 'normal' })
  const db = new DatabaseSync(path)
  onTestFinished(async () => {
    db.close()
    await store.close()
    folder.remove()
  })
  db.exec('CREATE TABLE payment (amount INTEGER)')
  const handler = counted((ctx) => handle(ctx, async () => undefined))
  const served = await serveKoa(koa, guardOf({ store }), handler)
  return { ...served, handler, rows: () => db.prepare('SELECT * FROM payment').all().length }
}

const insert = (tx: SqliteTransaction) => tx.prepare('INSERT INTO payment VALUES (?)').run(7)

describe.each(KOAS)('%s', (_name, koa) => {
  it('returns 400 without running the handler for a missing or malformed key', async () => {
    const handler = done()
    const { send } = await serveKoa(koa, guardOf(), handler)
    const missing = await send()
    expect(problemOf(missing)).toEqual([400, 'idempotency_key_missing'])
    expect(header(missing, 'content-type')).toMatch('application/problem+json')
    expect(problemOf(await send({ key: 'x'.repeat(300) }))).toEqual([
      400,
      'idempotency_key_malformed',
    ])
    expect(handler.runs).toBe(0)
  })

  it('returns 422 to another request with the same key and still replays the first', async () => {
    const handler = done()
    const { send } = await serveKoa(koa, guardOf(), handler)
    await send({ key: 'k', json: { amount: 1 } })
    expect(problemOf(await send({ key: 'k', json: { amount: 2 } }))).toEqual([
      422,
      'idempotency_key_reused_with_different_payload',
    ])
    expect(text(await send({ key: 'k', json: { amount: 1 } }))).toBe('run 1')
  })

  it('returns 409 while the first request runs', async () => {
    const [entered, left] = [gate(), gate()]
    const handler = counted(async (ctx) => {
      entered.open()
      await left.passed
      ctx.body = 'done'
    })
    const { send } = await serveKoa(koa, guardOf(), handler)
    const first = send({ key: 'k' })
    await entered.passed
    const duplicate = await send({ key: 'k' })
    expect(problemOf(duplicate)).toEqual([409, 'idempotency_key_in_progress'])
    expect(Number(header(duplicate, 'retry-after'))).toBeGreaterThan(0)
    left.open()
    expect(text(await first)).toBe('done')
  })

  it('keeps the keys of tenants and of routes apart', async () => {
    const handler = done()
    const router = new Router()
    const guard = guardOf({ tenant: (ctx) => String(ctx.state['account']) })
    router.post('/payments', guard, handler)
    router.post('/refunds', guard, handler)
    const authenticate: Middleware = async (ctx, next) => {
      ctx.state['account'] = ctx.get('x-account')
      await next()
    }
    const { send } = await serveKoa(koa, authenticate, router.routes())
    const of = async (account: string, path: string) =>
      text(await send({ key: 'k', path, headers: { 'x-account': account } }))
    expect(await of('a', '/payments')).toBe('run 1')
    expect(await of('b', '/payments')).toBe('run 2')
    expect(await of('a', '/refunds')).toBe('run 3')
    expect(await of('a', '/payments')).toBe('run 1')
  })

  it('returns 503 without running the handler when the store fails', async () => {
    const handler = done()
    const store = wrapStore(memoryStore(), { claim: broken('claim') })
    const { send } = await serveKoa(koa, guardOf({ store }), handler)
    const refused = await send({ key: 'k' })
    expect(problemOf(refused)).toEqual([503, 'idempotency_store_unavailable'])
    expect(handler.runs).toBe(0)
  })

  it('runs the handler unprotected when the store fails and onStoreFailure is open', async () => {
    const handler = done()
    const store = wrapStore(memoryStore(), { claim: broken('claim') })
    const { send } = await serveKoa(koa, guardOf({ store, onStoreFailure: 'open' }), handler)
    expect(text(await send({ key: 'k' }))).toBe('run 1')
  })

  it('returns 503 instead of a success that could not be recorded', async () => {
    const store = wrapStore(memoryStore(), { settle: broken('settle') })
    const seen: number[] = []
    const log: Middleware = async (ctx, next) => {
      await next()
      seen.push(ctx.status)
    }
    const guard = guardOf({ store, settleTimeoutMs: 1 })
    const { send } = await serveKoa(koa, log, guard, done())
    expect(problemOf(await send({ key: 'k' }))).toEqual([503, 'idempotency_outcome_not_recorded'])
    expect(seen).toEqual([201])
  })

  it('commits the key with the rows and sends the reply that the callback returned', async () => {
    const { send, handler, rows } = await withPayments(koa, async (ctx) => {
      await idempotencyOf(ctx).transaction<SqliteTransaction>((tx) => {
        insert(tx)
        return { status: 201, headers: { Location: '/payments/1' }, body: 'paid' }
      })
    })
    for (const replayed of [undefined, 'true']) {
      const reply = await send({ key: 'k' })
      expect([reply.status, text(reply), header(reply, 'location')]).toEqual([
        201,
        'paid',
        '/payments/1',
      ])
      expect(header(reply, 'idempotent-replayed')).toBe(replayed)
    }
    expect([handler.runs, rows()]).toEqual([1, 1])
  })

  it('rolls back the rows and releases the key when the callback throws', async () => {
    let isBroken = true
    const { send, rows } = await withPayments(koa, async (ctx) => {
      await idempotencyOf(ctx).transaction<SqliteTransaction>((tx) => {
        insert(tx)
        if (isBroken) throw new Error('broken')
        return { status: 201 }
      })
    })
    expect((await send({ key: 'k' })).status).toBe(500)
    expect(rows()).toBe(0)
    isBroken = false
    expect((await send({ key: 'k' })).status).toBe(201)
    expect(rows()).toBe(1)
  })

  it('sends the reply that the handler set before a failed transaction', async () => {
    const { send } = await withPayments(koa, async (ctx) => {
      ctx.status = 202
      ctx.body = { queued: true }
      await idempotencyOf(ctx)
        .transaction(() => {
          throw new Error('broken')
        })
        .catch(() => undefined)
    })
    const reply = await send({ key: 'k' })
    expect([reply.status, text(reply)]).toEqual([202, '{"queued":true}'])
    expect(header(reply, 'content-type')).toMatch('application/json')
  })

  it('rolls back and releases the key when a transaction returns 429', async () => {
    let tries = 0
    const { send, rows } = await withPayments(koa, async (ctx) => {
      await idempotencyOf(ctx).transaction<SqliteTransaction>((tx) => {
        insert(tx)
        return { status: ++tries === 1 ? 429 : 201 }
      })
    })
    expect([(await send({ key: 'k' })).status, rows()]).toEqual([429, 0])
    expect([(await send({ key: 'k' })).status, rows()]).toEqual([201, 1])
  })

  it('fails a transaction that sets ctx.body instead of returning a reply', async () => {
    const { send, errors } = await withPayments(koa, async (ctx) => {
      await idempotencyOf(ctx).transaction(() => {
        ctx.body = 'not sent yet'
      })
    })
    expect((await send({ key: 'k' })).status).toBe(500)
    expect(errors[0]?.message).toMatch('the transaction callback must return the reply')
  })

  it('gives the handler its key, attempt and record id', async () => {
    const handler = counted(async (ctx) => {
      const { key, attempt, recordId } = idempotencyOf(ctx)
      ctx.body = { key, attempt, isOpaque: recordId !== key }
    })
    const { send } = await serveKoa(koa, guardOf({ store: tempStore() }), handler)
    expect(text(await send({ key: 'k' }))).toBe('{"key":"k","attempt":1,"isOpaque":true}')
  })

  it('returns 503 without running the handler after its engine is closed', async () => {
    const guard = guardOf()
    const handler = done()
    const { send } = await serveKoa(koa, guard, handler)
    await guard.engine.close()
    expect((await send({ key: 'k' })).status).toBe(503)
    expect(handler.runs).toBe(0)
  })
})
