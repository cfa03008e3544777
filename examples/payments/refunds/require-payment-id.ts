import type { RequestHandler } from 'express'
import { isId } from '../http/input.ts'
import { sendProblem } from '../http/problems.ts'

/** Answers 404 to a path segment that cannot be a payment id. */
export const requirePaymentId: RequestHandler<{ id: string }> = (req, res, next) => {
  if (isId(req.params.id)) return next()
  sendProblem(res, {
    status: 404,
    code: 'payment_not_found',
    title: 'Payment not found',
    detail: 'You have no payment with this id.',
  })
}
