import type { DatabaseSync, StatementSync } from 'node:sqlite'
import type { PhaseChange } from '../../core/decide-durable.ts'
import type {
  DueQuery,
  NewOperation,
  OperationName,
  PhaseRef,
  StoredOperation,
  StoredPhase,
} from '../../core/durable-store.ts'
import type { StoredRecord } from '../../core/record.ts'
import {
  DELETE_PHASE,
  DUE,
  FIND_OPEN_PHASE,
  FIND_OPERATION,
  FIND_PHASE,
  FIND_PHASE_BY_DOWNSTREAM_KEY,
  FIND_PHASE_BY_PROVIDER_ID,
  INSERT_OPERATION,
  LIST_PHASES,
  ORPHANS,
  POSTPONE,
  PUT_PHASE,
} from './durable-sql.ts'
import { toRecords } from './record-table.ts'
import { BEGIN_READ, COMMIT, forTable } from './sql.ts'

export interface DueRecord extends OperationName {
  readonly record: StoredRecord
}

/** A phase, and whose it is. */
export interface FoundPhase {
  readonly recordId: string
  readonly phase: StoredPhase
}

/** The statements on operations and phases over one connection. Decides nothing. */
export class OperationTable {
  readonly #beginRead: StatementSync
  readonly #endRead: StatementSync
  readonly #insert: StatementSync
  readonly #find: StatementSync
  readonly #phases: StatementSync
  readonly #findPhase: StatementSync
  readonly #findOpenPhase: StatementSync
  readonly #byDownstreamKey: StatementSync
  readonly #byProviderId: StatementSync
  readonly #putPhase: StatementSync
  readonly #deletePhase: StatementSync
  readonly #due: StatementSync
  readonly #orphans: StatementSync
  readonly #postpone: StatementSync

  constructor(db: DatabaseSync, table: string) {
    const prepare = (sql: string) => db.prepare(forTable(table, sql))
    this.#beginRead = prepare(BEGIN_READ)
    this.#endRead = prepare(COMMIT)
    this.#insert = prepare(INSERT_OPERATION)
    this.#find = prepare(FIND_OPERATION)
    this.#phases = prepare(LIST_PHASES)
    this.#findPhase = prepare(FIND_PHASE)
    this.#findOpenPhase = prepare(FIND_OPEN_PHASE)
    this.#byDownstreamKey = prepare(FIND_PHASE_BY_DOWNSTREAM_KEY)
    this.#byProviderId = prepare(FIND_PHASE_BY_PROVIDER_ID)
    this.#putPhase = prepare(PUT_PHASE)
    this.#deletePhase = prepare(DELETE_PHASE)
    this.#due = prepare(DUE)
    this.#orphans = prepare(ORPHANS)
    this.#postpone = prepare(POSTPONE)
  }

  /** Writes nothing where the record has an operation already. */
  insert(recordId: string, { name, version, input }: NewOperation): void {
    this.#insert.run(recordId, name, version, input)
  }

  find(recordId: string): StoredOperation | undefined {
    const row = this.#find.get(recordId) as OperationRow | undefined
    if (row === undefined) return undefined
    const { name, version, input } = row
    const phases = this.#phases.all(recordId).map((phase) => toPhase(phase))
    return { name, version, input, phases }
  }

  /** The same, all as of one moment. Not for use within a transaction. */
  load(recordId: string): StoredOperation | undefined {
    this.#beginRead.run()
    try {
      return this.find(recordId)
    } finally {
      this.#endRead.run()
    }
  }

  findPhase(recordId: string, name: string): StoredPhase | undefined {
    return toFound(this.#findPhase.get(recordId, name))?.phase
  }

  findExternal(ref: PhaseRef): FoundPhase | undefined {
    if ('recordId' in ref) return toFound(this.#findOpenPhase.get(ref.recordId))
    if ('downstreamKey' in ref) return toFound(this.#byDownstreamKey.get(ref.downstreamKey))
    return toFound(this.#byProviderId.get(ref.providerId))
  }

  change(recordId: string, change: PhaseChange): void {
    if (change.kind === 'remove') {
      this.#deletePhase.run(recordId, change.name)
      return
    }
    const { phase } = change
    this.#putPhase.run(
      recordId,
      phase.name,
      phase.number,
      phase.kind,
      phase.state,
      phase.downstreamKey ?? null,
      phase.providerId ?? null,
      phase.attempt,
      phase.firstSentAt.getTime(),
      phase.sentAt.getTime(),
      phase.doneAt?.getTime() ?? null,
      phase.request ?? null,
      phase.result ?? null,
    )
  }

  due(query: DueQuery, nowMs: number): DueRecord[] {
    return dueRecords(this.#due, query, nowMs)
  }

  orphans(query: DueQuery, nowMs: number): DueRecord[] {
    return dueRecords(this.#orphans, query, nowMs)
  }

  /** `false`: it is no longer unknown by this attempt. */
  postpone(recordId: string, attempt: number, atMs: number | undefined): boolean {
    return this.#postpone.run(recordId, attempt, atMs ?? null).changes === 1
  }
}

function dueRecords(
  statement: StatementSync,
  { operations, limit }: DueQuery,
  nowMs: number,
): DueRecord[] {
  const names = JSON.stringify(operations.map(({ name, version }) => [name, version]))
  const rows = statement.all(nowMs, names, limit)
  const records = toRecords(rows)
  return (rows as unknown as OperationName[]).map(({ name, version }, n) => {
    return { name, version, record: records[n]! }
  })
}

interface OperationRow extends OperationName {
  readonly input: Uint8Array
}

interface PhaseRow {
  readonly record_id: string
  readonly name: string
  readonly number: number
  readonly kind: StoredPhase['kind']
  readonly state: StoredPhase['state']
  readonly downstream_key: string | null
  readonly provider_id: string | null
  readonly attempt: number
  readonly first_sent_at_ms: number
  readonly sent_at_ms: number
  readonly done_at_ms: number | null
  readonly request: Uint8Array | null
  readonly result: Uint8Array | null
}

function toFound(row: unknown): FoundPhase | undefined {
  if (row === undefined) return undefined
  return { recordId: (row as PhaseRow).record_id, phase: toPhase(row) }
}

function toPhase(given: unknown): StoredPhase {
  const row = given as PhaseRow
  return {
    name: row.name,
    number: row.number,
    kind: row.kind,
    state: row.state,
    request: row.request ?? undefined,
    result: row.result ?? undefined,
    downstreamKey: row.downstream_key ?? undefined,
    providerId: row.provider_id ?? undefined,
    attempt: row.attempt,
    firstSentAt: new Date(row.first_sent_at_ms),
    sentAt: new Date(row.sent_at_ms),
    doneAt: row.done_at_ms === null ? undefined : new Date(row.done_at_ms),
  }
}
