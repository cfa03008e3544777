/**
 * Statements on operations and phases. As in `sql.ts`, every access names its index. Rows are
 * locked in one order: the record, its operation, its phases.
 */
import type { StoredRecord } from '../../../core/record/record.ts'
import type {
  DueQuery,
  NewOperation,
  OperationName,
  StoredPhase,
} from '../../../core/store/durable-store.ts'
import type { Lease } from '../../../core/store/store.ts'
import type { PhaseChange } from '../../kit/decide-durable.ts'
import { DUE, LEASE, literalOf, nameOf, numberLiteral, TO_RUN, toColumn, VIEW } from '../columns.ts'
import {
  asciiKey,
  BOUNDED,
  deleteBy,
  IS_OPEN,
  list,
  STRICT,
  STRICT_HINT,
  type Tables,
} from '../sql.ts'
import {
  OPERATION,
  OPERATION_LIST,
  PHASE_FIELDS,
  PHASE_LIST,
  phaseChanges,
  phaseColumn,
  phaseLiteral,
} from './operation-columns.ts'

/** Fields of the record that a step is decided from. */
export const STEP_FIELDS = [...LEASE, 'recordId'] as const

/**
 * Reads the record of a lease, whether its operation is stored, and the phase of this name. Returns
 * one row, or no row if there is no record.
 */
export function stepSql(
  { record, operation, phase }: Tables,
  now: string,
  of: { readonly identity: string; readonly phase: string | undefined; readonly lock: boolean },
): string {
  const { identity, lock } = of
  const name = of.phase === undefined ? 'NULL' : phaseLiteral('name', of.phase)
  return `${lock ? BOUNDED : ''} SELECT ${IS_OPEN}, ${now}, ${list(STEP_FIELDS)},
    o.record_id IS NOT NULL, ${PHASE_LIST}
    FROM ${record} AS r FORCE INDEX (PRIMARY)
    LEFT JOIN ${operation} AS o FORCE INDEX (PRIMARY) ON o.record_id = r.record_id
    LEFT JOIN ${phase} AS p FORCE INDEX (PRIMARY) ON p.record_id = r.record_id AND p.name = ${name}
    WHERE r.identity = ${literalOf('identity', identity)}${lock ? ' FOR UPDATE' : ''}`
}

/** Leaves an operation unchanged that is stored already. */
export function insertOperationSql(
  { operation }: Tables,
  recordId: string,
  { name, version, input }: NewOperation,
): string {
  return `${STRICT} INSERT ${STRICT_HINT} INTO ${operation} (record_id, name, version, input)
    VALUES (${toColumn(OPERATION.recordId, recordId)}, ${toColumn(OPERATION.name, name)},
      ${toColumn(OPERATION.version, version)}, ${toColumn(OPERATION.input, input)})
    ON DUPLICATE KEY UPDATE record_id = record_id`
}

const PHASE_COLUMNS = ['record_id', ...PHASE_FIELDS.map(phaseColumn)].join(', ')

const phaseValues = (recordId: string, phase: StoredPhase) =>
  [
    toColumn(OPERATION.recordId, recordId),
    ...PHASE_FIELDS.map((field) => phaseLiteral(field, phase[field])),
  ].join(', ')

export const ofPhase = (recordId: string, name: string) =>
  `p.record_id = ${toColumn(OPERATION.recordId, recordId)} ` +
  `AND p.name = ${phaseLiteral('name', name)}`

/** Changes one phase. Its row, if there is one, must be locked. */
export function changePhaseSql(
  { phase: table }: Tables,
  recordId: string,
  { before, change }: { readonly before: StoredPhase | undefined; readonly change: PhaseChange },
): string {
  if (change.kind === 'remove') {
    return `DELETE p FROM ${table} AS p FORCE INDEX (PRIMARY)
      WHERE ${ofPhase(recordId, change.name)}`
  }
  const { phase } = change
  if (before === undefined) {
    return `${STRICT} INSERT ${STRICT_HINT} INTO ${table} (${PHASE_COLUMNS})
      VALUES (${phaseValues(recordId, phase)})`
  }
  const changes = [...phaseChanges(before, phase)].map(([name, value]) => `p.${name} = ${value}`)
  return `${STRICT} UPDATE ${STRICT_HINT} ${table} AS p FORCE INDEX (PRIMARY)
    SET ${['p.number = p.number', ...changes].join(', ')} WHERE ${ofPhase(recordId, phase.name)}`
}

const held = ({ identity, token, attempt }: Lease) =>
  `r.identity = ${literalOf('identity', identity)} AND r.token = ${literalOf('token', token)}
    AND r.attempt = ${literalOf('attempt', attempt)} AND r.state = 'in_progress'`

/**
 * Inserts a phase, for a step that changes nothing else. Locks the record while it writes, so that
 * a call that takes the record over afterwards finds the phase.
 */
export function sendPhaseSql(
  { record, phase: table }: Tables,
  lease: Lease,
  { recordId, phase }: { readonly recordId: string; readonly phase: StoredPhase },
): string {
  return `${STRICT} INSERT ${STRICT_HINT} INTO ${table} (${PHASE_COLUMNS})
    SELECT ${phaseValues(recordId, phase)}
    FROM ${record} AS r FORCE INDEX (PRIMARY) WHERE ${held(lease)} FOR UPDATE`
}

/**
 * Updates an intended phase and its record together. The record is always among the assignments,
 * even if nothing in it changes, because the server locks assigned rows in every case.
 */
export function stepTogetherSql(
  { record, phase: table }: Tables,
  lease: Lease,
  changes: {
    readonly recordId: string
    readonly name: string
    readonly record: ReadonlyMap<string, string>
    readonly phase: ReadonlyMap<string, string>
  },
): string {
  const assignments = [
    'r.token = r.token',
    ...[...changes.record].map(([name, value]) => `r.${name} = ${value}`),
    ...[...changes.phase].map(([name, value]) => `p.${name} = ${value}`),
  ]
  return `${STRICT} UPDATE ${STRICT_HINT} ${record} AS r FORCE INDEX (PRIMARY)
    STRAIGHT_JOIN ${table} AS p FORCE INDEX (PRIMARY) ON ${ofPhase(changes.recordId, changes.name)}
    SET ${assignments.join(', ')}
    WHERE ${held(lease)} AND p.state = 'intended'`
}

const recordIds = (ids: readonly string[]) =>
  ids.map((id) => toColumn(OPERATION.recordId, id)).join(', ')

/** Reads operations with one row for each of their phases: see `toOperations`. */
export function loadSql({ operation, phase }: Tables, ids: readonly string[]): string {
  return `SELECT ${IS_OPEN}, o.record_id, ${OPERATION_LIST}, ${PHASE_LIST}
    FROM ${operation} AS o FORCE INDEX (PRIMARY)
    LEFT JOIN ${phase} AS p FORCE INDEX (PRIMARY) ON p.record_id = o.record_id
    WHERE o.record_id IN (${recordIds(ids)})`
}

const keysOf = (records: readonly StoredRecord[]) =>
  records.map(({ recordId }) => asciiKey(toColumn(OPERATION.recordId, recordId)))

/** Deletes operations of records that are deleted in the same transaction. */
export function deleteOperationsSql({ operation }: Tables, of: readonly StoredRecord[]): string {
  return deleteBy(operation, 'record_id', keysOf(of))
}

export function deletePhasesSql({ phase }: Tables, of: readonly StoredRecord[]): string {
  return deleteBy(phase, 'record_id', keysOf(of))
}

/**
 * Number of an operation's name and version in the index, so that a search for due operations
 * reads no entries of other operations. If two operations have the same number, the row in the
 * operation table distinguishes them.
 */
export function runAs({ name, version }: OperationName): number {
  let hash = FNV_OFFSET
  for (const byte of Buffer.from(`${name}\n${version}`)) hash = Math.imul(hash ^ byte, FNV_PRIME)
  return RUN_AS_MIN + ((hash >>> 0) % (2 ** 32 - RUN_AS_MIN))
}

const FNV_OFFSET = 0x811c9dc5
const FNV_PRIME = 0x01000193

/** Lower numbers have other meanings: 0 is not waiting for a worker, 1 has no known operation. */
const RUN_AS_MIN = 2

const pairs = (operations: readonly OperationName[]) =>
  operations
    .map(({ name, version }) => {
      return `(${toColumn(OPERATION.name, name)}, ${toColumn(OPERATION.version, version)})`
    })
    .join(', ')

export const numbersOf = (operations: readonly OperationName[]) => [
  ...new Set(operations.map(runAs)),
]

/** Condition: the operation with this number has one of these names and versions. */
export const isOneOf = (operations: readonly OperationName[], number: number) =>
  `(o.name, o.version) IN (${pairs(operations.filter((one) => runAs(one) === number))})`

/** States in which an operation waits for a worker. */
export const WAITING = ['pending', 'failed_retryable'] as const

/** Finds due operations whose name and version are not in the list. */
export function orphansSql(tables: Tables, now: string, { operations, limit }: DueQuery): string {
  const known = ['0', ...numbersOf(operations)].join(', ')
  const most = `LIMIT ${numberLiteral('limit', limit)}`
  const parts = WAITING.map((state) => {
    const where = `r.${TO_RUN} NOT IN (${known})`
    const columns = `r.identity, r.${DUE}, o.name, o.version`
    return `(${waitingSql(tables, now, { state, where, columns })} ${most})`
  })
  return `SELECT STRAIGHT_JOIN ${IS_OPEN}, HEX(found.name), found.version, ${list(VIEW)}
    FROM (${parts.join(' UNION ALL ')} ORDER BY ${DUE} ${most}) AS found
    JOIN ${tables.record} AS r FORCE INDEX (PRIMARY) ON r.identity = found.identity
    ORDER BY found.${DUE}`
}

/** Excludes accepted operations that never ran and have expired: only the reaper takes those. */
export function waitingSql(
  { record, operation }: Tables,
  now: string,
  of: {
    readonly state: (typeof WAITING)[number]
    readonly where: string
    readonly columns: string
  },
): string {
  const mayBeTaken =
    of.state === 'pending' ? `AND (r.${nameOf('expiresAtMs')} > ${now} OR r.attempt > 0)` : ''
  return `SELECT STRAIGHT_JOIN ${of.columns}
    FROM ${record} AS r FORCE INDEX (due)
    JOIN ${operation} AS o FORCE INDEX (PRIMARY) ON o.record_id = r.record_id
    WHERE r.state = ${literalOf('state', of.state)} AND r.${DUE} <= ${now}
    AND ${of.where} ${mayBeTaken}`
}
