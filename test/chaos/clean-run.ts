/** Facts of a correct run, made by hand. Tests change one of them. */
import type { Facts } from '../../chaos/check/facts.ts'
import type { Asked, Outcome, Seen } from '../../chaos/clients/seen.ts'
import type { Story } from '../../chaos/clients/story.ts'
import type { ProviderEffect } from '../../examples/provider/contract.ts'

export type Mutable<Value> = Value extends Date
  ? Value
  : Value extends readonly (infer Item)[]
    ? Mutable<Item>[]
    : Value extends object
      ? { -readonly [Name in keyof Value]: Mutable<Value[Name]> }
      : Value

export type RunFacts = Mutable<Facts>

export function answer(status: number, body: object, replayed = false): Outcome {
  const text = JSON.stringify(body)
  const headers = { location: undefined, retryAfterMs: undefined }
  return { kind: 'answer', status, body: text, replayed, ...headers }
}

export function saw(asked: Asked, sentMs: number, outcome: Outcome): Seen {
  return { asked, node: 'api-1', sentMs, endedMs: sentMs + 10, outcome }
}

export const PAID = {
  paymentId: 'payment-1',
  status: 'succeeded',
  customerId: 'customer-tenant-a-1',
  amountCents: 500,
}
export const MISMATCH = { code: 'idempotency_key_reused_with_different_payload' }

/**
 * Story 1, of tenant a: a payment. 2, of tenant b: another one, under the same key. 3: a refund of
 * 1. 4: an order. 5: a transfer. 6: a payment that is declined.
 */
export function cleanRun(): RunFacts {
  const facts = {
    stories: stories(),
    records: [1, 2, 3, 4, 5, 6].map((number) => ({
      recordId: `record-${number}`,
      tenant: number === 2 ? 'tenant-b' : 'tenant-a',
      key: number === 2 ? 'key-1' : `key-${number}`,
      operation: 'any',
      state: 'completed',
      attempt: 1,
      recoveryPoint: undefined,
      errorCode: undefined,
      dueAt: undefined,
    })),
    messages: [1, 2].map((number) => ({
      id: `message-${number}`,
      topic: 'receipt.send',
      state: 'done',
      attempt: 1,
      errors: '[]',
    })),
    effects: [
      effect(1, 'charge', 'payment-1', 500),
      effect(2, 'charge', 'payment-2', 700),
      { ...effect(3, 'refund', 'refund-1', 200), of: 'effect-1' },
      effect(4, 'hold', 'order-1', 900),
      { ...effect(5, 'capture', 'order-1', 900), of: 'effect-4' },
      effect(6, 'payout', 'transfer-1', 300),
      { ...effect(7, 'charge', 'payment-3', 100), status: 'declined' as const },
    ],
    books: books(),
    stockBefore: [{ sku: 'tea', priceCents: 450, stock: 10 }],
    exits: [],
    accepted: [{ tenant: 'tenant-a', key: 'key-5' }],
    waits: [],
  }
  return facts as unknown as RunFacts
}

function stories(): Story[] {
  const refund = { refundId: 'refund-1', paymentId: 'payment-1', status: 'succeeded' }
  const order = { orderId: 'order-1', status: 'confirmed', sku: 'tea', quantity: 2 }
  const transfer = { transferId: 'transfer-1', status: 'paid', amountCents: 300 }
  return [
    story(1, 'payment', { customerId: 'customer-tenant-a-1', amountCents: 500 }, [
      saw('request', 0, { kind: 'no_answer', why: 'no answer in 300 ms' }),
      saw('request', 100, answer(409, { code: 'idempotency_key_in_progress' })),
      saw('altered', 150, answer(422, MISMATCH)),
      saw('request', 200, answer(201, PAID)),
      saw('request', 300, answer(201, PAID, true)),
      saw('read', 400, answer(200, { ...PAID, status: 'partially_refunded' })),
      saw('foreign_read', 500, answer(404, { code: 'payment_not_found' })),
      saw('foreign_refund', 600, answer(404, { code: 'payment_not_found' })),
    ]),
    {
      ...story(2, 'payment', { customerId: 'customer-tenant-b-2', amountCents: 700 }, [
        saw('request', 0, answer(201, { ...PAID, paymentId: 'payment-2', amountCents: 700 })),
      ]),
      tenant: 'tenant-b',
      key: 'key-1',
    },
    story(3, 'refund', { amountCents: 200 }, [saw('request', 600, answer(201, refund))]),
    story(4, 'order', { customerId: 'customer-tenant-a-4', sku: 'tea', quantity: 2 }, [
      saw('request', 0, answer(503, { code: 'idempotency_store_unavailable' })),
      saw('request', 100, answer(201, order)),
    ]),
    story(5, 'transfer', { toAccount: 'account-tenant-a-5', amountCents: 300 }, [
      saw('request', 0, answer(202, { status: 'pending' })),
      saw('status', 100, answer(201, transfer, true)),
    ]),
    {
      ...story(6, 'payment', { customerId: 'declined', amountCents: 100 }, [
        saw('request', 0, answer(402, { code: 'payment_declined', paymentId: 'payment-3' })),
      ]),
      isDeclined: true,
    },
  ]
}

function story(number: number, kind: Story['kind'], body: Story['body'], seen: Seen[]): Story {
  return {
    number,
    tenant: 'tenant-a',
    key: `key-${number}`,
    kind,
    path: '/any',
    body,
    altered: body,
    twin: number === 1 ? 2 : number === 2 ? 1 : undefined,
    isDeclined: false,
    isLeft: false,
    isHot: false,
    seen,
  }
}

function effect(
  sequence: number,
  kind: ProviderEffect['kind'],
  reference: string,
  amountCents: number,
): ProviderEffect {
  return {
    id: `effect-${sequence}`,
    kind,
    status: 'succeeded',
    key: `downstream-${sequence}`,
    sequence,
    createdAt: '2026-11-17T08:00:00.000Z',
    amountCents,
    currency: 'EUR',
    reference,
    account: 'any',
  }
}

function books(): Facts['books'] {
  const row = (id: string, record: number, status: string, providerId: string) => ({
    id,
    tenant: record === 2 ? 'tenant-b' : 'tenant-a',
    status,
    recordId: `record-${record}`,
    providerId,
  })
  const entry = (kind: string, reference: string, cents: number, provider: number) => ({
    entryId: `entry-${provider}`,
    tenant: 'tenant-a',
    kind,
    reference,
    amountCents: cents,
    providerId: `effect-${provider}`,
    recordId: 'any',
  })
  return {
    payments: [
      {
        ...row('payment-1', 1, 'partially_refunded', 'effect-1'),
        amountCents: 500,
        refundedCents: 200,
      },
      { ...row('payment-2', 2, 'succeeded', 'effect-2'), amountCents: 700, refundedCents: 0 },
      { ...row('payment-3', 6, 'declined', 'effect-7'), amountCents: 100, refundedCents: 0 },
    ],
    refunds: [
      {
        ...row('refund-1', 3, 'succeeded', 'effect-3'),
        paymentId: 'payment-1',
        amountCents: 200,
      },
    ],
    orders: [
      {
        ...row('order-1', 4, 'confirmed', 'effect-5'),
        sku: 'tea',
        quantity: 2,
        totalCents: 900,
      },
    ],
    transfers: [{ ...row('transfer-1', 5, 'paid', 'effect-6'), amountCents: 300 }],
    products: [{ sku: 'tea', priceCents: 450, stock: 8 }],
    entries: [
      entry('charge', 'payment-1', 500, 1),
      entry('charge', 'payment-2', 700, 2),
      entry('refund', 'refund-1', 200, 3),
      entry('capture', 'order-1', 900, 5),
      entry('payout', 'transfer-1', 300, 6),
    ],
    receipts: [
      { receiptKey: 'one', tenant: 'tenant-a', paymentId: 'payment-1' },
      { receiptKey: 'two', tenant: 'tenant-b', paymentId: 'payment-2' },
    ],
  }
}
