/** A transaction that cannot begin, in apps with and without `idempotencyErrors()`. */
import type { ErrorRequestHandler } from 'express'
import { describe, expect, it, onTestFinished } from 'vitest'
import { idempotencyErrors } from '../../../../src/adapters/express/index.ts'
import { StoreFailedError } from '../../../../src/core/errors.ts'
import { sqliteStore } from '../../../../src/stores/sqlite/index.ts'
import { scratchFolder } from '../../../stores/scratch-folder.ts'
import {
  caught,
  EXPRESSES,
  guardOf,
  header,
  problemOf,
  serve,
  wrapStore,
  type ExpressModule,
} from '../../run-express.ts'

/** The first transaction fails to begin. `behind` is mounted after the route. */
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

const appErrors: ErrorRequestHandler = (error: { status?: number }, _req, res, _next) => {
  res.status(error.status ?? 500).json({ app: true })
}

describe.each(EXPRESSES)('%s: a transaction that cannot begin', (_name, express) => {
  const shown: readonly [string, () => ErrorRequestHandler[]][] = [
    ['no error handler', () => []],
    ['idempotencyErrors()', () => [idempotencyErrors()]],
    ['an error handler', () => [appErrors]],
    ['idempotencyErrors() before an error handler', () => [idempotencyErrors(), appErrors]],
  ]
  it.each(shown)(
    'returns 503 for a transaction that cannot begin with %s',
    async (_what, behind) => {
      const { send, record } = await setup(express, behind())
      const first = await send({ key: 'k' })
      expect(problemOf(first)).toEqual([503, 'idempotency_store_unavailable'])
      expect(header(first, 'retry-after')).toBe('1')
      expect(header(first, 'idempotency-transaction-failed')).toBeUndefined()
      expect(await record()).toMatchObject({ state: 'failed_retryable', proof: 'proven' })
      expect((await send({ key: 'k' })).status).toBe(201)
    },
  )
})
