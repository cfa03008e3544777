import { boundedWork } from '../../core/bounded-work.ts'
import type { Clock } from '../../core/clock.ts'
import { decideSettle } from '../../core/decide.ts'
import { OutcomeUnknownError } from '../../core/errors.ts'
import { revocable } from '../../core/revocable.ts'
import type { Completion, Lease, SettleOutcome, Settlement } from '../../core/store.ts'
import { settleValues, type Calls } from './calls.ts'
import type { Driver, Session } from './client.ts'
import { isSealBroken, storeFailed } from './failures.ts'
import { AGAIN, isWritten, toRecord, toSettleOutcome } from './rows.ts'
import { FIND_LEASE, RELEASE_SEAL, ROLL_BACK_TO_SEAL, SEAL, SETTLE } from './sql.ts'

export type TransactionWork<Tx> = (tx: Tx) => Completion | Promise<Completion>

export interface TransactionContext {
  readonly driver: Driver
  readonly calls: Calls
  readonly clock: Clock
  readonly transactionMs: number
}

/** Not an error: how the body of a transaction says that nothing of it may be kept. */
class RolledBack extends Error {
  readonly outcome: SettleOutcome

  constructor(outcome: SettleOutcome) {
    super('rolled back')
    this.outcome = outcome
  }
}

/**
 * Runs the work in a transaction, and completes the key as its last statement. Until then the row
 * of the key is not locked, so that its duplicates are answered and its lease can be renewed.
 */
export async function transact(
  context: TransactionContext,
  lease: Lease,
  work: TransactionWork<never>,
): Promise<SettleOutcome> {
  try {
    return await context.driver.transact((session) => settleWith(context, session, lease, work))
  } catch (error) {
    if (error instanceof RolledBack) return error.outcome
    throw error
  }
}

async function settleWith(
  context: TransactionContext,
  session: Session,
  lease: Lease,
  work: TransactionWork<never>,
): Promise<SettleOutcome> {
  const asked = await ask(context, session, lease)
  // Lost to somebody else, or committed by an earlier call whose answer was lost: in neither case
  // may the work run.
  if (asked !== undefined) throw new RolledBack(asked)
  const completion = await runWork(context, session, work)
  const settlement: Settlement = { kind: 'complete', lease, ...completion }
  const { row, outcome } = await settleLast(context, session, settlement)
  // Also where an earlier call of the same lease has committed meanwhile: its rows are kept, and
  // these must not be.
  if (!isWritten(row)) throw new RolledBack(outcome)
  return outcome
}

/** `undefined`: the lease is held and the work may run. Sets the seal. */
async function ask(
  { calls }: TransactionContext,
  session: Session,
  lease: Lease,
): Promise<SettleOutcome | undefined> {
  try {
    const [row] = await session.query(calls.textOf(FIND_LEASE), [lease.identity])
    const trial = { kind: 'complete', lease, result: NO_BYTES, retentionMs: 0 } as const
    const asked = decideSettle(row && toRecord(row), trial, 0)
    if (asked.write === undefined) return asked.outcome
    await session.script(SEAL)
    return undefined
  } catch (error) {
    throw storeFailed('begin a transaction', error)
  }
}

async function settleLast({ calls }: TransactionContext, session: Session, settlement: Settlement) {
  try {
    await session.script(RELEASE_SEAL)
  } catch (error) {
    throw isSealBroken(error) ? endedItself() : storeFailed('commit a transaction', error)
  }
  try {
    const values = settleValues(calls.nowMs, [settlement])
    const [row] = await session.query(calls.textOf(SETTLE), values)
    const outcome = toSettleOutcome(row, settlement)
    if (outcome === AGAIN) throw new Error('the record changed while it was settled')
    return { row, outcome }
  } catch (error) {
    throw storeFailed('commit a transaction', error)
  }
}

/** The work's own errors pass through as they are, unless its transaction has ended under it. */
async function runWork(
  context: TransactionContext,
  session: Session,
  work: TransactionWork<never>,
): Promise<Completion> {
  const { tx, revoke } = revocable(session.tx, () => {
    throw storeFailed('use a transaction', new Error('the transaction has ended'))
  })
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

function endedItself(options?: ErrorOptions): OutcomeUnknownError {
  return new OutcomeUnknownError(
    "the callback ended the store's transaction itself (COMMIT or ROLLBACK in its SQL), so what " +
      'it wrote may be kept without the key',
    options,
  )
}

const NO_BYTES = new Uint8Array(0)
