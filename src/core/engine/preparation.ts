/**
 * Prepares encryption before work begins. After the work it would be too late: a result that cannot
 * be encrypted cannot be recorded. Tests: test/core/engine/preparation.test.ts.
 */
import { HOOK_MS_MAX, type Encryption, type EncryptionSubject } from '../encryption.ts'
import type { EventListener } from '../events.ts'
import { isThenable } from '../thenable.ts'
import type { Clock } from '../time/clock.ts'
import { withTimeLimit } from '../time/time-limit.ts'

export interface PreparationParts {
  readonly clock: Clock
  readonly emit: EventListener
}

/**
 * Whether work of this scope may begin. A failure is emitted as `encryption_failed`. `true` at once
 * if the hook is missing or synchronous, so that callers await only a promise. Never throws and
 * never rejects.
 */
export function prepareEncryption(
  { clock, emit }: PreparationParts,
  encryption: Encryption | undefined,
  { tenant, operation }: { readonly tenant: string; readonly operation: string },
): boolean | Promise<boolean> {
  const failed = (error: unknown): boolean => {
    emit({ kind: 'encryption_failed', tenant, operation, error })
    return false
  }
  try {
    const prepared = callPrepare(clock, encryption, { tenant })
    return prepared === undefined ? true : prepared.then(() => true, failed)
  } catch (error) {
    return failed(error)
  }
}

/**
 * Calls the hook, and waits for it at most `HOOK_MS_MAX`. A promise only if the hook returns one.
 */
export function callPrepare(
  clock: Clock,
  encryption: Encryption | undefined,
  subject: EncryptionSubject,
): Promise<void> | undefined {
  const prepared = encryption?.prepare?.(subject)
  if (!isThenable(prepared)) return undefined
  const reason = (limitMs: number) =>
    new Error(`encryption.prepare has not answered within ${limitMs} ms`)
  return withTimeLimit({ clock, limitMs: HOOK_MS_MAX, reason }, () => prepared)
}
