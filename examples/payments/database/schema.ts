/** The SQL that differs between databases. */
export interface Dialect {
  /** A text that compares byte by byte. Ledgers are sorted by it, and tenants distinguished. */
  readonly text: (length: number) => string
  /** Appended to each CREATE TABLE. */
  readonly tableOptions: string
}

/** Times are ISO texts and amounts whole cents, which are the same in every database. */
export function tablesFor({ text, tableOptions }: Dialect): string[] {
  const id = text(36)
  const common = `record_id ${id} NOT NULL, created_at ${text(30)} NOT NULL`
  const tables = [
    `payment (
      payment_id ${id} PRIMARY KEY, tenant ${text(64)} NOT NULL, customer_id ${text(64)} NOT NULL,
      amount_cents BIGINT NOT NULL, refunded_cents BIGINT NOT NULL, currency ${text(3)} NOT NULL,
      status ${text(20)} NOT NULL, charge_id ${text(64)}, ${common})`,
    `refund (
      refund_id ${id} PRIMARY KEY, payment_id ${id} NOT NULL, tenant ${text(64)} NOT NULL,
      amount_cents BIGINT NOT NULL, status ${text(20)} NOT NULL, provider_refund_id ${text(64)},
      ${common})`,
    `product (sku ${text(64)} PRIMARY KEY, price_cents BIGINT NOT NULL, stock BIGINT NOT NULL)`,
    `customer_order (
      order_id ${id} PRIMARY KEY, tenant ${text(64)} NOT NULL, customer_id ${text(64)} NOT NULL,
      sku ${text(64)} NOT NULL, quantity BIGINT NOT NULL, total_cents BIGINT NOT NULL,
      status ${text(20)} NOT NULL, capture_id ${text(64)}, ${common})`,
    `transfer (
      transfer_id ${id} PRIMARY KEY, tenant ${text(64)} NOT NULL, to_account ${text(64)} NOT NULL,
      amount_cents BIGINT NOT NULL, currency ${text(3)} NOT NULL, status ${text(20)} NOT NULL,
      payout_id ${text(64)}, ${common})`,
    // The books. Only the row id is unique: a double booking must be visible, not hidden by an
    // error.
    `entry (
      entry_id ${id} PRIMARY KEY, tenant ${text(64)} NOT NULL, kind ${text(20)} NOT NULL,
      reference ${id} NOT NULL, amount_cents BIGINT NOT NULL, provider_id ${text(64)} NOT NULL,
      ${common})`,
    `receipt (
      receipt_key ${text(64)} PRIMARY KEY, tenant ${text(64)} NOT NULL, payment_id ${id} NOT NULL,
      created_at ${text(30)} NOT NULL)`,
    `provider_event (event_id ${text(64)} PRIMARY KEY, created_at ${text(30)} NOT NULL)`,
  ]
  return tables.map((table) => `CREATE TABLE IF NOT EXISTS ${table} ${tableOptions}`)
}

export const INDEXES: readonly string[] = [
  'CREATE INDEX refund_by_payment ON refund (payment_id)',
  'CREATE INDEX entry_by_time ON entry (created_at)',
]

/** The initial stock of the shop: a lot of tea, and few teapots. */
export const PRODUCTS = [
  { sku: 'tea', priceCents: 450, stock: 1_000_000 },
  { sku: 'mug', priceCents: 1_250, stock: 100_000 },
  { sku: 'teapot', priceCents: 4_900, stock: 3 },
] as const
