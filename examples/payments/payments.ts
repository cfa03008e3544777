import { DatabaseSync } from 'node:sqlite'
import type { SqliteTransaction } from 'oncekey/sqlite'
import type { PaymentInput } from './payment-input.ts'

export interface NewPayment extends PaymentInput {
  readonly paymentId: string
  readonly tenant: string
}

export interface Payments {
  /** Writes inside the transaction that also completes the key. */
  insert(tx: SqliteTransaction, payment: NewPayment): void
  /** Only what belongs to the tenant. */
  find(tenant: string, paymentId: string): Record<string, unknown> | undefined
  close(): void
}

const SCHEMA = `
  CREATE TABLE IF NOT EXISTS payment (
    payment_id TEXT PRIMARY KEY,
    tenant TEXT NOT NULL,
    customer_id TEXT NOT NULL,
    amount_cents INTEGER NOT NULL CHECK (amount_cents > 0),
    currency TEXT NOT NULL,
    status TEXT NOT NULL,
    created_at TEXT NOT NULL
  ) STRICT`

const INSERT = `
  INSERT INTO payment (payment_id, tenant, customer_id, amount_cents, currency, status, created_at)
  VALUES (?, ?, ?, ?, ?, 'created', ?)`

const FIND = `
  SELECT payment_id AS paymentId, status, customer_id AS customerId, amount_cents AS amountCents,
    currency, created_at AS createdAt
  FROM payment WHERE tenant = ? AND payment_id = ?`

/** How long another writer of the file may keep the creation of the table waiting. */
const BUSY_MS = 5_000

/** Payments in the file that holds the keys. A connection of its own reads what is committed. */
export function openPayments(path: string): Payments {
  const db = new DatabaseSync(path, { timeout: BUSY_MS })
  db.exec(SCHEMA)
  const find = db.prepare(FIND)
  return {
    insert(tx, { paymentId, tenant, customerId, amountCents, currency }) {
      const createdAt = new Date().toISOString()
      tx.prepare(INSERT).run(paymentId, tenant, customerId, amountCents, currency, createdAt)
    },
    find: (tenant, paymentId) => find.get(tenant, paymentId),
    close: () => db.close(),
  }
}
