/** A transaction that cannot begin, in apps that show the guard their errors or do not. */
import type { ErrorRequestHandler } from 'express'
import { describe, expect, it, onTestFinished } from 'vitest'
import { idempotencyErrors } from '../../src/adapters/express.ts'
import { StoreFailedError } from '../../src/core/errors.ts'
import { sqliteStore } from '../../src/stores/sqlite/index.ts'
import { scratchFolder } from '../stores/scratch-folder.ts'
import {
  caught,
  EXPRESSES,
  guardOf,
  header,
  json,
  problemOf,
  serve,
  wrapStore,
  type ExpressModule,
} from './run-express.ts'

/** The first transaction fails to begin; `behind` stands behind the route. */
async function setup(express: ExpressModule, behind: readonly ErrorRequestHandler[]) {
  const folder = scratchFolder()
  const store = sqliteStore({ path: folder.file('keys.db'), synchronous: 'normal' })
  onTestFinished(async () => {
    await store.close()
    folder.remove()
  })
  let failures = 1
  const wrapped = wrapStore(store, {
    transaction: async (lease, work) => {
      if (failures-- <= 0) return store.transaction(lease, work)
      const cause = new Error('connection refused')
      throw new StoreFailedError({ store: 'sqlite', operation: 'begin a transaction', cause })
    },
  })
  const guard = guardOf({ store: wrapped })
  const app = express()
  app.set('env', 'test')
  app.post(
    '/',
    guard,
    caught((req) => req.idempotency!.transaction(() => ({ status: 201, body: { paid: true } }))),
  )
  for (const handler of behind) app.use(handler)
  const { send } = await serve(app)
  const scope = { tenant: 'single', operation: 'POST /' }
  return { send, record: () => guard.engine.read({ scope, key: 'k' }) }
}

const house: ErrorRequestHandler = (error: { status?: number }, _req, res, _next) => {
  res.status(error.status ?? 500).json({ house: true })
}

describe.each(EXPRESSES)('%s: a transaction that cannot begin', (_name, express) => {
  const shown: readonly [string, () => ErrorRequestHandler[]][] = [
    ['no error handler', () => []],
    ['idempotencyErrors()', () => [idempotencyErrors()]],
    ['idempotencyErrors() and a handler of its own', () => [idempotencyErrors(), house]],
  ]
  it.each(shown)('is a 503 of the guard in an app with %s', async (_what, behind) => {
    const { send, record } = await setup(express, behind())
    const first = await send({ key: 'k' })
    expect(problemOf(first)).toEqual([503, 'idempotency_store_unavailable'])
    expect(header(first, 'retry-after')).toBe('1')
    expect(header(first, 'idempotency-transaction-failed')).toBeUndefined()
    expect(await record()).toMatchObject({ state: 'failed_retryable', proof: 'proven' })
    expect((await send({ key: 'k' })).status).toBe(201)
  })

  it('is unknown, with the reply of the app, where the guard sees no errors', async () => {
    const { send, record } = await setup(express, [house])
    const first = await send({ key: 'k' })
    expect([first.status, json(first)]).toEqual([503, { house: true }])
    expect(await record()).toMatchObject({ state: 'unknown' })
    expect(problemOf(await send({ key: 'k' }))).toEqual([409, 'idempotency_outcome_unknown'])
  })
})
