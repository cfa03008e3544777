import { randomUUID } from 'node:crypto'
import type { ProviderEffect } from '../provider/contract.ts'
import type { Query } from './database/database.ts'

/** Whose money moved, and which record of oncekey says why. */
export interface BookedFor {
  readonly tenant: string
  readonly recordId: string
}

const INSERT = `
  INSERT INTO entry
    (entry_id, tenant, kind, reference, amount_cents, provider_id, record_id, created_at)
  VALUES (?, ?, ?, ?, ?, ?, ?, ?)`

/**
 * Writes down what the provider did, under its kind and with its time: so an entry of ours and one
 * of the provider's ledger belong to the same day, however late we heard of it.
 */
export async function book(
  query: Query,
  { kind, reference, amountCents, id, createdAt }: ProviderEffect,
  { tenant, recordId }: BookedFor,
): Promise<void> {
  const entryId = randomUUID()
  await query(INSERT, [entryId, tenant, kind, reference, amountCents, id, recordId, createdAt])
}
