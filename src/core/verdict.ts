import type { ResolveVerdict } from './engine-contract.ts'
import { InvalidOptionsError } from './errors.ts'
import { describe } from './options.ts'

/** Without it, a misspelt `completed` would free the key of a payment that was made. */
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
