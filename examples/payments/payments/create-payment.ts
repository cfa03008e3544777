import type { ReplyInit } from 'oncekey'
import { defineOperation } from 'oncekey/durable'
import { book } from '../books.ts'
import type { OperationParts } from '../operation-parts.ts'
import { keyReusedReply, problemReply } from '../http/problems.ts'
import { RECEIPT_TOPIC } from '../receipts.ts'
import {
  paymentInput,
  recordPayment,
  settlePayment,
  type Payment,
  type PaymentInput,
} from './payment.ts'

/** Records the payment, charges it at the provider, books it and queues its receipt. */
export function createPaymentOperation({ database, outbox, effects }: OperationParts) {
  return defineOperation({
    name: 'payments.create',
    input: paymentInput,
    effects: { charge: effects.charge },
    async run(op, input) {
      const { tenant, recordId } = op
      const { customerId: account, amountCents, currency } = input
      // The same on every attempt, and for a retry after the retention.
      const paymentId = op.deterministicId('payment')

      const recorded = await op.transaction('record', (tx) =>
        recordPayment(database.within(tx), { ...input, paymentId, tenant, recordId }),
      )
      if (recorded.kind === 'other_request') return keyReusedReply()
      if (recorded.kind === 'settled') return settled(recorded.row)

      const charge = await op.external('charge', {
        amountCents,
        currency,
        reference: paymentId,
        account,
      })

      return op.finish('book', async (tx) => {
        const query = database.within(tx)
        await settlePayment(query, paymentId, charge)
        if (charge.status === 'declined') return declined(paymentId)
        await book(query, charge, { tenant, recordId })
        // With the tenant, so that many receipts of one tenant do not delay those of another. With
        // an id, so that one payment never has two receipts.
        const id = op.deterministicId('receipt')
        await outbox.add(tx, RECEIPT_TOPIC, { tenant, paymentId }, { tenant, key: paymentId, id })
        return paid(paymentId, input, charge.id)
      })
    },
  })
}

function paid(paymentId: string, input: PaymentInput, chargeId: string): ReplyInit {
  const { customerId, amountCents, currency } = input
  return {
    status: 201,
    headers: { Location: `/payments/${paymentId}` },
    body: { paymentId, status: 'succeeded', customerId, amountCents, currency, chargeId },
  }
}

/** The first reply again, from the row. A refund since then does not change it. */
function settled({ paymentId, status, chargeId, ...input }: Payment): ReplyInit {
  return status === 'declined' || chargeId === null
    ? declined(paymentId)
    : paid(paymentId, input, chargeId)
}

/** A decline is a result: it is recorded, and a retry is declined again. */
function declined(paymentId: string) {
  return problemReply({
    status: 402,
    code: 'payment_declined',
    title: 'The payment was declined',
    detail: 'Try again with another way to pay, and with a new idempotency key.',
    paymentId,
  })
}
