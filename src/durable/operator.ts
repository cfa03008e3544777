/** What people do by hand, with their name and their reason in the audit. */
import type {
  Act,
  ActedBy,
  ActKind,
  ActOutcome,
  AuditEntry,
  DurableStore,
  MessageView,
  StoredPhase,
  UnrelayedTopic,
} from '../core/durable-store.ts'
import type { Engine, ResolveTarget, ResolveVerdict } from '../core/engine-contract.ts'
import { InvalidOptionsError } from '../core/errors.ts'
import { describe, rejectUnknownOptions, wholeNumber } from '../core/options.ts'
import type { RecordState } from '../core/record.ts'
import type { RecordView } from '../core/store.ts'
import { checkActedBy } from './acted-by.ts'
import {
  checkEffectTarget,
  checkEffectVerdict,
  checkRecordTarget,
  checkRecordVerdict,
} from './desk-checks.ts'
import {
  Desk,
  toRef,
  type EffectTarget,
  type EffectVerdict,
  type KnownOperation,
  type RecordTarget,
} from './desk.ts'
import { askStore, durableOf } from './durable-engine.ts'
import { checkOperations } from './reconciler-options.ts'
import { findUnrelayed } from './unrelayed.ts'
import { decodeValue } from './values.ts'

export interface OperatorOptions {
  engine: Engine

  /**
   * Where `conclude` is given a result, it is checked and stored the way the operation's own
   * effect would have done it. Without the operation it is stored as JSON.
   *
   * @default none
   */
  operations?: readonly KnownOperation[]
}

/**
 * The acts of an operator. Those that change something take who acts, and why, and are written
 * into the audit in the same commit; where nothing was done, nothing is written.
 */
export interface Operator {
  /** Records in one state, oldest run first, without their results. @default limit 100 */
  list(query: { state: RecordState; limit?: number }): Promise<RecordView[]>

  /** All that is known of one record. */
  inspect(target: ResolveTarget): Promise<Inspection>

  /**
   * Takes a record from its holder, or out of `unknown`: it may run again. Only for somebody who
   * knows that it had no effect, or that a second one does no harm.
   */
  release(target: ResolveTarget, by: ActedBy): Promise<ActOutcome>

  /** A verdict on an `unknown` record. Say which `attempt` was looked into. */
  resolve(target: RecordTarget, verdict: ResolveVerdict, by: ActedBy): Promise<ActOutcome>

  /** What became of an outside effect: its operation then goes on. */
  conclude(target: EffectTarget, verdict: EffectVerdict, by: ActedBy): Promise<ActOutcome>

  /** Has an `unknown` record looked into again, or an operation run, from now on. */
  requeue(target: ResolveTarget, by: ActedBy): Promise<ActOutcome>

  /** Removes a stored result: the next request with the key runs. */
  bust(target: ResolveTarget, by: ActedBy): Promise<ActOutcome>

  /**
   * What was given up: records that the reconciler has looked into as often as it may (among the
   * 10,000 oldest that are `unknown`), and messages that could not be relayed. Oldest first. And
   * topics that seem to have no relay.
   *
   * @default limit 100
   */
  deadLetters(query?: { limit?: number }): Promise<DeadLetters>

  /** A dead message is relayed again, with all its attempts before it. */
  retryMessage(messageId: string, by: ActedBy): Promise<ActOutcome>

  /** A dead message is given up; its partition goes on without it. */
  dropMessage(messageId: string, by: ActedBy): Promise<ActOutcome>

  /** Who did what, when and why, newest first. Of one record or message, or of all. */
  audit(query?: { subject?: string; limit?: number }): Promise<AuditEntry[]>
}

export type Inspection =
  | {
      readonly kind: 'found'
      /** Absent where it was removed, and only its history or its audit is left. */
      readonly record: RecordView | undefined
      readonly operation: InspectedOperation | undefined
      /** Earlier records of its key, newest first; empty where the store keeps none. */
      readonly history: readonly RecordView[]
      readonly audit: readonly AuditEntry[]
    }
  | { readonly kind: 'not_found' }

export interface InspectedOperation {
  readonly name: string
  readonly version: number
  readonly input: unknown
  readonly phases: readonly InspectedPhase[]
}

export interface InspectedPhase extends Omit<StoredPhase, 'request' | 'result'> {
  readonly request: unknown
  readonly result: unknown
}

export interface DeadLetters {
  readonly records: readonly RecordView[]
  readonly messages: readonly MessageView[]
  /**
   * Topics with a message that has been due for a minute or longer and that no relay of this
   * process has: of each one message, in the order of their names. Its payload is not lost; it is
   * relayed once a relay has its topic.
   */
  readonly unrelayed: readonly UnrelayedTopic[]
}

export function createOperator(options: OperatorOptions): Operator {
  rejectUnknownOptions('createOperator', options, ['engine', 'operations'])
  const { engine, operations = [] } = options
  const durable = durableOf('createOperator', engine)
  return new AuditedOperator(engine, durable, checkOperations('createOperator', operations))
}

const LIMIT = 100
const LIMIT_MAX = 10_000
/** Enough to see what happened to one record. */
const INSPECTED_MAX = 100

class AuditedOperator implements Operator {
  readonly #engine: Engine
  readonly #durable: DurableStore
  readonly #desk: Desk

  constructor(engine: Engine, durable: DurableStore, operations: readonly KnownOperation[]) {
    this.#engine = engine
    this.#durable = durable
    this.#desk = new Desk(engine, durable, operations)
  }

  async list(query: { state: RecordState; limit?: number }): Promise<RecordView[]> {
    rejectUnknownOptions('operator.list', query, ['state', 'limit'])
    return this.#engine.list(query)
  }

  async inspect(target: ResolveTarget): Promise<Inspection> {
    const engine = this.#engine
    const { store } = engine
    const ref = toRef(checkRecordTarget('operator.inspect', target))
    const record = await engine.read(target)
    const recordId = record?.recordId ?? ref.recordId
    const limit = INSPECTED_MAX
    const past = record === undefined ? ref : { identity: record.identity }
    const [operation, history, audit] = await Promise.all([
      recordId && askStore(engine, 'load', (signal) => this.#durable.phases.load(recordId, signal)),
      store.history &&
        askStore(engine, 'history', (signal) => store.history!({ ref: past, limit }, signal)),
      recordId ? this.audit({ subject: recordId, limit }) : [],
    ])
    const isEmpty = record === undefined && audit.length === 0 && (history?.length ?? 0) === 0
    if (isEmpty) return { kind: 'not_found' }
    const inspected = operation ? toInspected(operation) : undefined
    return { kind: 'found', record, operation: inspected, history: history ?? [], audit }
  }

  release(target: ResolveTarget, by: ActedBy): Promise<ActOutcome> {
    return this.#actOn('release', target, by)
  }

  requeue(target: ResolveTarget, by: ActedBy): Promise<ActOutcome> {
    return this.#actOn('requeue', target, by)
  }

  bust(target: ResolveTarget, by: ActedBy): Promise<ActOutcome> {
    return this.#actOn('bust', target, by)
  }

  async resolve(target: RecordTarget, verdict: ResolveVerdict, by: ActedBy): Promise<ActOutcome> {
    const where = 'operator.resolve'
    const acted = checkActedBy(where, by)
    const checked = checkRecordVerdict(where, verdict)
    const outcome = this.#desk.resolve(checkRecordTarget(where, target), checked, acted)
    return this.#tell('resolve', await outcome, acted)
  }

  async conclude(target: EffectTarget, verdict: EffectVerdict, by: ActedBy): Promise<ActOutcome> {
    const where = 'operator.conclude'
    const acted = checkActedBy(where, by)
    const checked = checkEffectVerdict(where, verdict)
    const outcome = this.#desk.conclude(checkEffectTarget(where, target), checked, acted)
    return this.#tell('conclude', await outcome, acted)
  }

  async deadLetters(query: { limit?: number } = {}): Promise<DeadLetters> {
    rejectUnknownOptions('operator.deadLetters', query, ['limit'])
    const limit = limitOf('operator.deadLetters', query.limit)
    const { outbox } = this.#durable
    const [unknown, messages, unrelayed] = await Promise.all([
      this.#engine.list({ state: 'unknown', limit: LIMIT_MAX }),
      askStore(this.#engine, 'list', (signal) => outbox.list({ state: 'dead', limit }, signal)),
      findUnrelayed(this.#engine, outbox, limit),
    ])
    const given = unknown.filter(({ reconcileAt }) => reconcileAt === undefined)
    return { records: given.slice(0, limit), messages, unrelayed }
  }

  retryMessage(messageId: string, by: ActedBy): Promise<ActOutcome> {
    return this.#actOnMessage('retry_message', messageId, by)
  }

  dropMessage(messageId: string, by: ActedBy): Promise<ActOutcome> {
    return this.#actOnMessage('drop_message', messageId, by)
  }

  async audit(query: { subject?: string; limit?: number } = {}): Promise<AuditEntry[]> {
    rejectUnknownOptions('operator.audit', query, ['subject', 'limit'])
    const limit = limitOf('operator.audit', query.limit)
    const { subject } = query
    const asked = subject === undefined ? { limit } : { subject, limit }
    return askStore(this.#engine, 'audit', (signal) => this.#durable.desk.audit(asked, signal))
  }

  async #actOn(
    kind: 'release' | 'requeue' | 'bust',
    target: ResolveTarget,
    by: ActedBy,
  ): Promise<ActOutcome> {
    const where = `operator.${kind}`
    const acted = checkActedBy(where, by)
    const ref = toRef(checkRecordTarget(where, target))
    return this.#act({ kind, ref }, acted)
  }

  async #actOnMessage(
    kind: 'retry_message' | 'drop_message',
    messageId: string,
    by: ActedBy,
  ): Promise<ActOutcome> {
    const where = kind === 'retry_message' ? 'operator.retryMessage' : 'operator.dropMessage'
    const acted = checkActedBy(where, by)
    if (typeof messageId !== 'string' || messageId === '') {
      throw new InvalidOptionsError(`${where} takes a message's id, got ${describe(messageId)}`)
    }
    return this.#act({ kind, messageId }, acted)
  }

  async #act(act: Act, by: ActedBy): Promise<ActOutcome> {
    return this.#tell(act.kind, await this.#desk.act(act, by), by)
  }

  #tell(act: ActKind, outcome: ActOutcome, { who }: ActedBy): ActOutcome {
    if (outcome.kind === 'done') {
      const { subject } = outcome
      this.#engine.emit({ kind: 'operator_acted', act, subject, who })
    }
    return outcome
  }
}

function limitOf(where: string, limit: number | undefined): number {
  return wholeNumber(`${where}.limit`, limit, { fallback: LIMIT, min: 1, max: LIMIT_MAX })
}

function toInspected(operation: NonNullable<Loaded>): InspectedOperation {
  const { name, version, input, phases } = operation
  return {
    name,
    version,
    input: readable(input),
    phases: phases.map((phase) => ({
      ...phase,
      request: readable(phase.request),
      result: readable(phase.result),
    })),
  }
}

type Loaded = Awaited<ReturnType<DurableStore['phases']['load']>>

/** As it was stored; the bytes themselves where they cannot be read any more. */
function readable(bytes: Uint8Array | undefined): unknown {
  try {
    return decodeValue(bytes)
  } catch {
    return bytes
  }
}
