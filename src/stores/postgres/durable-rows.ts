import type {
  AuditEntry,
  DueOperation,
  HeldMessage,
  MessageState,
  MessageView,
  OrphanedOperation,
  StepOutcome,
  StoredOperation,
  StoredPhase,
} from '../../core/durable-store.ts'
import { toView } from '../../core/decide.ts'
import { readErrors } from '../../core/messages.ts'
import type { RecordState } from '../../core/record.ts'
import type { Row } from './client.ts'
import { toRecord } from './rows.ts'
import type { MessageStop } from './turns.ts'

type StepRow = readonly [
  kind: 'advanced' | 'concluded' | 'fenced' | 'unsealed',
  written: boolean,
  own: boolean | null,
  state: RecordState | null,
  result: Uint8Array | null,
  expiresAtMs: number,
]

/** `undefined`: the transaction that the step was to end has ended before. */
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

/** How many columns a phase has where others follow. */
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

/** By the ids of their records. An operation comes before its phases. */
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

type ClaimedRow = readonly [
  kind: 'held' | MessageStop['kind'] | 'waiting',
  id: string,
  topic: string,
  tenant: string | null,
  key: string | null,
  partition: string | null,
  payload: Uint8Array,
  attempt: number,
  providerId: string | null,
  createdAtMs: number,
]

export interface ClaimedMessages {
  readonly held: HeldMessage[]
  /** Where its turns have stopped. */
  readonly stops: readonly MessageStop[]
  /** It was noted that somebody waits: from now on messages are announced. */
  readonly isWaiting: boolean
}

export function toClaimed(rows: readonly Row[], token: string): ClaimedMessages {
  const held: HeldMessage[] = []
  const stops: MessageStop[] = []
  let isWaiting = false
  for (const row of rows) {
    const [kind, id, topic, tenant, key, partition, payload, attempt, providerId, at] =
      row as ClaimedRow
    if (kind === 'waiting') isWaiting = true
    else if (kind !== 'held') stops.push({ kind, topic, tenant, partition } as MessageStop)
    else {
      held.push({
        id,
        token,
        topic,
        tenant: tenant ?? undefined,
        key: key ?? undefined,
        partition: partition ?? undefined,
        payload,
        attempt,
        providerId: providerId ?? undefined,
        createdAt: new Date(at),
      })
    }
  }
  return { held, stops, isWaiting }
}

type MessageRow = readonly [
  id: string,
  topic: string,
  tenant: string | null,
  key: string | null,
  partition: string | null,
  payload: Uint8Array | null,
  state: MessageState,
  attempt: number,
  errors: string,
  providerId: string | null,
  createdAtMs: number,
  dueAtMs: number | null,
  endedAtMs: number | null,
]

export function toMessageView(row: Row): MessageView {
  const [id, topic, tenant, key, partition, payload, state, attempt, errors] = row as MessageRow
  const [, , , , , , , , , providerId, createdAtMs, dueAtMs, endedAtMs] = row as MessageRow
  return {
    id,
    topic,
    tenant: tenant ?? undefined,
    key: key ?? undefined,
    partition: partition ?? undefined,
    payload: payload ?? undefined,
    state,
    attempt,
    errors: readErrors(errors),
    providerId: providerId ?? undefined,
    createdAt: new Date(createdAtMs),
    dueAt: toDate(dueAtMs),
    endedAt: toDate(endedAtMs),
  }
}

export function toAuditEntry(row: Row): AuditEntry {
  const [atMs, act, subject, who, why, detail] = row as readonly [
    number,
    AuditEntry['act'],
    string,
    string,
    string,
    string,
  ]
  return { at: new Date(atMs), act, subject, who, why, detail }
}

function toDate(ms: number | null): Date | undefined {
  return ms === null ? undefined : new Date(ms)
}

const NO_BYTES = new Uint8Array(0)
