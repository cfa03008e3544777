import type { OperationParts } from './operation-parts.ts'
import { createOrderOperation } from './orders/create-order.ts'
import { createPaymentOperation } from './payments/create-payment.ts'
import { createRefundOperation } from './refunds/create-refund.ts'
import { createTransferOperation } from './transfers/create-transfer.ts'

export type Operations = ReturnType<typeof createOperations>

/** The same on every node: any node can continue an operation of another. */
export function createOperations(parts: OperationParts) {
  return {
    createPayment: createPaymentOperation(parts),
    createRefund: createRefundOperation(parts),
    createOrder: createOrderOperation(parts),
    createTransfer: createTransferOperation(parts),
  }
}
