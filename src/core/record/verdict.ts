import type { ResolveTarget, ResolveVerdict } from '../engine/engine-contract.ts'
import { InvalidOptionsError } from '../errors.ts'
import { describe } from '../options.ts'
import type { RecordRef } from '../store/store.ts'
import { identityOf } from './identity.ts'

export function toRef(target: ResolveTarget): RecordRef {
  if ('recordId' in target) return { recordId: target.recordId }
  return { identity: identityOf(target.scope, target.key) }
}

/** Throws on an invalid verdict: a misspelt `completed` would release the key of a made payment. */
export function checkVerdict({ kind, ...rest }: ResolveVerdict): void {
  if (kind === 'failed_retryable') return
  if (kind !== 'completed') {
    throw new InvalidOptionsError(
      `resolve.kind must be 'completed' or 'failed_retryable', got ${describe(kind)}`,
    )
  }
  const { result } = rest as { result?: unknown }
  if (result instanceof Uint8Array) return
  throw new InvalidOptionsError(`resolve.result must be a Uint8Array, got ${describe(result)}`)
}
