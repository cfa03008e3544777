import { randomUUID } from 'node:crypto'
import type { ProviderEffect } from '../provider/contract.ts'
import type { Query } from './database/database.ts'

/** The owner of the money, and the oncekey record that explains the entry. */
export interface BookedFor {
  readonly tenant: string
  readonly recordId: string
}

const INSERT = `
  INSERT INTO entry
    (entry_id, tenant, kind, reference, amount_cents, provider_id, record_id, created_at)
  VALUES (?, ?, ?, ?, ?, ?, ?, ?)`

/**
 * Books an effect of the provider under its kind and time, so that our entry and the entry in the
 * provider's ledger belong to the same day, however late we learn of the effect.
 */
export async function book(
  query: Query,
  { kind, reference, amountCents, id, createdAt }: ProviderEffect,
  { tenant, recordId }: BookedFor,
): Promise<void> {
  const entryId = randomUUID()
  await query(INSERT, [entryId, tenant, kind, reference, amountCents, id, recordId, createdAt])
}
