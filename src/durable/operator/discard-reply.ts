/**
 * Discards the reply of a record, on every store. Tests:
 * test/durable/operator/discard-reply.test.ts.
 */
import type { Engine } from '../../core/engine/engine-contract.ts'
import { flag, rejectUnknownOptions } from '../../core/options.ts'
import { newToken } from '../../core/record/identity.ts'
import { DISCARDED } from '../../core/record/decide-discard.ts'
import type { Actor, ActOutcome, RefusalReason } from '../../core/store/operator-store.ts'
import type { Discard, DiscardOutcome, RecordView } from '../../core/store/store.ts'
import { askStore, storeTimeMs } from '../durable-engine.ts'
import { inspectReply, UnreadableValue } from './inspected-operation.ts'
import { subjectOf, type OperatorActs, type RecordTarget } from './operator-acts.ts'

/** The options of `operator.discardReply`. */
export interface DiscardOptions {
  /**
   * Discards the reply even if an outside effect of the record has happened, or may have happened.
   * The next request with the key runs the work again, and only the downstream key or your own
   * check then prevents a second effect. The audit records it.
   *
   * @default false: such a reply is not discarded
   */
  readonly despiteEffects?: boolean

  /**
   * Gives the work new downstream keys and ids. A provider then treats the effect of the next run
   * as a new one: it charges again.
   *
   * @default false: the ids stay, and a provider that still knows the key does not charge again
   */
  readonly freshIds?: boolean
}

export type ResolvedDiscardOptions = Readonly<Required<DiscardOptions>>

export function resolveDiscardOptions(
  where: string,
  options: DiscardOptions,
): ResolvedDiscardOptions {
  rejectUnknownOptions(where, options, ['despiteEffects', 'freshIds'])
  return {
    despiteEffects: flag(`${where}: despiteEffects`, options.despiteEffects, false),
    freshIds: flag(`${where}: freshIds`, options.freshIds, false),
  }
}

export interface DiscardRequest {
  readonly target: RecordTarget
  readonly by: Actor
  readonly options: ResolvedDiscardOptions
}

/** `acts` is absent if the store has no `durable`, and therefore no audit and no operations. */
export async function discardReply(
  engine: Engine,
  acts: OperatorActs | undefined,
  { target, by, options }: DiscardRequest,
): Promise<ActOutcome> {
  const { attempt, ...record } = target
  const found = await engine.read(record)
  if (found === undefined) return { kind: 'not_found' }
  // Another record may be completed before the act, with a reply that was not judged here.
  const isDiscarded = found.state === 'failed_retryable' && found.errorCode === DISCARDED
  if (found.state !== 'completed' && !isDiscarded) return refused(found, found.state)
  if (found.expiresAt.getTime() <= (await storeTimeMs(engine))) return refused(found, 'expired')
  const discard: Discard = {
    ref: { recordId: found.recordId },
    attempt: attempt ?? found.attempt,
    idSeed: options.freshIds ? newToken() : undefined,
  }
  const { despiteEffects } = options
  if (!despiteEffects && !(await recordsEffects(acts, found)) && (await hasEffect(engine, found))) {
    return refused(found, 'effect_done')
  }
  if (acts !== undefined) {
    return acts.act({ kind: 'discard_reply', ...discard, despiteEffects }, by)
  }
  return discardWithoutAudit(engine, discard)
}

function refused({ recordId: subject }: RecordView, reason: RefusalReason): ActOutcome {
  return { kind: 'refused', subject, reason }
}

/**
 * Whether the reply counts as an effect. Work without recorded effects may have had one, so every
 * reply counts except for a 4xx, and so does a reply that cannot be read here.
 */
async function hasEffect(engine: Engine, record: RecordView): Promise<boolean> {
  if (record.state !== 'completed' || record.result === undefined) return false
  const reply = await inspectReply(engine.clock, engine, subjectOf(record), record.result)
  return reply instanceof UnreadableValue || reply.status < 400 || reply.status >= 500
}

/**
 * Whether the record has an operation with effects, which the store checks. An operation without
 * them may have added messages, which a second run would add again.
 */
async function recordsEffects(
  acts: OperatorActs | undefined,
  { recordId }: RecordView,
): Promise<boolean> {
  const operation = await acts?.load(recordId)
  return operation?.phases.some(({ kind }) => kind === 'external') === true
}

async function discardWithoutAudit(engine: Engine, discard: Discard): Promise<ActOutcome> {
  const { store } = engine
  const outcome = await askStore(engine, 'discard', (signal) => {
    if (store.discard === undefined) {
      throw new Error(`the ${store.name} store has neither discard() nor durable`)
    }
    return store.discard(discard, signal)
  })
  return toActOutcome(outcome)
}

function toActOutcome(outcome: DiscardOutcome): ActOutcome {
  switch (outcome.kind) {
    case 'discarded': {
      const { record, repeated } = outcome
      const subject = record.recordId
      return repeated ? { kind: 'already', subject } : { kind: 'done', subject, record }
    }
    case 'not_completed':
      return { kind: 'refused', subject: outcome.recordId, reason: outcome.state }
    case 'other_attempt':
      return { kind: 'refused', subject: outcome.recordId, reason: 'other_attempt' }
    case 'not_found':
      return outcome
  }
}
