/** Compares the provider's ledger with the books, and both with the allowed entries. */
import type { ProviderEffect } from '../../examples/provider/contract.ts'
import type { BusinessRow, EntryRow, Facts, Violation } from './facts.ts'

export function judgeBooks(facts: Facts): Violation[] {
  return [
    ...judgeDoubles(facts.effects, facts.books.entries),
    ...judgeRows(facts),
    ...judgeBooking(facts),
    ...judgeHolds(facts),
    ...judgeRefunds(facts),
    ...judgeStock(facts),
  ]
}

/** Duplicate: an effect happened twice. Valid at any time, also while work is in progress. */
export function judgeDoubles(
  effects: readonly ProviderEffect[],
  entries: readonly EntryRow[],
): Violation[] {
  const succeeded = effects.filter(({ status }) => status === 'succeeded')
  return [
    ...repeated(succeeded, ({ kind, reference }) => `${kind} of ${reference}`).map(
      ([what, twice]): Violation => ({
        kind: 'duplicate',
        reference: twice[0]!.reference,
        detail: `the provider has ${twice.length} effects for one ${what}: ${effectsOf(twice)}`,
      }),
    ),
    ...repeated(effects, ({ key }) => key).map(([key, twice]): Violation => ({
      kind: 'duplicate',
      detail: `the provider has two effects under downstream key ${key}: ${effectsOf(twice)}`,
    })),
    ...repeated(entries, ({ kind, reference }) => `${kind} of ${reference}`).map(
      ([what, twice]): Violation => ({
        kind: 'duplicate',
        recordId: twice[0]!.recordId,
        detail: `the books have ${twice.length} entries for one ${what}`,
      }),
    ),
  ]
}

function effectsOf(effects: readonly ProviderEffect[]): string {
  return effects
    .map(({ id, status, key, createdAt }) => `${id} ${status} under ${key} at ${createdAt}`)
    .join(', ')
}

/** Duplicate: one key has made two rows of a kind. */
function judgeRows({ books }: Facts): Violation[] {
  const kinds: readonly (readonly BusinessRow[])[] = [
    books.payments,
    books.refunds,
    books.orders,
    books.transfers,
  ]
  const rows = kinds.flatMap((kind) =>
    repeated(kind, ({ recordId }) => recordId).map(([recordId, twice]): Violation => ({
      kind: 'duplicate',
      recordId,
      detail: `one key has made ${twice.map(({ id }) => id).join(' and ')}`,
    })),
  )
  const receipts = repeated(books.receipts, ({ paymentId }) => paymentId).map(
    ([paymentId, twice]): Violation => ({
      kind: 'duplicate',
      detail: `payment ${paymentId} has ${twice.length} receipts`,
    }),
  )
  return [...rows, ...receipts]
}

/** Whether an effect moves money, unlike a hold. */
function movesMoney({ kind, status }: ProviderEffect): boolean {
  return status === 'succeeded' && kind !== 'hold'
}

/** Each effect has an entry with the same amount, and each entry has an effect. */
function judgeBooking({ effects, books: { entries } }: Facts): Violation[] {
  const moved = new Map(effects.filter(movesMoney).map((effect) => [effect.id, effect]))
  const booked = new Set(entries.map(({ providerId }) => providerId))
  const missing = [...moved.values()].filter(({ id }) => !booked.has(id))
  return [
    ...missing.map(({ id, kind, reference, amountCents }): Violation => ({
      kind: 'lost',
      detail: `the provider has ${kind} ${id} of ${amountCents} for ${reference}, not in the books`,
    })),
    ...entries.flatMap((entry) => judgeEntry(entry, moved.get(entry.providerId ?? ''))),
  ]
}

function judgeEntry(entry: EntryRow, effect: ProviderEffect | undefined): Violation[] {
  const { recordId, kind, reference, amountCents, providerId } = entry
  const about = `the books have ${kind} ${reference} of ${amountCents}`
  const wrong = (detail: string): Violation[] => [{ kind: 'divergence', recordId, detail }]
  if (effect === undefined) return wrong(`${about}, the provider no ${providerId ?? 'effect'}`)
  if (effect.reference !== reference) return wrong(`${about}, for effect of ${effect.reference}`)
  // A refund may be booked with a negative amount.
  if (Math.abs(amountCents) === effect.amountCents) return []
  return wrong(`${about}, the provider has ${effect.amountCents}`)
}

/** Lost: money that is held for an order, and neither captured nor released. */
function judgeHolds({ effects }: Facts): Violation[] {
  const captured = new Set(effects.filter(({ kind }) => kind === 'capture').map(({ of }) => of))
  return effects
    .filter(
      ({ kind, status, id }) => kind === 'hold' && status === 'succeeded' && !captured.has(id),
    )
    .map(({ id, reference }) => ({
      kind: 'lost',
      reference,
      detail: `hold ${id} for ${reference} was never captured`,
    }))
}

function judgeRefunds({ effects, books: { payments } }: Facts): Violation[] {
  const refunded = new Map<string, number>()
  for (const { kind, status, of, amountCents } of effects) {
    if (kind !== 'refund' || status !== 'succeeded' || of === undefined) continue
    refunded.set(of, (refunded.get(of) ?? 0) + amountCents)
  }
  return payments.flatMap(({ id, recordId, providerId, amountCents, refundedCents }) => {
    const givenBack = refunded.get(providerId ?? '') ?? 0
    const violations: Violation[] = []
    if (givenBack > amountCents) {
      const detail = `payment ${id} of ${amountCents} was refunded with ${givenBack}`
      violations.push({ kind: 'duplicate', recordId, detail })
    }
    if (givenBack !== refundedCents) {
      const detail = `payment ${id} has ${refundedCents} refunded, the provider ${givenBack}`
      violations.push({ kind: 'divergence', recordId, detail })
    }
    return violations
  })
}

function judgeStock({ books: { products, orders }, stockBefore }: Facts): Violation[] {
  return stockBefore.flatMap(({ sku, stock: before }): Violation[] => {
    const after = products.find((product) => product.sku === sku)?.stock ?? 0
    const sold = orders
      .filter((order) => order.sku === sku && order.status === 'confirmed')
      .reduce((sum, { quantity }) => sum + quantity, 0)
    const taken = before - after
    if (taken === sold) return []
    const detail = `${taken} of ${sku} are missing from the stock, but ${sold} were sold`
    return [{ kind: taken > sold ? 'duplicate' : 'lost', detail }]
  })
}

function repeated<Item>(
  items: readonly Item[],
  by: (item: Item) => string,
): (readonly [string, readonly Item[]])[] {
  return [...Map.groupBy(items, by)].filter(([, group]) => group.length > 1)
}
