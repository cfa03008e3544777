import { toView } from '../../core/record/decide.ts'
import type { DurableStore } from '../../core/store/durable-store.ts'
import type {
  ClaimOutcome,
  ClaimRequest,
  HistoryQuery,
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
import { claimKeys, renewLeases } from './claims.ts'
import { openConnections } from './driver/connections.ts'
import { FileAccess } from './driver/file-access.ts'
import { operatorStore } from './durable/acts.ts'
import { outboxStore } from './durable/outbox.ts'
import { phaseStore } from './durable/phases.ts'
import { resolveSqliteStoreOptions, type SqliteStoreOptions } from './options.ts'
import { resolveUnknown, settleInTransaction, settleLeases } from './settlements.ts'
import type { TransactionWork } from './transaction.ts'
import { reap, sweep } from './upkeep.ts'

/** A store in one SQLite file. It can commit a key together with the caller's rows. */
export interface SqliteStore extends Store {
  /**
   * Keep the work synchronous if you can: SQLite has one writer, and while the store awaits
   * asynchronous work, no other call writes to the file, in this process or another. The work must
   * not await another call of this store, because that call waits for the work. See
   * `transactionTimeoutMs`.
   */
  transaction(lease: Lease, work: TransactionWork): Promise<SettleOutcome>

  readonly durable: DurableStore

  /** Waits for the running calls, then closes the file. */
  close(): Promise<void>
}

/**
 * Keeps records in an SQLite file: durable, and shared by all processes of one machine. The file
 * may also hold the application's tables, so that `transaction` can write to them. Needs Node 22.13
 * and a local disk: SQLite's locks are not reliable on a network share.
 */
export function sqliteStore(options: SqliteStoreOptions): SqliteStore {
  const resolved = resolveSqliteStoreOptions(options)
  return new FileStore(new FileAccess(resolved, openConnections(resolved)))
}

class FileStore implements SqliteStore {
  readonly name = 'sqlite'
  readonly batching = { rowsMax: 128, flushesMax: 1, transactionsMax: 1, stepsMax: 128 } as const
  readonly durable: DurableStore
  readonly #access: FileAccess
  readonly history?: (query: HistoryQuery) => Promise<RecordView[]>

  constructor(access: FileAccess) {
    this.#access = access
    this.durable = {
      phases: phaseStore(access),
      outbox: outboxStore(access),
      operator: operatorStore(access),
    }
    if (access.keepsHistory) {
      this.history = (query) =>
        access.read('history', () => access.committed.records.history(query).map(toView))
    }
  }

  claim(requests: readonly ClaimRequest[]): Promise<ClaimOutcome[]> {
    return claimKeys(this.#access, requests)
  }

  settle(settlements: readonly Settlement[]): Promise<SettleOutcome[]> {
    return settleLeases(this.#access, settlements)
  }

  renew(renewals: readonly Renewal[]): Promise<boolean[]> {
    return renewLeases(this.#access, renewals)
  }

  resolve(verdicts: readonly Verdict[]): Promise<ResolveOutcome[]> {
    return resolveUnknown(this.#access, verdicts)
  }

  sweep({ limit }: { readonly limit: number }): Promise<SweptRecord[]> {
    return sweep(this.#access, limit)
  }

  reap(request: ReapRequest): Promise<ReapReport> {
    return reap(this.#access, request)
  }

  read(ref: RecordRef): Promise<RecordView | undefined> {
    return this.#access.read('read', () => {
      const record = this.#access.committed.records.findRef(ref)
      return record && toView(record)
    })
  }

  list({ state, limit }: ListQuery): Promise<RecordView[]> {
    return this.#access.read('list', () =>
      this.#access.committed.records.list(state, limit).map(toView),
    )
  }

  transaction(lease: Lease, work: TransactionWork): Promise<SettleOutcome> {
    return settleInTransaction(this.#access, lease, work)
  }

  close(): Promise<void> {
    return this.#access.close()
  }
}
