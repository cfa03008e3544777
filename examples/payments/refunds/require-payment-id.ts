import type { RequestHandler } from 'express'
import { isId } from '../input.ts'
import { sendProblem } from '../problems.ts'

/** What cannot be the id of a payment is the id of none. */
export const requirePaymentId: RequestHandler<{ id: string }> = (req, res, next) => {
  if (isId(req.params.id)) return next()
  sendProblem(res, {
    status: 404,
    code: 'payment_not_found',
    title: 'There is no such payment',
    detail: 'You have no payment with this id.',
  })
}
