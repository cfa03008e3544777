/**
 * Statements of operator acts: the audit and the discarded replies, which are only inserted and
 * read, and the search for the phase that an act names.
 */
import { NO_BYTES } from '../../../core/bytes.ts'
import type { StoredRecord } from '../../../core/record/record.ts'
import type { AuditEntry, DiscardedReply, PhaseRef } from '../../../core/store/operator-store.ts'
import { decodeOperation } from '../../kit/stored-operation.ts'
import type { Row } from '../client.ts'
import {
  fromColumn,
  literalOf,
  nameOf,
  numberLiteral,
  readColumn,
  toColumn,
  type Column,
} from '../columns.ts'
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
  ) as [number, AuditEntry['act'], string, string, string, string]
  return { at: new Date(at), act, subject, who, why, detail }
}

const DISCARDED = {
  recordId: { name: 'record_id', kind: 'word' },
  attempt: { name: 'attempt', kind: 'number' },
  atMs: { name: 'discarded_at_ms', kind: 'number' },
  piece: { name: 'piece', kind: 'number' },
  result: { name: 'result', kind: 'bytes' },
  operation: { name: 'operation', kind: 'bytes' },
} as const satisfies Record<string, Column>

/** A piece of an operation that is kept with the discarded reply. Piece 0 exists in every case. */
export interface DiscardedPiece {
  readonly piece: number
  readonly atMs: number
  /** `undefined`: the record has no operation. */
  readonly operation: Uint8Array | undefined
}

/**
 * Copies the result within the database, so that it is not sent to this process and back. The
 * record must be locked, and still have its result.
 */
export function insertDiscardedSql(
  { record, discarded }: Tables,
  { identity }: StoredRecord,
  { piece, atMs, operation }: DiscardedPiece,
): string {
  const own = (['recordId', 'identity', 'tenant', 'attempt'] as const).map(nameOf)
  const result = piece === 0 ? `r.${nameOf('result')}` : 'NULL'
  const values = [
    ...own.map((name) => `r.${name}`),
    toColumn(DISCARDED.atMs, atMs),
    toColumn(DISCARDED.piece, piece),
    result,
    toColumn(DISCARDED.operation, operation),
  ]
  return `${STRICT} INSERT ${STRICT_HINT} INTO ${discarded}
    (${own.join(', ')}, discarded_at_ms, piece, result, operation)
    SELECT ${values.join(', ')} FROM ${record} AS r FORCE INDEX (PRIMARY)
    WHERE r.identity = ${literalOf('identity', identity)}`
}

const READ = ['attempt', 'atMs', 'piece', 'result', 'operation'] as const

/** The newest replies with all their pieces, the oldest first. */
export function discardedSql(
  { discarded }: Tables,
  { recordId, limit }: { readonly recordId: string; readonly limit: number },
): string {
  const own = `record_id = ${toColumn(DISCARDED.recordId, recordId)}`
  const columns = READ.map((field) => readColumn(DISCARDED[field], 'd'))
  return `SELECT ${IS_OPEN}, ${columns.join(', ')}
    FROM ${discarded} AS d FORCE INDEX (record_id)
    WHERE d.${own} AND d.number >= (SELECT MIN(last.number) FROM (
      SELECT h.number FROM ${discarded} AS h FORCE INDEX (record_id)
      WHERE h.${own} AND h.piece = 0
      ORDER BY h.number DESC LIMIT ${numberLiteral('limit', limit)}) AS last)
    ORDER BY d.number`
}

/** Newest first. */
export function toDiscarded(recordId: string, rows: readonly Row[]): DiscardedReply[] {
  const read = rows.map((row) => {
    const values = READ.map((field, n) => fromColumn(DISCARDED[field], row[n]))
    const [attempt, atMs, piece, result, operation] = values as [
      ...[number, number, number],
      ...[Uint8Array | undefined, Uint8Array | undefined],
    ]
    return { attempt, atMs, piece, result, operation }
  })
  const starts = [...read.keys()].filter((n) => read[n]!.piece === 0)
  const replies = starts.map((start, n) => {
    const { attempt, atMs, result = NO_BYTES } = read[start]!
    const pieces = read.slice(start, starts[n + 1]).flatMap(({ operation }) => operation ?? [])
    const operation = pieces.length === 0 ? undefined : decodeOperation(Buffer.concat(pieces))
    return { recordId, attempt, discardedAt: new Date(atMs), result, operation }
  })
  return replies.toReversed()
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
