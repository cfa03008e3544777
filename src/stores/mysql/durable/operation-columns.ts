/** Columns of operations and phases. */

import type { StoredOperation, StoredPhase } from '../../../core/store/durable-store.ts'
import type { Row } from '../client.ts'
import {
  changedColumns,
  fromColumn,
  readColumn,
  toColumn,
  type Column,
  type RowColumns,
} from '../columns.ts'

/** In characters. Columns that are compared need a limit, because index entries have one. */
const NAME_LENGTH_MAX = 255

export const OPERATION = {
  recordId: { name: 'record_id', kind: 'word' },
  name: { name: 'name', kind: 'text', lengthMax: NAME_LENGTH_MAX },
  version: { name: 'version', kind: 'number' },
  input: { name: 'input', kind: 'bytes' },
} as const satisfies Record<string, Column>

export type PhaseField = keyof StoredPhase

const PHASE: Readonly<Record<PhaseField, Column>> = {
  name: { name: 'name', kind: 'text', lengthMax: NAME_LENGTH_MAX },
  number: { name: 'number', kind: 'number' },
  kind: { name: 'kind', kind: 'word' },
  state: { name: 'state', kind: 'word' },
  attempt: { name: 'attempt', kind: 'number' },
  firstSentAt: { name: 'first_sent_at_ms', kind: 'number' },
  sentAt: { name: 'sent_at_ms', kind: 'number' },
  doneAt: { name: 'done_at_ms', kind: 'number' },
  downstreamKey: { name: 'downstream_key', kind: 'text', lengthMax: NAME_LENGTH_MAX },
  providerId: { name: 'provider_id', kind: 'text' },
  request: { name: 'request', kind: 'bytes' },
  result: { name: 'result', kind: 'bytes' },
}

export const PHASE_FIELDS = Object.keys(PHASE) as readonly PhaseField[]

export const phaseColumn = (field: PhaseField): string => PHASE[field].name

/** Select list for all fields of a phase, from the table alias `p`. */
export const PHASE_LIST = PHASE_FIELDS.map((field) => readColumn(PHASE[field], 'p')).join(', ')

export function phaseLiteral(field: PhaseField, value: unknown): string {
  return toColumn(PHASE[field], value instanceof Date ? value.getTime() : value)
}

/** Reads the columns of `PHASE_LIST`. All of them are null if no phase was found. */
export function toPhase(values: Row): StoredPhase | undefined {
  const phase: Partial<Record<PhaseField, unknown>> = {}
  for (const [n, field] of PHASE_FIELDS.entries()) {
    const value = fromColumn(PHASE[field], values[n])
    phase[field] = field.endsWith('At') && value !== undefined ? new Date(value as number) : value
  }
  return phase.name === undefined ? undefined : (phase as StoredPhase)
}

const PHASE_COLUMNS: RowColumns<PhaseField> = {
  fields: PHASE_FIELDS,
  nameOf: phaseColumn,
  literalOf: phaseLiteral,
}

/** Columns that differ, with their new values as SQL. */
export function phaseChanges(before: StoredPhase, after: StoredPhase): Map<string, string> {
  return changedColumns(PHASE_COLUMNS, before, after)
}

/** Select list for an operation, from the table alias `o`. */
export const OPERATION_LIST = [OPERATION.name, OPERATION.version, OPERATION.input]
  .map((column) => readColumn(column, 'o'))
  .join(', ')

const OPERATION_COLUMNS = 4

/**
 * Groups rows into operations with their phases. Each row has, in this order: the record id, the
 * operation, and one phase or nulls.
 */
export function toOperations(rows: readonly Row[]): Map<string, StoredOperation> {
  const operations = new Map<string, StoredOperation & { phases: StoredPhase[] }>()
  for (const row of rows) {
    const [id, name, version, input] = row
    const recordId = String(id)
    const operation = operations.get(recordId) ?? {
      name: fromColumn(OPERATION.name, name) as string,
      version: fromColumn(OPERATION.version, version) as number,
      input: fromColumn(OPERATION.input, input) as Uint8Array,
      phases: [],
    }
    const phase = toPhase(row.slice(OPERATION_COLUMNS))
    if (phase !== undefined) operation.phases.push(phase)
    operations.set(recordId, operation)
  }
  for (const { phases } of operations.values()) {
    phases.sort((one, other) => one.number - other.number)
  }
  return operations
}
