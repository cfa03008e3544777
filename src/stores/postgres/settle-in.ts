import type { Completion, Lease, SettleOutcome } from '../../core/store.ts'
import type { Calls } from './calls.ts'
import { storeFailed } from './failures.ts'
import { joinTransaction } from './join.ts'
import { bytesLiteral, hexLiteral, numberLiteral, textLiteral } from './literals.ts'
import { toRow, type SettleRow } from './rows.ts'

const OPERATION = 'complete in a transaction'

/**
 * Completes a key in a transaction that the caller has begun. The outcome is `settled` only where
 * this very call has written: of two transactions of one lease, the second must be rolled back,
 * also where the first has committed and its caller was not told.
 */
export async function settleIn(
  calls: Calls,
  tx: unknown,
  lease: Lease,
  completion: Completion,
): Promise<SettleOutcome> {
  const answer = await joinTransaction(tx, {
    caller: 'completeIn',
    operation: OPERATION,
    mark: lease.token,
    call: () => {
      const values = settleLiterals(calls.nowMs, lease, completion)
      return calls.textOf(SETTLE_IN).replace('{values}', () => values)
    },
  })
  return toOutcome(lease, answer)
}

const SETTLE_IN = `coalesce("{schema}"."{table}_settle_one"({values}), 'absent')`

/** In the order of the parameters of the function. */
function settleLiterals(nowMs: number | null, lease: Lease, completion: Completion): string {
  const { identity, token, attempt } = lease
  const none = (type: string) => `CAST(NULL AS ${type})`
  return [
    numberLiteral(nowMs),
    hexLiteral(identity),
    textLiteral(token),
    numberLiteral(attempt, 'int'),
    textLiteral('complete'),
    bytesLiteral(completion.result),
    none('text'),
    none('text'),
    numberLiteral(completion.retentionMs),
    none('float8'),
    none('float8'),
  ].join(', ')
}

function toOutcome({ identity }: Lease, answer: string): SettleOutcome {
  if (answer === 'absent') return { kind: 'fenced', own: false, state: 'absent' }
  const [, done, own, state, expiresAtMs] = toRow(identity, answer) as SettleRow
  if (done) return { kind: 'settled', expiresAt: new Date(expiresAtMs) }
  if (own && state === 'in_progress') {
    throw storeFailed(OPERATION, new Error('the record changed while it was settled'))
  }
  return { kind: 'fenced', own, state }
}
