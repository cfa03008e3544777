import { defineOperation } from 'oncekey/durable'
import { book } from '../books.ts'
import type { OperationParts } from '../operation-parts.ts'
import { problemReply } from '../http/problems.ts'
import { RECEIPT_TOPIC } from '../receipts.ts'
import { insertPayment, paymentInput, settlePayment } from './payment.ts'

/** Records the payment, charges it at the provider, books it and queues its receipt. */
export function createPaymentOperation({ database, outbox, effects }: OperationParts) {
  return defineOperation({
    name: 'payments.create',
    input: paymentInput,
    effects: { charge: effects.charge },
    async run(op, input) {
      const { tenant, recordId } = op
      const { customerId, amountCents, currency } = input
      // The id is the same on every attempt, so a client never sees two payments with one id.
      const paymentId = op.deterministicId('payment')

      await op.transaction('record', (tx) =>
        insertPayment(database.within(tx), { ...input, paymentId, tenant, recordId }),
      )

      const account = customerId
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
        // With the tenant, so that many receipts of one tenant do not delay those of another.
        await outbox.add(tx, RECEIPT_TOPIC, { tenant, paymentId }, { tenant, key: paymentId })
        return {
          status: 201,
          headers: { Location: `/payments/${paymentId}` },
          body: { paymentId, status: 'succeeded', ...input, chargeId: charge.id },
        }
      })
    },
  })
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
