/** Compares the answers to clients with the final state. */
import type { ProviderEffect } from '../../examples/provider/contract.ts'
import { codeOf, type Answer } from '../clients/seen.ts'
import type { Story } from '../clients/story.ts'
import type { BusinessRow, Facts, RecordRow, Violation } from './facts.ts'
import { finalsOf, idOf, isSuccess, wordsOf } from './judge-clients.ts'

export function judgeAnswers(facts: Facts): Violation[] {
  const index = indexOf(facts)
  return facts.stories.flatMap((story) => judgeOne(story, index))
}

/** The effect at the provider that moves the money of each kind of story. */
const EFFECT = {
  payment: 'charge',
  refund: 'refund',
  order: 'capture',
  transfer: 'payout',
} as const

interface Index {
  readonly records: ReadonlyMap<string, RecordRow>
  readonly rowsByRecord: ReadonlyMap<string, BusinessRow>
  readonly effects: ReadonlyMap<string, ProviderEffect>
  readonly booked: ReadonlySet<string | undefined>
  readonly receipted: ReadonlySet<string>
  readonly prices: ReadonlyMap<string, number>
}

function indexOf({ records, books, effects, stockBefore }: Facts): Index {
  const { payments, refunds, orders, transfers } = books
  const rows: readonly BusinessRow[] = [...payments, ...refunds, ...orders, ...transfers]
  const succeeded = effects.filter(({ status }) => status === 'succeeded')
  return {
    records: new Map(records.map((record) => [ownerOf(record), record])),
    rowsByRecord: new Map(rows.map((row) => [row.recordId, row])),
    effects: new Map(succeeded.map((effect) => [`${effect.kind} ${effect.reference}`, effect])),
    booked: new Set(books.entries.map(({ providerId }) => providerId)),
    receipted: new Set(books.receipts.map(({ paymentId }) => paymentId)),
    prices: new Map(stockBefore.map(({ sku, priceCents }) => [sku, priceCents])),
  }
}

function ownerOf({ tenant, key }: { readonly tenant: string; readonly key: string }): string {
  return `${tenant} ${key}`
}

function judgeOne(story: Story, index: Index): Violation[] {
  const record = index.records.get(ownerOf(story))
  const about = { story: story.number, recordId: record?.recordId }
  const [final] = finalsOf(story)
  if (final === undefined) {
    return [{ kind: 'stuck', ...about, detail: 'the client never got a final answer' }]
  }
  const answer = final.outcome
  if (record === undefined) {
    const detail = `got ${wordsOf(answer)}, but its key has no record`
    return [{ kind: 'lost', ...about, detail }]
  }
  const faults = isSuccess(answer)
    ? judgeSuccess(story, answer, record, index)
    : judgeFailure(story, answer, record, index)
  return faults.map((fault) => ({ ...about, ...fault }))
}

type Fault = Pick<Violation, 'kind' | 'detail'>

function judgeSuccess(story: Story, answer: Answer, record: RecordRow, index: Index): Fault[] {
  const row = index.rowsByRecord.get(record.recordId)
  if (row === undefined) {
    return [{ kind: 'lost', detail: `got ${wordsOf(answer)}, but the books have no row of it` }]
  }
  const answeredId = idOf(story, answer)
  if (answeredId !== row.id) {
    return [{ kind: 'divergence', detail: `got ${answeredId}, but its key has made ${row.id}` }]
  }
  if (row.tenant !== story.tenant) {
    return [{ kind: 'leak', detail: `got ${answeredId}, which belongs to ${row.tenant}` }]
  }
  return [...judgeEffect(story, row, index), ...judgeReceipt(story, row, index)]
}

/** Checks that the requested amount was moved, and that it is in the books. */
function judgeEffect(story: Story, row: BusinessRow, index: Index): Fault[] {
  const effect = index.effects.get(`${EFFECT[story.kind]} ${row.id}`)
  if (effect === undefined) {
    return [
      { kind: 'lost', detail: `got a success for ${row.id}, which the provider does not know` },
    ]
  }
  const faults: Fault[] = []
  if (!index.booked.has(effect.id)) {
    faults.push({ kind: 'lost', detail: `got a success for ${row.id}, which is not in the books` })
  }
  const asked = amountOf(story, index)
  if (effect.amountCents !== asked) {
    const detail = `requested ${asked}, but ${effect.amountCents} were moved`
    faults.push({ kind: 'divergence', detail })
  }
  return faults
}

function amountOf({ kind, body }: Story, { prices }: Index): number {
  if (kind !== 'order') return Number(body['amountCents'])
  return Number(body['quantity']) * (prices.get(String(body['sku'])) ?? Number.NaN)
}

function judgeReceipt(story: Story, row: BusinessRow, { receipted }: Index): Fault[] {
  if (story.kind !== 'payment' || receipted.has(row.id)) return []
  return [{ kind: 'lost', detail: `payment ${row.id} has no receipt` }]
}

/** Refusals for business reasons. No client should get any other refusal. */
const REFUSALS: Readonly<Record<Story['kind'], readonly string[]>> = {
  payment: ['payment_declined'],
  refund: ['payment_not_refundable'],
  order: ['payment_declined', 'sold_out'],
  transfer: [],
}

function judgeFailure(story: Story, answer: Answer, record: RecordRow, index: Index): Fault[] {
  const code = codeOf(answer.body) ?? 'none'
  const isExpected =
    REFUSALS[story.kind].includes(code) && (code !== 'payment_declined' || story.isDeclined)
  const faults: Fault[] = []
  if (!isExpected) {
    const detail = `the final answer to a ${story.kind} was ${wordsOf(answer)}`
    faults.push({ kind: 'divergence', detail })
  }
  const row = index.rowsByRecord.get(record.recordId)
  const effect = row && index.effects.get(`${EFFECT[story.kind]} ${row.id}`)
  if (effect !== undefined) {
    const detail = `got ${wordsOf(answer)}, but ${effect.kind} ${effect.id} succeeded`
    faults.push({ kind: 'divergence', detail })
  }
  return faults
}
