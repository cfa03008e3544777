/** Tests: test/stores/sqlite/durable/durable.test.ts. */
import type { DatabaseSync, StatementSync } from 'node:sqlite'
import { decideAct, type ActDecision, type RecordAct } from '../../kit/decide-durable.ts'
import { toView } from '../../../core/record/decide.ts'
import type {
  Act,
  ActKind,
  Actor,
  ActOutcome,
  AuditEntry,
  OperatorStore,
  DueUnknown,
  UnknownRequest,
} from '../../../core/store/durable-store.ts'
import { decideMessageAct, type MessageAct } from '../../kit/messages.ts'
import { TurnCursors } from '../../kit/turns.ts'
import type { FileAccess, Tables } from '../driver/file-access.ts'
import { forTable } from '../sql.ts'
import { repeatWalk } from '../turns/walk.ts'
import { retire } from '../upkeep.ts'
import { INSERT_AUDIT, LIST_AUDIT, LIST_AUDIT_OF } from './act-sql.ts'
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
      const outcome = await access.write('act', (nowMs) => carryOut(access, { act, by, nowMs }))
      if (act.kind === 'retry_message' || act.kind === 'drop_message') access.open.wake()
      return outcome
    },
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
function carryOut(access: FileAccess, { act, by, nowMs }: ActRequest): ActOutcome {
  const { outcome, detail } =
    act.kind === 'retry_message' || act.kind === 'drop_message'
      ? actOnMessage(access.tables, act, nowMs)
      : actOnRecord(access, act, nowMs)
  if (outcome.kind === 'done') {
    const { subject } = outcome
    const at = new Date(nowMs)
    const entry: AuditEntry = { at, act: act.kind, subject, ...by, detail: detail ?? '{}' }
    access.tables.audit.insert(entry)
  }
  return outcome
}

function actOnRecord(access: FileAccess, act: RecordAct, nowMs: number): ActDecision {
  const { records, operations } = access.tables
  const [record, phase] = subjectOf(access.tables, act)
  const decision = decideAct(record, phase, act, nowMs)
  if (record === undefined || decision.record === undefined) return decision
  if (decision.record === 'remove') {
    retire(access, record)
    records.remove(record.identity)
    return decision
  }
  records.update(decision.record)
  if (decision.phase !== undefined) operations.change(record.recordId, decision.phase)
  return decision
}

function subjectOf({ records, operations }: Tables, act: RecordAct) {
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
  readonly act: ActKind
  readonly subject: string
  readonly who: string
  readonly why: string
  readonly detail: string
}
