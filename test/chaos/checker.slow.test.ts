/** Tests the judge of the chaos runs with facts made by hand: it finds exactly each violation. */
import { describe, expect, it } from 'vitest'
import type { ViolationKind } from '../../chaos/check/facts.ts'
import { judge, judgeWhileRunning } from '../../chaos/check/judge.ts'
import { answer, cleanRun, MISMATCH, PAID, saw, type RunFacts } from './clean-run.ts'

it('the judge finds no violation in a correct run', () => {
  expect(judge(cleanRun())).toEqual([])
})

interface Wrong {
  readonly name: string
  readonly kind: ViolationKind
  readonly detail: RegExp
  readonly change: (facts: RunFacts) => void
}

const DUPLICATES: readonly Wrong[] = [
  {
    name: 'two charges for one payment',
    kind: 'duplicate',
    detail: /2 effects for one charge of payment-1/,
    change: ({ effects }) => {
      effects.push({ ...effects[0]!, id: 'effect-8', key: 'downstream-8' })
    },
  },
  {
    name: 'two effects under one downstream key',
    kind: 'duplicate',
    detail: /under downstream key downstream-7/,
    change: ({ effects }) => {
      effects.push({ ...effects[6]!, id: 'effect-8' })
    },
  },
  {
    name: 'two entries for one payment',
    kind: 'duplicate',
    detail: /books have 2 entries for one charge of payment-1/,
    change: ({ books }) => {
      books.entries.push({ ...books.entries[0]!, entryId: 'entry-8' })
    },
  },
  {
    name: 'two payments of one key',
    kind: 'duplicate',
    detail: /one key has made payment-3 and payment-4/,
    change: ({ books }) => {
      books.payments.push({ ...books.payments[2]!, id: 'payment-4' })
    },
  },
  {
    name: 'two receipts of one payment',
    kind: 'duplicate',
    detail: /payment-1 has 2 receipts/,
    change: ({ books }) => {
      books.receipts.push({ ...books.receipts[0]!, receiptKey: 'three' })
    },
  },
  {
    name: 'more stock missing than was sold',
    kind: 'duplicate',
    detail: /4 of tea are missing from the stock, but 2 were sold/,
    change: ({ books }) => {
      books.products[0]!.stock = 6
    },
  },
  {
    name: 'more refunded than was paid',
    kind: 'duplicate',
    detail: /payment-1 of 150 was refunded with 200/,
    change: ({ books }) => {
      books.payments[0]!.amountCents = 150
    },
  },
]

const DIVERGENCES: readonly Wrong[] = [
  {
    name: 'two different final answers',
    kind: 'divergence',
    detail: /one client got 201 .*another 201 \(replayed\)/,
    change: ({ stories }) => {
      stories[0]!.seen.push(saw('request', 700, answer(201, { ...PAID, amountCents: 501 }, true)))
    },
  },
  ...[
    answer(409, { code: 'idempotency_key_in_progress' }),
    answer(409, { code: 'idempotency_outcome_unknown' }),
    answer(202, { status: 'pending' }),
  ].map((older): Wrong => ({
    name: `an older answer after the final one: ${JSON.stringify(older)}`,
    kind: 'divergence',
    detail: /after the final 201 .*, api-1 answered (409|202)/,
    change: ({ stories }) => {
      stories[0]!.seen.push(saw('request', 700, older))
    },
  })),
  {
    name: 'a success and a refusal',
    kind: 'divergence',
    detail: /one client got 201 .*another 402/,
    change: ({ stories }) => {
      stories[0]!.seen.push(saw('request', 700, answer(402, { code: 'payment_declined' })))
    },
  },
  {
    name: 'a replay with other bytes',
    kind: 'divergence',
    detail: /one client got/,
    change: ({ stories }) => {
      const { amountCents, ...others } = PAID
      stories[0]!.seen.push(saw('request', 700, answer(201, { amountCents, ...others }, true)))
    },
  },
  {
    name: 'another request under the key that runs',
    kind: 'divergence',
    detail: /answered another request under the key with 201/,
    change: ({ stories }) => {
      stories[0]!.seen.push(saw('altered', 700, answer(201, PAID)))
    },
  },
  {
    name: 'another request under the key that gets a conflict',
    kind: 'divergence',
    detail: /answered another request under the key with 409/,
    change: ({ stories }) => {
      const waits = answer(409, { code: 'idempotency_key_in_progress' })
      stories[0]!.seen.push(saw('altered', 700, waits))
    },
  },
  {
    name: 'a key that refuses its own request',
    kind: 'divergence',
    detail: /did not recognise the request of the key/,
    change: ({ stories }) => {
      stories[3]!.seen.push(saw('request', 700, answer(422, MISMATCH)))
    },
  },
  {
    name: 'books with another amount than the provider',
    kind: 'divergence',
    detail: /books have payout transfer-1 of 301, the provider has 300/,
    change: ({ books }) => {
      books.entries[4]!.amountCents = 301
    },
  },
  {
    name: 'an entry that the provider does not know',
    kind: 'divergence',
    detail: /books have charge payment-9 of 1, the provider no effect-9/,
    change: ({ books }) => {
      const entry = { ...books.entries[0]!, reference: 'payment-9', amountCents: 1 }
      books.entries.push({ ...entry, providerId: 'effect-9' })
    },
  },
  {
    name: 'another amount than was asked for',
    kind: 'divergence',
    detail: /requested 500, but 499 were moved/,
    change: ({ effects, books }) => {
      effects[0]!.amountCents = 499
      books.entries[0]!.amountCents = 499
    },
  },
  {
    name: 'a payment with more refunds on record than were made',
    kind: 'divergence',
    detail: /payment-1 has 300 refunded, the provider 200/,
    change: ({ books }) => {
      books.payments[0]!.refundedCents = 300
    },
  },
  {
    name: 'a payment that was declined, and charged',
    kind: 'divergence',
    detail: /got 402 .*charge effect-7 succeeded/,
    change: ({ effects }) => {
      effects[6]!.status = 'succeeded'
    },
  },
  {
    name: 'a final answer that no client should get',
    kind: 'divergence',
    detail: /the final answer to a transfer was 408/,
    change: ({ stories }) => {
      const timedOut = answer(408, { code: 'operation_timed_out' }, true)
      stories[4]!.seen = [saw('status', 100, timedOut)]
    },
  },
  {
    name: 'an id that its key has not made',
    kind: 'divergence',
    detail: /got payment-9, but its key has made payment-1/,
    change: ({ stories }) => {
      stories[0]!.seen = [saw('request', 0, answer(201, { ...PAID, paymentId: 'payment-9' }))]
    },
  },
]

const LOSSES: readonly Wrong[] = [
  {
    name: 'a charge that was reported and never made',
    kind: 'lost',
    detail: /got a success for payment-2, which the provider does not know/,
    change: ({ effects }) => {
      effects.splice(1, 1)
    },
  },
  {
    name: 'a charge that is not in the books',
    kind: 'lost',
    detail: /provider has charge effect-2 of 700 for payment-2, not in the books/,
    change: ({ books }) => {
      books.entries.splice(1, 1)
    },
  },
  {
    name: 'a payment that was reported and has no row',
    kind: 'lost',
    detail: /the books have no row of it/,
    change: ({ books }) => {
      books.payments.splice(1, 1)
    },
  },
  {
    name: 'a payment without a receipt',
    kind: 'lost',
    detail: /payment-2 has no receipt/,
    change: ({ books }) => {
      books.receipts.pop()
    },
  },
  {
    name: 'a key without a record',
    kind: 'lost',
    detail: /its key has no record/,
    change: ({ records }) => {
      records.shift()
    },
  },
  {
    name: 'a payment that is missing when its client reads it',
    kind: 'lost',
    detail: /got a success, and then api-1 answered 200 .*pending/,
    change: ({ stories }) => {
      stories[0]!.seen.push(saw('read', 700, answer(200, { ...PAID, status: 'pending' })))
    },
  },
  {
    name: 'a payment that cannot be found when its client reads it',
    kind: 'lost',
    detail: /and then api-1 answered 404/,
    change: ({ stories }) => {
      stories[0]!.seen.push(saw('read', 700, answer(404, {})))
    },
  },
  {
    name: 'money that is held and never captured',
    kind: 'lost',
    detail: /hold effect-8 for order-2 was never captured/,
    change: ({ effects }) => {
      effects.push({ ...effects[3]!, id: 'effect-8', key: 'downstream-8', reference: 'order-2' })
    },
  },
  {
    name: 'fewer items missing from the stock than were sold',
    kind: 'lost',
    detail: /0 of tea are missing from the stock, but 2 were sold/,
    change: ({ books }) => {
      books.products[0]!.stock = 10
    },
  },
]

const STUCK: readonly Wrong[] = [
  ...['in_progress', 'unknown', 'pending'].map((state): Wrong => ({
    name: `a record that stays ${state}`,
    kind: 'stuck',
    detail: new RegExp(`the record is ${state}`),
    change: ({ records }) => {
      records[5]!.state = state
    },
  })),
  {
    name: 'an operation that no worker continues',
    kind: 'stuck',
    detail: /the record is failed_retryable after attempt 1, at charge recovery point/,
    change: ({ records }) => {
      records[5]!.state = 'failed_retryable'
      records[5]!.recoveryPoint = 'charge'
    },
  },
  ...['ready', 'held', 'dead'].map((state): Wrong => ({
    name: `a message that stays ${state}`,
    kind: 'stuck',
    detail: new RegExp(`message message-1 of receipt.send is ${state}`),
    change: ({ messages }) => {
      messages[0]!.state = state
    },
  })),
  {
    name: 'a client that never gets an answer',
    kind: 'stuck',
    detail: /never got a final answer/,
    change: ({ stories }) => {
      stories[4]!.seen.pop()
    },
  },
]

const LEAKS: readonly Wrong[] = [
  {
    name: 'the reply of another tenant',
    kind: 'leak',
    detail: /got payment payment-1, which belongs to story 1/,
    change: ({ stories }) => {
      stories[1]!.seen = [saw('request', 0, answer(201, PAID, true))]
    },
  },
  {
    name: 'a key that another tenant has taken',
    kind: 'leak',
    detail: /took the key for the one of the other tenant/,
    change: ({ stories }) => {
      stories[1]!.seen.push(saw('request', 100, answer(422, MISMATCH)))
    },
  },
  {
    name: 'a resource of another tenant',
    kind: 'leak',
    detail: /showed it to the other tenant: 200/,
    change: ({ stories }) => {
      stories[0]!.seen.push(saw('foreign_read', 700, answer(200, PAID)))
    },
  },
  {
    name: 'a refund that another tenant requested',
    kind: 'leak',
    detail: /showed it to the other tenant: 201/,
    change: ({ stories }) => {
      stories[0]!.seen.push(saw('foreign_refund', 700, answer(201, { refundId: 'refund-9' })))
    },
  },
  {
    name: 'a row stored under another tenant than its key',
    kind: 'leak',
    detail: /got payment-1, which belongs to tenant-b/,
    change: ({ books }) => {
      books.payments[0]!.tenant = 'tenant-b'
    },
  },
]

const CRASHES: readonly Wrong[] = [
  {
    name: 'a process that ends unexpectedly',
    kind: 'crashed',
    detail: /api-1 ended unexpectedly with exit code 1: out of memory/,
    change: ({ exits }) => {
      exits.push({ name: 'api-1', how: 'exit code 1', stderr: 'out of memory' })
    },
  },
]

const ALL = [...DUPLICATES, ...DIVERGENCES, ...LOSSES, ...STUCK, ...LEAKS, ...CRASHES]

it.each(ALL)('the judge finds $kind: $name', ({ kind, detail, change }) => {
  const facts = cleanRun()
  change(facts)
  expect(judge(facts)).toContainEqual(
    expect.objectContaining({ kind, detail: expect.stringMatching(detail) }),
  )
})

describe('harmless facts', () => {
  const harmless: readonly Pick<Wrong, 'name' | 'change'>[] = [
    {
      name: 'a server that fails on every request',
      change: ({ stories }) => {
        for (const asked of ['request', 'altered', 'read', 'foreign_read', 'status'] as const) {
          stories[0]!.seen.push(saw(asked, 700, answer(500, { code: 'internal_error' })))
        }
      },
    },
    {
      name: 'a conflict for a request that was sent before the final answer arrived',
      change: ({ stories }) => {
        const early = answer(409, { code: 'idempotency_key_in_progress' })
        stories[0]!.seen.push({ ...saw('request', 205, early), endedMs: 800 })
      },
    },
    {
      name: 'a client that reads before it got an answer',
      change: ({ stories }) => {
        stories[0]!.seen.unshift(saw('read', 0, answer(404, {})))
      },
    },
    {
      name: 'a failure without a record that was not retried',
      change: ({ records }) => {
        records.push({
          ...records[5]!,
          recordId: 'record-7',
          key: 'a job',
          state: 'failed_retryable',
        })
      },
    },
    {
      name: 'an order that was sold out, and took no stock',
      change: (facts) => {
        facts.stories[3]!.seen = [saw('request', 0, answer(409, { code: 'sold_out' }))]
        facts.books.orders.pop()
        facts.books.entries.splice(3, 1)
        facts.effects.splice(3, 2)
        facts.books.products[0]!.stock = 10
      },
    },
  ]

  it.each(harmless)('the judge accepts $name', ({ change }) => {
    const facts = cleanRun()
    change(facts)
    expect(judge(facts)).toEqual([])
  })
})

it('the judge finds duplicates and wrong answers while other work is in progress', () => {
  const { stories, effects, books, exits } = cleanRun()
  const now = { stories, effects, entries: books.entries, exits }
  stories[4]!.seen.pop()
  expect(judgeWhileRunning(now)).toEqual([])

  effects.push({ ...effects[0]!, id: 'effect-8', key: 'downstream-8' })
  stories[1]!.seen.push(saw('request', 100, answer(422, MISMATCH)))
  expect(judgeWhileRunning(now).map(({ kind }) => kind)).toEqual(['leak', 'duplicate'])
})
