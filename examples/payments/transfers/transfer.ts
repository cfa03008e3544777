import { z } from 'zod'
import type { ProviderEffect } from '../../provider/contract.ts'
import type { Query } from '../database/database.ts'
import { amountCents, currency, identifier } from '../http/input.ts'
import { compareWithRow, type Earlier } from '../late-retry.ts'

export const transferInput = z.object({ toAccount: identifier, amountCents, currency })

export type TransferInput = z.infer<typeof transferInput>

export interface NewTransfer extends TransferInput {
  readonly transferId: string
  readonly tenant: string
  readonly recordId: string
}

const INSERT = `
  INSERT INTO transfer (transfer_id, tenant, to_account, amount_cents, currency, status, payout_id,
    record_id, created_at)
  VALUES (?, ?, ?, ?, ?, 'pending', NULL, ?, ?)`

/** Records a transfer. For a late retry, returns what its first attempt has recorded. */
export async function recordTransfer(
  query: Query,
  transfer: NewTransfer,
): Promise<Earlier<Transfer> | { readonly kind: 'recorded' }> {
  const { transferId, tenant, toAccount, amountCents, currency, recordId } = transfer
  const row = await findTransfer(query, tenant, transferId)
  if (row !== undefined) {
    return compareWithRow(row, { toAccount, amountCents, currency }, 'pending')
  }
  const createdAt = new Date().toISOString()
  await query(INSERT, [transferId, tenant, toAccount, amountCents, currency, recordId, createdAt])
  return { kind: 'recorded' }
}

const SETTLE = `
  UPDATE transfer SET status = ?, payout_id = ? WHERE transfer_id = ? AND status = 'pending'`

/** Throws if the transfer is settled already: then nothing is committed. */
export async function settleTransfer(
  query: Query,
  transferId: string,
  payout: ProviderEffect,
): Promise<void> {
  const status = payout.status === 'succeeded' ? 'paid' : 'declined'
  const { changes } = await query(SETTLE, [status, payout.id, transferId])
  if (changes !== 1) throw new Error(`transfer ${transferId} is not pending`)
}

const FIND = `
  SELECT transfer_id AS "transferId", status, to_account AS "toAccount",
    amount_cents AS "amountCents", currency, payout_id AS "payoutId", created_at AS "createdAt"
  FROM transfer WHERE tenant = ? AND transfer_id = ?`

export interface Transfer extends TransferInput {
  readonly transferId: string
  readonly status: 'pending' | 'paid' | 'declined'
  readonly payoutId: string | null
  readonly createdAt: string
}

/** Returns the transfer only if it belongs to the tenant. */
export async function findTransfer(
  query: Query,
  tenant: string,
  transferId: string,
): Promise<Transfer | undefined> {
  const { rows } = await query(FIND, [tenant, transferId])
  return rows[0] as Transfer | undefined
}
