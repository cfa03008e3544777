import type { DatabaseSync, StatementSync } from 'node:sqlite'
import { BEGIN_READ, COMMIT } from './sql.ts'

/** Several reads as of one moment, over one connection. */
export class ReadTransaction {
  readonly #begin: StatementSync
  readonly #end: StatementSync

  constructor(db: DatabaseSync) {
    this.#begin = db.prepare(BEGIN_READ)
    this.#end = db.prepare(COMMIT)
  }

  /** Not for use within a transaction. */
  run<Result>(body: () => Result): Result {
    this.#begin.run()
    try {
      return body()
    } finally {
      this.#end.run()
    }
  }
}
