/**
 * Decides how a step of an operation, or an act of the reconciler, a webhook or an operator,
 * changes a record and a phase. Pure, like `decide.ts`. Stores that decide in the process run this
 * code under their lock; a store that decides in SQL may restate the steps there. Acts are rare:
 * every store reads the rows under a lock, calls `decideAct`, and writes.
 *
 * Tests: test/stores/kit/decide-durable.test.ts.
 */
import { NO_BYTES } from '../../core/bytes.ts'
import { completedWith, decideResolve, holds, resumeAt, toView } from '../../core/record/decide.ts'
import { decideDiscard } from '../../core/record/decide-discard.ts'
import { NO_TOKEN } from '../../core/record/expiry.ts'
import type { PhaseStep, Step, StepOutcome, StoredPhase } from '../../core/store/durable-store.ts'
import type { Act, ActOutcome } from '../../core/store/operator-store.ts'
import { nextState, type StoredRecord } from '../../core/record/record.ts'
import type { Lease } from '../../core/store/store.ts'

/** The recovery point of an operation that has finished no phase yet. */
export const STARTED = 'started'

export interface StepDecision {
  readonly outcome: StepOutcome
  /** Absent: neither the record nor the phase is written. */
  readonly write?: StoredRecord
  readonly phase?: PhaseChange | undefined
}

/** `put`: inserts the row of the phase, or replaces the row with the same name. */
export type PhaseChange =
  | { readonly kind: 'put'; readonly phase: StoredPhase }
  | { readonly kind: 'remove'; readonly name: string }

/** Why the work of a step must not start; `undefined` if it may. */
export function refuseStep(
  record: Pick<StoredRecord, 'state' | 'token' | 'attempt'> | undefined,
  lease: Lease,
): Extract<StepOutcome, { kind: 'fenced' }> | undefined {
  if (record === undefined) return { kind: 'fenced', own: false, state: 'absent' }
  const { state, token, attempt } = record
  const own = token === lease.token && attempt === lease.attempt
  // May repeat a step that has handed over. Only the work knows whether its step hands over.
  const mayBeHandedOver = state === 'pending' && token === lease.token
  const mayRun = (own && state === 'in_progress') || mayBeHandedOver
  return mayRun ? undefined : { kind: 'fenced', own, state }
}

/** `phase`: the stored row of the phase that the step names. */
export function decideStep(
  record: StoredRecord | undefined,
  phase: StoredPhase | undefined,
  { lease, step }: { readonly lease: Lease; readonly step: Step },
  nowMs: number,
): StepDecision {
  if (record === undefined) return { outcome: { kind: 'fenced', own: false, state: 'absent' } }
  const own = holds(record, lease)
  // The answer to the first try of this step was lost. Handing over has uncounted its attempt, so
  // only the token is compared.
  const isHandedOver = record.state === 'pending' && record.token === lease.token
  if (isHandedOver && step.end?.kind === 'hand_over') return advanced(record)
  if (!own || record.state !== 'in_progress') {
    return { outcome: { kind: 'fenced', own, state: record.state } }
  }
  const change = step.phase && decidePhase(phase, step.phase, { attempt: record.attempt, nowMs })
  if (change?.kind === 'concluded') return { outcome: change }
  if (change?.kind === 'repeated') return { outcome: { kind: 'fenced', own, state: record.state } }
  const done =
    change?.kind === 'put' && change.phase.state === 'done' ? change.phase.name : undefined
  const recoveryPoint = done ?? record.recoveryPoint ?? STARTED
  const write = endWith({ ...record, recoveryPoint }, step, nowMs)
  return { ...advanced(write), write, phase: change }
}

function advanced(record: StoredRecord): StepDecision {
  return { outcome: { kind: 'advanced', expiresAt: new Date(record.expiresAtMs) } }
}

function endWith(record: StoredRecord, { end }: Step, nowMs: number): StoredRecord {
  switch (end?.kind) {
    case undefined:
      return record
    case 'complete':
      return completedWith(record, end.result, { nowMs, retentionMs: end.retentionMs })
    case 'hand_over':
      return {
        ...record,
        state: 'pending',
        attempt: record.attempt - 1,
        leaseUntilMs: nowMs,
        leaseMs: undefined,
        reconcileAtMs: nowMs + end.afterMs,
      }
  }
}

type PhaseDecision =
  | PhaseChange
  | { readonly kind: 'concluded'; readonly result: Uint8Array }
  /** The transaction is recorded already: the writes of its repetition must be rolled back. */
  | { readonly kind: 'repeated' }

function decidePhase(
  phase: StoredPhase | undefined,
  step: PhaseStep,
  { attempt, nowMs }: { readonly attempt: number; readonly nowMs: number },
): PhaseDecision | undefined {
  if (phase?.state === 'done') {
    if (step.kind === 'transaction') return { kind: 'repeated' }
    return { kind: 'concluded', result: phase.result ?? NO_BYTES }
  }
  const { name, number } = step
  const now = new Date(nowMs)
  const fresh: StoredPhase = {
    name,
    number,
    kind: step.kind === 'transaction' ? 'transaction' : 'external',
    state: 'intended',
    request: undefined,
    result: undefined,
    downstreamKey: undefined,
    providerId: undefined,
    attempt,
    firstSentAt: now,
    sentAt: now,
    doneAt: undefined,
  }
  switch (step.kind) {
    case 'transaction':
      return put({ ...fresh, state: 'done', result: step.result, doneAt: now })
    case 'intent': {
      const { request, downstreamKey } = step
      if (phase !== undefined) return put({ ...phase, attempt, sentAt: now })
      return put({ ...fresh, request, downstreamKey })
    }
    case 'result': {
      const { result, downstreamKey, providerId } = step
      const base = phase ?? fresh
      return put({ ...base, state: 'done', result, downstreamKey, providerId, doneAt: now })
    }
    case 'clear':
      return phase === undefined ? undefined : { kind: 'remove', name }
  }
}

function put(phase: StoredPhase): PhaseChange {
  return { kind: 'put', phase }
}

/** Acts on records. `messages.ts` decides acts on messages. */
export type RecordAct = Exclude<Act, { kind: 'retry_message' | 'drop_message' }>

export interface ActDecision {
  readonly outcome: ActOutcome
  /** Absent: not written. */
  readonly record?: StoredRecord | undefined
  readonly phase?: PhaseChange | undefined
  /**
   * Set by `discard_reply`: the record before the act. The store keeps its result, and its
   * operation with the phases, as a `DiscardedReply`, and removes the operation from the record.
   */
  readonly discarded?: StoredRecord | undefined
  /** Detail for the audit, in JSON. */
  readonly detail?: string
}

/**
 * `phase`: the phase that a `conclude` is about. If the act names only a record id, and for
 * `discard_reply`, that is the intended phase of the record, or its last done external phase if
 * none is intended.
 */
export function decideAct(
  record: StoredRecord | undefined,
  phase: StoredPhase | undefined,
  act: RecordAct,
  nowMs: number,
): ActDecision {
  if (record === undefined) return { outcome: { kind: 'not_found' } }
  switch (act.kind) {
    case 'conclude':
      return conclude(record, phase, act, nowMs)
    case 'resolve':
      return resolve(record, act, nowMs)
    case 'release':
      return release(record, nowMs)
    case 'discard_reply':
      return discardReply(record, phase, act)
    case 'requeue':
      return requeue(record, nowMs)
  }
}

function conclude(
  record: StoredRecord,
  phase: StoredPhase | undefined,
  { finding, attempt }: Extract<RecordAct, { kind: 'conclude' }>,
  nowMs: number,
): ActDecision {
  const { recordId: subject } = record
  if (phase === undefined) return { outcome: { kind: 'refused', subject, reason: 'no_phase' } }
  if (phase.state === 'done') return { outcome: { kind: 'already', subject } }
  if (record.state === 'completed' || record.state === 'expired') return refused(record)
  if (attempt !== undefined && attempt !== phase.attempt) {
    return { outcome: { kind: 'refused', subject, reason: 'other_attempt' } }
  }
  const detail = { phase: phase.name, finding: finding.kind, from: record.state }
  const write: StoredRecord =
    record.state !== 'unknown'
      ? record
      : {
          ...record,
          state: 'failed_retryable',
          proof: 'proven',
          reconcileAtMs: resumeAt(record, nowMs),
        }
  if (finding.kind === 'not_executed') {
    if (record.state === 'in_progress') return refused(record)
    return { ...acted(record, write, detail), phase: { kind: 'remove', name: phase.name } }
  }
  const { result, providerId = phase.providerId } = finding
  const doneAt = new Date(nowMs)
  const done: StoredPhase = { ...phase, state: 'done', result, providerId, doneAt }
  const reached = { ...write, recoveryPoint: phase.name }
  return { ...acted(record, reached, detail), phase: put(done) }
}

function resolve(
  record: StoredRecord,
  { verdict, attempt, retentionMs, ref }: Extract<RecordAct, { kind: 'resolve' }>,
  nowMs: number,
): ActDecision {
  const { outcome, write } = decideResolve(record, { ref, verdict, attempt, retentionMs }, nowMs)
  if (write !== undefined) {
    return acted(record, write, { verdict: verdict.kind, from: record.state })
  }
  if (outcome.kind !== 'other_attempt') return refused(record)
  return { outcome: { kind: 'refused', subject: record.recordId, reason: 'other_attempt' } }
}

/** Clears the token, so that the former holder can no longer settle the record. */
function release(record: StoredRecord, nowMs: number): ActDecision {
  if (nextState(record.state, 'operator_release') === undefined) return refused(record)
  const write: StoredRecord = {
    ...record,
    state: 'failed_retryable',
    proof: 'declared',
    token: NO_TOKEN,
    reconcileAtMs: resumeAt(record, nowMs),
    leaseUntilMs: Math.min(record.leaseUntilMs, nowMs),
  }
  return acted(record, write, { from: record.state })
}

/** Running the work again may repeat its outside effects, so the operator must accept that. */
function discardReply(
  record: StoredRecord,
  phase: StoredPhase | undefined,
  act: Extract<RecordAct, { kind: 'discard_reply' }>,
): ActDecision {
  const { recordId: subject } = record
  const { outcome, write } = decideDiscard(record, act)
  switch (outcome.kind) {
    case 'discarded':
      if (write === undefined) return { outcome: { kind: 'already', subject } }
      break
    case 'other_attempt':
      return { outcome: { kind: 'refused', subject, reason: 'other_attempt' } }
    case 'not_completed':
    case 'not_found':
      return refused(record)
  }
  if (phase !== undefined && !act.despiteEffects) {
    const reason = phase.state === 'done' ? 'effect_done' : 'effect_in_doubt'
    return { outcome: { kind: 'refused', subject, reason } }
  }
  const ids = act.idSeed === undefined ? 'same' : 'fresh'
  const effects = phase === undefined ? 'none' : phase.state
  return { ...acted(record, write, { from: record.state, ids, effects }), discarded: record }
}

function requeue(record: StoredRecord, nowMs: number): ActDecision {
  const isWaiting =
    record.state === 'unknown' ||
    record.state === 'pending' ||
    (record.state === 'failed_retryable' && record.recoveryPoint !== undefined)
  if (!isWaiting) return refused(record)
  return acted(record, { ...record, reconcileAtMs: nowMs, tries: 0 }, { from: record.state })
}

function refused({ recordId: subject, state: reason }: StoredRecord): ActDecision {
  return { outcome: { kind: 'refused', subject, reason } }
}

function acted(
  { recordId: subject }: StoredRecord,
  write: StoredRecord,
  detail: Readonly<Record<string, string>>,
): ActDecision {
  return {
    outcome: { kind: 'done', subject, record: toView(write) },
    record: write,
    detail: JSON.stringify(detail),
  }
}
