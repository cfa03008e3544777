import { sleep, systemClock } from '../../../core/time/clock.ts'
import { decideAct, type ActDecision, type RecordAct } from '../../kit/decide-durable.ts'
import { toView } from '../../../core/record/decide.ts'
import type { StoredOperation } from '../../../core/store/durable-store.ts'
import type {
  Act,
  Actor,
  ActOutcome,
  AuditEntry,
  DiscardedReply,
  OperatorStore,
  DueUnknown,
} from '../../../core/store/operator-store.ts'
import { decideMessageAct, type MessageAct } from '../../kit/messages.ts'
import { decodeOperation, encodeOperation } from '../../kit/stored-operation.ts'
import type { StoredRecord } from '../../../core/record/record.ts'
import type { Calls } from '../calls.ts'
import { toRecord } from '../columns.ts'
import type { Driver, Row, Session, Value } from '../driver/driver.ts'
import { bytesValue, hexValue, isUuid, textArray, textValue } from '../driver/values.ts'
import { isCausedBy, isConflict, storeFailed } from '../failures.ts'
import { TAKE_UNKNOWN } from '../turns/sql.ts'
import { UnknownTurns } from '../turns/unknown.ts'
import { walkOn } from '../turns/walk.ts'
import {
  ACT_READ,
  ACT_WRITE,
  LIST_AUDIT,
  LIST_DISCARDED,
  LOCK_MESSAGE,
  MOVE_MESSAGE,
  POSTPONE,
} from './act-sql.ts'
import { PHASE_WIDTH, toOperations, toPhase } from './operation-columns.ts'
import { LOAD } from './phase-sql.ts'

/** A deadlock or a serialization failure has ended when the database reports it. */
const TRIES_MAX = 5
const BACKOFF_MS_MAX = 20

export interface ActContext {
  readonly calls: Calls
  readonly driver: Driver
}

export function operatorStore(context: ActContext): OperatorStore {
  const { calls } = context
  const turns = new UnknownTurns()
  return {
    takeUnknown: async (request, signal) => {
      const { limit, againMs } = request
      const values = () => [calls.nowMs, limit, againMs, ...turns.values(request)]
      const rows = await walkOn(async () =>
        turns.stop(await calls.send('take unknown records', TAKE_UNKNOWN, values, signal)),
      )
      const records = rows.map((row) => toRecord(row))
      return withOperations(calls, records, signal)
    },
    postpone: async ({ recordId, attempt, tries, inMs }, signal) => {
      if (!isUuid(recordId)) return false
      const values = () => [calls.nowMs, recordId, attempt, tries ?? null, inMs ?? null]
      const [row] = await calls.send('postpone a record', POSTPONE, values, signal)
      return row?.[0] === true
    },
    act: async (act, by, signal) => {
      calls.checkOpen('act')
      return untilDone(() => carryOut(context, act, by, signal), signal)
    },
    discarded: async ({ recordId, limit }, signal) => {
      if (!isUuid(recordId)) return []
      const values = () => [recordId, limit]
      const rows = await calls.send('read discarded replies', LIST_DISCARDED, values, signal)
      return rows.map(toDiscardedReply)
    },
    audit: async ({ subject, limit }, signal) => {
      const values = () => [textValue(subject), limit]
      return (await calls.send('read the audit', LIST_AUDIT, values, signal)).map(toAuditEntry)
    },
  }
}

async function withOperations(
  calls: Calls,
  records: readonly StoredRecord[],
  signal: AbortSignal | undefined,
): Promise<DueUnknown[]> {
  const ids = records.filter((one) => one.recoveryPoint !== undefined).map((one) => one.recordId)
  const values = () => [textArray(ids)]
  const rows = ids.length === 0 ? [] : await calls.send('load operations', LOAD, values, signal)
  const operations = toOperations(rows)
  return records.map((record) => ({
    record: toView(record),
    operation: operations.get(record.recordId),
  }))
}

/** Repeats the act after a conflict. */
async function untilDone(
  run: () => Promise<ActOutcome>,
  signal: AbortSignal | undefined,
): Promise<ActOutcome> {
  for (let tries = 1; ; tries++) {
    try {
      return await run()
    } catch (error) {
      if (!isCausedBy(error, isConflict) || tries === TRIES_MAX) throw storeFailed('act', error)
    }
    await sleep(systemClock, Math.random() * BACKOFF_MS_MAX, signal)
  }
}

/** Reads under a lock, decides, and writes the change together with its audit entry. */
function carryOut(
  context: ActContext,
  act: Act,
  by: Actor,
  signal: AbortSignal | undefined,
): Promise<ActOutcome> {
  const body = async (session: Session) => {
    const locked = new ActUnderLock(context, session)
    const { outcome, write } =
      act.kind === 'retry_message' || act.kind === 'drop_message'
        ? await locked.decideOnMessage(act)
        : await locked.decideOnRecord(act)
    if (outcome.kind === 'done' && write !== undefined) {
      const { atMs, detail } = write
      const audit = { atMs, act: act.kind, subject: outcome.subject, ...by, detail }
      await write.run(JSON.stringify(audit))
    }
    return outcome
  }
  return context.driver.transact(body, undefined, signal)
}

/** The outcome of an act, and the write that carries it out. */
interface PlannedAct {
  readonly outcome: ActOutcome
  readonly write?: {
    readonly atMs: number
    readonly detail: string
    readonly run: (audit: string) => Promise<void>
  }
}

/** Decides on one act inside its transaction. */
class ActUnderLock {
  readonly #calls: Calls
  readonly #session: Session

  constructor({ calls }: ActContext, session: Session) {
    this.#calls = calls
    this.#session = session
  }

  async decideOnRecord(act: RecordAct): Promise<PlannedAct> {
    const values = readValues(act)
    if (values === undefined) return { outcome: { kind: 'not_found' } }
    const [row] = await this.#query(ACT_READ, [this.#calls.nowMs, ...values])
    if (row === undefined) return { outcome: { kind: 'not_found' } }
    const [nowMs, ...columns] = row as readonly [number, ...unknown[]]
    const phase = columns[0] === null ? undefined : toPhase(columns.slice(0, PHASE_WIDTH))
    const record = toRecord(columns.slice(PHASE_WIDTH))
    const decision = decideAct(record, phase, act, nowMs)
    const { outcome, detail = '{}' } = decision
    if (decision.record === undefined) return { outcome }
    const run = (audit: string) => this.#writeRecord(record, decision, audit)
    return { outcome, write: { atMs: nowMs, detail, run } }
  }

  async decideOnMessage(act: MessageAct): Promise<PlannedAct> {
    const { messageId: id } = act
    if (!isUuid(id)) return { outcome: { kind: 'not_found' } }
    const [row] = await this.#query(LOCK_MESSAGE, [this.#calls.nowMs, id])
    if (row === undefined) return { outcome: { kind: 'not_found' } }
    const [state, attempt, atMs] = row as readonly ['ready', number, number]
    const subject = id.toLowerCase()
    const decision = decideMessageAct({ state, attempt }, act)
    if (decision.kind === 'already') return { outcome: { kind: 'already', subject } }
    if (decision.kind === 'refused') return { outcome: { kind: 'refused', subject, reason: state } }
    const { to, detail } = decision
    const run = async (audit: string) => {
      await this.#query(MOVE_MESSAGE, [this.#calls.nowMs, id, to])
      await this.#query(ACT_WRITE, [null, null, null, 'false', null, audit])
    }
    return { outcome: { kind: 'done', subject }, write: { atMs, detail, run } }
  }

  async #writeRecord(
    { identity }: StoredRecord,
    { record, phase, discarded }: ActDecision,
    audit: string,
  ): Promise<void> {
    const operation = discarded && (await this.#loadOperation(discarded))
    await this.#query(ACT_WRITE, [
      hexValue(identity),
      JSON.stringify(toJson(record!)),
      phase === undefined ? null : JSON.stringify(phaseJson(phase)),
      `${discarded !== undefined}`,
      bytesValue(operation && encodeOperation(operation)),
      audit,
    ])
  }

  /** No step can change the operation meanwhile, because a step locks the record first. */
  async #loadOperation({ recordId }: StoredRecord): Promise<StoredOperation | undefined> {
    const rows = await this.#query(LOAD, [textArray([recordId])])
    return toOperations(rows).get(recordId)
  }

  #query(sql: string, values: Value[]) {
    return this.#session.query(this.#calls.textOf(sql), values)
  }
}

/** In the order of the parameters of the function. `undefined`: no record has this id. */
function readValues(act: RecordAct): Value[] | undefined {
  if (act.kind !== 'conclude') {
    const { identity, recordId } = act.ref
    if (identity !== undefined) return [hexValue(identity), null, null, null]
    return isUuid(recordId) ? [null, recordId, null, null] : undefined
  }
  const { phase } = act
  if ('downstreamKey' in phase) return [null, null, textValue(phase.downstreamKey), null]
  if ('providerId' in phase) return [null, null, null, textValue(phase.providerId)]
  return isUuid(phase.recordId) ? [null, phase.recordId, null, null] : undefined
}

/** Writes bytes as hexadecimal. JSON leaves absent values out. */
function toJson(values: object): Record<string, unknown> {
  const entries = Object.entries(values).map(([name, value]: [string, unknown]) => [
    name,
    value instanceof Uint8Array ? Buffer.from(value).toString('hex') : value,
  ])
  return Object.fromEntries(entries) as Record<string, unknown>
}

function phaseJson(change: NonNullable<ActDecision['phase']>): Record<string, unknown> {
  if (change.kind === 'remove') return { remove: change.name }
  const { name, state, result, providerId, doneAt } = change.phase
  return toJson({ name, state, result, providerId, doneAtMs: doneAt?.getTime() })
}

function toDiscardedReply(row: Row): DiscardedReply {
  const [recordId, attempt, discardedAtMs, result, operation] = row as readonly [
    string,
    number,
    number,
    Uint8Array,
    Uint8Array | null,
  ]
  return {
    recordId,
    attempt,
    discardedAt: new Date(discardedAtMs),
    result,
    operation: operation === null ? undefined : decodeOperation(operation),
  }
}

function toAuditEntry(row: Row): AuditEntry {
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
