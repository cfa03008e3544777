import { z } from 'zod'
import type { Query } from '../database/database.ts'
import { identifier } from '../http/input.ts'
import { compareWithRow } from '../late-retry.ts'

/** A larger quantity is considered a mistake. */
const QUANTITY_MAX = 1_000

export const orderInput = z.object({
  customerId: identifier,
  sku: identifier,
  quantity: z.int().min(1).max(QUANTITY_MAX),
})

export type OrderInput = z.infer<typeof orderInput>

export interface NewOrder extends OrderInput {
  readonly orderId: string
  readonly tenant: string
  readonly recordId: string
}

/** The outcome of a reservation. A refusal is a result, not an error. */
export type Reserved =
  | { readonly kind: 'product_not_found' | 'sold_out' | 'other_request' }
  | { readonly kind: 'reserved'; readonly totalCents: number }
  | { readonly kind: 'settled'; readonly row: Order }

const PRICE = 'SELECT price_cents AS "priceCents" FROM product WHERE sku = ?'
const TAKE = 'UPDATE product SET stock = stock - ? WHERE sku = ? AND stock >= ?'
const INSERT = `
  INSERT INTO customer_order (order_id, tenant, customer_id, sku, quantity, total_cents, status,
    capture_id, record_id, created_at)
  VALUES (?, ?, ?, ?, ?, ?, 'reserved', NULL, ?, ?)`

/** Takes the items from the stock, at the current price. A late retry takes nothing. */
export async function reserveOrder(query: Query, order: NewOrder): Promise<Reserved> {
  const { orderId, tenant, customerId, sku, quantity, recordId } = order
  const row = await findOrder(query, tenant, orderId)
  if (row !== undefined) {
    const earlier = compareWithRow(row, { customerId, sku, quantity }, 'reserved')
    return earlier.kind === 'open' ? { kind: 'reserved', totalCents: row.totalCents } : earlier
  }
  const { rows } = await query(PRICE, [sku])
  const priceCents = rows[0]?.['priceCents']
  if (priceCents === undefined) return { kind: 'product_not_found' }
  const { changes } = await query(TAKE, [quantity, sku, quantity])
  if (changes === 0) return { kind: 'sold_out' }
  const totalCents = Number(priceCents) * quantity
  const createdAt = new Date().toISOString()
  await query(INSERT, [orderId, tenant, customerId, sku, quantity, totalCents, recordId, createdAt])
  return { kind: 'reserved', totalCents }
}

const SETTLE = `
  UPDATE customer_order SET status = ?, capture_id = ? WHERE order_id = ? AND status = 'reserved'`
const PUT_BACK = 'UPDATE product SET stock = stock + ? WHERE sku = ?'

export async function confirmOrder(
  query: Query,
  { orderId }: NewOrder,
  captureId: string,
): Promise<void> {
  await settleOrder(query, orderId, { status: 'confirmed', captureId })
}

/** The payment failed: returns the items to the stock. */
export async function declineOrder(query: Query, order: NewOrder): Promise<void> {
  const { orderId, quantity, sku } = order
  await settleOrder(query, orderId, { status: 'declined', captureId: null })
  await query(PUT_BACK, [quantity, sku])
}

/** Throws if the order is settled already: then nothing is committed, or returned twice. */
async function settleOrder(
  query: Query,
  orderId: string,
  { status, captureId }: { readonly status: string; readonly captureId: string | null },
): Promise<void> {
  const { changes } = await query(SETTLE, [status, captureId, orderId])
  if (changes !== 1) throw new Error(`order ${orderId} is not reserved`)
}

const FIND = `
  SELECT order_id AS "orderId", status, customer_id AS "customerId", sku, quantity,
    total_cents AS "totalCents", capture_id AS "captureId", created_at AS "createdAt"
  FROM customer_order WHERE tenant = ? AND order_id = ?`

export interface Order extends OrderInput {
  readonly orderId: string
  readonly status: 'reserved' | 'confirmed' | 'declined'
  readonly totalCents: number
  readonly captureId: string | null
  readonly createdAt: string
}

/** Returns the order only if it belongs to the tenant. */
export async function findOrder(
  query: Query,
  tenant: string,
  orderId: string,
): Promise<Order | undefined> {
  const { rows } = await query(FIND, [tenant, orderId])
  return rows[0] as Order | undefined
}
