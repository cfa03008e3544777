/** Transactions of the store that run the caller's work. */
import { NO_BYTES } from '../../core/bytes.ts'
import { InvalidOptionsError, OutcomeUnknownError } from '../../core/errors.ts'
import { decideSettle } from '../../core/record/decide.ts'
import type { StoredRecord } from '../../core/record/record.ts'
import type { Completion, Lease, Settlement, SettleOutcome } from '../../core/store/store.ts'
import type { Clock } from '../../core/time/clock.ts'
import { boundedWork } from '../kit/bounded-work.ts'
import { revocable } from '../kit/revocable.ts'
import { Slots } from '../kit/slots.ts'
import type { Calls } from './calls.ts'
import { transact, type Driver, type Session } from './driver/driver.ts'
import { isSavepointMissing, storeFailed } from './failures.ts'
import { readWithin, settleWithin } from './settlements.ts'
import { RELEASE_SEAL, ROLL_BACK_TO_SEAL, SEAL, type SqlContext, type Tables } from './sql.ts'
import { StatementWatch, watched } from './statement-watch.ts'

export type TransactionWork<Tx> = (tx: Tx) => Completion | Promise<Completion>

export interface TransactionContext {
  readonly driver: Driver
  readonly calls: Calls
  readonly tables: Tables
  readonly clock: Clock
  readonly transactionTimeoutMs: number
}

/** The work of a transaction, and the statements about the key before and after it. */
export interface Purpose<Worked, Outcome> {
  readonly lease: Lease
  /** Returns an outcome if the work must not run, and `undefined` if it may. */
  readonly refuse: (record: StoredRecord | undefined) => Outcome | undefined
  readonly work: (tx: never) => Worked | Promise<Worked>
  /** Writes the last statements before the commit. */
  readonly finish: (
    session: Session,
    context: SqlContext,
    worked: Worked,
  ) => Promise<FinishResult<Outcome>>
}

export interface FinishResult<Outcome> {
  readonly outcome: Outcome
  /** `true` if this call has written, and not an earlier one of the same lease. */
  readonly isWritten: boolean
}

/** Thrown by the body of a transaction to roll it back and return an outcome. Not an error. */
class RolledBack<Outcome> extends Error {
  readonly outcome: Outcome

  constructor(outcome: Outcome) {
    super('rolled back')
    this.outcome = outcome
  }
}

/** Connections that are never used for transactions, so that leases can be renewed. */
const RESERVED = 2

/** Runs transactions, as many at the same time as the pool has connections to spare. */
export class Transactions {
  readonly #context: TransactionContext
  readonly #slots: Slots | undefined
  /** Connections to spare. `undefined` if the pool has none, or has no limit. */
  readonly atOnceMax: number | undefined
  readonly #lent = new WeakSet<object>()

  constructor(context: TransactionContext) {
    this.#context = context
    const { connectionsMax } = context.driver
    const spare = connectionsMax - (connectionsMax < 4 ? 1 : RESERVED)
    this.#slots = spare > 0 ? new Slots(spare) : undefined
    this.atOnceMax = Number.isFinite(spare) && spare > 0 ? spare : undefined
  }

  /** Whether `tx` is the object that a transaction of this store has passed to its work. */
  hasLent(tx: unknown): tx is object {
    return typeof tx === 'object' && tx !== null && this.#lent.has(tx)
  }

  /**
   * Runs the work in a transaction and writes the record of the key with the last statements. Until
   * then the record is not locked, so that duplicates get an answer and the lease can be renewed.
   * Waits while as many transactions are open as the pool has connections to spare.
   */
  async run<Worked, Outcome>(
    purpose: Purpose<Worked, Outcome>,
    signal?: AbortSignal,
  ): Promise<Outcome> {
    if (this.#slots === undefined) {
      throw new InvalidOptionsError(
        'mysqlStore: a transaction needs a pool of at least 2 connections: with one, no lease ' +
          'could be renewed and no other key claimed while it is open',
      )
    }
    const onLend = (tx: object) => this.#lent.add(tx)
    const run = (session: Session) =>
      transact(session, () => workAndFinish({ ...this.#context, onLend }, session, purpose))
    try {
      return await this.#slots.use(() => lend(this.#context, run, signal))
    } catch (error) {
      if (error instanceof RolledBack) return error.outcome as Outcome
      throw error
    }
  }
}

/** Completes the key with the completion that the work returns. */
export function completing<Tx>(
  lease: Lease,
  work: TransactionWork<Tx>,
): Purpose<Completion, SettleOutcome> {
  return {
    lease,
    work,
    // The work must not run if another holder has the key, or if an earlier call has committed and
    // only its answer was lost.
    refuse: (record) => {
      const trial = { kind: 'complete', lease, result: NO_BYTES, retentionMs: 0 } as const
      const { outcome, write } = decideSettle(record, trial, 0)
      return write === undefined ? outcome : undefined
    },
    finish: (session, context, completion) => {
      const settlement: Settlement = { kind: 'complete', lease, ...completion }
      return settleWithin(session, context, settlement)
    },
  }
}

interface WorkContext extends TransactionContext {
  readonly onLend: (tx: object) => void
}

/**
 * Keeps errors of the work away from `Driver.lend`, which would destroy the connection for them.
 * The connection is intact: it was rolled back after the error.
 */
async function lend<Result>(
  { driver }: TransactionContext,
  run: (session: Session) => Promise<Result>,
  signal: AbortSignal | undefined,
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
    }, signal)
  } catch (error) {
    throw storeFailed('begin a transaction', error)
  }
  if (failed !== undefined) throw failed.error
  return result as Result
}

async function workAndFinish<Worked, Outcome>(
  context: WorkContext,
  session: Session,
  purpose: Purpose<Worked, Outcome>,
): Promise<Outcome> {
  const refusal = await checkLease(context, session, purpose)
  if (refusal !== undefined) throw new RolledBack(refusal)
  const watch = new StatementWatch()
  const worked = await runWork(context, session, { work: purpose.work, watch })
  await endSeal(session, watch)
  try {
    const sqlContext = { tables: context.tables, now: context.calls.now }
    const { outcome, isWritten } = await purpose.finish(session, sqlContext, worked)
    // Also if an earlier call of the same lease has committed during the work: its rows are kept,
    // so these rows must not be.
    if (!isWritten) throw new RolledBack(outcome)
    return outcome
  } catch (error) {
    throw error instanceof RolledBack ? error : storeFailed('commit a transaction', error)
  }
}

/** Returns `undefined` if the lease is held and the work may run. Then also sets the seal. */
async function checkLease<Outcome>(
  { tables, calls }: TransactionContext,
  session: Session,
  { lease, refuse }: Pick<Purpose<never, Outcome>, 'lease' | 'refuse'>,
): Promise<Outcome | undefined> {
  try {
    const refusal = refuse(await readWithin(session, { tables, now: calls.now }, lease))
    if (refusal === undefined) await session.run(SEAL)
    return refusal
  } catch (error) {
    throw storeFailed('begin a transaction', error)
  }
}

/** Called after work that returned. */
async function endSeal(session: Session, watch: StatementWatch): Promise<void> {
  try {
    await session.run(RELEASE_SEAL)
  } catch (error) {
    if (!isSavepointMissing(error)) throw storeFailed('commit a transaction', error)
    if (watch.rollback === undefined) throw endedItself()
    // The work ignored a deadlock. The database has rolled back everything that it wrote.
    throw storeFailed('commit a transaction', watch.rollback)
  }
}

/** Rethrows errors of the work unchanged, unless its transaction has ended before it did. */
async function runWork<Worked>(
  context: WorkContext,
  session: Session,
  { work, watch }: { work: Purpose<Worked, unknown>['work']; watch: StatementWatch },
): Promise<Worked> {
  const { tx, revoke } = revocable(watched(session, watch), () => {
    throw storeFailed('use a transaction', new Error('the transaction has ended'))
  })
  context.onLend(tx)
  const { clock, transactionTimeoutMs: limitMs } = context
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

/** Throws if the work has ended the transaction: it is unknown what the work wrote after that. */
async function checkSeal(
  session: Session,
  { watch, cause }: { watch: StatementWatch; cause: unknown },
): Promise<void> {
  try {
    await session.run(ROLL_BACK_TO_SEAL)
  } catch (error) {
    if (isSavepointMissing(error) && watch.rollback === undefined) throw endedItself({ cause })
    // The database has rolled the transaction back, or the connection is lost together with it. In
    // both cases the error of the work is enough.
  }
}

function endedItself(options?: ErrorOptions): OutcomeUnknownError {
  return new OutcomeUnknownError(
    "the callback ended the store's transaction itself (COMMIT, ROLLBACK or a statement that " +
      'changes tables), so what it wrote may be kept without the key',
    options,
  )
}
