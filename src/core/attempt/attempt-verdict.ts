/** Judges an attempt whose work has failed, and builds the settlement for its record. */
import type { Proof } from '../record/record.ts'
import type { Lease, SettleOutcome, Settlement } from '../store/store.ts'
import { errorCodeOf, judgeFailure, type FailureVerdict, type OnError } from './failure.ts'
import type { LiveContext } from './live-context.ts'
import type { NotRecorded } from './settler.ts'

/** Reconcile an `unknown` record at once, unless its operation names another time. */
export const RECONCILE_AFTER_MS = 0

/** The end of the operation and the declarations of the work decide before the error does. */
export function judgeAttempt(
  context: LiveContext,
  onError: OnError,
  { error, blind = false }: { readonly error: unknown; readonly blind?: boolean | undefined },
): FailureVerdict {
  const { declared, effectBegun, rollback, attempt } = context
  const operationEnd = context.operation?.end
  if (operationEnd !== undefined) return operationEnd.kind === 'doubt' ? 'unknown' : 'proven'
  if (declared === 'not_executed') return 'proven'
  if (declared === 'unknown') return 'unknown'
  // For a transaction that the work has begun, only a fenced `completeIn` sets `rollback`: a key
  // that was not completed does not prove that the rows were rolled back.
  const rolledBack = rollback !== undefined && rollback.error === error
  return judgeFailure({ error, blind, effectBegun, rolledBack, attempt }, onError)
}

/** The same for work that left no bytes to record: `store` is replaced by the default verdict. */
export function judgeWithoutResult(
  context: LiveContext,
  onError: OnError,
  error: unknown,
): Exclude<FailureVerdict, 'store'> {
  const verdict = judgeAttempt(context, onError, { error })
  if (verdict !== 'store') return verdict
  return judgeAttempt(context, 'auto', { error }) as Exclude<FailureVerdict, 'store'>
}

/** The settlement that frees the key for a retry. */
export function releaseOf(
  context: LiveContext,
  lease: Lease,
  proof: Proof,
  error: unknown,
): Settlement {
  const { retentionMs, operation } = context
  const errorCode = errorCodeOf(error)
  const resumeAfterMs = operation?.end?.kind === 'release' ? operation.end.resumeAfterMs : undefined
  return { kind: 'release', lease, proof, errorCode, retentionMs, resumeAfterMs }
}

/** The settlement that marks the record `unknown`. */
export function unknownOf(
  { operation }: LiveContext,
  lease: Lease,
  errorCode: string | undefined,
): Settlement {
  const end = operation?.end
  if (end?.kind === 'doubt') {
    const { reconcileAfterMs } = end
    return { kind: 'doubt', lease, errorCode: end.errorCode ?? errorCode, reconcileAfterMs }
  }
  return { kind: 'doubt', lease, errorCode, reconcileAfterMs: RECONCILE_AFTER_MS }
}

/** The settlement was refused because this attempt itself has completed the record. */
export function hasOwnResult(outcome: SettleOutcome | NotRecorded): boolean {
  return outcome.kind === 'fenced' && outcome.own && outcome.state === 'completed'
}
