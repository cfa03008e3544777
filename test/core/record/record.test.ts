import fc from 'fast-check'
import { decideDiscard } from '../../../src/core/record/decide-discard.ts'
import { describe, expect, it } from 'vitest'
import {
  decideClaim,
  decideReap,
  decideRenew,
  decideResolve,
  decideSettle,
  decideSweep,
} from '../../../src/core/record/decide.ts'
import { decideAct, decideStep, type RecordAct } from '../../../src/stores/kit/decide-durable.ts'
import type { Step as PhaseStep } from '../../../src/core/store/durable-store.ts'
import {
  MOVES,
  RECORD_STATES,
  nextState,
  type MoveName,
  type RecordState,
  type StoredRecord,
} from '../../../src/core/record/record.ts'
import type { ClaimRequest, Lease, Settlement } from '../../../src/core/store/store.ts'

const NOW_MS = 1_000_000
const LEASE_MS = 1_000
const RETENTION_MS = 10_000
const PAST_EXPIRY_MS = NOW_MS + 10 * RETENTION_MS

const STATES = ['absent', ...RECORD_STATES] as const
const MOVE_NAMES = [
  ...new Set(Object.values(MOVES).flatMap((moves) => Object.keys(moves))),
] as MoveName[]

describe('every pair of a state and a move', () => {
  for (const state of STATES) {
    for (const move of MOVE_NAMES) {
      const pair = `${state} ${move}`
      const expected = nextState(state, move)
      it(`${pair}: ${expected === undefined ? 'changes nothing' : `leads to ${expected}`}`, () => {
        expect(TRIGGERS[move](recordIn(state))).toBe(expected)
      })
    }
  }
})

type Trigger = (record: StoredRecord | undefined) => RecordState | 'absent' | undefined

/** Tries to make a move, and returns the resulting state. */
const TRIGGERS: Readonly<Record<MoveName, Trigger>> = {
  claim: (record) =>
    claimFrom(record, NOW_MS, ['new', 'retry']) ?? claimFrom(record, NOW_MS, ['accepted'], 'take'),
  take_over: (record) => claimFrom(lapsed(record, 'rerun'), NOW_MS, ['lapsed']),
  claim_expired: (record) => claimFrom(record, PAST_EXPIRY_MS, ['expired']),
  complete: (record) => settle(record, { kind: 'complete', result: BYTES }),
  release: (record) => settle(record, { kind: 'release', proof: 'proven' }),
  doubt: (record) => settle(record, { kind: 'doubt', reconcileAfterMs: 0 }),
  lapse_to_unknown: (record) => sweep(lapsed(record, 'unknown')),
  lapse_to_retryable: (record) => sweep(lapsed(record, 'rerun')),
  resolve_completed: (record) => resolve(record, { kind: 'completed', result: BYTES }),
  resolve_retryable: (record) => resolve(record, { kind: 'failed_retryable' }),
  expire: (record) => reapFinal(record && { ...record, afterExpiry: 'refuse' }),
  remove: (record) => reapFinal(record && { ...record, afterExpiry: 'new', reconcileAtMs: NOW_MS }),
  abandon: (record) => (record?.state === 'pending' ? reap(record) : undefined),
  accept: (record) => (record?.state === 'expired' ? undefined : acceptFrom(record, NOW_MS)),
  accept_lapsed: (record) =>
    record?.state === 'in_progress' ? acceptFrom(lapsed(record, 'rerun'), NOW_MS) : undefined,
  hand_over: (record) => advance(record, { end: { kind: 'hand_over', afterMs: 0 } }),
  operator_release: (record) => operate(record, { kind: 'release', ref: { identity: 'i' } }),
  discard: (record) => discard(record),
  accept_expired: (record) => (record ? acceptFrom(record, PAST_EXPIRY_MS) : undefined),
}

function claimFrom(
  record: StoredRecord | undefined,
  nowMs: number,
  from: readonly string[],
  mode: ClaimRequest['mode'] = 'hold',
): RecordState | undefined {
  const { outcome, write } = decideClaim(record, claimRequest({ token: 'another', mode }), nowMs)
  return outcome.kind === 'claimed' && from.includes(outcome.from) ? write?.state : undefined
}

function acceptFrom(record: StoredRecord | undefined, nowMs: number): RecordState | undefined {
  const request = claimRequest({ token: 'another', mode: 'accept' })
  return decideClaim(record, request, nowMs).write?.state
}

type Ending = { readonly [Key in string]: unknown } & Pick<Settlement, 'kind'>

function settle(record: StoredRecord | undefined, ending: Ending): RecordState | undefined {
  const lease = { identity: 'i', token: 'own', attempt: 1 }
  const settlement = { lease, retentionMs: RETENTION_MS, errorCode: undefined, ...ending }
  return decideSettle(record, settlement as unknown as Settlement, NOW_MS).write?.state
}

function sweep(record: StoredRecord | undefined): RecordState | undefined {
  return record && decideSweep(record, NOW_MS)?.state
}

function reap(record: StoredRecord | undefined): RecordState | 'absent' | undefined {
  const request = { limit: 1, abandoned: { result: BYTES, retentionMs: RETENTION_MS } }
  const decided = record && decideReap(record, request, PAST_EXPIRY_MS)
  return decided && (decided.write?.state ?? 'absent')
}

function reapFinal(record: StoredRecord | undefined): RecordState | 'absent' | undefined {
  return record?.state === 'pending' ? undefined : reap(record)
}

function advance(record: StoredRecord | undefined, asked: PhaseStep): RecordState | undefined {
  const lease = { identity: 'i', token: 'own', attempt: 1 }
  return decideStep(record, undefined, { lease, step: asked }, NOW_MS).write?.state
}

function operate(record: StoredRecord | undefined, act: RecordAct): RecordState | undefined {
  const { record: write } = decideAct(record, undefined, act, NOW_MS)
  return write?.state
}

function discard(record: StoredRecord | undefined): RecordState | undefined {
  const attempt = record?.attempt ?? 1
  return decideDiscard(record, { ref: { identity: 'i' }, attempt }).write?.state
}

type VerdictKind = Parameters<typeof decideResolve>[1]['verdict']

function resolve(record: StoredRecord | undefined, verdict: VerdictKind): RecordState | undefined {
  const asked = { ref: { identity: 'i' }, verdict, retentionMs: RETENTION_MS }
  return decideResolve(record, asked, NOW_MS).write?.state
}

const BYTES = new Uint8Array([1, 2, 3])

function claimRequest(changes: Partial<ClaimRequest> = {}): ClaimRequest {
  return {
    mode: 'hold',
    identity: 'i',
    tenant: 't',
    operation: 'o',
    key: 'k',
    fingerprint: 'f',
    recordId: 'r',
    idSeed: undefined,
    token: 'own',
    leaseMs: LEASE_MS,
    retentionMs: RETENTION_MS,
    onLapse: 'unknown',
    maxLapses: 5,
    afterExpiry: 'new',
    refuseForMs: undefined,
    ...changes,
  }
}

function recordIn(state: RecordState | 'absent'): StoredRecord | undefined {
  if (state === 'absent') return undefined
  // The lease outlives the expiry, so that only the expiry can end it.
  const request = claimRequest({ leaseMs: 1_000_000 })
  return { ...decideClaim(undefined, request, NOW_MS).write!, state }
}

function lapsed(
  record: StoredRecord | undefined,
  onLapse: StoredRecord['onLapse'],
): StoredRecord | undefined {
  return record && { ...record, leaseUntilMs: NOW_MS, onLapse }
}

describe('any history', () => {
  it('any history consists of legal moves and violates no invariant of the record', () => {
    fc.assert(
      fc.property(fc.array(step(), { minLength: 1, maxLength: 40 }), (steps) => {
        const history = new History()
        for (const taken of steps) history.take(taken)
      }),
      { numRuns: 3_000 },
    )
  })
})

type Step =
  | { op: 'claim'; changes: Partial<ClaimRequest>; repeat: boolean }
  | { op: 'settle'; kind: Settlement['kind']; lease: number; off: number; proven: boolean }
  | { op: 'renew'; lease: number; off: number }
  | { op: 'sweep' | 'reap' }
  | { op: 'resolve'; completed: boolean }
  | { op: 'wait'; ms: number }

function step(): fc.Arbitrary<Step> {
  const changes = fc.record({
    mode: fc.constantFrom('hold', 'hold', 'accept', 'take'),
    fingerprint: fc.constantFrom('f', 'f', 'f', 'g'),
    onLapse: fc.constantFrom('unknown', 'rerun', 'resume'),
    afterExpiry: fc.constantFrom('new', 'refuse'),
    maxLapses: fc.integer({ min: 1, max: 3 }),
    retentionMs: fc.constantFrom(RETENTION_MS, 2 * RETENTION_MS),
  })
  const lease = fc.nat({ max: 5 })
  const off = fc.constantFrom(0, 0, 0, 1, -1)
  return fc.oneof(
    fc.record({ op: fc.constant('claim'), changes, repeat: fc.boolean() }),
    fc.record({
      op: fc.constant('settle'),
      kind: fc.constantFrom('complete', 'release', 'doubt'),
      lease,
      off,
      proven: fc.boolean(),
    }),
    fc.record({ op: fc.constant('renew'), lease, off }),
    fc.record({ op: fc.constantFrom('sweep', 'reap') }),
    fc.record({ op: fc.constant('resolve'), completed: fc.boolean() }),
    fc.record({
      op: fc.constant('wait'),
      ms: fc.constantFrom(1, LEASE_MS, RETENTION_MS, 3 * RETENTION_MS),
    }),
  )
}

/** The moves that each operation may make. */
const MAY_MAKE: Readonly<Record<Step['op'] | Settlement['kind'], readonly MoveName[]>> = {
  claim: [
    'claim',
    'take_over',
    'lapse_to_unknown',
    'claim_expired',
    'accept',
    'accept_lapsed',
    'accept_expired',
  ],
  settle: [],
  complete: ['complete'],
  release: ['release'],
  doubt: ['doubt'],
  renew: [],
  sweep: ['lapse_to_unknown', 'lapse_to_retryable'],
  reap: ['remove', 'expire', 'abandon'],
  resolve: ['resolve_completed', 'resolve_retryable'],
  wait: [],
}

class History {
  record: StoredRecord | undefined
  #nowMs = NOW_MS
  #claims = 0
  #lastClaim: ClaimRequest | undefined
  readonly #leases: Lease[] = []

  take(step: Step): void {
    const before = this.record
    const wrote = this.#apply(step)
    if (wrote === undefined) return
    this.record = wrote === 'remove' ? undefined : wrote
    const ops = MAY_MAKE[step.op === 'settle' ? step.kind : step.op]
    const from = before?.state ?? 'absent'
    const to = this.record?.state ?? 'absent'
    const isRenewal = step.op === 'renew' && from === 'in_progress' && to === 'in_progress'
    const legal = isRenewal || ops.some((move) => nextState(from, move) === to)
    expect(legal, `${from} to ${to} by ${step.op}`).toBe(true)
    if (before !== undefined) this.#keepsPromises(before, step)
  }

  #keepsPromises(before: StoredRecord, step: Step): void {
    const after = this.record
    const live = before.state === 'in_progress' && before.leaseUntilMs > this.#nowMs
    if (live) expect(['settle', 'renew']).toContain(step.op)
    if (before.state === 'unknown') expect(['settle', 'resolve']).toContain(step.op)
    if (after === undefined || after.recordId !== before.recordId) return
    // A repeated claim whose record has expired starts that record again.
    if (step.op === 'claim' && step.repeat && after.createdAtMs === this.#nowMs) return
    if (step.op === 'claim' && after.state === 'in_progress') {
      expect(after.attempt).toBe(before.attempt + 1)
      expect(after.token).not.toBe(before.token)
    } else {
      expect(after.attempt).toBe(before.attempt)
    }
    // A published expiry never moves earlier.
    expect(after.expiresAtMs).toBeGreaterThanOrEqual(before.expiresAtMs)
    expect(after.createdAtMs).toBe(before.createdAtMs)
    if (before.state === 'completed') expect(after.state).toBe('expired')
  }

  #apply(step: Step): StoredRecord | 'remove' | undefined {
    const { record } = this
    switch (step.op) {
      case 'wait':
        this.#nowMs += step.ms
        return undefined
      case 'claim':
        return this.#claim(step.changes, step.repeat)
      case 'settle':
        return this.#settle(step)
      case 'renew': {
        const renewal = { ...this.#lease(step.lease, step.off), leaseMs: LEASE_MS }
        return decideRenew(record, renewal, this.#nowMs)
      }
      case 'sweep':
        return record && decideSweep(record, this.#nowMs)
      case 'reap':
        return this.#reap()
      case 'resolve': {
        const verdict = step.completed
          ? ({ kind: 'completed', result: BYTES } as const)
          : ({ kind: 'failed_retryable' } as const)
        const asked = { ref: { identity: 'i' }, verdict, retentionMs: RETENTION_MS }
        return decideResolve(record, asked, this.#nowMs).write
      }
    }
  }

  #reap(): StoredRecord | 'remove' | undefined {
    const request = { limit: 1, abandoned: { result: BYTES, retentionMs: RETENTION_MS } }
    const decided = this.record && decideReap(this.record, request, this.#nowMs)
    return decided && (decided.write ?? 'remove')
  }

  #claim(changes: Partial<ClaimRequest>, repeat: boolean): StoredRecord | undefined {
    const n = ++this.#claims
    const fresh = claimRequest({ recordId: `r${n}`, token: `token ${n}`, ...changes })
    const request = repeat && this.#lastClaim !== undefined ? this.#lastClaim : fresh
    const { outcome, write } = decideClaim(this.record, request, this.#nowMs)
    this.#lastClaim = request
    if (outcome.kind === 'claimed') {
      this.#leases.unshift(outcome.lease)
      // A claim that finds its own token has won before and writes nothing.
      if (this.record?.token === request.token && this.record.state === 'in_progress') {
        expect(write).toBeUndefined()
      }
    }
    return write
  }

  #settle({ kind, lease: n, off, proven }: Step & { op: 'settle' }): StoredRecord | undefined {
    const lease = this.#lease(n, off)
    const proof = proven ? 'proven' : 'declared'
    const rest = { retentionMs: RETENTION_MS, errorCode: undefined, reconcileAfterMs: 0, proof }
    const settlement = { kind, lease, result: BYTES, ...rest } as Settlement
    const { write } = decideSettle(this.record, settlement, this.#nowMs)
    if (write !== undefined) {
      const anyAttempt = kind === 'release' && lease.attempt === 0
      expect(this.record?.token).toBe(lease.token)
      if (!anyAttempt) expect(this.record?.attempt).toBe(lease.attempt)
    }
    return write
  }

  #lease(n: number, off: number): Lease {
    const lease = this.#leases[n] ?? { identity: 'i', token: 'forged', attempt: 1 }
    return { ...lease, attempt: lease.attempt + off }
  }
}
