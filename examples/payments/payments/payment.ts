import { z } from 'zod'
import type { ProviderEffect } from '../../provider/contract.ts'
import type { Query } from '../database/database.ts'
import { amountCents, currency, identifier } from '../http/input.ts'
import { compareWithRow, type Earlier } from '../late-retry.ts'

export const paymentInput = z.object({ customerId: identifier, amountCents, currency })

export type PaymentInput = z.infer<typeof paymentInput>

/** `pending` → `succeeded` or `declined`; `succeeded` → `partially_refunded` → `refunded`. */
export type PaymentStatus = 'pending' | 'succeeded' | 'declined' | 'partially_refunded' | 'refunded'

export interface NewPayment extends PaymentInput {
  readonly paymentId: string
  readonly tenant: string
  readonly recordId: string
}

const INSERT = `
  INSERT INTO payment (payment_id, tenant, customer_id, amount_cents, refunded_cents, currency,
    status, charge_id, record_id, created_at)
  VALUES (?, ?, ?, ?, 0, ?, 'pending', NULL, ?, ?)`

/** Records a payment. For a late retry, returns what its first attempt has recorded. */
export async function recordPayment(
  query: Query,
  payment: NewPayment,
): Promise<Earlier<Payment> | { readonly kind: 'recorded' }> {
  const { paymentId, tenant, customerId, amountCents, currency, recordId } = payment
  const row = await findPayment(query, tenant, paymentId)
  if (row !== undefined) {
    return compareWithRow(row, { customerId, amountCents, currency }, 'pending')
  }
  const createdAt = new Date().toISOString()
  await query(INSERT, [paymentId, tenant, customerId, amountCents, currency, recordId, createdAt])
  return { kind: 'recorded' }
}

const SETTLE = `
  UPDATE payment SET status = ?, charge_id = ? WHERE payment_id = ? AND status = 'pending'`

/** Stores the outcome. Throws if the payment is not pending: then nothing is committed. */
export async function settlePayment(
  query: Query,
  paymentId: string,
  charge: ProviderEffect,
): Promise<void> {
  const { changes } = await query(SETTLE, [charge.status, charge.id, paymentId])
  if (changes !== 1) throw new Error(`payment ${paymentId} is not pending`)
}

const FIND = `
  SELECT payment_id AS "paymentId", status, customer_id AS "customerId",
    amount_cents AS "amountCents", refunded_cents AS "refundedCents", currency,
    charge_id AS "chargeId", created_at AS "createdAt"
  FROM payment WHERE tenant = ? AND payment_id = ?`

export interface Payment extends PaymentInput {
  readonly paymentId: string
  readonly status: PaymentStatus
  /** The amount that was refunded, and that is about to be. */
  readonly refundedCents: number
  readonly chargeId: string | null
  readonly createdAt: string
}

/** Returns the payment only if it belongs to the tenant. */
export async function findPayment(
  query: Query,
  tenant: string,
  paymentId: string,
): Promise<Payment | undefined> {
  const { rows } = await query(FIND, [tenant, paymentId])
  return rows[0] as Payment | undefined
}
