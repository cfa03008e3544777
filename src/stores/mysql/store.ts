/** The MySQL store object, composed from the functions of its modules. */
import { InvalidOptionsError } from '../../core/errors.ts'
import { toView } from '../../core/record/decide.ts'
import type { DurableStore } from '../../core/store/durable-store.ts'
import type { StoreBatching } from '../../core/store/batching.ts'
import type {
  ClaimOutcome,
  ClaimRequest,
  Completion,
  HistoryQuery,
  Lease,
  ListQuery,
  ReapReport,
  ReapRequest,
  RecordRef,
  RecordView,
  Renewal,
  ResolveOutcome,
  Settlement,
  SettleOutcome,
  Store,
  SweptRecord,
  Verdict,
} from '../../core/store/store.ts'
import { systemClock } from '../../core/time/clock.ts'
import { Calls } from './calls.ts'
import { claim, renew } from './claims.ts'
import { isIdentity, isUuid, KEPT, toRecord, VIEW } from './columns.ts'
import { Driver, readCommitted, transact, type Session } from './driver/driver.ts'
import { operatorStore } from './durable/acts.ts'
import { outboxStore } from './durable/outbox.ts'
import { phaseStore } from './durable/phases.ts'
import { storeFailed } from './failures.ts'
import { migrate } from './migrations.ts'
import type { StoreContext } from './moves.ts'
import {
  resolveMysqlStoreOptions,
  type MysqlStoreOptions,
  type ResolvedMysqlStoreOptions,
} from './options.ts'
import { resolve, settle, settleIn } from './settlements.ts'
import { findSql, historySql, listSql, nowSql, probeSql, type RecordKey } from './sql.ts'
import { completing, Transactions, type TransactionWork } from './transaction.ts'
import { reap, sweep } from './upkeep.ts'

const BATCHING: StoreBatching = { rowsMax: 64, flushesMax: 2 }

/** A store in a MySQL or MariaDB database. It can commit a key together with the caller's rows. */
export interface MysqlStore extends Store {
  /** Creates the tables, or brings them up to date. */
  migrate(): Promise<void>

  /**
   * Runs `work` in a transaction of the store and completes the key with its last statement. `work`
   * gets the connection of `mysql2/promise` on which the transaction is open, and can use it until
   * it returns; the store begins and commits. The call waits while as many transactions are open as
   * the pool has connections to spare.
   */
  transaction<Tx>(
    lease: Lease,
    work: TransactionWork<Tx>,
    signal?: AbortSignal,
  ): Promise<SettleOutcome>

  /**
   * Completes a key inside a transaction of the caller: a connection of `mysql2`, a transaction of
   * Drizzle, Kysely, Knex, Prisma or TypeORM, or `{ runSql }`. Call it last before the commit. If
   * the outcome is `fenced`, roll back.
   */
  settleIn(tx: unknown, lease: Lease, completion: Completion): Promise<SettleOutcome>

  /** The outbox accepts transactions of the same tools as `settleIn`, and those of the store. */
  readonly durable: DurableStore
}

/**
 * Keeps records in MySQL or MariaDB: durable, and shared by all machines that connect to it. Call
 * `migrate()` once before use, or run `migrationSql()` yourself. The store does not close the pool.
 */
export function mysqlStore(options: MysqlStoreOptions): MysqlStore {
  const resolved = resolveMysqlStoreOptions(options)
  return new TableStore(resolved, new Driver(resolved.pool))
}

class TableStore implements MysqlStore {
  readonly name = 'mysql'
  readonly batching: StoreBatching
  readonly durable: DurableStore
  readonly history?: NonNullable<Store['history']>
  readonly #driver: Driver
  readonly #context: StoreContext
  readonly #transactions: Transactions

  constructor(options: ResolvedMysqlStoreOptions, driver: Driver) {
    const { tables, history } = options
    const calls = new Calls(driver, options.clock)
    this.#driver = driver
    this.#context = { tables, calls, current: () => ({ tables, now: calls.now, history }) }
    this.#transactions = new Transactions({
      driver,
      calls,
      tables,
      clock: options.clock ?? systemClock,
      transactionTimeoutMs: options.transactionTimeoutMs,
    })
    const { transactionsMax } = this.#transactions
    this.batching = transactionsMax === undefined ? BATCHING : { ...BATCHING, transactionsMax }
    const context = { ...this.#context, transactions: this.#transactions }
    this.durable = {
      phases: phaseStore(context),
      outbox: outboxStore(context),
      operator: operatorStore(context),
    }
    if (history) this.history = (query, signal) => this.#history(query, signal)
  }

  async migrate(): Promise<void> {
    try {
      await migrate(this.#driver, this.#context.tables, systemClock)
    } catch (error) {
      throw error instanceof InvalidOptionsError ? error : storeFailed('migrate', error)
    }
  }

  claim(requests: readonly ClaimRequest[], signal?: AbortSignal): Promise<ClaimOutcome[]> {
    return claim(this.#context, requests, signal)
  }

  settle(settlements: readonly Settlement[], signal?: AbortSignal): Promise<SettleOutcome[]> {
    return settle(this.#context, settlements, signal)
  }

  renew(renewals: readonly Renewal[], signal?: AbortSignal): Promise<boolean[]> {
    return renew(this.#context, renewals, signal)
  }

  /** Needed because `renew` locks the row first, which a read-only server also permits. */
  async probe(_identity: string, signal?: AbortSignal): Promise<void> {
    const { calls, tables } = this.#context
    const write = (session: Session) => transact(session, () => session.run(probeSql(tables)))
    await calls.make('probe', write, signal)
  }

  resolve(verdicts: readonly Verdict[], signal?: AbortSignal): Promise<ResolveOutcome[]> {
    return resolve(this.#context, verdicts, signal)
  }

  sweep(request: { readonly limit: number }, signal?: AbortSignal): Promise<SweptRecord[]> {
    return sweep(this.#context, request, signal)
  }

  reap(request: ReapRequest, signal?: AbortSignal): Promise<ReapReport> {
    return reap(this.#context, request, signal)
  }

  async read(ref: RecordRef, signal?: AbortSignal): Promise<RecordView | undefined> {
    const key = keyOf(ref)
    if (key === undefined) return undefined
    const [row] = await this.#rows('read', findSql(this.#context.tables, key), signal)
    return row && toView(toRecord([...VIEW, 'result'], row))
  }

  async list({ state, limit }: ListQuery, signal?: AbortSignal): Promise<RecordView[]> {
    const rows = await this.#rows('list', listSql(this.#context.tables, { state, limit }), signal)
    return rows.map((row) => toView(toRecord(VIEW, row)))
  }

  async now(signal?: AbortSignal): Promise<Date> {
    const [row] = await this.#rows('tell the time', nowSql(this.#context.calls.now), signal)
    return new Date(Number(row?.[0]))
  }

  transaction<Tx>(
    lease: Lease,
    work: TransactionWork<Tx>,
    signal?: AbortSignal,
  ): Promise<SettleOutcome> {
    return this.#transactions.run(completing(lease, work), signal)
  }

  async settleIn(tx: unknown, lease: Lease, completion: Completion): Promise<SettleOutcome> {
    const settlement: Settlement = { kind: 'complete', lease, ...completion }
    return settleIn(tx, this.#context.current(), settlement)
  }

  #rows(operation: string, sql: string, signal: AbortSignal | undefined) {
    return this.#context.calls.make(operation, (session) => readCommitted(session, sql), signal)
  }

  async #history({ ref, limit }: HistoryQuery, signal?: AbortSignal): Promise<RecordView[]> {
    const key = keyOf(ref)
    if (key === undefined) return []
    const rows = await this.#rows('read', historySql(this.#context.tables, key, limit), signal)
    return rows.map((row) => toView({ ...toRecord(KEPT, row), state: 'expired', token: '' }))
  }
}

/** `undefined` for a text that is the identity or the id of no record. */
function keyOf({ identity, recordId }: RecordRef): RecordKey | undefined {
  if (identity !== undefined) {
    return isIdentity(identity) ? { by: 'identity', value: identity } : undefined
  }
  return isUuid(recordId) ? { by: 'recordId', value: recordId } : undefined
}
