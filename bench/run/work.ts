/** The work of every subject, and its reply. */
import { randomUUID } from 'node:crypto'

/** The request of a client: a small JSON, like that of a payment. */
export const REQUEST = { customerId: 'cus_1', amountCents: 12_000, currency: 'KRW' } as const

/** 200 bytes of JSON. */
export const REPLY = {
  paymentId: 'pay_0123456789',
  status: 'created',
  note: 'x'.repeat(141),
} as const
export const REPLY_TEXT = JSON.stringify(REPLY)
export const REPLY_BYTES = new Uint8Array(Buffer.from(REPLY_TEXT))

/** 32 bytes, like the fingerprints of the guard. */
export const FINGERPRINT = `v1:${'f'.repeat(43)}`
export const SCOPE = { tenant: 'bench', operation: 'POST /payments' } as const

/** The connections of every pool: the default of pg and DBOS. */
export const CONNECTIONS = 10

/** The number of keys among which replays choose. */
const REPLAYED_KEYS = 256

export function newKeys(): string[] {
  return Array.from({ length: REPLAYED_KEYS }, () => randomUUID())
}

export function oneOf<Item>(items: readonly Item[]): Item {
  return items[Math.floor(Math.random() * items.length)]!
}
