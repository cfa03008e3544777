import { boundedWork } from '../../core/bounded-work.ts'
import type { Clock } from '../../core/clock.ts'
import { decideSettle } from '../../core/decide.ts'
import { OutcomeUnknownError } from '../../core/errors.ts'
import { revocable } from '../../core/revocable.ts'
import type { Completion, Lease, SettleOutcome, Settlement } from '../../core/store.ts'
import type { Calls } from './calls.ts'
import { transact, type Driver, type Session } from './driver.ts'
import { isSealBroken, storeFailed } from './failures.ts'
import { readWithin, settleWithin } from './settlement.ts'
import { RELEASE_SEAL, ROLL_BACK_TO_SEAL, SEAL, type Tables } from './sql.ts'
import { StatementWatch, watched } from './statement-watch.ts'

export type TransactionWork<Tx> = (tx: Tx) => Completion | Promise<Completion>

export interface TransactionContext {
  readonly driver: Driver
  readonly calls: Calls
  readonly tables: Tables
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
export async function runTransaction(
  context: TransactionContext,
  lease: Lease,
  work: TransactionWork<never>,
): Promise<SettleOutcome> {
  try {
    return await lend(context, (session) =>
      transact(session, () => settleWith(context, session, lease, work)),
    )
  } catch (error) {
    if (error instanceof RolledBack) return error.outcome
    throw error
  }
}

/** The work's own errors say nothing about the connection, which was rolled back after them. */
async function lend<Result>(
  { driver }: TransactionContext,
  run: (session: Session) => Promise<Result>,
): Promise<Result> {
  let failed: { readonly error: unknown } | undefined
  let result: Result | undefined
  try {
    await driver.lend(async (session) => {
      try {
        result = await run(session)
      } catch (error) {
        failed = { error }
      }
    })
  } catch (error) {
    throw storeFailed('begin a transaction', error)
  }
  if (failed !== undefined) throw failed.error
  return result as Result
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
  const watch = new StatementWatch()
  const completion = await runWork(context, session, { work, watch })
  await endSeal(session, watch)
  const settlement: Settlement = { kind: 'complete', lease, ...completion }
  try {
    const { outcome, isWritten } = await settleWithin(
      session,
      { tables: context.tables, now: context.calls.now },
      settlement,
    )
    // Also where an earlier call of the same lease has committed meanwhile: its rows are kept, and
    // these must not be.
    if (!isWritten) throw new RolledBack(outcome)
    return outcome
  } catch (error) {
    throw error instanceof RolledBack ? error : storeFailed('commit a transaction', error)
  }
}

/** `undefined`: the lease is held and the work may run. Sets the seal. */
async function ask(
  { tables, calls }: TransactionContext,
  session: Session,
  lease: Lease,
): Promise<SettleOutcome | undefined> {
  try {
    const inside = { tables, now: calls.now }
    const record = await readWithin(session, inside, lease)
    const trial = { kind: 'complete', lease, result: NO_BYTES, retentionMs: 0 } as const
    const asked = decideSettle(record, trial, 0)
    if (asked.write === undefined) return asked.outcome
    await session.run(SEAL)
    return undefined
  } catch (error) {
    throw storeFailed('begin a transaction', error)
  }
}

/** After work that returned. */
async function endSeal(session: Session, watch: StatementWatch): Promise<void> {
  try {
    await session.run(RELEASE_SEAL)
  } catch (error) {
    if (!isSealBroken(error)) throw storeFailed('commit a transaction', error)
    if (watch.rollback === undefined) throw endedItself()
    // It went on after a deadlock as if nothing had happened; nothing of it is kept.
    throw storeFailed('commit a transaction', watch.rollback)
  }
}

/** The work's own errors pass through as they are, unless its transaction has ended under it. */
async function runWork(
  context: TransactionContext,
  session: Session,
  { work, watch }: { work: TransactionWork<never>; watch: StatementWatch },
): Promise<Completion> {
  const { tx, revoke } = revocable(watched(session.connection, watch), () => {
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
    if (!isOver()) await checkSeal(session, { watch, cause: error })
    throw error
  } finally {
    stop()
    revoke()
  }
}

/** Whatever else the work says: of what it wrote outside the seal, nobody knows what is kept. */
async function checkSeal(
  session: Session,
  { watch, cause }: { watch: StatementWatch; cause: unknown },
): Promise<void> {
  try {
    await session.run(ROLL_BACK_TO_SEAL)
  } catch (error) {
    if (isSealBroken(error) && watch.rollback === undefined) throw endedItself({ cause })
    // The database has rolled it back, or the connection is gone and the transaction with it: the
    // work's own error says enough.
  }
}

function endedItself(options?: ErrorOptions): OutcomeUnknownError {
  return new OutcomeUnknownError(
    "the callback ended the store's transaction itself (COMMIT, ROLLBACK or a statement that " +
      'changes tables), so what it wrote may be kept without the key',
    options,
  )
}

const NO_BYTES = new Uint8Array(0)
