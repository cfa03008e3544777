import express, { type Express } from 'express'
import type { Engine } from 'oncekey'
import type { Reconciler } from 'oncekey/durable'
import {
  auditRoutes,
  idempotency,
  idempotencyErrors,
  idempotencyOf,
  idempotencyStatus,
  keepRawBody,
  requireProtected,
} from 'oncekey/express'
import type { Database } from './database/database.ts'
import type { AddedOperations } from './extension.ts'
import { checkBody } from './input.ts'
import type { Operations } from './operations.ts'
import { findOrder, orderInput, type OrderInput } from './orders/order.ts'
import { findPayment, paymentInput, type PaymentInput } from './payments/payment.ts'
import { answerErrors, answerNotFound } from './problems.ts'
import { limitInFlight, rateLimit } from './rate-limit.ts'
import { findRefund, refundBody, type RefundBody } from './refunds/refund.ts'
import { requirePaymentId } from './refunds/require-payment-id.ts'
import type { Settings } from './settings.ts'
import { showFound } from './show-found.ts'
import { authenticate, tenantOf } from './tokens.ts'
import { findTransfer, transferInput, type TransferInput } from './transfers/transfer.ts'
import { readRawBody, receiveEvent } from './webhooks/receive-event.ts'

export interface ApiParts {
  readonly engine: Engine
  readonly database: Database
  readonly operations: Operations
  readonly mount: AddedOperations['mount']
  readonly reconciler: Reconciler
  readonly settings: Pick<Settings, 'tokens' | 'ratePerSecond' | 'inFlightMax' | 'webhookSecret'>
}

/** The largest valid body has a few hundred bytes. Whatever is longer is not even parsed. */
const BODY_LIMIT = '16kb'

const statusUrl = (recordId: string) => `/operations/${recordId}`

/** Every route of the API, in one place. */
export function mountApi(app: Express, parts: ApiParts): void {
  const { engine, database, operations, mount, reconciler, settings } = parts
  const { createPayment, createRefund, createOrder, createTransfer } = operations
  const { tokens, ratePerSecond, inFlightMax, webhookSecret } = settings
  const { query } = database

  const webhook = receiveEvent({ database, reconciler, webhookSecret })
  app.post('/webhooks/provider', readRawBody, webhook)

  // From here on: who asks, and how often. The parser keeps the bytes, so that the guard compares
  // what was sent. What an operation replies leaves by itself, so its handler has nothing to send.
  app.use(authenticate(tokens), rateLimit(ratePerSecond), limitInFlight(inFlightMax))
  const json = express.json({ limit: BODY_LIMIT, verify: keepRawBody })
  const guard = idempotency({ engine, tenant: tenantOf, statusUrl })

  app.post(
    '/payments',
    json,
    checkBody(paymentInput),
    guard.with(createPayment.route),
    async (req) => {
      await createPayment.run(idempotencyOf(req), req.body as PaymentInput)
    },
  )
  app.post(
    '/payments/:id/refunds',
    json,
    requirePaymentId,
    checkBody(refundBody),
    guard.with(createRefund.route),
    async (req) => {
      const { amountCents } = req.body as RefundBody
      await createRefund.run(idempotencyOf(req), { paymentId: req.params.id, amountCents })
    },
  )
  app.post('/orders', json, checkBody(orderInput), guard.with(createOrder.route), async (req) => {
    await createOrder.run(idempotencyOf(req), req.body as OrderInput)
  })
  app.post(
    '/transfers',
    json,
    checkBody(transferInput),
    guard.with(createTransfer.route),
    async (req) => {
      // Answered with 202: a worker runs it, and the client asks at /operations/:id.
      await createTransfer.accept(idempotencyOf(req), req.body as TransferInput)
    },
  )

  mount(app, { json, guard })

  app.get('/payments/:id', showFound('payment', findPayment, query))
  app.get('/refunds/:id', showFound('refund', findRefund, query))
  app.get('/orders/:id', showFound('order', findOrder, query))
  app.get('/transfers/:id', showFound('transfer', findTransfer, query))
  app.get('/operations/:id', idempotencyStatus({ engine, tenant: tenantOf, statusUrl }))

  app.use(answerNotFound)
  // The guard sees the error itself before it becomes just another status code.
  app.use(idempotencyErrors())
  app.use(answerErrors)

  // No start with a route that somebody has forgotten. Webhooks have event ids instead of keys.
  requireProtected(auditRoutes(app, { except: ['/webhooks/provider'] }))
}
