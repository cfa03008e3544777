import { boundedWork } from '../kit/bounded-work.ts'
import { revocable } from '../kit/revocable.ts'
import type { Slots } from '../kit/slots.ts'
import {
  refuseCompletion,
  RolledBack,
  transactionSlots,
  type Purpose,
} from '../kit/store-transaction.ts'
import type { Clock } from '../../core/time/clock.ts'
import { InvalidOptionsError, OutcomeUnknownError } from '../../core/errors.ts'
import type { StoreBatching } from '../../core/store/batching.ts'
import type { Completion, Lease, SettleOutcome, Settlement } from '../../core/store/store.ts'
import type { Calls } from './calls.ts'
import { AGAIN, isWritten, toRecord, toRow, toSettleOutcome } from './columns.ts'
import type { Driver, Session } from './driver/driver.ts'
import { ValueFault } from '../kit/value-fault.ts'
import { isSealBroken, storeFailed } from './failures.ts'
import { settleOneValues } from './settlements.ts'
import { OPENING, RELEASE_SEAL, ROLL_BACK_TO_SEAL, SETTLE_ONE } from './sql.ts'

export type TransactionWork<Tx> = (tx: Tx) => Completion | Promise<Completion>

export type SessionPurpose<WorkResult, Outcome> = Purpose<WorkResult, Outcome, Session>

export interface TransactionContext {
  readonly driver: Driver
  readonly calls: Calls
  readonly clock: Clock
  readonly transactionTimeoutMs: number
}

/**
 * Runs the caller's work in a transaction, and writes to the record in the last statement. Until
 * then the row of the key is not locked, so its duplicates are answered and its lease is renewed.
 */
export class Transactions {
  /** The number of transactions that may be open at once, if the pool limits it. */
  readonly batching: Pick<StoreBatching, 'transactionsMax'>
  readonly #context: TransactionContext
  readonly #slots: Slots | undefined
  /** The objects that were passed to works. */
  readonly #handedOut = new WeakSet<object>()

  constructor(context: TransactionContext) {
    this.#context = context
    const { slots, transactionsMax } = transactionSlots(context.driver.connectionsMax)
    this.#slots = slots
    this.batching = transactionsMax === undefined ? {} : { transactionsMax }
  }

  async run<WorkResult, Outcome>(
    purpose: SessionPurpose<WorkResult, Outcome>,
    signal: AbortSignal | undefined,
  ): Promise<Outcome> {
    this.#context.calls.checkOpen('begin a transaction')
    if (this.#slots === undefined) {
      throw new InvalidOptionsError(
        'postgresStore: a transaction needs a pool of at least 2 connections: with one, no ' +
          'lease could be renewed and no other key claimed while it is open',
      )
    }
    return this.#slots.use(() => this.#transact(purpose, signal))
  }

  /** Whether the store itself has begun this transaction. */
  isOwn(tx: unknown): boolean {
    const isObject = typeof tx === 'object' || typeof tx === 'function'
    return isObject && tx !== null && this.#handedOut.has(tx)
  }

  async #transact<WorkResult, Outcome>(
    purpose: SessionPurpose<WorkResult, Outcome>,
    signal: AbortSignal | undefined,
  ): Promise<Outcome> {
    const { driver, calls } = this.#context
    const opening = openingFor(calls, purpose.lease)
    const body = (session: Session) => this.#runWithin(session, purpose)
    try {
      return await driver.transact(body, opening, signal)
    } catch (error) {
      if (error instanceof RolledBack) return (error as RolledBack<Outcome>).outcome
      throw error
    }
  }

  async #runWithin<WorkResult, Outcome>(
    session: Session,
    { work, refuse, finish }: SessionPurpose<WorkResult, Outcome>,
  ): Promise<Outcome> {
    const [row] = session.opened
    const refusal = refuse(row && toRecord(row))
    if (refusal !== undefined) throw new RolledBack(refusal)
    const result = await this.#runWork(session, work)
    const { outcome, isWritten: isOwn } = await finish(session, result)
    // An earlier call of the same lease may have committed in the meantime: its rows are kept, and
    // these must be rolled back.
    if (!isOwn) throw new RolledBack(outcome)
    return outcome
  }

  /** Errors of the work pass through unchanged, unless the work has ended its transaction. */
  async #runWork<WorkResult>(
    session: Session,
    work: SessionPurpose<WorkResult, unknown>['work'],
  ): Promise<WorkResult> {
    const { tx, revoke } = revocable(session.tx, () => {
      throw storeFailed('use a transaction', new Error('the transaction has ended'))
    })
    this.#handedOut.add(tx)
    const { clock, transactionTimeoutMs: limitMs } = this.#context
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
}

function openingFor(calls: Calls, { identity }: Lease): string {
  if (/^[0-9a-f]*$/i.test(identity)) return calls.textOf(OPENING).replace('{identity}', identity)
  throw storeFailed('begin a transaction', new ValueFault('an identity is not hexadecimal'))
}

/** Throws if the work has ended the transaction: part of what it wrote may then be committed. */
async function checkSeal(session: Session, cause: unknown): Promise<void> {
  try {
    await session.script(ROLL_BACK_TO_SEAL)
  } catch (error) {
    if (isSealBroken(error)) throw endedItself({ cause })
    // The connection is lost and the transaction rolled back: the caller gets the work's error.
  }
}

/** Completes the key in the same transaction as the work's statements. */
export function completing(
  calls: Calls,
  lease: Lease,
  work: TransactionWork<never>,
): SessionPurpose<Completion, SettleOutcome> {
  return {
    lease,
    work,
    refuse: (record) => refuseCompletion(record, lease),
    finish: async (session, completion) => {
      await releaseSeal(session)
      const settlement: Settlement = { kind: 'complete', lease, ...completion }
      try {
        const values = settleOneValues(calls.nowMs, settlement)
        const [answer] = await session.query(calls.textOf(SETTLE_ONE), values)
        const row = toRow(lease.identity, answer![0])
        const outcome = toSettleOutcome(row, settlement)
        if (outcome === AGAIN) throw new Error('the record changed while it was settled')
        return { outcome, isWritten: isWritten(row) }
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

export function endedItself(options?: ErrorOptions): OutcomeUnknownError {
  return new OutcomeUnknownError(
    "the callback ended the store's transaction itself (COMMIT or ROLLBACK in its SQL), so what " +
      'it wrote may be kept without the key',
    options,
  )
}
