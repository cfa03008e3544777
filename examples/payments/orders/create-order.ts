import type { ReplyInit } from 'oncekey'
import { defineOperation } from 'oncekey/durable'
import { book } from '../books.ts'
import type { OperationParts } from '../operation-parts.ts'
import { keyReusedReply, problemReply } from '../http/problems.ts'
import {
  confirmOrder,
  declineOrder,
  orderInput,
  reserveOrder,
  type NewOrder,
  type Order,
} from './order.ts'

/** The currency of all prices in the shop. */
const CURRENCY = 'USD'

/**
 * Reserves the stock, holds the money, captures it, confirms. After a crash at any step, the next
 * attempt does the remaining steps, and repeats none.
 */
export function createOrderOperation({ database, effects }: OperationParts) {
  return defineOperation({
    name: 'orders.create',
    input: orderInput,
    effects: { hold: effects.hold, capture: effects.capture },
    async run(op, input) {
      const { tenant, recordId } = op
      const { customerId: account, sku, quantity } = input
      const orderId = op.deterministicId('order')
      const order: NewOrder = { ...input, orderId, tenant, recordId }

      const reserved = await op.transaction('reserve', (tx) =>
        reserveOrder(database.within(tx), order),
      )
      if (reserved.kind === 'other_request') return keyReusedReply()
      if (reserved.kind === 'settled') return settled(reserved.row)
      if (reserved.kind !== 'reserved') return refused(reserved.kind)

      // The stock of a declined order is returned in the same commit as the answer.
      const decline = () =>
        op.finish('give back', async (tx) => {
          await declineOrder(database.within(tx), order)
          return declined(orderId)
        })
      const { totalCents } = reserved
      const money = { amountCents: totalCents, currency: CURRENCY, reference: orderId, account }

      const hold = await op.external('hold', money)
      if (hold.status === 'declined') return decline()

      const capture = await op.external('capture', { ...money, of: hold.id })
      if (capture.status === 'declined') return decline()

      return op.finish('confirm', async (tx) => {
        const query = database.within(tx)
        await confirmOrder(query, order, capture.id)
        await book(query, capture, { tenant, recordId })
        return confirmed({ orderId, sku, quantity, totalCents }, capture.id)
      })
    },
  })
}

type Confirmed = Pick<Order, 'orderId' | 'sku' | 'quantity' | 'totalCents'>

function confirmed(order: Confirmed, captureId: string): ReplyInit {
  const { orderId, sku, quantity, totalCents } = order
  return {
    status: 201,
    headers: { Location: `/orders/${orderId}` },
    body: { orderId, status: 'confirmed', sku, quantity, totalCents, captureId },
  }
}

/** The first reply again, from the row. */
function settled(order: Order): ReplyInit {
  const { orderId, status, captureId } = order
  return status === 'declined' || captureId === null
    ? declined(orderId)
    : confirmed(order, captureId)
}

function refused(code: 'product_not_found' | 'sold_out') {
  return code === 'sold_out'
    ? problemReply({
        status: 409,
        code,
        title: 'Not enough in stock',
        detail: 'Order less, with a new idempotency key.',
      })
    : problemReply({
        status: 404,
        code,
        title: 'Product not found',
        detail: 'The shop has "tea", "mug" and "teapot".',
      })
}

function declined(orderId: string) {
  return problemReply({
    status: 402,
    code: 'payment_declined',
    title: 'The payment was declined',
    detail: 'Nothing was ordered. Try another way to pay, with a new idempotency key.',
    orderId,
  })
}
