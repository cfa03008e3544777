import { NO_BYTES } from '../../../core/bytes.ts'
import type {
  DueOperation,
  OrphanedOperation,
  StepOutcome,
  StoredOperation,
  StoredPhase,
} from '../../../core/store/durable-store.ts'
import { toView } from '../../../core/record/decide.ts'
import type { RecordState } from '../../../core/record/record.ts'
import type { Row } from '../driver/driver.ts'
import { toRecord } from '../columns.ts'

type StepRow = readonly [
  kind: 'advanced' | 'concluded' | 'fenced' | 'unsealed',
  written: boolean,
  own: boolean | null,
  state: RecordState | null,
  result: Uint8Array | null,
  expiresAtMs: number,
]

/** `undefined`: the transaction ended before this step could commit it. */
export function toStepOutcome(
  row: Row | undefined,
): { outcome: StepOutcome; isWritten: boolean } | undefined {
  const [kind, isWritten, own, state, result, expiresAtMs] = row as StepRow
  switch (kind) {
    case 'advanced':
      return { outcome: { kind, expiresAt: new Date(expiresAtMs) }, isWritten }
    case 'concluded':
      return { outcome: { kind, result: result ?? NO_BYTES }, isWritten }
    case 'fenced':
      return { outcome: { kind, own: own ?? false, state: state ?? 'absent' }, isWritten }
    case 'unsealed':
      return undefined
  }
}

type PhaseRow = readonly [
  name: string,
  number: number,
  kind: StoredPhase['kind'] | 'operation',
  state: StoredPhase['state'],
  request: Uint8Array | null,
  result: Uint8Array | null,
  downstreamKey: string | null,
  providerId: string | null,
  attempt: number,
  firstSentAtMs: number,
  sentAtMs: number,
  doneAtMs: number | null,
]

/** The number of columns of a phase, in rows that have more columns. */
export const PHASE_WIDTH = 12

export function toPhase(columns: Row): StoredPhase {
  const row = columns as PhaseRow
  const [name, number, kind, state, request, result, downstreamKey, providerId, attempt] = row
  const [, , , , , , , , , firstSentAtMs, sentAtMs, doneAtMs] = row
  return {
    name,
    number,
    kind: kind === 'transaction' ? 'transaction' : 'external',
    state,
    request: request ?? undefined,
    result: result ?? undefined,
    downstreamKey: downstreamKey ?? undefined,
    providerId: providerId ?? undefined,
    attempt,
    firstSentAt: new Date(firstSentAtMs),
    sentAt: new Date(sentAtMs),
    doneAt: toDate(doneAtMs),
  }
}

/** Returns operations by record id. The row of an operation comes before those of its phases. */
export function toOperations(rows: readonly Row[]): Map<string, StoredOperation> {
  const operations = new Map<string, StoredOperation & { phases: StoredPhase[] }>()
  for (const [recordId, ...columns] of rows as readonly (readonly [string, ...Row])[]) {
    const [name, number, kind, , request] = columns as unknown as PhaseRow
    if (kind === 'operation') {
      const operation = { name, version: number, input: request ?? NO_BYTES, phases: [] }
      operations.set(recordId, operation)
    } else operations.get(recordId)?.phases.push(toPhase(columns))
  }
  return operations
}

export function toDue(row: Row): DueOperation {
  const [name, version, ...columns] = row as readonly [string, number, ...Row]
  return { name, version, record: toView(toRecord(columns)) }
}

export function toOrphan(row: Row): OrphanedOperation {
  const [name, version, recordId] = row as readonly [string, number, string]
  return { name, version, recordId }
}

function toDate(ms: number | null): Date | undefined {
  return ms === null ? undefined : new Date(ms)
}
