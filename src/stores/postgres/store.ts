import { systemClock } from '../../core/time/clock.ts'
import type { DurableStore } from '../../core/store/durable-store.ts'
import { InvalidOptionsError } from '../../core/errors.ts'
import type { StoreBatching } from '../../core/store/batching.ts'
import type {
  ClaimOutcome,
  ClaimRequest,
  Completion,
  Lease,
  ListQuery,
  ReapReport,
  ReapRequest,
  RecordRef,
  RecordView,
  Renewal,
  ResolveOutcome,
  SettleOutcome,
  Settlement,
  Store,
  SweptRecord,
  Verdict,
} from '../../core/store/store.ts'
import { Calls } from './calls.ts'
import { Claims } from './claims.ts'
import { driverOf } from './driver/connections.ts'
import type { Driver } from './driver/driver.ts'
import { operatorStore } from './durable/acts.ts'
import { outboxStore } from './durable/outbox.ts'
import { phaseStore } from './durable/phases.ts'
import { storeFailed } from './failures.ts'
import { migrate } from './migrations.ts'
import {
  resolvePostgresStoreOptions,
  type PostgresStoreOptions,
  type ResolvedPostgresStoreOptions,
} from './options.ts'
import { Settlements } from './settlements.ts'
import { channelOf, CLOCK, type TableName } from './sql.ts'
import { completing, Transactions, type TransactionWork } from './transaction.ts'
import { Upkeep } from './upkeep.ts'
import { Watcher } from './watcher.ts'

const BATCHING: StoreBatching = { rowsMax: 128, flushesMax: 2 }

/** A store in a PostgreSQL database. It can commit a key together with the caller's rows. */
export interface PostgresStore extends Store {
  readonly durable: DurableStore

  /** Creates the tables, their indexes and their functions, or brings them up to date. */
  migrate(): Promise<void>

  /**
   * Passes the driver's client for the open transaction to `work`: a client of `pg`, or a `sql` of
   * `postgres.js`. `work` can use it until it returns; the store begins and commits. Waits while
   * the open transactions use all connections that the pool has for them.
   */
  transaction<Tx>(
    lease: Lease,
    work: TransactionWork<Tx>,
    signal?: AbortSignal,
  ): Promise<SettleOutcome>

  /** `tx` is one of `stores/kit/foreign-transaction.ts`, open in the same database. */
  settleIn(tx: unknown, lease: Lease, completion: Completion): Promise<SettleOutcome>

  /** Ends the connection that listens, if there is one. The caller closes the pool. */
  close(): Promise<void>
}

/**
 * Keeps records in PostgreSQL: durable, and shared by all machines that reach it. Call `migrate()`
 * once before use, or run the script of `migrationSql()`. The caller closes the pool.
 */
export function postgresStore(options: PostgresStoreOptions): PostgresStore {
  const resolved = resolvePostgresStoreOptions(options)
  return new TableStore(resolved, driverOf(resolved.pool, resolved.prepare))
}

class TableStore implements PostgresStore {
  readonly name = 'postgres'
  readonly batching: StoreBatching
  readonly #driver: Driver
  readonly #tableName: TableName
  readonly #calls: Calls
  readonly #claims: Claims
  readonly #settlements: Settlements
  readonly #upkeep: Upkeep
  readonly #transactions: Transactions
  readonly #watcher: Watcher | undefined
  readonly durable: DurableStore
  readonly history?: NonNullable<Store['history']>
  readonly watch?: NonNullable<Store['watch']>

  constructor(options: ResolvedPostgresStoreOptions, driver: Driver) {
    this.#driver = driver
    this.#tableName = options.name
    const calls = new Calls(driver, options)
    const upkeep = new Upkeep(calls, options.history)
    this.#calls = calls
    this.#claims = new Claims(calls, options.history)
    this.#settlements = new Settlements(calls)
    this.#upkeep = upkeep
    const { clock = systemClock, transactionTimeoutMs } = options
    this.#transactions = new Transactions({ driver, calls, clock, transactionTimeoutMs })
    this.batching = { ...BATCHING, ...this.#transactions.batching }
    if (options.history) this.history = (query, signal) => upkeep.listHistory(query, signal)
    const watcher = toWatcher(options, driver, calls)
    this.#watcher = watcher
    if (watcher !== undefined) this.watch = (identity, wake) => watcher.watch(identity, wake)
    this.durable = this.#openDurable()
  }

  #openDurable(): DurableStore {
    const calls = this.#calls
    const transactions = this.#transactions
    return {
      phases: phaseStore({ calls, transactions }),
      outbox: outboxStore({ calls, watcher: this.#watcher, transactions }),
      operator: operatorStore({ calls, driver: this.#driver }),
    }
  }

  async close(): Promise<void> {
    this.#calls.close()
    this.#watcher?.close()
  }

  async migrate(): Promise<void> {
    this.#calls.checkOpen('migrate')
    try {
      await migrate(this.#driver, this.#tableName, systemClock)
    } catch (error) {
      throw error instanceof InvalidOptionsError ? error : storeFailed('migrate', error)
    }
  }

  async now(signal?: AbortSignal): Promise<Date> {
    if (this.#calls.nowMs !== null) return new Date(this.#calls.nowMs)
    const [row] = await this.#calls.send('now', CLOCK, () => [], signal)
    return new Date(row?.[0] as number)
  }

  claim(requests: readonly ClaimRequest[], signal?: AbortSignal): Promise<ClaimOutcome[]> {
    return this.#claims.claim(requests, signal)
  }

  renew(renewals: readonly Renewal[], signal?: AbortSignal): Promise<boolean[]> {
    return this.#claims.renew(renewals, signal)
  }

  read(ref: RecordRef, signal?: AbortSignal): Promise<RecordView | undefined> {
    return this.#claims.read(ref, signal)
  }

  settle(settlements: readonly Settlement[], signal?: AbortSignal): Promise<SettleOutcome[]> {
    return this.#settlements.settle(settlements, signal)
  }

  settleIn(tx: unknown, lease: Lease, completion: Completion): Promise<SettleOutcome> {
    return this.#settlements.settleIn(tx, lease, completion)
  }

  resolve(verdicts: readonly Verdict[], signal?: AbortSignal): Promise<ResolveOutcome[]> {
    return this.#settlements.resolve(verdicts, signal)
  }

  sweep({ limit }: { readonly limit: number }, signal?: AbortSignal): Promise<SweptRecord[]> {
    return this.#upkeep.sweep(limit, signal)
  }

  reap(request: ReapRequest, signal?: AbortSignal): Promise<ReapReport> {
    return this.#upkeep.reap(request, signal)
  }

  list(query: ListQuery, signal?: AbortSignal): Promise<RecordView[]> {
    return this.#upkeep.list(query, signal)
  }

  transaction<Tx>(
    lease: Lease,
    work: TransactionWork<Tx>,
    signal?: AbortSignal,
  ): Promise<SettleOutcome> {
    return this.#transactions.run(completing(this.#calls, lease, work), signal)
  }
}

function toWatcher(
  { listen, name, clock = systemClock }: ResolvedPostgresStoreOptions,
  driver: Driver,
  calls: Calls,
): Watcher | undefined {
  if (listen === false) return undefined
  if (driver.listen !== undefined) {
    return new Watcher({ listen: driver.listen, channel: channelOf(name), calls, clock })
  }
  if (listen === undefined) return undefined
  throw new InvalidOptionsError(
    'postgresStore: listen: true needs a Pool of "pg" or the sql of "postgres", because the ' +
      'store listens on a separate connection',
  )
}
