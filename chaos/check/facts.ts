/** Everything that the judge of a run knows: the answers to clients, and three ledgers. */
import type { ProviderEffect } from '../../examples/provider/contract.ts'
import type { Story } from '../clients/story.ts'

export interface Facts {
  readonly stories: readonly Story[]
  readonly records: readonly RecordRow[]
  readonly messages: readonly MessageRow[]
  readonly effects: readonly ProviderEffect[]
  readonly books: Books
  /** The stock before the first order. */
  readonly stockBefore: readonly ProductRow[]
  readonly exits: readonly UnexpectedExit[]
  /** Work of a bad neighbour that was answered with 202. */
  readonly accepted: readonly AcceptedKey[]
  readonly waits: readonly Wait[]
}

export interface AcceptedKey {
  readonly tenant: string
  readonly key: string
}

export const WAIT_KINDS = ['accepted work', 'messages', 'unknown outcomes'] as const

export type WaitKind = (typeof WAIT_KINDS)[number]

/** The start and end of a wait, by the clock of the database. */
export interface Wait {
  readonly kind: WaitKind
  readonly tenant: string
  /** The key of its request, if there is one. */
  readonly key?: string | undefined
  readonly fromMs: number
  readonly untilMs: number
}

export interface RecordRow {
  readonly recordId: string
  readonly tenant: string
  readonly key: string
  readonly operation: string
  readonly state: string
  readonly attempt: number
  readonly recoveryPoint: string | undefined
  readonly errorCode: string | undefined
  /** When a worker or the reconciler will continue the record. */
  readonly dueAt: Date | undefined
}

export interface MessageRow {
  readonly id: string
  readonly topic: string
  readonly state: string
  readonly attempt: number
  readonly errors: string
}

export interface Books {
  readonly payments: readonly PaymentRow[]
  readonly refunds: readonly RefundRow[]
  readonly orders: readonly OrderRow[]
  readonly transfers: readonly TransferRow[]
  readonly products: readonly ProductRow[]
  readonly entries: readonly EntryRow[]
  readonly receipts: readonly ReceiptRow[]
}

/** Fields of all four kinds of rows. `id` is the reference at the provider. */
export interface BusinessRow {
  readonly id: string
  readonly tenant: string
  readonly status: string
  readonly recordId: string
  /** The provider's id of the effect, once there is one. */
  readonly providerId: string | undefined
}

export interface PaymentRow extends BusinessRow {
  readonly amountCents: number
  readonly refundedCents: number
}

export interface RefundRow extends BusinessRow {
  readonly paymentId: string
  readonly amountCents: number
}

export interface OrderRow extends BusinessRow {
  readonly sku: string
  readonly quantity: number
  readonly totalCents: number
}

export interface TransferRow extends BusinessRow {
  readonly amountCents: number
}

export interface ProductRow {
  readonly sku: string
  readonly priceCents: number
  readonly stock: number
}

export interface EntryRow {
  readonly entryId: string
  readonly tenant: string
  readonly kind: string
  readonly reference: string
  readonly amountCents: number
  readonly providerId: string | undefined
  readonly recordId: string
}

export interface ReceiptRow {
  readonly receiptKey: string
  readonly tenant: string
  readonly paymentId: string
}

/** A process of the service that ended unexpectedly. */
export interface UnexpectedExit {
  readonly name: string
  /** The exit code or signal. */
  readonly how: string
  readonly stderr: string
}

export const VIOLATION_KINDS = [
  'duplicate',
  'divergence',
  'lost',
  'stuck',
  'leak',
  'crashed',
] as const

export type ViolationKind = (typeof VIOLATION_KINDS)[number]

export interface Violation {
  readonly kind: ViolationKind
  /** A sentence for the developer who has to find the cause. */
  readonly detail: string
  readonly story?: number | undefined
  readonly recordId?: string | undefined
  /** The payment, refund, order or transfer of the violation. */
  readonly reference?: string | undefined
}
