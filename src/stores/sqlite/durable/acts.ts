/** Tests: test/stores/sqlite/durable/cases.test.ts, test/stores/sqlite/durable/discards.test.ts. */
import type { DatabaseSync, StatementSync } from 'node:sqlite'
import { decideAct, type ActDecision, type RecordAct } from '../../kit/decide-durable.ts'
import { decodeOperation, encodeOperation } from '../../kit/stored-operation.ts'
import { NO_BYTES } from '../../../core/bytes.ts'
import { toView } from '../../../core/record/decide.ts'
import type { StoredRecord } from '../../../core/record/record.ts'
import type { StoredOperation } from '../../../core/store/durable-store.ts'
import type {
  Act,
  Actor,
  ActOutcome,
  AuditEntry,
  DiscardedReply,
  OperatorStore,
  DueUnknown,
  UnknownRequest,
} from '../../../core/store/operator-store.ts'
import { decideMessageAct, type MessageAct } from '../../kit/messages.ts'
import { TurnCursors } from '../../kit/turns.ts'
import type { FileAccess, Tables } from '../driver/file-access.ts'
import { toBlob } from '../columns.ts'
import { forTable } from '../sql.ts'
import { repeatWalk } from '../turns/walk.ts'
import {
  INSERT_AUDIT,
  INSERT_DISCARDED,
  LIST_AUDIT,
  LIST_AUDIT_OF,
  LIST_DISCARDED,
} from './act-sql.ts'
import { dropMessage, reviveMessage } from './outbox.ts'

export function operatorStore(access: FileAccess): OperatorStore {
  const { tables } = access
  const cursors = new TurnCursors()
  return {
    takeUnknown: (request) => takeUnknown(access, cursors, request),
    postpone: (target) =>
      access.write('postpone a record', (nowMs) => {
        const atMs = target.inMs === undefined ? undefined : nowMs + target.inMs
        return tables.operations.postpone(target, atMs)
      }),
    act: async (act, by) => {
      const outcome = await access.write('act', (nowMs) => carryOut(tables, { act, by, nowMs }))
      if (act.kind === 'retry_message' || act.kind === 'drop_message') access.open.wake()
      return outcome
    },
    discarded: ({ recordId, limit }) =>
      access.read('list discarded replies', () => access.committed.discarded.list(recordId, limit)),
    audit: ({ subject, limit }) =>
      access.read('read the audit', () => access.committed.audit.list(subject, limit)),
  }
}

async function takeUnknown(
  access: FileAccess,
  cursors: TurnCursors,
  request: UnknownRequest,
): Promise<DueUnknown[]> {
  const { tables } = access
  // Reads first: most calls find nothing, and then take no write lock.
  const look = () =>
    access.read('take unknown records', (nowMs) => {
      const { reading, unknownTurns } = access.committed
      return reading.run(() => unknownTurns.search(request, cursors, nowMs))
    })
  if (!(await repeatWalk(look)).isFound) return []
  return access.write('take unknown records', (nowMs) => {
    const { keys, saveCursors } = tables.unknownTurns.walk(request, cursors, nowMs)
    saveCursors()
    return tables.records.getAll(keys.map(({ number }) => number)).map((record) => {
      const reconcileAtMs = nowMs + request.againMs
      const write = { ...record, tries: record.tries + 1, reconcileAtMs }
      tables.records.update(write)
      const operation = tables.operations.find(record.recordId)
      return { record: toView(write), operation } satisfies DueUnknown
    })
  })
}

interface ActRequest {
  readonly act: Act
  readonly by: Actor
  readonly nowMs: number
}

/** Runs within a write transaction, so that an act and its audit entry commit together. */
function carryOut(tables: Tables, { act, by, nowMs }: ActRequest): ActOutcome {
  const { outcome, detail } =
    act.kind === 'retry_message' || act.kind === 'drop_message'
      ? actOnMessage(tables, act, nowMs)
      : actOnRecord(tables, act, nowMs)
  if (outcome.kind === 'done') {
    const { subject } = outcome
    const at = new Date(nowMs)
    const entry: AuditEntry = { at, act: act.kind, subject, ...by, detail: detail ?? '{}' }
    tables.audit.insert(entry)
  }
  return outcome
}

function actOnRecord(tables: Tables, act: RecordAct, nowMs: number): ActDecision {
  const { records, operations } = tables
  const [record, phase] = subjectOf(tables, act)
  const decision = decideAct(record, phase, act, nowMs)
  if (record === undefined || decision.record === undefined) return decision
  records.update(decision.record)
  if (decision.phase !== undefined) operations.change(record.recordId, decision.phase)
  if (decision.discarded !== undefined) moveReply(tables, decision.discarded, nowMs)
  return decision
}

/** Keeps the reply with the operation that has made it, and removes that operation. */
function moveReply({ operations, discarded }: Tables, record: StoredRecord, nowMs: number): void {
  discarded.insert(record, operations.find(record.recordId), nowMs)
  operations.remove(record.recordId)
}

function subjectOf({ records, operations }: Tables, act: RecordAct) {
  if (act.kind === 'discard_reply') {
    const record = records.findRef(act.ref)
    const external = record && operations.findExternal({ recordId: record.recordId })
    return [record, external?.phase] as const
  }
  if (act.kind !== 'conclude') return [records.findRef(act.ref), undefined] as const
  const external = operations.findExternal(act.phase)
  const recordId = 'recordId' in act.phase ? act.phase.recordId : external?.recordId
  const record = recordId === undefined ? undefined : records.findRef({ recordId })
  return [record, external?.phase] as const
}

function actOnMessage({ messages }: Tables, act: MessageAct, nowMs: number): ActDecision {
  const row = messages.find(act.messageId)
  if (row === undefined) return { outcome: { kind: 'not_found' } }
  const { id: subject, state: reason } = row
  const decision = decideMessageAct(row, act)
  switch (decision.kind) {
    case 'already':
      return { outcome: { kind: 'already', subject } }
    case 'refused':
      return { outcome: { kind: 'refused', subject, reason } }
    case 'done':
      if (decision.to === 'ready') reviveMessage(messages, row, nowMs)
      else dropMessage(messages, row, nowMs)
      return { outcome: { kind: 'done', subject }, detail: decision.detail }
  }
}

/** Discarded replies over one connection. They stay when their record is removed. */
export class DiscardedTable {
  readonly #insert: StatementSync
  readonly #list: StatementSync

  constructor(db: DatabaseSync, table: string) {
    this.#insert = db.prepare(forTable(table, INSERT_DISCARDED))
    this.#list = db.prepare(forTable(table, LIST_DISCARDED))
  }

  insert(record: StoredRecord, run: StoredOperation | undefined, atMs: number): void {
    this.#insert.run(
      record.recordId,
      toBlob(record.identity),
      record.tenant,
      record.operation,
      record.attempt,
      atMs,
      record.result ?? NO_BYTES,
      run === undefined ? null : encodeOperation(run),
    )
  }

  list(recordId: string, limit: number): DiscardedReply[] {
    const rows = this.#list.all(recordId, limit) as unknown as DiscardedRow[]
    return rows.map(({ record_id, attempt, discarded_at_ms, result, run }) => ({
      recordId: record_id,
      attempt,
      discardedAt: new Date(discarded_at_ms),
      result,
      operation: run === null ? undefined : decodeOperation(run),
    }))
  }
}

interface DiscardedRow {
  readonly record_id: string
  readonly attempt: number
  readonly discarded_at_ms: number
  readonly result: Uint8Array
  readonly run: Uint8Array | null
}

/** The audit over one connection. Triggers of the table reject changes and deletions. */
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
  readonly act: AuditEntry['act']
  readonly subject: string
  readonly who: string
  readonly why: string
  readonly detail: string
}
