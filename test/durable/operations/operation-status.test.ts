/** A client whose work is accepted gets 202, follows the Location, and gets the reply there. */
import express from 'express'
import { expect, it, onTestFinished } from 'vitest'
import { singleTenant as tenant } from '../../../src/http/guard/guard-options.ts'
import {
  idempotency,
  idempotencyOf,
  idempotencyStatus,
} from '../../../src/adapters/express/index.ts'
import { createEngine } from '../../../src/core/engine/engine.ts'
import { createWorker, defineOperation } from '../../../src/durable/index.ts'
import { sqliteStore, type SqliteTransaction } from '../../../src/stores/sqlite/index.ts'
import { FakeClock } from '../../../src/testing/index.ts'
import { header, json, serve, text } from '../../adapters/run-express.ts'
import { scratchFolder } from '../../stores/scratch-folder.ts'

async function setup() {
  const folder = scratchFolder()
  const clock = new FakeClock()
  const store = sqliteStore({ path: folder.file('keys.db'), synchronous: 'normal', clock })
  const engine = createEngine({ store, clock, sweepEveryMs: 0, reapEveryMs: 0 })
  onTestFinished(async () => {
    await engine.close()
    await store.close()
    folder.remove()
  })
  let failures = 1
  const transfer = defineOperation({
    name: 'transfers.create',
    run: async (op, input: { amount: number }) => {
      await op.transaction('record', async (_tx: SqliteTransaction) => ({ recorded: true }))
      if (failures-- > 0) throw new Error('not this time')
      return { status: 201, headers: { Location: '/transfers/1' }, body: input }
    },
  })
  const statusUrl = (recordId: string) => `/operations/${recordId}`
  const guard = idempotency({ engine, tenant, statusUrl })
  const app = express()
  app.post('/transfers', express.json(), guard.with(transfer.route), async (req) => {
    await transfer.accept(idempotencyOf(req), req.body as { amount: number })
  })
  app.get('/operations/:id', idempotencyStatus({ engine, tenant, statusUrl }))
  const { send } = await serve(app)
  const worker = createWorker({ engine, operations: [transfer] })
  return { send, worker, clock }
}

it('shows an accepted operation as pending, also after a failure, and then its reply', async () => {
  const { send, worker, clock } = await setup()
  const post = () => send({ path: '/transfers', key: 'k', json: { amount: 3 } })
  const accepted = await post()
  expect(accepted.status).toBe(202)
  const path = header(accepted, 'location')!
  const ask = () => send({ method: 'GET', path })

  const waiting = await ask()
  expect([waiting.status, json(waiting)['status']]).toEqual([202, 'pending'])
  expect(header(waiting, 'location')).toBe(path)

  expect(await worker.runOnce()).toMatchObject({ failed: 1 })
  const left = await ask()
  expect([left.status, json(left)['status']]).toEqual([202, 'pending'])

  clock.advance(60_000)
  expect(await worker.runOnce()).toMatchObject({ completed: 1 })
  const done = await ask()
  const retry = await post()
  expect([done.status, text(done)]).toEqual([201, '{"amount":3}'])
  expect([retry.status, text(retry)]).toEqual([201, '{"amount":3}'])
  for (const name of ['location', 'content-type', 'idempotency-expires', 'idempotent-replayed']) {
    expect([name, header(done, name)]).toEqual([name, header(retry, name)])
  }
})
