import {
  decideClaim,
  decideReap,
  decideRenew,
  decideResolve,
  decideSettle,
  decideSweep,
  toSwept,
  toView,
  type Decision,
} from '../../core/decide.ts'
import { decideShorten } from '../../core/shorten-lease.ts'
import type { DurableStore } from '../../core/durable-store.ts'
import type { StoredRecord } from '../../core/record.ts'
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
  SettleOutcome,
  Settlement,
  Store,
  SweptRecord,
  Verdict,
} from '../../core/store.ts'
import { openConnections, type Connections } from './connections.ts'
import { deskStore } from './desk-store.ts'
import { FileAccess } from './file-access.ts'
import {
  resolveSqliteStoreOptions,
  type ResolvedSqliteStoreOptions,
  type SqliteStoreOptions,
} from './options.ts'
import { outboxStore } from './outbox-store.ts'
import { phaseStore } from './phase-store.ts'
import type { RecordTable } from './record-table.ts'
import { inPieces, PIECE_BYTES } from './pieces.ts'
import { transact, type Purpose, type TransactionWork } from './transaction.ts'

/** A store in one SQLite file. It can commit a key together with the caller's rows. */
export interface SqliteStore extends Store {
  /**
   * Keep the work synchronous where you can: SQLite has one writer, and while asynchronous work is
   * awaited nobody else writes to the file, in this process or another. It must not wait for
   * another call of this store: that call waits for it. See `transactionMs`.
   */
  transaction(lease: Lease, work: TransactionWork): Promise<SettleOutcome>

  readonly durable: DurableStore

  /** Waits for the calls under way, then closes the file. */
  close(): Promise<void>
}

/**
 * Keeps records in an SQLite file: durable, and shared by all processes of one machine. The file
 * may hold the application's own tables, which is what `transaction` is for. Needs Node 22.13, and
 * a local disk: SQLite's locks cannot be trusted on a network share.
 */
export function sqliteStore(options: SqliteStoreOptions): SqliteStore {
  const resolved = resolveSqliteStoreOptions(options)
  return new FileStore(resolved, openConnections(resolved))
}

class FileStore implements SqliteStore {
  readonly name = 'sqlite'
  readonly batching = { rowsMax: 128, flushesMax: 1, transactionsMax: 1, stepsMax: 128 } as const
  readonly durable: DurableStore
  readonly #access: FileAccess
  readonly #records: RecordTable
  readonly history?: (query: HistoryQuery) => Promise<RecordView[]>

  constructor(options: ResolvedSqliteStoreOptions, connections: Connections) {
    this.#access = new FileAccess(options, connections)
    this.#records = this.#access.tables.records
    this.durable = {
      phases: phaseStore(this.#access),
      outbox: outboxStore(this.#access),
      desk: deskStore(this.#access, { retire: (record) => this.#retire(record) }),
    }
    if (options.history) {
      this.history = (query) =>
        this.#access.read('history', () => this.#committed.history(query).map(toView))
    }
  }

  async claim(requests: readonly ClaimRequest[]): Promise<ClaimOutcome[]> {
    const seen = await this.#access.look('claim', (nowMs) => {
      const records = this.#committed.findAll(requests.map(({ identity }) => identity))
      return records.map((record, n) => record && decideClaim(record, requests[n]!, nowMs))
    })
    const answers = seen.flatMap((decision) =>
      decision === undefined || decision.write !== undefined ? [] : [decision.outcome],
    )
    if (answers.length === requests.length) {
      this.#access.refuseIfReplaced('claim')
      return answers
    }

    return this.#access.write('claim', (nowMs) =>
      requests.map((request, n) => {
        const decision = seen[n]
        if (decision === undefined) return this.#take(request, { isFree: true, nowMs })
        // What is answered without a write stays true: it was so when it was read.
        if (decision.write === undefined) return decision.outcome
        return this.#take(request, { isFree: false, nowMs })
      }),
    )
  }

  settle(settlements: readonly Settlement[]): Promise<SettleOutcome[]> {
    return this.#access.write('settle', (nowMs) =>
      settlements.map((settlement) => {
        const settled = this.#completeHeld(settlement, nowMs)
        if (settled !== undefined) return settled
        const record = this.#records.find(settlement.lease.identity)
        return this.#apply(decideSettle(record, settlement, nowMs))
      }),
    )
  }

  renew(renewals: readonly Renewal[]): Promise<boolean[]> {
    return this.#access.write('renew', (nowMs) =>
      renewals.map((renewal) => {
        const write = decideRenew(this.#records.find(renewal.identity), renewal, nowMs)
        if (write !== undefined) this.#records.update(write)
        return write !== undefined
      }),
    )
  }

  resolve(verdicts: readonly Verdict[]): Promise<ResolveOutcome[]> {
    return this.#access.write('resolve', (nowMs) =>
      verdicts.map((verdict) => {
        const record = this.#records.findRef(verdict.ref)
        return this.#apply(decideResolve(record, verdict, nowMs))
      }),
    )
  }

  async sweep({ limit }: { readonly limit: number }): Promise<SweptRecord[]> {
    await inPieces(this.#access, 'sweep', {
      limit,
      isDue: (nowMs) => this.#committed.ahead(nowMs, 1).length > 0,
      piece: (nowMs, rows) =>
        this.#records.ahead(nowMs, rows).flatMap((record) => {
          const write = decideShorten(record, nowMs)
          if (write !== undefined) this.#records.update(write)
          return write ?? []
        }),
    })
    return inPieces(this.#access, 'sweep', {
      limit,
      isDue: (nowMs) => this.#committed.lapsed(nowMs, 1).length > 0,
      piece: (nowMs, rows) =>
        this.#records.lapsed(nowMs, rows).flatMap((record) => {
          const write = decideSweep(record, nowMs)
          if (write === undefined) return []
          this.#records.update(write)
          return [toSwept(write)]
        }),
    })
  }

  async reap(request: ReapRequest): Promise<ReapReport> {
    const reaped = await inPieces(this.#access, 'reap', {
      limit: request.limit,
      isDue: (nowMs) => dueForReaping(this.#committed, request, { nowMs, rows: 1 }).length > 0,
      piece: (nowMs, rows) =>
        dueForReaping(this.#records, request, { nowMs, rows }).flatMap((record) => {
          const decision = decideReap(record, request, nowMs)
          if (decision === undefined) return []
          if (decision.kind !== 'abandoned') this.#retire(record)
          if (decision.write === undefined) this.#records.remove(record.identity)
          else this.#records.update(decision.write)
          return [decision.kind]
        }),
    })
    const count = (kind: keyof ReapReport) => reaped.filter((one) => one === kind).length
    return { removed: count('removed'), expired: count('expired'), abandoned: count('abandoned') }
  }

  read(ref: RecordRef): Promise<RecordView | undefined> {
    return this.#access.read('read', () => {
      const record = this.#committed.findRef(ref)
      return record && toView(record)
    })
  }

  list({ state, limit }: ListQuery): Promise<RecordView[]> {
    return this.#access.read('list', () => this.#committed.list(state, limit).map(toView))
  }

  async transaction(lease: Lease, work: TransactionWork): Promise<SettleOutcome> {
    this.#access.refuseIfClosed('begin a transaction')
    return this.#access.writer.takeTurn('begin a transaction', () =>
      transact(this.#access, settling(this.#records, lease, work)),
    )
  }

  close(): Promise<void> {
    return this.#access.close()
  }

  get #committed(): RecordTable {
    return this.#access.committed.records
  }

  #take(
    request: ClaimRequest,
    { isFree, nowMs }: { readonly isFree: boolean; readonly nowMs: number },
  ): ClaimOutcome {
    if (isFree) {
      const { outcome, write } = decideClaim(undefined, request, nowMs)
      if (write !== undefined && this.#records.insert(write)) return outcome
    }
    const record = this.#records.find(request.identity)
    const { outcome, write } = decideClaim(record, request, nowMs)
    if (write !== undefined) this.#replace(record, write)
    return outcome
  }

  /** What `decideSettle` says of a held lease, in one statement: half of all writes are this. */
  #completeHeld(settlement: Settlement, nowMs: number): SettleOutcome | undefined {
    if (settlement.kind !== 'complete') return undefined
    const { lease, result, retentionMs } = settlement
    const expiresAtMs = nowMs + retentionMs
    const isDone = this.#records.completeHeld(lease, { result, nowMs, expiresAtMs })
    return isDone ? { kind: 'settled', expiresAt: new Date(expiresAtMs) } : undefined
  }

  /** A new record under an old key is a new row: what refers to the old one must let go of it. */
  #replace(record: StoredRecord | undefined, write: StoredRecord): void {
    if (record?.recordId === write.recordId) return this.#records.update(write)
    if (record !== undefined) {
      this.#retire(record)
      this.#records.remove(record.identity)
    }
    this.#records.insert(write)
  }

  /** What is already a mere reminder of a record was kept when it became one. */
  #retire({ identity, state }: StoredRecord): void {
    if (this.history !== undefined && state !== 'expired') this.#records.keep(identity)
  }

  #apply<Outcome>({ outcome, write }: Decision<Outcome>): Outcome {
    if (write !== undefined) this.#records.update(write)
    return outcome
  }
}

/** Completes a key with what the work returns. */
function settling(
  records: RecordTable,
  lease: Lease,
  work: TransactionWork,
): Purpose<Completion, SettleOutcome> {
  let record: StoredRecord | undefined
  return {
    work,
    before: (nowMs) => {
      record = records.find(lease.identity)
      const trial = { kind: 'complete', lease, result: NO_BYTES, retentionMs: 0 } as const
      const { outcome, write } = decideSettle(record, trial, nowMs)
      // Lost to somebody else, or committed by an earlier call whose answer was lost: in neither
      // case may the work run.
      return write === undefined ? outcome : undefined
    },
    // The record as it was read before: nobody else can have written since.
    after: (completion, nowMs) => {
      const settlement = { kind: 'complete', lease, ...completion } as const
      const { outcome, write } = decideSettle(record, settlement, nowMs)
      if (write !== undefined) records.update(write)
      return { outcome, isKept: write !== undefined }
    },
  }
}

const NO_BYTES = new Uint8Array(0)

/**
 * At most as many as one piece of upkeep may write. What was abandoned comes first: somebody may be
 * asking for it, while what has expired only takes space.
 */
function dueForReaping(
  records: RecordTable,
  { abandoned }: ReapRequest,
  { nowMs, rows }: { readonly nowMs: number; readonly rows: number },
): StoredRecord[] {
  if (abandoned !== undefined) {
    const rowsMax = Math.max(1, Math.floor(PIECE_BYTES / (abandoned.result.byteLength + 1)))
    const due = records.abandoned(nowMs, Math.min(rows, rowsMax))
    if (due.length > 0) return due
  }
  return records.expired(nowMs, { rows, bytes: PIECE_BYTES })
}
