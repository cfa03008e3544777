import type { DatabaseSync, StatementSync } from 'node:sqlite'
import type { ActKind, AuditEntry } from '../../core/durable-store.ts'
import { INSERT_AUDIT, LIST_AUDIT, LIST_AUDIT_OF } from './durable-sql.ts'
import { forTable } from './sql.ts'

/** The audit over one connection. Nothing in it can be changed. */
export class AuditTable {
  readonly #insert: StatementSync
  readonly #list: StatementSync
  readonly #listOf: StatementSync

  constructor(db: DatabaseSync, table: string) {
    this.#insert = db.prepare(forTable(table, INSERT_AUDIT))
    this.#list = db.prepare(forTable(table, LIST_AUDIT))
    this.#listOf = db.prepare(forTable(table, LIST_AUDIT_OF))
  }

  insert({ at, act, subject, who, why, detail }: AuditEntry): void {
    this.#insert.run(at.getTime(), act, subject, who, why, detail)
  }

  list(subject: string | undefined, limit: number): AuditEntry[] {
    const rows = subject === undefined ? this.#list.all(limit) : this.#listOf.all(subject, limit)
    return (rows as unknown as AuditRow[]).map(({ at_ms, act, subject, who, why, detail }) => {
      return { at: new Date(at_ms), act, subject, who, why, detail }
    })
  }
}

interface AuditRow {
  readonly at_ms: number
  readonly act: ActKind
  readonly subject: string
  readonly who: string
  readonly why: string
  readonly detail: string
}
