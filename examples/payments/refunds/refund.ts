import { z } from 'zod'
import type { ProviderEffect } from '../../provider/contract.ts'
import type { Query } from '../database/database.ts'
import { amountCents } from '../http/input.ts'

/** The body of a refund request. The path names the payment. */
export const refundBody = z.object({ amountCents })

export type RefundBody = z.infer<typeof refundBody>

export const refundInput = refundBody.extend({ paymentId: z.uuid() })

export interface NewRefund extends z.infer<typeof refundInput> {
  readonly refundId: string
  readonly tenant: string
  readonly recordId: string
}

const INSERT = `
  INSERT INTO refund (refund_id, payment_id, tenant, amount_cents, status, provider_refund_id,
    record_id, created_at)
  VALUES (?, ?, ?, ?, 'pending', NULL, ?, ?)`

export async function insertRefund(query: Query, refund: NewRefund): Promise<void> {
  const { refundId, paymentId, tenant, amountCents, recordId } = refund
  const createdAt = new Date().toISOString()
  await query(INSERT, [refundId, paymentId, tenant, amountCents, recordId, createdAt])
}

const RESERVE = `
  UPDATE payment SET refunded_cents = refunded_cents + ?
  WHERE tenant = ? AND payment_id = ? AND status IN ('succeeded', 'partially_refunded')
    AND refunded_cents + ? <= amount_cents`

/** Concurrent refunds succeed as long as the payment covers them. */
export async function reserveRefund(query: Query, refund: NewRefund): Promise<boolean> {
  const { tenant, paymentId, amountCents } = refund
  const { changes } = await query(RESERVE, [amountCents, tenant, paymentId, amountCents])
  return changes === 1
}

const SETTLE = `
  UPDATE refund SET status = ?, provider_refund_id = ? WHERE refund_id = ? AND status = 'pending'`

async function settleRefund(query: Query, refundId: string, done: ProviderEffect): Promise<void> {
  const { changes } = await query(SETTLE, [done.status, done.id, refundId])
  if (changes !== 1) throw new Error(`refund ${refundId} is not pending`)
}

const GIVE_BACK = 'UPDATE payment SET refunded_cents = refunded_cents - ? WHERE payment_id = ?'

/** The provider has declined the refund: makes the amount refundable again. */
export async function declineRefund(
  query: Query,
  { refundId, paymentId, amountCents }: NewRefund,
  declined: ProviderEffect,
): Promise<void> {
  await settleRefund(query, refundId, declined)
  await query(GIVE_BACK, [amountCents, paymentId])
}

const PARTLY = "UPDATE payment SET status = 'partially_refunded' WHERE payment_id = ?"
const WHOLLY = `
  UPDATE payment SET status = 'refunded' WHERE payment_id = ? AND amount_cents <= ?`
const SUM = `
  SELECT SUM(amount_cents) AS "cents" FROM refund WHERE payment_id = ? AND status = 'succeeded'`

/**
 * The first statement also locks the payment. So of two refunds that end at the same time, the
 * second one sees the first one in the sum.
 */
export async function succeedRefund(
  query: Query,
  { refundId, paymentId }: NewRefund,
  done: ProviderEffect,
): Promise<void> {
  await query(PARTLY, [paymentId])
  await settleRefund(query, refundId, done)
  const { rows } = await query(SUM, [paymentId])
  await query(WHOLLY, [paymentId, Number(rows[0]?.['cents'])])
}

const FIND = `
  SELECT refund_id AS "refundId", payment_id AS "paymentId", status,
    amount_cents AS "amountCents", provider_refund_id AS "providerRefundId",
    created_at AS "createdAt"
  FROM refund WHERE tenant = ? AND refund_id = ?`

export interface Refund extends RefundBody {
  readonly refundId: string
  readonly paymentId: string
  readonly status: 'pending' | 'succeeded' | 'declined'
  readonly providerRefundId: string | null
  readonly createdAt: string
}

/** Returns the refund only if it belongs to the tenant. */
export async function findRefund(
  query: Query,
  tenant: string,
  refundId: string,
): Promise<Refund | undefined> {
  const { rows } = await query(FIND, [tenant, refundId])
  return rows[0] as Refund | undefined
}
