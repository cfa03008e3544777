/** An Express app whose handler writes payments into the database that holds the keys. */
import { DatabaseSync } from 'node:sqlite'
import type { ErrorRequestHandler, Request, Response } from 'express'
import { onTestFinished } from 'vitest'
import type { IdempotencyOptions } from '../../src/adapters/express/index.ts'
import type { Store } from '../../src/core/store/store.ts'
import type { HandlerContext } from '../../src/http/guard/handler-context.ts'
import { sqliteStore, type SqliteTransaction } from '../../src/stores/sqlite/index.ts'
import { scratchFolder } from '../stores/scratch-folder.ts'
import { caught, guardOf, serve, type ExpressModule } from './run-express.ts'

interface Run {
  readonly req: Request
  readonly res: Response
  readonly run: number
  readonly pay: HandlerContext['transaction']
  readonly context: HandlerContext
}

interface PayingOptions extends Partial<IdempotencyOptions> {
  readonly wrap?: (store: Store) => Store
}

export const insert = (tx: SqliteTransaction, amount: number) =>
  tx.prepare('INSERT INTO payment VALUES (?)').run(amount)

export async function payingApp(
  express: ExpressModule,
  handler: (run: Run) => unknown,
  { wrap = (store) => store, ...options }: PayingOptions = {},
) {
  const folder = scratchFolder()
  onTestFinished(folder.remove)
  const path = folder.file('app.db')
  const store = sqliteStore({ path, synchronous: 'normal' })
  onTestFinished(() => store.close())
  const db = new DatabaseSync(path)
  onTestFinished(() => db.close())
  db.exec('CREATE TABLE payment (amount INTEGER)')

  const guard = guardOf({ store: wrap(store), replyBytesMax: 1000, ...options })
  const app = express()
  const errors: unknown[] = []
  let runs = 0
  app.post(
    '/',
    guard,
    caught((req, res) => {
      const context = req.idempotency!
      const pay: HandlerContext['transaction'] = (work) => context.transaction(work)
      return handler({ req, res, run: ++runs, pay, context })
    }),
  )
  const report: ErrorRequestHandler = (error, _req, _res, next) => {
    errors.push(error)
    next(error)
  }
  app.use(report)
  const { send, connect } = await serve(app)
  const record = () =>
    guard.engine.read({ scope: { tenant: 'single', operation: 'POST /' }, key: 'k' })
  const amounts = () =>
    db
      .prepare('SELECT amount FROM payment')
      .all()
      .map((row) => row['amount'])
  return { send, connect, record, amounts, errors, db, runs: () => runs }
}
