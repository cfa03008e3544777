import { describe, expect, it } from 'vitest'
import { decideAct, decideStep, STARTED, type RecordAct } from '../../src/core/decide-durable.ts'
import { NO_TOKEN } from '../../src/core/decide.ts'
import type { PhaseStep, Step, StoredPhase } from '../../src/core/durable-store.ts'
import { addError, decideMessageAct, readErrors, toErrorText } from '../../src/core/messages.ts'
import { MOVES, RECORD_STATES, type RecordState, type StoredRecord } from '../../src/core/record.ts'

const NOW = 1_000_000
const TOKEN = 'f'.repeat(32)
const LEASE = { identity: 'a'.repeat(32), token: TOKEN, attempt: 2 }
const BYTES = new Uint8Array([1, 2, 3])

function recordOf(overrides: Partial<StoredRecord> = {}): StoredRecord {
  return {
    identity: LEASE.identity,
    recordId: 'record-1',
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
  { kind: 'bust', ref: REF },
  { kind: 'requeue', ref: REF },
]

/** The states that a record can come to from another one, or stay in. */
function reachable(from: RecordState): readonly string[] {
  return [from, ...Object.values(MOVES[from])]
}

describe('a step', () => {
  it.each(STEPS)(
    'moves a record as the state machine allows, or not at all ($phase.kind, $end.kind)',
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

  it.each(STEPS)('of another lease writes nothing ($phase.kind, $end.kind)', (step) => {
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
        // By its token alone: the attempt that has handed over does not count.
        const isRepeated = lease.token === TOKEN && state === 'pending'
        const isAdvanced = isRepeated && step.end?.kind === 'hand_over'
        if (isAdvanced) expect(outcome.kind).toBe('advanced')
        else expect(outcome).toEqual({ kind: 'fenced', own: false, state })
      }
    }
  })

  it.each(STEPS)('writes nothing of a phase without writing its record ($phase.kind)', (step) => {
    for (const state of RECORD_STATES) {
      for (const before of PHASES_BEFORE) {
        const decision = decideStep(recordOf({ state }), before, { lease: LEASE, step }, NOW)
        if (decision.write === undefined) expect(decision.phase).toBe(undefined)
        else expect(decision.outcome.kind).toBe('advanced')
      }
    }
  })

  it('keeps a recovery point until the next phase is done', () => {
    const record = recordOf({ recoveryPoint: 'booked' })
    const points = PHASES.map((phase) => {
      return decideStep(record, undefined, { lease: LEASE, step: { phase } }, NOW).write
    }).map((write) => write?.recoveryPoint)
    expect(points).toEqual(['charge', 'booked', 'charge', 'booked'])
    const first = recordOf({ recoveryPoint: undefined })
    const { write } = decideStep(first, undefined, { lease: LEASE, step: {} }, NOW)
    expect(write?.recoveryPoint).toBe(STARTED)
  })

  it('says so again where it had handed over, and nothing else of that lease does', () => {
    const record = recordOf({ state: 'pending' })
    for (const step of STEPS) {
      const { outcome, write } = decideStep(record, undefined, { lease: LEASE, step }, NOW)
      expect(write).toBe(undefined)
      expect(outcome.kind).toBe(step.end?.kind === 'hand_over' ? 'advanced' : 'fenced')
    }
  })

  it('hands over what is then due after so long, held by nobody, and not counted', () => {
    const step = { end: { kind: 'hand_over', afterMs: 70 } } as const
    const { write } = decideStep(recordOf(), undefined, { lease: LEASE, step }, NOW)
    const pending = { state: 'pending', leaseUntilMs: NOW, reconcileAtMs: NOW + 70 } as const
    const unheld = { ...pending, leaseMs: undefined }
    expect(write).toEqual(recordOf({ ...unheld, attempt: LEASE.attempt - 1 }))
  })
})

describe('an act', () => {
  it.each(ACTS)('of kind $kind moves a record as the state machine allows', (act) => {
    for (const state of RECORD_STATES) {
      for (const before of PHASES_BEFORE) {
        const { outcome, record } = decideAct(recordOf({ state }), before, act, NOW)
        if (record === undefined) expect(outcome.kind).not.toBe('done')
        else if (record === 'remove') expect(reachable(state)).toContain('absent')
        else expect(reachable(state)).toContain(record.state)
      }
    }
  })

  it.each(ACTS)('of kind $kind tells the audit what the record was, where it was done', (act) => {
    for (const state of RECORD_STATES) {
      for (const before of PHASES_BEFORE) {
        const { outcome, detail } = decideAct(recordOf({ state }), before, act, NOW)
        if (outcome.kind !== 'done') expect(detail).toBe(undefined)
        else expect(JSON.parse(detail ?? '')).toMatchObject({ from: state })
      }
    }
  })

  it.each(ACTS)('of kind $kind finds nothing where there is no record', (act) => {
    expect(decideAct(undefined, undefined, act, NOW)).toEqual({ outcome: { kind: 'not_found' } })
  })

  it('that releases a record takes the word from whoever held it', () => {
    const { record } = decideAct(recordOf(), undefined, { kind: 'release', ref: REF }, NOW)
    expect(record).toMatchObject({ token: NO_TOKEN, leaseUntilMs: NOW, proof: 'declared' })
    const lapsed = recordOf({ leaseUntilMs: NOW - 7 })
    const earlier = decideAct(lapsed, undefined, { kind: 'release', ref: REF }, NOW)
    expect(earlier.record).toMatchObject({ leaseUntilMs: NOW - 7 })
  })

  it('that concludes keeps what the provider had told before', () => {
    const finding = { kind: 'done', result: BYTES, providerId: undefined } as const
    const before = phaseOf({ providerId: 'ch_1' })
    const decision = decideAct(recordOf(), before, { kind: 'conclude', phase: REF, finding }, NOW)
    expect(decision.phase).toMatchObject({ kind: 'put', phase: { providerId: 'ch_1' } })
  })

  it('that frees a record has it due only where it has an operation', () => {
    for (const act of ACTS) {
      const plain = recordOf({ state: 'unknown', recoveryPoint: undefined })
      const { record } = decideAct(plain, undefined, act, NOW)
      if (record === undefined || record === 'remove' || act.kind === 'requeue') continue
      expect(record.reconcileAtMs).toBe(undefined)
    }
  })
})

describe('a message', () => {
  it('keeps its last ten errors, each as any database can hold it', () => {
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

  it('is acted on where it is dead, and is left where it is as wanted', () => {
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
