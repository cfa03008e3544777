import type { ReplyInit } from 'oncekey'
import { defineOperation } from 'oncekey/durable'
import { book } from '../books.ts'
import type { Query } from '../database/database.ts'
import type { OperationParts } from '../operation-parts.ts'
import { compareWithRow } from '../late-retry.ts'
import { findPayment } from '../payments/payment.ts'
import { keyReusedReply, problemReply } from '../http/problems.ts'
import {
  declineRefund,
  findRefund,
  insertRefund,
  refundInput,
  reserveRefund,
  succeedRefund,
  type NewRefund,
  type Refund,
} from './refund.ts'

/** The outcome of a reservation. A refusal is a result, not an error. */
type Reserved =
  | { readonly kind: 'payment_not_found' | 'payment_not_refundable' | 'other_request' }
  | { readonly kind: 'settled'; readonly row: Refund }
  | {
      readonly kind: 'reserved'
      readonly chargeId: string
      readonly currency: string
      readonly customerId: string
    }

/** Reserves the amount, refunds it at the provider, books it. */
export function createRefundOperation({ database, effects }: OperationParts) {
  return defineOperation({
    name: 'refunds.create',
    input: refundInput,
    effects: { refund: effects.refund },
    async run(op, input) {
      const { tenant, recordId } = op
      const { paymentId, amountCents } = input
      const refundId = op.deterministicId('refund')
      const refund: NewRefund = { ...input, refundId, tenant, recordId }

      const reserved = await op.transaction('reserve', (tx) => reserve(database.within(tx), refund))
      if (reserved.kind === 'other_request') return keyReusedReply()
      if (reserved.kind === 'settled') return settled(reserved.row)
      if (reserved.kind !== 'reserved') return refused(reserved.kind)

      const { chargeId, currency, customerId } = reserved
      const done = await op.external('refund', {
        amountCents,
        currency,
        reference: refundId,
        account: customerId,
        of: chargeId,
      })

      return op.finish('book', async (tx) => {
        const query = database.within(tx)
        if (done.status === 'declined') {
          await declineRefund(query, refund, done)
          return declined(refundId, paymentId)
        }
        await succeedRefund(query, refund, done)
        await book(query, done, { tenant, recordId })
        return succeeded({ refundId, paymentId, amountCents }, done.id)
      })
    },
  })
}

/** A late retry has reserved its amount already, and reserves nothing. */
async function reserve(query: Query, refund: NewRefund): Promise<Reserved> {
  const { tenant, refundId, paymentId, amountCents } = refund
  const row = await findRefund(query, tenant, refundId)
  const earlier = row && compareWithRow(row, { paymentId, amountCents }, 'pending')
  if (earlier !== undefined && earlier.kind !== 'open') return earlier
  const payment = await findPayment(query, tenant, paymentId)
  if (payment === undefined) return { kind: 'payment_not_found' }
  const { chargeId, currency, customerId } = payment
  if (chargeId === null) return { kind: 'payment_not_refundable' }
  if (earlier === undefined) {
    if (!(await reserveRefund(query, refund))) return { kind: 'payment_not_refundable' }
    await insertRefund(query, refund)
  }
  return { kind: 'reserved', chargeId, currency, customerId }
}

type Succeeded = Pick<Refund, 'refundId' | 'paymentId' | 'amountCents'>

function succeeded(refund: Succeeded, providerRefundId: string): ReplyInit {
  const { refundId, paymentId, amountCents } = refund
  return {
    status: 201,
    headers: { Location: `/refunds/${refundId}` },
    body: { refundId, paymentId, status: 'succeeded', amountCents, providerRefundId },
  }
}

/** The first reply again, from the row. */
function settled(refund: Refund): ReplyInit {
  const { refundId, paymentId, status, providerRefundId } = refund
  return status === 'declined' || providerRefundId === null
    ? declined(refundId, paymentId)
    : succeeded(refund, providerRefundId)
}

function refused(code: 'payment_not_found' | 'payment_not_refundable') {
  if (code === 'payment_not_found') {
    const title = 'Payment not found'
    return problemReply({ status: 404, code, title, detail: 'You have no payment with this id.' })
  }
  return problemReply({
    status: 409,
    code,
    title: 'The payment cannot be refunded by this amount',
    detail: 'It has not succeeded, or less than this amount is left.',
  })
}

function declined(refundId: string, paymentId: string) {
  return problemReply({
    status: 402,
    code: 'refund_declined',
    title: 'The refund was declined',
    detail: 'The provider did not give the money back.',
    refundId,
    paymentId,
  })
}
