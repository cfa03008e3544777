import express, { type Express } from 'express'
import type { Engine } from 'oncekey'
import { idempotency, idempotencyErrors } from 'oncekey/express'
import { createPayment, showPayment } from './payment-routes.ts'
import type { Payments } from './payments.ts'
import { answerErrors, answerNotFound } from './problems.ts'
import { authenticate, tenantOf } from './tokens.ts'

export interface AppParts {
  readonly engine: Engine
  readonly payments: Payments
}

export function createApp({ engine, payments }: AppParts): Express {
  const app = express()
  app.disable('x-powered-by')

  app.get('/healthz', (_req, res) => {
    res.json({ status: 'ok' })
  })

  const guard = idempotency({
    engine,
    tenant: tenantOf,
    operation: 'create-payment',
    // Right here, because everything the handler does is in the store's transaction: an attempt
    // that died before its commit has left nothing behind.
    onLapse: 'rerun',
  })

  // Who asks comes before the guard; the parser behind it, so that the guard sees what was sent.
  app.post('/payments', authenticate, guard, express.json(), createPayment(payments))
  app.get('/payments/:id', authenticate, showPayment(payments))

  app.use(answerNotFound)
  // The guard sees the error itself before it becomes just another status code.
  app.use(idempotencyErrors())
  app.use(answerErrors)
  return app
}
