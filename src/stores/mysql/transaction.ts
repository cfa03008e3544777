import { boundedWork } from '../../core/bounded-work.ts'
import type { Clock } from '../../core/clock.ts'
import { decideSettle } from '../../core/decide.ts'
import { InvalidOptionsError, OutcomeUnknownError } from '../../core/errors.ts'
import type { StoredRecord } from '../../core/record.ts'
import { revocable } from '../../core/revocable.ts'
import { Slots } from '../../core/slots.ts'
import type { Completion, Lease, SettleOutcome, Settlement } from '../../core/store.ts'
import type { Calls } from './calls.ts'
import { transact, type Driver, type Session } from './driver.ts'
import { isSealBroken, storeFailed } from './failures.ts'
import { readWithin, settleWithin, type Inside } from './settlement.ts'
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

/** What a transaction is for: what runs in it, and what is written last before it commits. */
export interface Purpose<Worked, Outcome> {
  readonly lease: Lease
  /** What is answered where the work must not run; `undefined`: it may. */
  readonly refuse: (record: StoredRecord | undefined) => Outcome | undefined
  readonly work: (tx: never) => Worked | Promise<Worked>
  readonly finish: (session: Session, inside: Inside, worked: Worked) => Promise<Finished<Outcome>>
}

export interface Finished<Outcome> {
  readonly outcome: Outcome
  /** By this very call, and not by an earlier one of the same lease. */
  readonly isWritten: boolean
}

/** Not an error: how the body of a transaction says that nothing of it may be kept. */
class RolledBack<Outcome> extends Error {
  readonly outcome: Outcome

  constructor(outcome: Outcome) {
    super('rolled back')
    this.outcome = outcome
  }
}

/** Connections that are never given to transactions, so that renewals find one. */
const RESERVED = 2

/** Transactions of the store's own, with work of the caller's in them. */
export class Transactions {
  readonly #context: TransactionContext
  readonly #slots: Slots | undefined
  /** As many as the pool has connections to spare; `undefined` where it has none, or no limit. */
  readonly atOnceMax: number | undefined
  readonly #lent = new WeakSet<object>()

  constructor(context: TransactionContext) {
    this.#context = context
    const { connectionsMax } = context.driver
    const spare = connectionsMax - (connectionsMax < 4 ? 1 : RESERVED)
    this.#slots = spare > 0 ? new Slots(spare) : undefined
    this.atOnceMax = Number.isFinite(spare) && spare > 0 ? spare : undefined
  }

  /** Whether work was given this to write with. */
  hasLent(tx: unknown): tx is object {
    return typeof tx === 'object' && tx !== null && this.#lent.has(tx)
  }

  /**
   * Runs the work in a transaction, and writes about the key with its last statements. Until then
   * the row of the key is not locked, so that its duplicates are answered and its lease can be
   * renewed. Waits while as many transactions are open as the pool has connections to spare.
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
    const show = (tx: object) => this.#lent.add(tx)
    const run = (session: Session) =>
      transact(session, () => workAndFinish({ ...this.#context, show }, session, purpose))
    try {
      return await this.#slots.use(() => lend(this.#context, run, signal))
    } catch (error) {
      if (error instanceof RolledBack) return error.outcome as Outcome
      throw error
    }
  }
}

/** Completes the key with what the work returns. */
export function completing<Tx>(
  lease: Lease,
  work: TransactionWork<Tx>,
): Purpose<Completion, SettleOutcome> {
  return {
    lease,
    work,
    // Lost to somebody else, or committed by an earlier call whose answer was lost: in neither
    // case may the work run.
    refuse: (record) => {
      const trial = { kind: 'complete', lease, result: NO_BYTES, retentionMs: 0 } as const
      const { outcome, write } = decideSettle(record, trial, 0)
      return write === undefined ? outcome : undefined
    },
    finish: (session, inside, completion) => {
      const settlement: Settlement = { kind: 'complete', lease, ...completion }
      return settleWithin(session, inside, settlement)
    },
  }
}

interface WorkContext extends TransactionContext {
  readonly show: (tx: object) => void
}

/** The work's own errors say nothing about the connection, which was rolled back after them. */
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
  const refusal = await ask(context, session, purpose)
  if (refusal !== undefined) throw new RolledBack(refusal)
  const watch = new StatementWatch()
  const worked = await runWork(context, session, { work: purpose.work, watch })
  await endSeal(session, watch)
  try {
    const inside = { tables: context.tables, now: context.calls.now }
    const { outcome, isWritten } = await purpose.finish(session, inside, worked)
    // Also where an earlier call of the same lease has committed meanwhile: its rows are kept, and
    // these must not be.
    if (!isWritten) throw new RolledBack(outcome)
    return outcome
  } catch (error) {
    throw error instanceof RolledBack ? error : storeFailed('commit a transaction', error)
  }
}

/** `undefined`: the lease is held and the work may run. Sets the seal. */
async function ask<Outcome>(
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
async function runWork<Worked>(
  context: WorkContext,
  session: Session,
  { work, watch }: { work: Purpose<Worked, unknown>['work']; watch: StatementWatch },
): Promise<Worked> {
  const { tx, revoke } = revocable(watched(session, watch), () => {
    throw storeFailed('use a transaction', new Error('the transaction has ended'))
  })
  context.show(tx)
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
