/** Tests: test/stores/sqlite/store.process.test.ts. */
import { mkdirSync, statSync } from 'node:fs'
import type { DatabaseSync, StatementSync } from 'node:sqlite'
import { dirname } from 'node:path'
import { systemClock, type Clock } from '../../../core/time/clock.ts'
import { InvalidOptionsError, OncekeyError } from '../../../core/errors.ts'
import { mainFileOf } from '../caller-transaction.ts'
import { isBusy, isNoTransaction, isUnusableFile, storeFailed, whileBusy } from '../failures.ts'
import { migrate } from '../migrations.ts'
import { BEGIN, COMMIT, ROLLBACK } from '../sql.ts'
import {
  databaseOpener,
  identityAt,
  isSameFile,
  OpenFile,
  setWriterPragmas,
  type OpenDatabase,
} from './driver.ts'
import { WriteTurns, type Operation } from './write-turns.ts'

export interface ConnectionOptions {
  readonly path: string
  readonly synchronous: 'full' | 'normal'
  readonly table: string
}

/**
 * Two connections to one file. The writer runs one transaction after another; the reader sees
 * committed rows and never waits for the writer. With one connection for both, a replay would wait
 * for the handler whose transaction is open, or read rows that may be rolled back.
 */
export interface Connections {
  readonly writer: DatabaseSync
  readonly reader: DatabaseSync
  readonly file: OpenFile
}

/**
 * A file of a container image is copied when it is first opened for writing, and then has another
 * identity. So a change while the file is opened is an error only if it happens each time.
 */
const OPENINGS_MAX = 3

/** Opens the file. Creates the folder, the file and the tables if they are missing. */
export function openConnections(options: ConnectionOptions): Connections {
  const open = databaseOpener()
  const { path } = options
  try {
    mkdirSync(dirname(path), { recursive: true })
    refuseOrphanedLog(path)
    for (let opening = 1; opening <= OPENINGS_MAX; opening++) {
      const connections = openOnce(open, options)
      if (connections !== undefined) return connections
    }
  } catch (error) {
    throw openFailed(path, error)
  }
  const cause = new Error(`another program replaced ${JSON.stringify(path)} during each attempt`)
  throw storeFailed('open', cause)
}

/**
 * `undefined` if the path led to another file before than after. Only if both are the same is it
 * certain that `OpenFile` watches the file that the connections have open.
 */
function openOnce(open: OpenDatabase, options: ConnectionOptions): Connections | undefined {
  const { path, synchronous, table } = options
  const opened: DatabaseSync[] = []
  try {
    // SQLite creates the file: closing a descriptor opened here would drop SQLite's locks.
    if (identityAt(path) === undefined) open(path).close()
    const before = identityAt(path)
    const writer = track(opened, open(path))
    setWriterPragmas(writer, synchronous)
    migrate(writer, table, systemClock.nowMs())
    const reader = track(opened, open(path))
    reader.exec('PRAGMA query_only = ON')
    for (const db of opened) db.exec('PRAGMA busy_timeout = 0')
    const file = new OpenFile(path, mainFileOf(writer))
    if (isSameFile(before, file.identity)) return { writer, reader, file }
  } catch (error) {
    for (const db of opened) db.close()
    throw error
  }
  for (const db of opened) db.close()
  return undefined
}

/** SQLite deletes a log whose database is missing, and with it the last acknowledged keys. */
function refuseOrphanedLog(path: string): void {
  if (identityAt(path) !== undefined) return
  const log = `${path}-wal`
  const bytes = statSync(log, { throwIfNoEntry: false })?.size ?? 0
  // Checked again, because another process may have created both files since.
  if (bytes === 0 || identityAt(path) !== undefined) return
  throw new InvalidOptionsError(
    `sqliteStore: path ${JSON.stringify(path)} does not exist, but its write-ahead log does: the ` +
      'database was deleted or moved without it. Put the database back, or remove the log ' +
      `${JSON.stringify(log)} to begin without any records`,
  )
}

function track(opened: DatabaseSync[], db: DatabaseSync): DatabaseSync {
  opened.push(db)
  return db
}

function openFailed(path: string, error: unknown): OncekeyError {
  if (error instanceof OncekeyError) return error
  const isFolderFault = error instanceof Error && 'syscall' in error
  if (!isFolderFault && !isUnusableFile(error)) return storeFailed('open', error)
  const { message } = error as Error
  return new InvalidOptionsError(
    `sqliteStore: path ${JSON.stringify(path)} cannot be used: ${message}`,
    { cause: error },
  )
}

/** The engine batches its calls, so this many waiting calls mean an overload. */
const WAITING_MAX = 10_000

/**
 * The only writing connection of a store, with its queue. SQLite has one write lock for the whole
 * file, so concurrent transactions of one process would only make each other retry.
 */
export class Writer {
  readonly #db: DatabaseSync
  readonly #begin: StatementSync
  readonly #commit: StatementSync
  readonly #rollback: StatementSync
  readonly #turns: WriteTurns
  readonly #file: string
  readonly #openFile: OpenFile
  #isOpen = false

  constructor(db: DatabaseSync, openFile: OpenFile, clock: Clock) {
    this.#db = db
    this.#openFile = openFile
    this.#turns = new WriteTurns(clock)
    this.#begin = db.prepare(BEGIN)
    this.#commit = db.prepare(COMMIT)
    this.#rollback = db.prepare(ROLLBACK)
    this.#file = mainFileOf(db)
  }

  get db(): DatabaseSync {
    return this.#db
  }

  /** The path that SQLite reports. */
  get file(): string {
    return this.#file
  }

  /** Waits for its turn, then has the connection to itself until `turn` settles. */
  takeTurn<Result>(operation: Operation, turn: () => Promise<Result>): Promise<Result> {
    if (this.#turns.waiting >= WAITING_MAX) {
      const cause = new Error(`${WAITING_MAX} calls are already waiting for the database file`)
      return Promise.reject(storeFailed(operation, cause, 'overloaded'))
    }
    return this.#turns.take(operation, turn)
  }

  /** Runs `body` in a new write transaction. */
  write<Result>(operation: Operation, body: () => Result): Promise<Result> {
    return this.takeTurn(operation, async () => {
      try {
        this.#openFile.checkIfSuspect()
        await this.begin()
        const result = body()
        await this.commit()
        return result
      } catch (error) {
        this.rollback()
        throw storeFailed(operation, error)
      }
    })
  }

  /** Between transactions, when the connection sees only committed rows. */
  get isIdle(): boolean {
    return !this.#isOpen
  }

  /** For use within a turn. Waits while another process holds the write lock. */
  begin(): Promise<void> {
    return whileBusy(() => this.beginNow())
  }

  /** For use within a turn. Throws while another process holds the write lock. */
  beginNow(): void {
    this.#begin.run()
    this.#isOpen = true
  }

  /**
   * For use within a turn. Waits for a checkpoint of another process. Throws after the commit if
   * the file is no longer the one that other processes open.
   */
  commit(): Promise<void> {
    return whileBusy(() => this.#commitNow())
  }

  /** Like `commit`, without waiting. `false`: another process is busy, and nothing has changed. */
  commitNow(): boolean {
    try {
      this.#commitNow()
      return true
    } catch (error) {
      if (isBusy(error)) return false
      throw error
    }
  }

  #commitNow(): void {
    this.#commit.run()
    this.#isOpen = false
    this.#openFile.check()
  }

  /** For use within a turn. Does nothing after a commit. */
  rollback(): void {
    if (!this.#isOpen) return
    try {
      this.#rollback.run()
    } catch (error) {
      // Some errors (a full disk) and the caller's SQL end a transaction before this.
      if (!isNoTransaction(error)) throw storeFailed('roll back', error)
    }
    this.#isOpen = false
  }

  /** Resolves when all queued calls have ended. */
  drain(): Promise<void> {
    return this.#turns.drain()
  }
}
