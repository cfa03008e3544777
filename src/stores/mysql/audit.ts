/** The audit: written once, and never changed. */
import type { ActKind, AuditEntry } from '../../core/durable-store.ts'
import type { Row } from './client.ts'
import { IS_OPEN, STRICT, STRICT_HINT, type Tables } from './sql.ts'
import { fromColumn, numberLiteral, readColumn, toColumn, type Column } from './values.ts'

const AUDIT: Readonly<Record<keyof AuditEntry, Column>> = {
  at: { name: 'at_ms', kind: 'number' },
  act: { name: 'act', kind: 'word' },
  subject: { name: 'subject', kind: 'word' },
  who: { name: 'who', kind: 'text' },
  why: { name: 'why', kind: 'text' },
  detail: { name: 'detail', kind: 'text' },
}

const FIELDS = Object.keys(AUDIT) as readonly (keyof AuditEntry)[]

export function insertAuditSql({ audit }: Tables, entry: AuditEntry): string {
  const values = { ...entry, at: entry.at.getTime() }
  return `${STRICT} INSERT ${STRICT_HINT} INTO ${audit}
    (${FIELDS.map((field) => AUDIT[field].name).join(', ')})
    VALUES (${FIELDS.map((field) => toColumn(AUDIT[field], values[field])).join(', ')})`
}

/** Newest first. */
export function auditSql(
  { audit }: Tables,
  { subject, limit }: { readonly subject?: string; readonly limit: number },
): string {
  const [index, where] =
    subject === undefined
      ? ['PRIMARY', '']
      : ['subject', `WHERE a.subject = ${toColumn(AUDIT.subject, subject)}`]
  return `SELECT ${IS_OPEN}, ${FIELDS.map((field) => readColumn(AUDIT[field], 'a')).join(', ')}
    FROM ${audit} AS a FORCE INDEX (${index}) ${where}
    ORDER BY a.number DESC LIMIT ${numberLiteral('limit', limit)}`
}

export function toAuditEntry(row: Row): AuditEntry {
  const [at, act, subject, who, why, detail] = FIELDS.map((field, n) =>
    fromColumn(AUDIT[field], row[n]),
  ) as [number, ActKind, string, string, string, string]
  return { at: new Date(at), act, subject, who, why, detail }
}
