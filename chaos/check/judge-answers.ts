/** Holds what clients were told against what became of it. */
import type { ProviderEffect } from '../../examples/provider/contract.ts'
import { codeOf, type Answer } from '../clients/seen.ts'
import type { Story } from '../clients/story.ts'
import type { BusinessRow, Facts, RecordRow, Violation } from './facts.ts'
import { finalsOf, idOf, isSuccess, wordsOf } from './judge-clients.ts'

export function judgeAnswers(facts: Facts): Violation[] {
  const index = indexOf(facts)
  return facts.stories.flatMap((story) => judgeOne(story, index))
}

/** What stands for a kind of story at the provider: the effect that moves the money. */
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
    const detail = `was told ${wordsOf(answer)}, and there is no record of its key`
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
    return [
      { kind: 'lost', detail: `was told ${wordsOf(answer)}, and its books have nothing of it` },
    ]
  }
  const told = idOf(story, answer)
  if (told !== row.id) {
    return [{ kind: 'divergence', detail: `was told of ${told}, its key has made ${row.id}` }]
  }
  if (row.tenant !== story.tenant) {
    return [{ kind: 'leak', detail: `was told of ${told}, which belongs to ${row.tenant}` }]
  }
  return [...judgeEffect(story, row, index), ...judgeReceipt(story, row, index)]
}

/** The money has moved, as much as was asked for, and the books know. */
function judgeEffect(story: Story, row: BusinessRow, index: Index): Fault[] {
  const effect = index.effects.get(`${EFFECT[story.kind]} ${row.id}`)
  if (effect === undefined) {
    return [{ kind: 'lost', detail: `was told that ${row.id} is done, the provider knows nothing` }]
  }
  const faults: Fault[] = []
  if (!index.booked.has(effect.id)) {
    faults.push({ kind: 'lost', detail: `was told that ${row.id} is done, it is not in the books` })
  }
  const asked = amountOf(story, index)
  if (effect.amountCents !== asked) {
    const detail = `asked for ${asked}, and ${effect.amountCents} were moved`
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

/** The refusals that business may give. Anything else is an answer that nobody should get. */
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
    const detail = `the last word on a ${story.kind} was ${wordsOf(answer)}`
    faults.push({ kind: 'divergence', detail })
  }
  const row = index.rowsByRecord.get(record.recordId)
  const effect = row && index.effects.get(`${EFFECT[story.kind]} ${row.id}`)
  if (effect !== undefined) {
    const detail = `was told ${wordsOf(answer)}, and ${effect.kind} ${effect.id} succeeded`
    faults.push({ kind: 'divergence', detail })
  }
  return faults
}
