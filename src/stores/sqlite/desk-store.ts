import { decideAct, type ActDecision, type RecordAct } from '../../core/decide-durable.ts'
import { toView } from '../../core/decide.ts'
import type {
  Act,
  ActedBy,
  ActOutcome,
  AuditEntry,
  DeskStore,
  DueUnknown,
  UnknownRequest,
} from '../../core/durable-store.ts'
import { decideMessageAct, type MessageAct } from '../../core/messages.ts'
import type { StoredRecord } from '../../core/record.ts'
import { TurnCursors } from '../../core/turns.ts'
import type { FileAccess, Tables } from './file-access.ts'
import { revived, dropped } from './outbox-store.ts'
import { walkOn } from './turn-walk.ts'

export interface DeskTools {
  /** Into the history, where there is one. */
  readonly retire: (record: StoredRecord) => void
}

export function deskStore(access: FileAccess, tools: DeskTools): DeskStore {
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
      const outcome = await access.write('act', (nowMs) =>
        carryOut(tables, tools, { act, by, nowMs }),
      )
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
  // Most calls find nothing, and need not take the write lock to learn it.
  const look = () =>
    access.read('take unknown records', (nowMs) => {
      const { reading, unknownTurns } = access.committed
      return reading.run(() => unknownTurns.finds(request, cursors, nowMs))
    })
  if (!(await walkOn(look)).isFound) return []
  return access.write('take unknown records', (nowMs) => {
    const { keys, keep } = tables.unknownTurns.walk(request, cursors, nowMs)
    keep()
    return tables.records.getAll(keys.map(({ number }) => number)).map((record) => {
      const reconcileAtMs = nowMs + request.againMs
      const write = { ...record, tries: record.tries + 1, reconcileAtMs }
      tables.records.update(write)
      const operation = tables.operations.find(record.recordId)
      return { record: toView(write), operation } satisfies DueUnknown
    })
  })
}

interface Errand {
  readonly act: Act
  readonly by: ActedBy
  readonly nowMs: number
}

function carryOut(tables: Tables, tools: DeskTools, { act, by, nowMs }: Errand): ActOutcome {
  const { outcome, detail } =
    act.kind === 'retry_message' || act.kind === 'drop_message'
      ? actOnMessage(tables, act, nowMs)
      : actOnRecord(tables, tools, { act, nowMs })
  if (outcome.kind === 'done') {
    const { subject } = outcome
    const at = new Date(nowMs)
    const entry: AuditEntry = { at, act: act.kind, subject, ...by, detail: detail ?? '{}' }
    tables.audit.insert(entry)
  }
  return outcome
}

function actOnRecord(
  tables: Tables,
  { retire }: DeskTools,
  { act, nowMs }: { readonly act: RecordAct; readonly nowMs: number },
): ActDecision {
  const { records, operations } = tables
  const [record, phase] = subjectOf(tables, act)
  const decision = decideAct(record, phase, act, nowMs)
  if (record === undefined || decision.record === undefined) return decision
  if (decision.record === 'remove') {
    retire(record)
    records.remove(record.identity)
    return decision
  }
  records.update(decision.record)
  if (decision.phase !== undefined) operations.change(record.recordId, decision.phase)
  return decision
}

function subjectOf({ records, operations }: Tables, act: RecordAct) {
  if (act.kind !== 'conclude') return [records.findRef(act.ref), undefined] as const
  const found = operations.findExternal(act.phase)
  const recordId = 'recordId' in act.phase ? act.phase.recordId : found?.recordId
  const record = recordId === undefined ? undefined : records.findRef({ recordId })
  return [record, found?.phase] as const
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
      if (decision.to === 'ready') revived(messages, row, nowMs)
      else dropped(messages, row, nowMs)
      return { outcome: { kind: 'done', subject }, detail: decision.detail }
  }
}
