import type { RequestHandler } from 'express'
import { idempotencyOf } from 'oncekey/express'
import type { SqliteTransaction } from 'oncekey/sqlite'
import { checkPayment } from './payment-input.ts'
import type { Payments } from './payments.ts'
import { sendProblem } from './problems.ts'
import { tenantOf } from './tokens.ts'

export function createPayment(payments: Payments): RequestHandler {
  return async (req, res) => {
    const idempotency = idempotencyOf(req)
    const checked = checkPayment(req.body)
    if (checked.kind === 'invalid') {
      return sendProblem(res, {
        status: 400,
        code: 'invalid_payment',
        title: 'The payment is not valid',
        detail: checked.errors.map(({ detail }) => detail).join(' '),
        errors: checked.errors,
      })
    }

    // The same on every attempt: an id that a client has seen never belongs to two payments.
    const paymentId = idempotency.deterministicId('payment')
    const tenant = tenantOf(req)

    // The payment, the key and the reply are committed together; then the reply leaves.
    await idempotency.transaction<SqliteTransaction>((tx) => {
      payments.insert(tx, { paymentId, tenant, ...checked.payment })
      res.status(201).location(`/payments/${paymentId}`).json({ paymentId, status: 'created' })
    })
  }
}

export function showPayment(payments: Payments): RequestHandler<{ id: string }> {
  return (req, res) => {
    const payment = payments.find(tenantOf(req), req.params.id)
    if (payment !== undefined) {
      res.json(payment)
      return
    }
    // The same answer whether it does not exist or is somebody else's.
    sendProblem(res, {
      status: 404,
      code: 'payment_not_found',
      title: 'There is no such payment',
      detail: 'You have no payment with this id.',
    })
  }
}
