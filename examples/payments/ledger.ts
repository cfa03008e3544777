import type { Engine } from 'oncekey'
import { ledgerJob, type LedgerJob, type LedgerPeriod, type LedgerReport } from 'oncekey/durable'
import type { EffectKind } from '../provider/contract.ts'
import type { Database } from './database/database.ts'
import type { ProviderClient } from './provider/provider-client.ts'

/** One movement of money. Both sides identify it by the provider's id. */
interface Line {
  readonly id: string
  readonly kind: string
  readonly reference: string
  readonly amountCents: number
}

export interface LedgerParts {
  readonly engine: Engine
  readonly database: Database
  readonly provider: ProviderClient
}

/** Once a day: checks that each effect of the provider is booked once, and no others. */
export function compareWithProvider({ engine, database, provider }: LedgerParts): LedgerJob {
  return ledgerJob({
    engine,
    name: 'provider',
    ours: (period) => readBooks(database, period),
    theirs: (period) => readProvider(provider, period),
    onReport: report,
  })
}

const PAGE = 500
const BOOKED = `
  SELECT entry_id AS "entryId", provider_id AS "id", kind, reference, amount_cents AS "amountCents"
  FROM entry
  WHERE created_at >= ? AND created_at < ?
    AND (provider_id > ? OR (provider_id = ? AND entry_id > ?))
  ORDER BY provider_id, entry_id LIMIT ${PAGE}`

/** Reads page by page, each after the last row of the previous one. */
export async function* readBooks(
  { query }: Pick<Database, 'query'>,
  { from, to }: Pick<LedgerPeriod, 'from' | 'to'>,
): AsyncIterable<Line> {
  const period = [from.toISOString(), to.toISOString()]
  let last = { id: '', entryId: '' }
  while (true) {
    const { rows } = await query(BOOKED, [...period, last.id, last.id, last.entryId])
    for (const row of rows) {
      const { entryId, ...line } = row as unknown as Line & { readonly entryId: string }
      yield line
      last = { id: line.id, entryId }
    }
    if (rows.length < PAGE) return
  }
}

/** Held money has not moved, and is not booked. */
const BOOKED_KINDS: ReadonlySet<EffectKind> = new Set(['charge', 'capture', 'refund', 'payout'])

/** The provider lists its effects by time; the comparison needs them by id. */
async function* readProvider(
  provider: ProviderClient,
  { from, to, signal }: LedgerPeriod,
): AsyncIterable<Line> {
  const lines: Line[] = []
  for await (const effect of provider.ledger(signal)) {
    const { id, kind, reference, amountCents, status, createdAt } = effect
    const isBooked = status === 'succeeded' && BOOKED_KINDS.has(kind)
    if (!isBooked || createdAt < from.toISOString() || createdAt >= to.toISOString()) continue
    lines.push({ id, kind, reference, amountCents })
  }
  yield* lines.sort((a, b) => (a.id < b.id ? -1 : 1))
}

/** A difference is for operators: money moved without a request, or a request moved no money. */
function report(compared: LedgerReport<Line, Line>, { from }: LedgerPeriod): void {
  const { matched, ...differences } = compared
  const found = Object.entries(differences).filter(([, { count }]) => count > 0)
  const day = from.toISOString().slice(0, 10)
  if (found.length === 0) {
    if (matched > 0) console.log(`ledger: ${day} agrees with the provider, ${matched} entries`)
    return
  }
  console.error(
    `ledger: ${day} differs from the provider: ${JSON.stringify(Object.fromEntries(found))}`,
  )
}
