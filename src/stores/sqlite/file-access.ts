import type { Clock } from '../../core/clock.ts'
import { AuditTable } from './audit-table.ts'
import type { Connections } from './connections.ts'
import { DueTurns } from './due-turns.ts'
import { storeFailed, whileBusy } from './failures.ts'
import { MessageTable } from './message-table.ts'
import { MessageTurns } from './message-turns.ts'
import { OperationTable } from './operation-table.ts'
import type { ResolvedSqliteStoreOptions } from './options.ts'
import { ReadTransaction } from './read-transaction.ts'
import { RecordTable } from './record-table.ts'
import { OpenTransactions } from './open-transactions.ts'
import type { Operation } from './turns.ts'
import { UnknownTurns } from './unknown-turns.ts'
import { Writer } from './writer.ts'

/** All statements over one connection. */
export interface Tables {
  readonly records: RecordTable
  readonly operations: OperationTable
  readonly messages: MessageTable
  readonly audit: AuditTable
  readonly dueTurns: DueTurns
  readonly unknownTurns: UnknownTurns
  readonly messageTurns: MessageTurns
  readonly reading: ReadTransaction
}

/** The file of a store, for all parts of it: who reads and who writes, and when. */
export class FileAccess {
  readonly clock: Clock
  readonly writer: Writer
  /** What the writer sees: for decisions that are written. */
  readonly tables: Tables
  readonly transactionMs: number
  readonly table: string
  readonly open = new OpenTransactions()
  /** Clients of the caller's that are known to be on this file. */
  readonly onSameFile = new WeakSet<object>()
  readonly #readerTables: Tables
  readonly #connections: Connections
  #closed: Promise<void> | undefined

  constructor(options: ResolvedSqliteStoreOptions, connections: Connections) {
    this.clock = options.clock
    this.transactionMs = options.transactionMs
    this.table = options.table
    this.writer = new Writer(connections.writer, connections.file, options.clock)
    this.tables = tablesOf(connections.writer, options.table)
    this.#readerTables = tablesOf(connections.reader, options.table)
    this.#connections = connections
  }

  /**
   * What is committed: for answers that need no write. Between transactions the writer sees
   * exactly that, and its pages are warm; the reader has to fetch what others wrote since.
   */
  get committed(): Tables {
    return this.writer.isIdle ? this.tables : this.#readerTables
  }

  async read<Result>(operation: string, body: (nowMs: number) => Result): Promise<Result> {
    const result = await this.look(operation, body)
    this.refuseIfReplaced(operation)
    return result
  }

  /** For what is not answered yet: it leads to a write, or to `refuseIfReplaced`. */
  async look<Result>(operation: string, body: (nowMs: number) => Result): Promise<Result> {
    this.refuseIfClosed(operation)
    try {
      // Readers wait for nobody, except while a crashed writer's log is recovered.
      return await whileBusy(() => body(this.clock.nowMs()))
    } catch (error) {
      throw storeFailed(operation, error)
    }
  }

  /** The time is read once the lock is held: a decision must not be older than its wait. */
  async write<Result>(operation: Operation, body: (nowMs: number) => Result): Promise<Result> {
    this.refuseIfClosed(operation)
    return this.writer.write(operation, () => body(this.clock.nowMs()))
  }

  refuseIfClosed(operation: string): void {
    if (this.#closed !== undefined) throw storeFailed(operation, new Error('the store is closed'))
  }

  /** Throws where the file was deleted or replaced: an answer out of it is nobody else's. */
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
    audit: new AuditTable(db, table),
    dueTurns: new DueTurns(db, table),
    unknownTurns: new UnknownTurns(db, table),
    messageTurns: new MessageTurns(db, table),
    reading: new ReadTransaction(db),
  }
}
