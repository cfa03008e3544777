import { boundedWork } from '../../core/bounded-work.ts'
import type { Clock } from '../../core/clock.ts'
import { decideSettle } from '../../core/decide.ts'
import { OutcomeUnknownError } from '../../core/errors.ts'
import type { StoredRecord } from '../../core/record.ts'
import { revocable } from '../../core/revocable.ts'
import type { Completion, Lease, SettleOutcome, Settlement } from '../../core/store.ts'
import { ValueFault } from './array-literal.ts'
import { settleOneValues, type Calls } from './calls.ts'
import type { Driver, Session } from './client.ts'
import { isSealBroken, storeFailed } from './failures.ts'
import { AGAIN, isWritten, toRecord, toRow, toSettleOutcome } from './rows.ts'
import { OPENING, RELEASE_SEAL, ROLL_BACK_TO_SEAL, SETTLE_ONE } from './sql.ts'

export type TransactionWork<Tx> = (tx: Tx) => Completion | Promise<Completion>

export interface TransactionContext {
  readonly driver: Driver
  readonly calls: Calls
  readonly clock: Clock
  readonly transactionMs: number
  /** What works were given: transactions of the store's own. */
  readonly handedOut: WeakSet<object>
}

/** What a transaction with work of the caller's is for. */
export interface Purpose<Given, Outcome> {
  readonly lease: Lease
  readonly work: (tx: never) => Given | Promise<Given>
  /**
   * An outcome here means that the work may not run: the lease is lost, or an earlier call whose
   * answer was lost has ended it.
   */
  readonly before: (record: StoredRecord | undefined) => Outcome | undefined
  /** The last statements. Where they are not to be kept, nothing of the work is. */
  readonly after: (session: Session, given: Given) => Promise<{ outcome: Outcome; isKept: boolean }>
}

/** Not an error: how the body of a transaction says that nothing of it may be kept. */
class RolledBack<Outcome> extends Error {
  readonly outcome: Outcome

  constructor(outcome: Outcome) {
    super('rolled back')
    this.outcome = outcome
  }
}

/**
 * Runs the work in a transaction, and writes what it is for as the last statement. Until then the
 * row of the key is not locked, so that its duplicates are answered and its lease can be renewed.
 */
export async function transact<Given, Outcome>(
  context: TransactionContext,
  purpose: Purpose<Given, Outcome>,
  signal: AbortSignal | undefined,
): Promise<Outcome> {
  const opening = openingFor(context, purpose.lease)
  const body = (session: Session) => runWithin(context, session, purpose)
  try {
    return await context.driver.transact(body, opening, signal)
  } catch (error) {
    if (error instanceof RolledBack) return (error as RolledBack<Outcome>).outcome
    throw error
  }
}

function openingFor({ calls }: TransactionContext, { identity }: Lease): string {
  if (/^[0-9a-f]*$/i.test(identity)) return calls.textOf(OPENING).replace('{identity}', identity)
  throw storeFailed('begin a transaction', new ValueFault('an identity is not hexadecimal'))
}

async function runWithin<Given, Outcome>(
  context: TransactionContext,
  session: Session,
  { work, before, after }: Purpose<Given, Outcome>,
): Promise<Outcome> {
  const [row] = session.opened
  const refusal = before(row && toRecord(row))
  if (refusal !== undefined) throw new RolledBack(refusal)
  const given = await runWork(context, session, work)
  const { outcome, isKept } = await after(session, given)
  // Also where an earlier call of the same lease has committed meanwhile: its rows are kept, and
  // these must not be.
  if (!isKept) throw new RolledBack(outcome)
  return outcome
}

/** Completes the key with what the work wrote. */
export function completing(
  calls: Calls,
  lease: Lease,
  work: TransactionWork<never>,
): Purpose<Completion, SettleOutcome> {
  return {
    lease,
    work,
    before: (record) => {
      const trial = { kind: 'complete', lease, result: NO_BYTES, retentionMs: 0 } as const
      const asked = decideSettle(record, trial, 0)
      return asked.write === undefined ? asked.outcome : undefined
    },
    after: async (session, completion) => {
      await releaseSeal(session)
      const settlement: Settlement = { kind: 'complete', lease, ...completion }
      try {
        const values = settleOneValues(calls.nowMs, settlement)
        const [answer] = await session.query(calls.textOf(SETTLE_ONE), values)
        const row = toRow(lease.identity, answer![0])
        const outcome = toSettleOutcome(row, settlement)
        if (outcome === AGAIN) throw new Error('the record changed while it was settled')
        return { outcome, isKept: isWritten(row) }
      } catch (error) {
        throw storeFailed('commit a transaction', error)
      }
    },
  }
}

async function releaseSeal(session: Session): Promise<void> {
  try {
    await session.script(RELEASE_SEAL)
  } catch (error) {
    throw isSealBroken(error) ? endedItself() : storeFailed('commit a transaction', error)
  }
}

/** The work's own errors pass through as they are, unless its transaction has ended under it. */
async function runWork<Given>(
  context: TransactionContext,
  session: Session,
  work: Purpose<Given, unknown>['work'],
): Promise<Given> {
  const { tx, revoke } = revocable(session.tx, () => {
    throw storeFailed('use a transaction', new Error('the transaction has ended'))
  })
  context.handedOut.add(tx)
  const { clock, transactionMs: limitMs } = context
  const giveUp = (cause: Error) => {
    session.destroy()
    return storeFailed('commit a transaction', cause)
  }
  const bounds = { clock, limitMs, giveUp }
  const { result, isOver, stop } = boundedWork(bounds, () => work(tx as never))
  try {
    return await result
  } catch (error) {
    if (!isOver()) await checkSeal(session, error)
    throw error
  } finally {
    stop()
    revoke()
  }
}

/** Whatever else the work says: of what it wrote outside the seal, nobody knows what is kept. */
async function checkSeal(session: Session, cause: unknown): Promise<void> {
  try {
    await session.script(ROLL_BACK_TO_SEAL)
  } catch (error) {
    if (isSealBroken(error)) throw endedItself({ cause })
    // The connection is gone, and the transaction with it: the work's own error says enough.
  }
}

export function endedItself(options?: ErrorOptions): OutcomeUnknownError {
  return new OutcomeUnknownError(
    "the callback ended the store's transaction itself (COMMIT or ROLLBACK in its SQL), so what " +
      'it wrote may be kept without the key',
    options,
  )
}

const NO_BYTES = new Uint8Array(0)
