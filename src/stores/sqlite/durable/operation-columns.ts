import type { DatabaseSync, StatementSync } from 'node:sqlite'
import type { PhaseChange } from '../../kit/decide-durable.ts'
import type {
  DueQuery,
  NewOperation,
  OperationName,
  StoredOperation,
  StoredPhase,
} from '../../../core/store/durable-store.ts'
import type { PhaseRef, Postponement } from '../../../core/store/operator-store.ts'
import type { StoredRecord } from '../../../core/record/record.ts'
import {
  DELETE_OPERATION,
  DELETE_PHASE,
  DUE,
  FIND_OPEN_PHASE,
  FIND_OPERATION,
  FIND_PHASE,
  FIND_PHASE_BY_DOWNSTREAM_KEY,
  FIND_PHASE_BY_PROVIDER_ID,
  INSERT_OPERATION,
  LIST_PHASES,
  NEXT_NAME,
  NEXT_VERSION,
  PUT_PHASE,
  SET_RUN,
} from './phase-sql.ts'
import { toRecords } from '../columns.ts'
import { forTable } from '../sql.ts'
import { POSTPONE } from './act-sql.ts'

interface OrphanedOperation extends OperationName {
  readonly record: StoredRecord
}

/** A phase with the id of its record. */
export interface ExternalPhase {
  readonly recordId: string
  readonly phase: StoredPhase
}

/** Names and versions that one call visits: far more than an application has. */
const RUNS_MAX = 1000

/** Statements on operations and phases over one connection. Makes no decisions. */
export class OperationTable {
  readonly #insert: StatementSync
  readonly #delete: StatementSync
  readonly #setRun: StatementSync
  readonly #find: StatementSync
  readonly #phases: StatementSync
  readonly #findPhase: StatementSync
  readonly #findOpenPhase: StatementSync
  readonly #byDownstreamKey: StatementSync
  readonly #byProviderId: StatementSync
  readonly #putPhase: StatementSync
  readonly #deletePhase: StatementSync
  readonly #due: StatementSync
  readonly #nextVersion: StatementSync
  readonly #nextName: StatementSync
  readonly #postpone: StatementSync

  constructor(db: DatabaseSync, table: string) {
    const prepare = (sql: string) => db.prepare(forTable(table, sql))
    this.#insert = prepare(INSERT_OPERATION)
    this.#delete = prepare(DELETE_OPERATION)
    this.#setRun = prepare(SET_RUN)
    this.#find = prepare(FIND_OPERATION)
    this.#phases = prepare(LIST_PHASES)
    this.#findPhase = prepare(FIND_PHASE)
    this.#findOpenPhase = prepare(FIND_OPEN_PHASE)
    this.#byDownstreamKey = prepare(FIND_PHASE_BY_DOWNSTREAM_KEY)
    this.#byProviderId = prepare(FIND_PHASE_BY_PROVIDER_ID)
    this.#putPhase = prepare(PUT_PHASE)
    this.#deletePhase = prepare(DELETE_PHASE)
    this.#due = prepare(DUE)
    this.#nextVersion = prepare(NEXT_VERSION)
    this.#nextName = prepare(NEXT_NAME)
    this.#postpone = prepare(POSTPONE)
  }

  /** Writes nothing if the record already has an operation. */
  insert(recordId: string, { name, version, input }: NewOperation): void {
    const { changes } = this.#insert.run(recordId, name, version, input)
    if (changes === 1) this.#setRun.run(recordId, name, version)
  }

  /** With its phases. Writes nothing if the record has no operation. */
  remove(recordId: string): void {
    if (this.#delete.run(recordId).changes === 1) this.#setRun.run(recordId, null, null)
  }

  find(recordId: string): StoredOperation | undefined {
    const row = this.#find.get(recordId) as OperationRow | undefined
    if (row === undefined) return undefined
    const { name, version, input } = row
    const phases = this.#phases.all(recordId).map((phase) => toPhase(phase))
    return { name, version, input, phases }
  }

  findPhase(recordId: string, name: string): StoredPhase | undefined {
    return toExternal(this.#findPhase.get(recordId, name))?.phase
  }

  findExternal(ref: PhaseRef): ExternalPhase | undefined {
    if ('recordId' in ref) return toExternal(this.#findOpenPhase.get(ref.recordId))
    if ('downstreamKey' in ref) return toExternal(this.#byDownstreamKey.get(ref.downstreamKey))
    return toExternal(this.#byProviderId.get(ref.providerId))
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

  /** Due records of operations other than these, the longest due first. */
  orphans({ operations, limit }: DueQuery, nowMs: number): OrphanedOperation[] {
    const isKnown = (run: OperationName) =>
      operations.some(({ name, version }) => name === run.name && version === run.version)
    return this.#runs()
      .filter((run) => !isKnown(run))
      .flatMap(({ name, version }) =>
        toRecords(this.#due.all(name, version, nowMs, limit)).map((record) => {
          return { name, version, record }
        }),
      )
      .toSorted((one, other) => one.record.reconcileAtMs! - other.record.reconcileAtMs!)
      .slice(0, limit)
  }

  /** The names and versions of all operations that wait to run. */
  #runs(): OperationName[] {
    const runs: OperationName[] = []
    let next = this.#nextName.get('')
    while (next !== undefined && runs.length < RUNS_MAX) {
      const { name, version } = next as unknown as OperationName
      runs.push({ name, version })
      next = this.#nextVersion.get(name, version) ?? this.#nextName.get(name)
    }
    return runs
  }

  /** `false` if the record is no longer unknown by this attempt, or was examined since. */
  postpone({ recordId, attempt, tries }: Postponement, atMs: number | undefined): boolean {
    return this.#postpone.run(recordId, attempt, atMs ?? null, tries ?? null).changes === 1
  }
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

function toExternal(row: unknown): ExternalPhase | undefined {
  if (row === undefined) return undefined
  return { recordId: (row as PhaseRow).record_id, phase: toPhase(row) }
}

function toPhase(value: unknown): StoredPhase {
  const row = value as PhaseRow
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
