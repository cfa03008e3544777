/**
 * Statements of operator acts: the audit, which is only inserted into and read, and the search for
 * the phase that an act names.
 */
import type { ActKind, AuditEntry, PhaseRef } from '../../../core/store/durable-store.ts'
import type { Row } from '../client.ts'
import { fromColumn, numberLiteral, readColumn, toColumn, type Column } from '../columns.ts'
import { BOUNDED, IS_OPEN, STRICT, STRICT_HINT, type Tables } from '../sql.ts'
import { OPERATION, PHASE_LIST, phaseColumn, phaseLiteral } from './operation-columns.ts'
import { ofPhase } from './phase-sql.ts'

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

/**
 * Finds the external phase that an operator refers to, and its record. For a record id that is the
 * intended phase, or else the last one that is done. A provider may have issued an id twice; then
 * the intended phase or the one that was sent last is found.
 */
export function findPhaseSql({ phase }: Tables, ref: PhaseRef): string {
  const { index, where, last } = phaseSearch(ref)
  return `SELECT p.record_id, HEX(p.name) FROM ${phase} AS p FORCE INDEX (${index})
    WHERE p.${where} AND p.kind = 'external'
    ORDER BY p.state = 'intended' DESC, p.${last} DESC LIMIT 1`
}

function phaseSearch(ref: PhaseRef) {
  if ('recordId' in ref) {
    const where = `record_id = ${toColumn(OPERATION.recordId, ref.recordId)}`
    return { index: 'PRIMARY', where, last: 'number' }
  }
  const [field, value] =
    'downstreamKey' in ref
      ? (['downstreamKey', ref.downstreamKey] as const)
      : (['providerId', ref.providerId] as const)
  const index = phaseColumn(field)
  return { index, where: `${index} = ${phaseLiteral(field, value)}`, last: 'sent_at_ms' }
}

/** Locks one phase. The record must be locked already. */
export function lockPhaseSql({ phase }: Tables, recordId: string, name: string): string {
  return `${BOUNDED} SELECT ${PHASE_LIST} FROM ${phase} AS p FORCE INDEX (PRIMARY)
    WHERE ${ofPhase(recordId, name)} FOR UPDATE`
}
