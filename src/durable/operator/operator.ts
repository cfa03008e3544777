/** Manual changes by people. Each is written to the audit with a name and a reason. */
import type {
  DurableStore,
  MessageView,
  StoredOperation,
  UnrelayedTopic,
} from '../../core/store/durable-store.ts'
import type {
  Act,
  Actor,
  ActKind,
  ActOutcome,
  AuditEntry,
  DiscardedReply,
} from '../../core/store/operator-store.ts'
import type { Engine, ResolveTarget, ResolveVerdict } from '../../core/engine/engine-contract.ts'
import { InvalidOptionsError } from '../../core/errors.ts'
import { describe, rejectUnknownOptions, wholeNumber } from '../../core/options.ts'
import { effectiveRule } from '../../core/encryption.ts'
import type { EventSubject } from '../../core/events.ts'
import type { RecordState } from '../../core/record/record.ts'
import { toRef } from '../../core/record/verdict.ts'
import type { RecordView } from '../../core/store/store.ts'
import {
  checkActor,
  checkEffectTarget,
  checkEffectVerdict,
  checkRecordTarget,
  checkRecordVerdict,
  isRecordVerdict,
} from './act-checks.ts'
import {
  OperatorActs,
  subjectOf,
  type EffectTarget,
  type EffectVerdict,
  type OperationInfo,
  type RecordTarget,
} from './operator-acts.ts'
import { askStore, checkEngine, durableOf } from '../durable-engine.ts'
import { discardReply, resolveDiscardOptions, type DiscardOptions } from './discard-reply.ts'
import {
  inspectOperation,
  inspectReply,
  type InspectedOperation,
  type UnreadableValue,
} from './inspected-operation.ts'
import { checkOperations } from '../reconciliation/reconciler-options.ts'
import { findUnrelayed } from '../outbox/unrelayed.ts'
import { RecordValues } from '../record-values.ts'
import type { StoredReply } from '../../http/reply/reply-codec.ts'

export interface OperatorOptions {
  /**
   * The engine of the records. On a store without operations, messages and an audit (memory, Redis,
   * DynamoDB), only `list`, `inspect` and `discardReply` work.
   */
  engine: Engine

  /**
   * The operations of the service. When `resolve` gets the result of an effect of one of these, the
   * result is checked with the `result` schema of the effect, and `providerId` is read from it. The
   * result of an effect of any other operation is stored as JSON without a check.
   *
   * @default none
   */
  operations?: readonly OperationInfo[]
}

/**
 * The acts of an operator. Each act that changes something takes the person and the reason, and is
 * written to the audit in the same commit. An act that changes nothing writes no entry.
 */
export interface Operator {
  /**
   * Records in one state, without their results: `completed` by expiry, others by last run, oldest
   * first. `limit` is at most 10_000.
   *
   * @default limit 100
   */
  list(query: { state: RecordState; limit?: number }): Promise<RecordView[]>

  /** A record with its operation, its phases, earlier records of its key, and its audit. */
  inspect(target: ResolveTarget): Promise<Inspection>

  /**
   * Takes a record from its holder, or out of `unknown`, so that it may run again. Call it only if
   * you know that the work had no effect, or that a second effect does no harm.
   */
  release(target: ResolveTarget, by: Actor): Promise<ActOutcome>

  /**
   * Records the outcome of an outside effect, as a webhook would. The operation then continues with
   * it. The audit entry has the act `conclude`.
   */
  resolve(target: EffectTarget, verdict: EffectVerdict, by: Actor): Promise<ActOutcome>

  /**
   * Records a verdict on a whole `unknown` record. Pass the `attempt` that you have checked, so
   * that the verdict cannot apply to a later one. The audit entry has the act `resolve`.
   */
  resolve(target: RecordTarget, verdict: ResolveVerdict, by: Actor): Promise<ActOutcome>

  /** Makes a record due now: the reconciler asks about it again, or a worker runs its operation. */
  processNow(target: ResolveTarget, by: Actor): Promise<ActOutcome>

  /**
   * Discards a stored reply, so that the next request with the key runs the work again, with the
   * same downstream keys and ids. An operation starts from the beginning; its earlier phases stay
   * visible in `inspect`. Works on every store; a store without an audit emits only the event.
   *
   * Refused if an outside effect of the record has happened or may have happened, unless the
   * options say otherwise. Work without recorded effects (a plain handler, an operation without
   * external phases) may have had one, so each of its replies counts as one, except for 4xx.
   */
  discardReply(target: RecordTarget, by: Actor, options?: DiscardOptions): Promise<ActOutcome>

  /**
   * Work that waits for an operator, oldest first: records that the reconciler gave up after its
   * last try (among the 10,000 oldest `unknown` records), messages that could not be relayed, and
   * topics that seem to have no relay. `limit` is at most 10_000, for each of the three.
   *
   * @default limit 100
   */
  deadLetters(query?: { limit?: number }): Promise<DeadLetters>

  /** Makes a dead message due again. Its earlier attempts still count. */
  retryMessage(messageId: string, by: Actor): Promise<ActOutcome>

  /** Drops a dead message for good. A partition that it blocked continues with the next message. */
  dropMessage(messageId: string, by: Actor): Promise<ActOutcome>

  /**
   * Audit entries, newest first: of one record or message (`subject` is its id), or of all.
   * `limit` is at most 10_000.
   *
   * @default limit 100
   */
  audit(query?: { subject?: string; limit?: number }): Promise<AuditEntry[]>
}

export type Inspection =
  | {
      readonly kind: 'found'
      /** Absent if the record was removed and only its history, replies or audit are left. */
      readonly record: RecordView | undefined
      /** The recorded reply, decrypted. Absent if the record has none. */
      readonly reply: StoredReply | UnreadableValue | undefined
      readonly operation: InspectedOperation | undefined
      /** Earlier records of its key, newest first. Empty if the store keeps no history. */
      readonly history: readonly RecordView[]
      /** Replies of this record that were discarded, newest first. */
      readonly discarded: readonly InspectedReply[]
      readonly audit: readonly AuditEntry[]
    }
  | { readonly kind: 'not_found' }

/** A reply that was discarded, and the operation that made it. `result`: the bytes as stored. */
export interface InspectedReply extends Omit<DiscardedReply, 'operation'> {
  readonly reply: StoredReply | UnreadableValue
  readonly operation: InspectedOperation | undefined
}

export interface DeadLetters {
  readonly records: readonly RecordView[]
  readonly messages: readonly MessageView[]
  /**
   * Topics that no relay of this process handles and that have a message which has been due for a
   * minute or longer. Sorted by name, with one message each. The messages are not lost: a relay
   * that handles the topic relays them.
   */
  readonly unrelayed: readonly UnrelayedTopic[]
}

/**
 * Creates the operator's view of a store: lists, verdicts, releases and the audit. It checks no
 * permissions; the caller decides who may use it.
 */
export function createOperator(options: OperatorOptions): Operator {
  rejectUnknownOptions('createOperator', options, ['engine', 'operations'])
  const { engine, operations = [] } = options
  checkEngine('createOperator', engine)
  return new AuditedOperator(engine, checkOperations('createOperator', operations))
}

const LIMIT = 100
const LIMIT_MAX = 10_000
/** Entries of the history and of the audit of one record in `inspect`. */
const INSPECTED_MAX = 100

/** The methods by the stored word of their act, for error messages. */
const METHODS = {
  release: 'release',
  requeue: 'processNow',
  retry_message: 'retryMessage',
  drop_message: 'dropMessage',
} as const

type OtherAct = Extract<Act, { kind: keyof typeof METHODS }>

class AuditedOperator implements Operator {
  readonly #engine: Engine
  /** Absent if the store has no operations, messages and audit. */
  readonly #acts: OperatorActs | undefined

  constructor(engine: Engine, operations: readonly OperationInfo[]) {
    this.#engine = engine
    const { durable } = engine.store
    if (durable !== undefined) this.#acts = new OperatorActs(engine, durable, operations)
  }

  /** Throws if the store cannot do what the method `name` does. */
  #durableFor(name: string): DurableStore {
    return durableOf(`operator.${name}`, this.#engine)
  }

  #actsFor(name: string): OperatorActs {
    this.#durableFor(name)
    return this.#acts!
  }

  async list(query: { state: RecordState; limit?: number }): Promise<RecordView[]> {
    rejectUnknownOptions('operator.list', query, ['state', 'limit'])
    return this.#engine.list(query)
  }

  async inspect(target: ResolveTarget): Promise<Inspection> {
    const engine = this.#engine
    const { store } = engine
    const { durable } = store
    const ref = toRef(checkRecordTarget('operator.inspect', target))
    const record = await engine.read(target)
    const recordId = record?.recordId ?? ref.recordId
    const limit = INSPECTED_MAX
    const past = record === undefined ? ref : { identity: record.identity }
    const [history = [], operation, discarded, audit] = await Promise.all([
      store.history &&
        askStore(engine, 'history', (signal) => store.history!({ ref: past, limit }, signal)),
      ...(durable === undefined || recordId === undefined
        ? ([undefined, [], []] as const)
        : ([
            this.#acts!.load(recordId),
            askStore(engine, 'discarded', (signal) =>
              durable.operator.discarded({ recordId, limit }, signal),
            ),
            this.audit({ subject: recordId, limit }),
          ] as const)),
    ])
    const left = history.length + discarded.length + audit.length
    if (record === undefined && left === 0) return { kind: 'not_found' }
    const known = record ?? history[0]
    // Bytes that are bound to a record which is no longer known cannot be decrypted.
    const owner: EventSubject =
      known === undefined || recordId === undefined
        ? { identity: '', tenant: '', operation: '', recordId: recordId ?? '' }
        : { ...subjectOf(known), recordId }
    return {
      kind: 'found',
      record,
      ...(await this.#inspectWork(owner, { result: record?.result, operation })),
      history,
      discarded: await Promise.all(
        discarded.map(async (one) => {
          const { reply, operation } = await this.#inspectWork(owner, one)
          return { ...one, reply: reply!, operation }
        }),
      ),
      audit,
    }
  }

  /** Decrypts what it can. An operator looks at the values, so no unreadable one is an event. */
  async #inspectWork(
    owner: EventSubject,
    {
      result,
      operation,
    }: {
      readonly result: Uint8Array | undefined
      readonly operation: StoredOperation | undefined
    },
  ): Promise<Pick<Extract<Inspection, { kind: 'found' }>, 'reply' | 'operation'>> {
    const { clock } = this.#engine
    const rule = effectiveRule(operation && this.#acts?.known(operation), this.#engine)
    const values = new RecordValues({ clock, emit: () => undefined }, owner, rule)
    return {
      reply: result && (await inspectReply(clock, rule, owner, result)),
      operation: operation && (await inspectOperation(values, operation)),
    }
  }

  release(target: ResolveTarget, by: Actor): Promise<ActOutcome> {
    return this.#actOn('release', target, by)
  }

  processNow(target: ResolveTarget, by: Actor): Promise<ActOutcome> {
    return this.#actOn('requeue', target, by)
  }

  async discardReply(
    target: RecordTarget,
    by: Actor,
    options: DiscardOptions = {},
  ): Promise<ActOutcome> {
    const where = 'operator.discardReply'
    const actor = checkActor(where, by)
    const outcome = await discardReply(this.#engine, this.#acts, {
      target: checkRecordTarget(where, target),
      by: actor,
      options: resolveDiscardOptions(where, options),
    })
    return this.#report('discard_reply', outcome, actor)
  }

  async resolve(
    target: EffectTarget | RecordTarget,
    verdict: EffectVerdict | ResolveVerdict,
    by: Actor,
  ): Promise<ActOutcome> {
    const where = 'operator.resolve'
    const actor = checkActor(where, by)
    const acts = this.#actsFor('resolve')
    if (isRecordVerdict(verdict)) {
      const checked = checkRecordVerdict(where, verdict)
      const record = checkRecordTarget(where, target as RecordTarget)
      return this.#report('resolve', await acts.resolveRecord(record, checked, actor), actor)
    }
    const checked = checkEffectVerdict(where, verdict)
    const effect = checkEffectTarget(where, target as EffectTarget)
    return this.#report('conclude', await acts.resolveEffect(effect, checked, actor), actor)
  }

  async deadLetters(query: { limit?: number } = {}): Promise<DeadLetters> {
    rejectUnknownOptions('operator.deadLetters', query, ['limit'])
    const limit = limitOf('operator.deadLetters', query.limit)
    const { outbox } = this.#durableFor('deadLetters')
    const [unknown, messages, unrelayed] = await Promise.all([
      this.#engine.list({ state: 'unknown', limit: LIMIT_MAX }),
      askStore(this.#engine, 'list', (signal) => outbox.list({ state: 'dead', limit }, signal)),
      findUnrelayed(this.#engine, outbox, limit),
    ])
    const givenUp = unknown.filter(({ reconcileAt }) => reconcileAt === undefined)
    return { records: givenUp.slice(0, limit), messages, unrelayed }
  }

  retryMessage(messageId: string, by: Actor): Promise<ActOutcome> {
    return this.#actOnMessage('retry_message', messageId, by)
  }

  dropMessage(messageId: string, by: Actor): Promise<ActOutcome> {
    return this.#actOnMessage('drop_message', messageId, by)
  }

  async audit(query: { subject?: string; limit?: number } = {}): Promise<AuditEntry[]> {
    rejectUnknownOptions('operator.audit', query, ['subject', 'limit'])
    const limit = limitOf('operator.audit', query.limit)
    const { subject } = query
    const filter = subject === undefined ? { limit } : { subject, limit }
    const { operator } = this.#durableFor('audit')
    return askStore(this.#engine, 'audit', (signal) => operator.audit(filter, signal))
  }

  async #actOn(kind: 'release' | 'requeue', target: ResolveTarget, by: Actor): Promise<ActOutcome> {
    const where = `operator.${METHODS[kind]}`
    const actor = checkActor(where, by)
    const ref = toRef(checkRecordTarget(where, target))
    return this.#act({ kind, ref }, actor)
  }

  async #actOnMessage(
    kind: 'retry_message' | 'drop_message',
    messageId: string,
    by: Actor,
  ): Promise<ActOutcome> {
    const where = `operator.${METHODS[kind]}`
    const actor = checkActor(where, by)
    if (typeof messageId !== 'string' || messageId === '') {
      throw new InvalidOptionsError(
        `${where}: the message id must be a non-empty string, got ${describe(messageId)}`,
      )
    }
    return this.#act({ kind, messageId }, actor)
  }

  async #act(act: OtherAct, by: Actor): Promise<ActOutcome> {
    const acts = this.#actsFor(METHODS[act.kind])
    return this.#report(act.kind, await acts.act(act, by), by)
  }

  #report(act: ActKind, outcome: ActOutcome, { who }: Actor): ActOutcome {
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
