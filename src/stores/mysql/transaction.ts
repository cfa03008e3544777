/** Transactions of the store that run the caller's work. */
import { InvalidOptionsError, OutcomeUnknownError } from '../../core/errors.ts'
import type { Completion, Lease, Settlement, SettleOutcome } from '../../core/store/store.ts'
import type { Clock } from '../../core/time/clock.ts'
import { boundedWork } from '../kit/bounded-work.ts'
import { revocable } from '../kit/revocable.ts'
import type { Slots } from '../kit/slots.ts'
import {
  refuseCompletion,
  RolledBack,
  transactionSlots,
  type Purpose,
} from '../kit/store-transaction.ts'
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

/** The connection of a transaction, and what its statements about the key need. */
export interface WithinTransaction {
  readonly session: Session
  readonly context: SqlContext
}

export type SessionPurpose<WorkResult, Outcome> = Purpose<WorkResult, Outcome, WithinTransaction>

/** Runs transactions, as many at the same time as the pool has connections to spare. */
export class Transactions {
  readonly #context: TransactionContext
  readonly #slots: Slots | undefined
  /** Connections to spare. `undefined` if the pool has none, or has no limit. */
  readonly transactionsMax: number | undefined
  readonly #lent = new WeakSet<object>()

  constructor(context: TransactionContext) {
    this.#context = context
    const { slots, transactionsMax } = transactionSlots(context.driver.connectionsMax)
    this.#slots = slots
    this.transactionsMax = transactionsMax
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
  async run<WorkResult, Outcome>(
    purpose: SessionPurpose<WorkResult, Outcome>,
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
): SessionPurpose<Completion, SettleOutcome> {
  return {
    lease,
    work,
    refuse: (record) => refuseCompletion(record, lease),
    finish: ({ session, context }, completion) => {
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

async function workAndFinish<WorkResult, Outcome>(
  context: WorkContext,
  session: Session,
  purpose: SessionPurpose<WorkResult, Outcome>,
): Promise<Outcome> {
  const refusal = await checkLease(context, session, purpose)
  if (refusal !== undefined) throw new RolledBack(refusal)
  const watch = new StatementWatch()
  const worked = await runWork(context, session, { work: purpose.work, watch })
  await endSeal(session, watch)
  try {
    const within = { session, context: { tables: context.tables, now: context.calls.now } }
    const { outcome, isWritten } = await purpose.finish(within, worked)
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
  { lease, refuse }: Pick<SessionPurpose<never, Outcome>, 'lease' | 'refuse'>,
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
async function runWork<WorkResult>(
  context: WorkContext,
  session: Session,
  { work, watch }: { work: SessionPurpose<WorkResult, unknown>['work']; watch: StatementWatch },
): Promise<WorkResult> {
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
