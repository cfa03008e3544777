/** The work that everybody is given, and what it answers. */
import { randomUUID } from 'node:crypto'

/** What a client sends: small JSON, as payments are. */
export const REQUEST = { customerId: 'cus_1', amountCents: 12_000, currency: 'KRW' } as const

/** 200 bytes of JSON. */
export const REPLY = {
  paymentId: 'pay_0123456789',
  status: 'created',
  note: 'x'.repeat(141),
} as const
export const REPLY_TEXT = JSON.stringify(REPLY)
export const REPLY_BYTES = new Uint8Array(Buffer.from(REPLY_TEXT))

/** 32 bytes, as the guard makes them. */
export const FINGERPRINT = `v1:${'f'.repeat(43)}`
export const SCOPE = { tenant: 'bench', operation: 'POST /payments' } as const

/** The connections of every pool: what pg and DBOS take by themselves. */
export const CONNECTIONS = 10

/** Replays are of one of so many keys. */
const REPLAYED_KEYS = 256

export function newKeys(): string[] {
  return Array.from({ length: REPLAYED_KEYS }, () => randomUUID())
}

export function oneOf<Item>(items: readonly Item[]): Item {
  return items[Math.floor(Math.random() * items.length)]!
}
