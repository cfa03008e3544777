import type { RelayMessage } from 'oncekey/durable'
import type { Database } from './database/database.ts'

export const RECEIPT_TOPIC = 'receipt.send'

export interface Receipt {
  readonly tenant: string
  readonly paymentId: string
}

const INSERT =
  'INSERT INTO receipt (receipt_key, tenant, payment_id, created_at) VALUES (?, ?, ?, ?)'

/**
 * Stands for a mail service. A message arrives at least once, under the same key each time: the
 * receiver keeps one receipt per key.
 */
export function sendReceipt(database: Database) {
  return async ({ payload, downstreamKey }: RelayMessage<Receipt>): Promise<void> => {
    const { tenant, paymentId } = payload
    await database.insertOnce(INSERT, [downstreamKey, tenant, paymentId, new Date().toISOString()])
  }
}
