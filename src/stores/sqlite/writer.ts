import type { DatabaseSync, StatementSync } from 'node:sqlite'
import type { Clock } from '../../core/clock.ts'
import { isBusy, isNoTransaction, storeFailed, whileBusy } from './failures.ts'
import { mainFileOf } from './foreign.ts'
import type { OpenFile } from './open-file.ts'
import { BEGIN, COMMIT, ROLLBACK } from './sql.ts'
import { Turns, type Operation } from './turns.ts'

/** Calls that may wait. The engine batches, so more than this is a flood, not a load. */
const WAITING_MAX = 10_000

/**
 * The one writing connection of a store, and the queue before it. SQLite has one write lock for
 * the whole file: transactions of one process that met on it would only make each other retry.
 */
export class Writer {
  readonly #db: DatabaseSync
  readonly #begin: StatementSync
  readonly #commit: StatementSync
  readonly #rollback: StatementSync
  readonly #turns: Turns
  readonly #file: string
  readonly #openFile: OpenFile
  #isOpen = false

  constructor(db: DatabaseSync, openFile: OpenFile, clock: Clock) {
    this.#db = db
    this.#openFile = openFile
    this.#turns = new Turns(clock)
    this.#begin = db.prepare(BEGIN)
    this.#commit = db.prepare(COMMIT)
    this.#rollback = db.prepare(ROLLBACK)
    this.#file = mainFileOf(db)
  }

  get db(): DatabaseSync {
    return this.#db
  }

  /** As SQLite names it. */
  get file(): string {
    return this.#file
  }

  /** Waits for its turn, then has the connection to itself until `turn` settles. */
  takeTurn<Result>(operation: Operation, turn: () => Promise<Result>): Promise<Result> {
    if (this.#turns.waiting >= WAITING_MAX) {
      const cause = new Error(`${WAITING_MAX} calls are waiting for the database file already`)
      return Promise.reject(storeFailed(operation, cause, 'overloaded'))
    }
    return this.#turns.take(operation, turn)
  }

  /** Runs `body` in a write transaction of its own. */
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

  /** Between transactions: the connection then sees what is committed, and nothing else. */
  get isIdle(): boolean {
    return !this.#isOpen
  }

  /** For use within a turn. Another process may hold the write lock. */
  begin(): Promise<void> {
    return whileBusy(() => this.beginNow())
  }

  /** The same, and fails where somebody is in the way. */
  beginNow(): void {
    this.#begin.run()
    this.#isOpen = true
  }

  /**
   * For use within a turn. A checkpoint of another process may be in the way. Fails after the
   * commit where its file is no longer the one that other processes open.
   */
  commit(): Promise<void> {
    return whileBusy(() => this.#commitNow())
  }

  /** The same, without waiting. `false`: somebody is in the way, and nothing has happened. */
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
      // Some errors (a full disk), and the SQL of a caller, have ended the transaction already.
      if (!isNoTransaction(error)) throw storeFailed('roll back', error)
    }
    this.#isOpen = false
  }

  /** Resolves when everything that was queued has ended. */
  drain(): Promise<void> {
    return this.#turns.drain()
  }
}
