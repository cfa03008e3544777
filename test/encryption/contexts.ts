import { randomBytes } from 'node:crypto'
import type { EncryptionContext, EncryptionPurpose } from '../../src/core/encryption.ts'

export const PURPOSES: readonly EncryptionPurpose[] = [
  'reply',
  'operation_input',
  'phase_request',
  'phase_result',
  'message',
]

/** A context as the package makes it, for a record of the tenant `acme`. */
export function contextOf(changes: Partial<EncryptionContext> = {}): EncryptionContext {
  const subject = {
    purpose: 'reply',
    tenant: 'acme',
    operation: 'POST /payments',
    identity: '0f'.repeat(16),
    recordId: '01890a5d-ac96-774b-bcce-b302099a8057',
    ...changes,
  } as const
  const { purpose, tenant, operation, identity, recordId } = subject
  const parts = [purpose, tenant ?? null, operation, identity, recordId]
  return { associatedData: Buffer.from(JSON.stringify(parts)), ...subject }
}

export function newKey(): Uint8Array {
  return Uint8Array.from(randomBytes(32))
}

/** Flips one bit of a copy. */
export function withBitFlipped(bytes: Uint8Array, bit: number): Uint8Array {
  const changed = Uint8Array.from(bytes)
  changed[bit >> 3]! ^= 1 << (bit & 7)
  return changed
}
