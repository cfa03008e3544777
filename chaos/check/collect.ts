/** Reads the facts that the judge needs from the database. */
import type { Database, ReadRows, Row } from '../system/database.ts'
import { ENDLESS_TOPIC, HANGING_OPERATION } from '../neighbours/names.ts'
import type { Books, EntryRow, MessageRow, ProductRow, RecordRow, Wait } from './facts.ts'
import { readWaits } from './waits.ts'

export interface Collected {
  readonly records: readonly RecordRow[]
  readonly messages: readonly MessageRow[]
  readonly books: Books
  readonly waits: readonly Wait[]
}

export function collect(database: Database): Promise<Collected> {
  return database.read(async (rows) => ({
    records: await readRecords(database, rows),
    messages: await readMessages(rows),
    waits: await readWaits(database, rows),
    books: {
      payments: (await rows('SELECT * FROM payment')).map((row) => ({
        ...businessOf(row, 'payment_id', 'charge_id'),
        amountCents: Number(row['amount_cents']),
        refundedCents: Number(row['refunded_cents']),
      })),
      refunds: (await rows('SELECT * FROM refund')).map((row) => ({
        ...businessOf(row, 'refund_id', 'provider_refund_id'),
        paymentId: text(row, 'payment_id'),
        amountCents: Number(row['amount_cents']),
      })),
      orders: (await rows('SELECT * FROM customer_order')).map((row) => ({
        ...businessOf(row, 'order_id', 'capture_id'),
        sku: text(row, 'sku'),
        quantity: Number(row['quantity']),
        totalCents: Number(row['total_cents']),
      })),
      transfers: (await rows('SELECT * FROM transfer')).map((row) => ({
        ...businessOf(row, 'transfer_id', 'payout_id'),
        amountCents: Number(row['amount_cents']),
      })),
      products: await readProductRows(rows),
      entries: await readEntryRows(rows),
      receipts: (await rows('SELECT * FROM receipt')).map((row) => ({
        receiptKey: text(row, 'receipt_key'),
        tenant: text(row, 'tenant'),
        paymentId: text(row, 'payment_id'),
      })),
    },
  }))
}

/**
 * The number of records that are not final and messages that are not relayed, except those in which
 * a bad neighbour hangs, which never come to rest.
 */
export function countOpen(database: Database): Promise<number> {
  const open = `
    SELECT count(*) AS count FROM oncekey_record
    WHERE operation <> '${HANGING_OPERATION}' AND (state IN ('in_progress', 'unknown', 'pending')
      OR (state = 'failed_retryable' AND recovery_point IS NOT NULL))`
  const left = `
    SELECT count(*) AS count FROM oncekey_record_message
    WHERE state IN ('ready', 'held') AND topic <> '${ENDLESS_TOPIC}'`
  return database.read(async (rows) => {
    const [[records], [messages]] = [await rows(open), await rows(left)]
    return Number(records!['count']) + Number(messages!['count'])
  })
}

/** The number of accepted requests of a tenant that no worker has started. */
export function countPending(database: Database, tenant: string): Promise<number> {
  const pending = `
    SELECT count(*) AS count FROM oncekey_record
    WHERE state = 'pending' AND tenant = '${tenant}'`
  return database.read(async (rows) => Number((await rows(pending))[0]!['count']))
}

export function readEntries(database: Database): Promise<EntryRow[]> {
  return database.read(readEntryRows)
}

export function readProducts(database: Database): Promise<ProductRow[]> {
  return database.read(readProductRows)
}

async function readRecords(database: Database, rows: ReadRows): Promise<RecordRow[]> {
  const key = database.url.startsWith('mysql') ? '`key`' : 'key'
  const dueAt = database.url.startsWith('postgres') ? 'reconcile_at' : 'reconcile_at_ms'
  const sql = `
    SELECT record_id, tenant, operation, ${key}, state, attempt, recovery_point, error_code,
      ${dueAt} AS due_at
    FROM oncekey_record`
  return (await rows(sql)).map((row) => ({
    recordId: text(row, 'record_id'),
    tenant: text(row, 'tenant'),
    key: text(row, 'key'),
    operation: text(row, 'operation'),
    state: text(row, 'state'),
    attempt: Number(row['attempt']),
    recoveryPoint: textOrNone(row, 'recovery_point'),
    errorCode: textOrNone(row, 'error_code'),
    dueAt: row['due_at'] === null ? undefined : new Date(row['due_at'] as number | Date),
  }))
}

async function readMessages(rows: ReadRows): Promise<MessageRow[]> {
  const sql = 'SELECT id, topic, state, attempt, errors FROM oncekey_record_message'
  return (await rows(sql)).map((row) => ({
    id: text(row, 'id'),
    topic: text(row, 'topic'),
    state: text(row, 'state'),
    attempt: Number(row['attempt']),
    errors: text(row, 'errors'),
  }))
}

async function readProductRows(rows: ReadRows): Promise<ProductRow[]> {
  return (await rows('SELECT * FROM product')).map((row) => ({
    sku: text(row, 'sku'),
    priceCents: Number(row['price_cents']),
    stock: Number(row['stock']),
  }))
}

async function readEntryRows(rows: ReadRows): Promise<EntryRow[]> {
  return (await rows('SELECT * FROM entry')).map((row) => ({
    entryId: text(row, 'entry_id'),
    tenant: text(row, 'tenant'),
    kind: text(row, 'kind'),
    reference: text(row, 'reference'),
    amountCents: Number(row['amount_cents']),
    providerId: textOrNone(row, 'provider_id'),
    recordId: text(row, 'record_id'),
  }))
}

function businessOf(row: Row, id: string, providerId: string) {
  return {
    id: text(row, id),
    tenant: text(row, 'tenant'),
    status: text(row, 'status'),
    recordId: text(row, 'record_id'),
    providerId: textOrNone(row, providerId),
  }
}

/** Drivers return binary columns as bytes, and JSON columns parsed. */
function text(row: Row, name: string): string {
  const value = row[name]
  if (value === null || value === undefined) return ''
  if (value instanceof Uint8Array) return Buffer.from(value).toString()
  return typeof value === 'string' ? value : JSON.stringify(value)
}

function textOrNone(row: Row, name: string): string | undefined {
  return row[name] === null ? undefined : text(row, name)
}
