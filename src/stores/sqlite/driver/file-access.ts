import type { Clock } from '../../../core/time/clock.ts'
import { AuditTable, DiscardedTable } from '../durable/acts.ts'
import { Writer, type Connections } from './connections.ts'
import { DueTurns } from '../turns/due.ts'
import { storeFailed, whileBusy } from '../failures.ts'
import { MessageTable } from '../durable/message-columns.ts'
import { MessageTurns } from '../turns/messages.ts'
import { OperationTable } from '../durable/operation-columns.ts'
import type { ResolvedSqliteStoreOptions } from '../options.ts'
import { ReadTransaction } from './driver.ts'
import { RecordTable } from '../columns.ts'
import { OpenTransactions } from '../transaction.ts'
import type { Operation } from './write-turns.ts'
import { UnknownTurns } from '../turns/unknown.ts'

/** All prepared statements of one connection. */
export interface Tables {
  readonly records: RecordTable
  readonly operations: OperationTable
  readonly messages: MessageTable
  readonly discarded: DiscardedTable
  readonly audit: AuditTable
  readonly dueTurns: DueTurns
  readonly unknownTurns: UnknownTurns
  readonly messageTurns: MessageTurns
  readonly reading: ReadTransaction
}

/** Runs the reads and writes of a store: which connection, when, and how errors are reported. */
export class FileAccess {
  readonly clock: Clock
  readonly writer: Writer
  /** Statements of the writer, for decisions that are written. */
  readonly tables: Tables
  readonly transactionTimeoutMs: number
  readonly table: string
  readonly keepsHistory: boolean
  readonly open = new OpenTransactions()
  /** Clients of the caller that are known to have this file open. */
  readonly onSameFile = new WeakSet<object>()
  readonly #readerTables: Tables
  readonly #connections: Connections
  #closed: Promise<void> | undefined

  constructor(options: ResolvedSqliteStoreOptions, connections: Connections) {
    this.clock = options.clock
    this.transactionTimeoutMs = options.transactionTimeoutMs
    this.table = options.table
    this.keepsHistory = options.history
    this.writer = new Writer(connections.writer, connections.file, options.clock)
    this.tables = tablesOf(connections.writer, options.table)
    this.#readerTables = tablesOf(connections.reader, options.table)
    this.#connections = connections
  }

  /**
   * Statements that see committed rows, for answers that need no write. Between transactions the
   * writer sees exactly these rows, and its pages are cached; the reader would have to fetch the
   * pages that were written since.
   */
  get committed(): Tables {
    return this.writer.isIdle ? this.tables : this.#readerTables
  }

  async read<Result>(operation: string, body: (nowMs: number) => Result): Promise<Result> {
    const result = await this.look(operation, body)
    this.refuseIfReplaced(operation)
    return result
  }

  /** A read before the answer is known. A write or `refuseIfReplaced` must follow. */
  async look<Result>(operation: string, body: (nowMs: number) => Result): Promise<Result> {
    this.refuseIfClosed(operation)
    try {
      // A reader waits only while SQLite recovers the log of a crashed writer.
      return await whileBusy(() => body(this.clock.nowMs()))
    } catch (error) {
      throw storeFailed(operation, error)
    }
  }

  /** Reads the time after it has the lock, so that a decision is not older than the wait. */
  async write<Result>(operation: Operation, body: (nowMs: number) => Result): Promise<Result> {
    this.refuseIfClosed(operation)
    return this.writer.write(operation, () => body(this.clock.nowMs()))
  }

  refuseIfClosed(operation: string): void {
    if (this.#closed !== undefined) throw storeFailed(operation, new Error('the store is closed'))
  }

  /** Throws if the file was deleted or replaced: other processes do not see its records. */
  refuseIfReplaced(operation: string): void {
    try {
      this.#connections.file.check()
    } catch (error) {
      throw storeFailed(operation, error)
    }
  }

  close(): Promise<void> {
    this.#closed ??= this.writer.drain().then(() => {
      this.#connections.reader.close()
      this.#connections.writer.close()
    })
    return this.#closed
  }
}

function tablesOf(db: Connections['writer'], table: string): Tables {
  return {
    records: new RecordTable(db, table),
    operations: new OperationTable(db, table),
    messages: new MessageTable(db, table),
    discarded: new DiscardedTable(db, table),
    audit: new AuditTable(db, table),
    dueTurns: new DueTurns(db, table),
    unknownTurns: new UnknownTurns(db, table),
    messageTurns: new MessageTurns(db, table),
    reading: new ReadTransaction(db),
  }
}
