import { describe, expect, it } from 'vitest'
import {
  decideAct,
  decideStep,
  STARTED,
  type RecordAct,
} from '../../../src/stores/kit/decide-durable.ts'
import { NO_TOKEN } from '../../../src/core/record/expiry.ts'
import type { PhaseStep, Step, StoredPhase } from '../../../src/core/store/durable-store.ts'
import {
  addError,
  decideMessageAct,
  readErrors,
  toErrorText,
} from '../../../src/stores/kit/messages.ts'
import {
  MOVES,
  RECORD_STATES,
  type RecordState,
  type StoredRecord,
} from '../../../src/core/record/record.ts'

const NOW = 1_000_000
const TOKEN = 'f'.repeat(32)
const LEASE = { identity: 'a'.repeat(32), token: TOKEN, attempt: 2 }
const BYTES = new Uint8Array([1, 2, 3])

function recordOf(overrides: Partial<StoredRecord> = {}): StoredRecord {
  return {
    identity: LEASE.identity,
    recordId: 'record-1',
    idSeed: undefined,
    tenant: 'tenant',
    operation: 'POST /payments',
    key: 'key',
    fingerprint: 'fingerprint',
    state: 'in_progress',
    attempt: 2,
    lapses: 0,
    token: TOKEN,
    leaseUntilMs: NOW + 500,
    leaseMs: 1_000,
    onLapse: 'resume',
    afterExpiry: 'new',
    refuseForMs: undefined,
    proof: undefined,
    recoveryPoint: STARTED,
    result: undefined,
    errorCode: undefined,
    reconcileAtMs: undefined,
    tries: 3,
    createdAtMs: NOW - 1000,
    lastRunAtMs: NOW - 500,
    completedAtMs: undefined,
    expiresAtMs: NOW + 10_000,
    ...overrides,
  }
}

function phaseOf(overrides: Partial<StoredPhase> = {}): StoredPhase {
  return {
    name: 'charge',
    number: 1,
    kind: 'external',
    state: 'intended',
    request: BYTES,
    result: undefined,
    downstreamKey: 'downstream',
    providerId: undefined,
    attempt: 1,
    firstSentAt: new Date(NOW - 900),
    sentAt: new Date(NOW - 900),
    doneAt: undefined,
    ...overrides,
  }
}

const PLACE = { name: 'charge', number: 1 }
const PHASES: readonly PhaseStep[] = [
  { ...PLACE, kind: 'transaction', result: BYTES },
  { ...PLACE, kind: 'intent', request: BYTES, downstreamKey: 'downstream' },
  { ...PLACE, kind: 'result', result: BYTES, downstreamKey: 'downstream', providerId: undefined },
  { ...PLACE, kind: 'clear' },
]
const ENDS: readonly Step['end'][] = [
  undefined,
  { kind: 'complete', result: BYTES, retentionMs: 100 },
  { kind: 'hand_over', afterMs: 70 },
]
const STEPS = [undefined, ...PHASES].flatMap((phase) => ENDS.map((end) => ({ phase, end })))
const PHASES_BEFORE = [undefined, phaseOf(), phaseOf({ state: 'done', result: BYTES })]

const REF = { recordId: 'record-1' }
const ACTS: readonly RecordAct[] = [
  {
    kind: 'conclude',
    phase: REF,
    finding: { kind: 'done', result: BYTES, providerId: undefined },
  },
  { kind: 'conclude', phase: REF, finding: { kind: 'not_executed' } },
  { kind: 'resolve', ref: REF, verdict: { kind: 'completed', result: BYTES }, retentionMs: 1 },
  { kind: 'resolve', ref: REF, verdict: { kind: 'failed_retryable' }, retentionMs: 1 },
  { kind: 'release', ref: REF },
  { kind: 'discard_reply', ref: REF, attempt: 2, despiteEffects: false },
  { kind: 'discard_reply', ref: REF, attempt: 2, despiteEffects: true },
  { kind: 'requeue', ref: REF },
]

/** The state itself, and the states that a record can move to from it. */
function reachable(from: RecordState): readonly string[] {
  return [from, ...Object.values(MOVES[from])]
}

describe('decideStep', () => {
  it.each(STEPS)(
    'a step moves a record only as the state machine allows ($phase.kind, $end.kind)',
    (step) => {
      for (const state of RECORD_STATES) {
        for (const before of PHASES_BEFORE) {
          const { write } = decideStep(recordOf({ state }), before, { lease: LEASE, step }, NOW)
          if (write === undefined) continue
          expect(state).toBe('in_progress')
          expect(reachable(state)).toContain(write.state)
        }
      }
    },
  )

  it.each(STEPS)('a step of another lease writes nothing ($phase.kind, $end.kind)', (step) => {
    for (const lease of [
      { ...LEASE, token: 'e'.repeat(32) },
      { ...LEASE, token: NO_TOKEN },
      { ...LEASE, attempt: 1 },
    ]) {
      for (const state of RECORD_STATES) {
        const { outcome, write, phase } = decideStep(
          recordOf({ state }),
          undefined,
          { lease, step },
          NOW,
        )
        expect([write, phase]).toEqual([undefined, undefined])
        // Only the token is compared: an attempt that has handed over is not counted.
        const isRepeated = lease.token === TOKEN && state === 'pending'
        const isAdvanced = isRepeated && step.end?.kind === 'hand_over'
        if (isAdvanced) expect(outcome.kind).toBe('advanced')
        else expect(outcome).toEqual({ kind: 'fenced', own: false, state })
      }
    }
  })

  it.each(STEPS)('a step writes a phase only together with its record ($phase.kind)', (step) => {
    for (const state of RECORD_STATES) {
      for (const before of PHASES_BEFORE) {
        const decision = decideStep(recordOf({ state }), before, { lease: LEASE, step }, NOW)
        if (decision.write === undefined) expect(decision.phase).toBe(undefined)
        else expect(decision.outcome.kind).toBe('advanced')
      }
    }
  })

  it('a step keeps the recovery point until the next phase is done', () => {
    const record = recordOf({ recoveryPoint: 'booked' })
    const points = PHASES.map((phase) => {
      return decideStep(record, undefined, { lease: LEASE, step: { phase } }, NOW).write
    }).map((write) => write?.recoveryPoint)
    expect(points).toEqual(['charge', 'booked', 'charge', 'booked'])
    const first = recordOf({ recoveryPoint: undefined })
    const { write } = decideStep(first, undefined, { lease: LEASE, step: {} }, NOW)
    expect(write?.recoveryPoint).toBe(STARTED)
  })

  it('a repeated hand-over is advanced again, and other steps of its lease are fenced', () => {
    const record = recordOf({ state: 'pending' })
    for (const step of STEPS) {
      const { outcome, write } = decideStep(record, undefined, { lease: LEASE, step }, NOW)
      expect(write).toBe(undefined)
      expect(outcome.kind).toBe(step.end?.kind === 'hand_over' ? 'advanced' : 'fenced')
    }
  })

  it('a hand-over ends the lease, sets the due time and uncounts the attempt', () => {
    const step = { end: { kind: 'hand_over', afterMs: 70 } } as const
    const { write } = decideStep(recordOf(), undefined, { lease: LEASE, step }, NOW)
    const pending = { state: 'pending', leaseUntilMs: NOW, reconcileAtMs: NOW + 70 } as const
    const unheld = { ...pending, leaseMs: undefined }
    expect(write).toEqual(recordOf({ ...unheld, attempt: LEASE.attempt - 1 }))
  })
})

describe('decideAct', () => {
  it.each(ACTS)('an act of kind $kind moves a record only as the state machine allows', (act) => {
    for (const state of RECORD_STATES) {
      for (const before of PHASES_BEFORE) {
        const { outcome, record } = decideAct(recordOf({ state }), before, act, NOW)
        if (record === undefined) expect(outcome.kind).not.toBe('done')
        else expect(reachable(state)).toContain(record.state)
      }
    }
  })

  it.each(ACTS)(
    'an act of kind $kind has the previous state in its audit detail when it is done',
    (act) => {
      for (const state of RECORD_STATES) {
        for (const before of PHASES_BEFORE) {
          const { outcome, detail } = decideAct(recordOf({ state }), before, act, NOW)
          if (outcome.kind !== 'done') expect(detail).toBe(undefined)
          else expect(JSON.parse(detail ?? '')).toMatchObject({ from: state })
        }
      }
    },
  )

  it.each(ACTS)('an act of kind $kind is not_found when the record does not exist', (act) => {
    expect(decideAct(undefined, undefined, act, NOW)).toEqual({ outcome: { kind: 'not_found' } })
  })

  it('a release clears the token of the holder and ends its lease', () => {
    const { record } = decideAct(recordOf(), undefined, { kind: 'release', ref: REF }, NOW)
    expect(record).toMatchObject({ token: NO_TOKEN, leaseUntilMs: NOW, proof: 'declared' })
    const lapsed = recordOf({ leaseUntilMs: NOW - 7 })
    const earlier = decideAct(lapsed, undefined, { kind: 'release', ref: REF }, NOW)
    expect(earlier.record).toMatchObject({ leaseUntilMs: NOW - 7 })
  })

  it('a conclude without a provider id keeps the stored provider id', () => {
    const finding = { kind: 'done', result: BYTES, providerId: undefined } as const
    const before = phaseOf({ providerId: 'ch_1' })
    const decision = decideAct(recordOf(), before, { kind: 'conclude', phase: REF, finding }, NOW)
    expect(decision.phase).toMatchObject({ kind: 'put', phase: { providerId: 'ch_1' } })
  })

  it('an act that frees a record sets a due time only if it has an operation', () => {
    for (const act of ACTS) {
      const plain = recordOf({ state: 'unknown', recoveryPoint: undefined })
      const { record } = decideAct(plain, undefined, act, NOW)
      if (record === undefined || act.kind === 'requeue') continue
      expect(record.reconcileAtMs).toBe(undefined)
    }
  })
})

describe('messages', () => {
  it('a message keeps its last ten errors, in text that every database can hold', () => {
    let errors = '[]'
    for (let attempt = 1; attempt <= 12; attempt++) {
      errors = addError(errors, { atMs: NOW, attempt, error: `try ${attempt}` })
    }
    const kept = readErrors(errors)
    expect(kept.map(({ attempt }) => attempt)).toEqual([3, 4, 5, 6, 7, 8, 9, 10, 11, 12])
    expect(kept[0]).toEqual({ at: new Date(NOW), attempt: 3, error: 'try 3' })
    expect(toErrorText('a\0b\uD800')).toBe('a\uFFFDb\uFFFD')
    expect(toErrorText('x'.repeat(501)).length).toBe(500)
  })

  it('a message is retried or dropped only when it is dead', () => {
    const decide = (state: Parameters<typeof decideMessageAct>[0]['state']) =>
      (['retry_message', 'drop_message'] as const).map(
        (kind) => decideMessageAct({ state, attempt: 4 }, { kind, messageId: 'id' }).kind,
      )
    expect(decide('ready')).toEqual(['already', 'refused'])
    expect(decide('held')).toEqual(['refused', 'refused'])
    expect(decide('done')).toEqual(['refused', 'refused'])
    expect(decide('dead')).toEqual(['done', 'done'])
    expect(decide('dropped')).toEqual(['refused', 'already'])
  })
})
