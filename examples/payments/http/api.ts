import express, { type Express, type Request } from 'express'
import type { Engine } from 'oncekey'
import type { Reconciler } from 'oncekey/durable'
import {
  auditRoutes,
  idempotency,
  idempotencyOf,
  idempotencyStatus,
  keepRawBody,
  requireProtected,
} from 'oncekey/express'
import type { Database } from '../database/database.ts'
import type { AddedOperations } from '../extension.ts'
import type { Limits } from '../limits.ts'
import { checkBody } from './input.ts'
import { KEY_RULES, openApiDocument } from './openapi.ts'
import type { Operations } from '../operations.ts'
import { findOrder, orderInput, type OrderInput } from '../orders/order.ts'
import { findPayment, paymentInput, type PaymentInput } from '../payments/payment.ts'
import { answerErrors, answerNotFound } from './problems.ts'
import { findRefund, refundBody, type RefundBody } from '../refunds/refund.ts'
import { requirePaymentId } from '../refunds/require-payment-id.ts'
import type { Settings } from '../settings.ts'
import { showResource } from './show-resource.ts'
import { requireSignedTime } from './signed-time.ts'
import { authenticate, tenantOf, userOf } from './tokens.ts'
import { findTransfer, transferInput, type TransferInput } from '../transfers/transfer.ts'
import { readRawBody, receiveEvent } from '../webhooks/receive-event.ts'

export interface ApiParts {
  readonly engine: Engine
  readonly database: Database
  readonly operations: Operations
  readonly mount: AddedOperations['mount']
  readonly reconciler: Reconciler
  readonly limits: Limits
  readonly settings: Pick<
    Settings,
    'callers' | 'webhookSecret' | 'maxRequestAgeMs' | 'refuseLateMs'
  >
}

/** The largest valid body has a few hundred bytes. Longer bodies are not parsed. */
const BODY_LIMIT = '16kb'

const statusUrl = (recordId: string) => `/operations/${recordId}`

/** Every route of the API. */
export function mountApi(app: Express, parts: ApiParts): void {
  const { engine, database, operations, mount, reconciler, limits, settings } = parts
  const { createPayment, createRefund, createOrder, createTransfer } = operations
  const { query } = database

  const webhook = receiveEvent({ database, reconciler, webhookSecret: settings.webhookSecret })
  app.post('/webhooks/provider', readRawBody, webhook)
  const document = openApiDocument(settings)
  app.get('/openapi.json', (_req, res) => void res.json(document))

  // From here on requests are authenticated. The parser keeps the bytes, so that the guard compares
  // what was sent. Operations send their replies themselves.
  app.use(authenticate(settings.callers))
  const parse = express.json({ limit: BODY_LIMIT, verify: keepRawBody })
  const json = settings.maxRequestAgeMs > 0 ? requireSignedTime(parse) : parse
  const caller = { tenant: tenantOf, principal: userOf, limits }
  const guard = idempotency({
    engine,
    ...caller,
    ...KEY_RULES,
    ...requestAge(settings),
    // A user cannot occupy a key of another user.
    scopeBy: 'tenant+principal+operation',
    statusUrl,
  })

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

  app.get('/payments/:id', showResource('payment', findPayment, query))
  app.get('/refunds/:id', showResource('refund', findRefund, query))
  app.get('/orders/:id', showResource('order', findOrder, query))
  app.get('/transfers/:id', showResource('transfer', findTransfer, query))
  app.get('/operations/:id', idempotencyStatus({ engine, ...caller, statusUrl }))

  app.use(answerNotFound)
  app.use(answerErrors)

  // Refuses to start with an unprotected route. Webhooks have event ids instead of keys.
  requireProtected(auditRoutes(app, { except: ['/webhooks/provider'] }))
}

/** The time of a request is that of its signature, which an attacker cannot change. */
function requestAge({ maxRequestAgeMs }: Pick<Settings, 'maxRequestAgeMs'>) {
  if (maxRequestAgeMs === 0) return {}
  return { maxRequestAgeMs, requestTime: (req: Request) => req.firstSentAt }
}
