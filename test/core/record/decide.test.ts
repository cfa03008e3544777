import { describe, expect, it } from 'vitest'
import {
  LAPSED,
  decideClaim,
  decideReap,
  decideRenew,
  decideResolve,
  decideSettle,
  decideSweep,
  toSwept,
  toView,
} from '../../../src/core/record/decide.ts'
import { LEASE_AHEAD_MS, decideShorten } from '../../../src/core/record/shorten-lease.ts'
import type { StoredRecord } from '../../../src/core/record/record.ts'
import type { ClaimRequest, Lease, Settlement } from '../../../src/core/store/store.ts'
import { bytes } from '../engine/engine-fixture.ts'

const NOW_MS = 1_000_000

function claimRequest(changes: Partial<ClaimRequest> = {}): ClaimRequest {
  return {
    mode: 'hold',
    identity: 'i',
    tenant: 't',
    operation: 'o',
    key: 'k',
    fingerprint: 'f',
    recordId: 'r1',
    idSeed: undefined,
    token: 'token 1',
    leaseMs: 1_000,
    retentionMs: 10_000,
    onLapse: 'unknown',
    maxLapses: 5,
    afterExpiry: 'new',
    refuseForMs: undefined,
    ...changes,
  }
}

/** A record that was just claimed, and its lease. */
function held(changes: Partial<ClaimRequest> = {}): { record: StoredRecord; lease: Lease } {
  const { outcome, write } = decideClaim(undefined, claimRequest(changes), NOW_MS)
  if (outcome.kind !== 'claimed') return expect.fail(`got ${outcome.kind}`)
  return { record: write!, lease: outcome.lease }
}

const another = (changes: Partial<ClaimRequest> = {}): ClaimRequest =>
  claimRequest({ recordId: 'r2', token: 'token 2', ...changes })

const complete = (lease: Lease, text = 'done', retentionMs = 10_000): Settlement => {
  return { kind: 'complete', lease, result: bytes(text), retentionMs }
}

const release = (lease: Lease, proof: 'proven' | 'declared'): Settlement => {
  return { kind: 'release', lease, proof, errorCode: 'why', retentionMs: 10_000 }
}

const doubt = (lease: Lease, reconcileAfterMs = 500): Settlement => {
  return { kind: 'doubt', lease, errorCode: 'lost', reconcileAfterMs }
}

function settled(record: StoredRecord, settlement: Settlement, nowMs = NOW_MS): StoredRecord {
  return decideSettle(record, settlement, nowMs).write ?? expect.fail('expected a write')
}

describe('a claim', () => {
  it('a claim with another fingerprint is a mismatch in every state', () => {
    const { record, lease } = held()
    const states = [record, settled(record, complete(lease)), settled(record, doubt(lease))]
    for (const state of [...states, { ...record, leaseUntilMs: NOW_MS }]) {
      expect(decideClaim(state, another({ fingerprint: 'g' }), NOW_MS)).toEqual({
        outcome: { kind: 'mismatch', recordId: 'r1', fingerprint: 'f' },
      })
    }
  })

  it('a repeated claim is recognised, and nothing is written twice', () => {
    const { record } = held()
    const { outcome, write } = decideClaim(record, claimRequest(), NOW_MS + 5_000)
    expect(outcome).toMatchObject({ kind: 'claimed', from: 'new', lease: { attempt: 1 } })
    expect(write).toBeUndefined()
  })

  // The claim takes effect unanswered, is released by its token, and then arrives again.
  it('a claim does not take the key again when it arrives again after its release', () => {
    const { record, lease } = held()
    const released = settled(record, release({ ...lease, attempt: 0 }, 'proven'))
    const { outcome, write } = decideClaim(released, claimRequest(), NOW_MS)
    expect(outcome).toMatchObject({ kind: 'in_progress', recordId: 'r1', leaseLeftMs: 0 })
    expect(write).toBeUndefined()
    expect(decideClaim(released, another(), NOW_MS).outcome.kind).toBe('claimed')
  })

  it('a conflict contains the remaining lease of the holder and the record id', () => {
    const { record } = held()
    const { outcome } = decideClaim(record, another(), NOW_MS + 400)
    const expiresAt = new Date(record.expiresAtMs)
    expect(outcome).toEqual({ kind: 'in_progress', recordId: 'r1', leaseLeftMs: 600, expiresAt })
  })

  it('a claim makes a lapsed record unknown, once', () => {
    const { record } = held()
    const first = decideClaim(record, another(), NOW_MS + 1_000)
    const unknown = { kind: 'unknown', recordId: 'r1', attempt: 1, reconcileInMs: 0 }
    expect(first.outcome).toEqual({ ...unknown, lapsed: true })
    expect(first.write).toMatchObject({ state: 'unknown', errorCode: LAPSED, token: 'token 1' })
    const second = decideClaim(first.write, another(), NOW_MS + 1_000)
    expect(second).toEqual({ outcome: { ...unknown, lapsed: false } })
  })

  it('a claim takes a lapsed key over if that is allowed, until maxLapses', () => {
    let { record } = held({ onLapse: 'rerun', maxLapses: 3 })
    let nowMs = NOW_MS
    for (const attempt of [2, 3]) {
      nowMs += 1_000
      const request = another({ token: `token ${attempt}`, onLapse: 'rerun', maxLapses: 3 })
      const { outcome, write } = decideClaim(record, request, nowMs)
      expect(outcome).toMatchObject({ kind: 'claimed', from: 'lapsed', lease: { attempt } })
      record = write!
    }
    expect(record).toMatchObject({ lapses: 2, recordId: 'r1', onLapse: 'unknown' })
    const given = decideClaim(record, another({ onLapse: 'rerun' }), nowMs + 1_000)
    expect(given.outcome.kind).toBe('unknown')
  })

  it('a claim follows the lapse policy of the earlier attempt, not its own', () => {
    const { record } = held({ onLapse: 'unknown' })
    const { outcome } = decideClaim(record, another({ onLapse: 'rerun' }), NOW_MS + 1_000)
    expect(outcome.kind).toBe('unknown')
  })

  it('a claim starts a new record when the old one has expired, for any fingerprint', () => {
    const { record, lease } = held()
    const done = settled(record, complete(lease))
    const atEnd = decideClaim(done, another({ fingerprint: 'g' }), done.expiresAtMs)
    expect(atEnd.outcome).toMatchObject({ kind: 'claimed', from: 'expired', recordId: 'r2' })
    expect(atEnd.write).toMatchObject({ attempt: 1, result: undefined, fingerprint: 'g' })
    const before = decideClaim(done, another(), done.expiresAtMs - 1)
    expect(before.outcome.kind).toBe('completed')
  })

  it('a claim of an expired key is refused when it asks for that', () => {
    const { record, lease } = held()
    const done = settled(record, complete(lease))
    const request = another({ afterExpiry: 'refuse' })
    const refused = { outcome: { kind: 'expired', recordId: 'r1' } }
    expect(decideClaim(done, request, done.expiresAtMs)).toEqual(refused)
    expect(decideClaim({ ...done, state: 'expired' }, request, NOW_MS)).toEqual(refused)
  })

  it('a claim of an accepted record is pending', () => {
    const pending: StoredRecord = { ...held().record, state: 'pending' }
    expect(decideClaim(pending, another(), NOW_MS)).toEqual({
      outcome: {
        kind: 'pending',
        recordId: 'r1',
        accepted: false,
        expiresAt: new Date(pending.expiresAtMs),
      },
    })
  })

  it('a claim of an empty result gets no bytes, not undefined', () => {
    const record: StoredRecord = { ...held().record, state: 'completed', result: undefined }
    const { outcome } = decideClaim(record, another(), NOW_MS)
    expect(outcome).toMatchObject({ kind: 'completed', result: new Uint8Array(0) })
  })
})

describe('a settlement', () => {
  it('a settlement is fenced by token and attempt', () => {
    const { record, lease } = held()
    for (const forged of [
      { ...lease, token: 'token 2' },
      { ...lease, attempt: 2 },
      { ...lease, attempt: 0 },
    ]) {
      const fenced = { outcome: { kind: 'fenced', own: false, state: 'in_progress' } }
      expect(decideSettle(record, complete(forged), NOW_MS)).toEqual(fenced)
      expect(decideSettle(record, doubt(forged), NOW_MS)).toEqual(fenced)
    }
    expect(decideSettle(undefined, complete(lease), NOW_MS)).toEqual({
      outcome: { kind: 'fenced', own: false, state: 'absent' },
    })
  })

  it('a repeated settlement is recognised, and changes nothing', () => {
    const { record, lease } = held()
    for (const settlement of [complete(lease), release(lease, 'declared'), doubt(lease)]) {
      const after = settled(record, settlement)
      const { outcome, write } = decideSettle(after, settlement, NOW_MS + 5_000)
      expect(outcome).toEqual({ kind: 'settled', expiresAt: new Date(after.expiresAtMs) })
      expect(write).toBeUndefined()
    }
  })

  it('a settlement reports that its own attempt had completed', () => {
    const { record, lease } = held()
    const done = settled(record, complete(lease))
    const own = { outcome: { kind: 'fenced', own: true, state: 'completed' } }
    expect(decideSettle(done, release(lease, 'proven'), NOW_MS)).toEqual(own)
    expect(decideSettle(done, doubt(lease), NOW_MS)).toEqual(own)
  })

  it('a late settlement decides an unknown record, unless it is only declared', () => {
    const { record, lease } = held()
    const unknown = settled(record, doubt(lease))
    expect(settled(unknown, complete(lease))).toMatchObject({
      state: 'completed',
      errorCode: undefined,
      reconcileAtMs: undefined,
    })
    expect(settled(unknown, release(lease, 'proven')).state).toBe('failed_retryable')
    expect(decideSettle(unknown, release(lease, 'declared'), NOW_MS)).toEqual({
      outcome: { kind: 'fenced', own: true, state: 'unknown' },
    })
  })

  it('a settlement keeps a published expiry that is later than the new one', () => {
    const { record, lease } = held({ retentionMs: 50_000 })
    for (const settlement of [complete(lease, 'done', 1), release(lease, 'proven')]) {
      expect(settled(record, settlement).expiresAtMs).toBe(NOW_MS + 50_000)
    }
    expect(settled(record, complete(lease, 'done', 90_000)).expiresAtMs).toBe(NOW_MS + 90_000)
  })

  it('a doubt states when it should be reconciled', () => {
    const { record, lease } = held()
    const unknown = settled(record, doubt(lease, 500))
    expect(unknown).toMatchObject({ state: 'unknown', reconcileAtMs: NOW_MS + 500 })
    const { outcome } = decideClaim(unknown, another(), NOW_MS + 100)
    expect(outcome).toMatchObject({ kind: 'unknown', reconcileInMs: 400 })
    const late = decideClaim(unknown, another(), NOW_MS + 900)
    expect(late.outcome).toMatchObject({ reconcileInMs: 0 })
  })
})

describe('a lease from before the clock was set back', () => {
  const { record } = held({ onLapse: 'rerun' })
  const backMs = NOW_MS - LEASE_AHEAD_MS

  it('a lease is shortened only when it is further ahead than any call may be late', () => {
    expect(decideShorten(record, backMs)).toBeUndefined()
    const write = { ...record, leaseUntilMs: backMs - 1 + 1_000 }
    expect(decideShorten(record, backMs - 1)).toEqual(write)
    expect(decideShorten(write, backMs - 1)).toBeUndefined()
  })

  it('a claim shortens a lease from before a clock change, and reports the rest', () => {
    const { outcome, write } = decideClaim(record, another(), NOW_MS - 3_600_000)
    expect(outcome).toMatchObject({ kind: 'in_progress', leaseLeftMs: 1_000 })
    expect(write).toEqual({ ...record, leaseUntilMs: NOW_MS - 3_600_000 + 1_000 })
    expect(decideSweep(record, NOW_MS - 3_600_000)).toBeUndefined()
  })

  it('a lease stays unchanged when its duration is unknown, or nothing is held', () => {
    const earlierMs = NOW_MS - 3_600_000
    expect(decideShorten({ ...record, leaseMs: undefined }, earlierMs)).toBeUndefined()
    expect(decideShorten({ ...record, state: 'unknown' }, earlierMs)).toBeUndefined()
    expect(decideClaim({ ...record, leaseMs: undefined }, another(), earlierMs)).toMatchObject({
      outcome: { leaseLeftMs: 3_600_000 + 1_000 },
    })
  })
})

describe('a renewal', () => {
  it('a renewal counts from now, and also saves a lapsed lease that was not taken', () => {
    const { record, lease } = held()
    const renewal = { ...lease, leaseMs: 2_000 }
    expect(decideRenew(record, renewal, NOW_MS + 500)?.leaseUntilMs).toBe(NOW_MS + 2_500)
    expect(decideRenew(record, renewal, NOW_MS + 5_000)?.leaseUntilMs).toBe(NOW_MS + 7_000)
  })

  it('a renewal fails when the record has moved on', () => {
    const { record, lease } = held()
    const renewal = { ...lease, leaseMs: 2_000 }
    expect(decideRenew(undefined, renewal, NOW_MS)).toBeUndefined()
    expect(decideRenew({ ...record, attempt: 2 }, renewal, NOW_MS)).toBeUndefined()
    expect(decideRenew({ ...record, token: 'x' }, renewal, NOW_MS)).toBeUndefined()
    expect(decideRenew(settled(record, doubt(lease)), renewal, NOW_MS)).toBeUndefined()
    expect(decideRenew(settled(record, complete(lease)), renewal, NOW_MS)).toBeUndefined()
  })
})

describe('a verdict', () => {
  const verdict = (kind: 'completed' | 'failed_retryable') => {
    const result = bytes('found out')
    return {
      ref: { identity: 'i' },
      verdict: kind === 'completed' ? { kind, result } : { kind },
      retentionMs: 10_000,
    } as const
  }

  it('a verdict of completion stands, even against a late holder', () => {
    const { record, lease } = held()
    const unknown = settled(record, doubt(lease))
    const { outcome, write } = decideResolve(unknown, verdict('completed'), NOW_MS)
    expect(outcome.kind).toBe('resolved')
    expect(write).toMatchObject({ state: 'completed', result: bytes('found out'), token: '' })
    const late = decideSettle(write, complete(lease, 'other'), NOW_MS)
    expect(late).toEqual({ outcome: { kind: 'fenced', own: false, state: 'completed' } })
  })

  it('a verdict of no effect yields to a late complete until the next claim', () => {
    const { record, lease } = held()
    const unknown = settled(record, doubt(lease))
    const free = decideResolve(unknown, verdict('failed_retryable'), NOW_MS).write!
    expect(free).toMatchObject({ state: 'failed_retryable', proof: 'proven' })
    expect(settled(free, complete(lease)).state).toBe('completed')
    const taken = decideClaim(free, another(), NOW_MS).write!
    expect(decideSettle(taken, complete(lease), NOW_MS).outcome.kind).toBe('fenced')
  })

  it('a verdict applies to unknown records only', () => {
    const { record } = held()
    expect(decideResolve(undefined, verdict('completed'), NOW_MS)).toEqual({
      outcome: { kind: 'not_found' },
    })
    expect(decideResolve(record, verdict('completed'), NOW_MS)).toEqual({
      outcome: { kind: 'not_unknown', state: 'in_progress' },
    })
  })
})

describe('a sweep', () => {
  it('a sweep moves a record from the moment its lease is over', () => {
    const { record } = held()
    expect(decideSweep(record, NOW_MS + 999)).toBeUndefined()
    const swept = decideSweep(record, NOW_MS + 1_000)!
    expect(swept).toMatchObject({ state: 'unknown', reconcileAtMs: NOW_MS + 1_000 })
    expect(toSwept(swept)).toMatchObject({ recordId: 'r1', attempt: 1, to: 'unknown' })
  })

  it('a sweep keeps a retryable record for another retention period', () => {
    const { record } = held({ onLapse: 'rerun' })
    const swept = decideSweep(record, NOW_MS + 60_000)!
    expect(swept).toMatchObject({ state: 'failed_retryable', lapses: 1, proof: 'proven' })
    expect(swept.expiresAtMs).toBe(NOW_MS + 70_000)
    expect(toSwept(swept).to).toBe('failed_retryable')
  })
})

const REAP = { limit: 10 }

describe('a reap', () => {
  it('a reap removes expired records, and never unknown or held ones', () => {
    const { record, lease } = held()
    const done = settled(record, complete(lease))
    expect(decideReap(done, REAP, done.expiresAtMs - 1)).toBeUndefined()
    expect(decideReap(done, REAP, done.expiresAtMs)).toEqual({ kind: 'removed' })
    expect(decideReap(record, REAP, NOW_MS + 1_000_000)).toBeUndefined()
    expect(decideReap(settled(record, doubt(lease)), REAP, NOW_MS + 1_000_000)).toBeUndefined()
  })

  it('a reap keeps a row without its result when the key must stay refused', () => {
    const { record, lease } = held({ afterExpiry: 'refuse' })
    const done = settled(record, complete(lease))
    const { kind, write: kept } = decideReap(done, REAP, done.expiresAtMs)!
    expect(kind).toBe('expired')
    expect(kept).toMatchObject({ state: 'expired', result: undefined, token: '', recordId: 'r1' })
    expect(decideReap(kept!, REAP, NOW_MS + 1_000_000)).toBeUndefined()
  })
})

describe('a view', () => {
  it('a view shows everything except the fence', () => {
    const { record, lease } = held()
    const unknown = settled(record, doubt(lease))
    const view = toView(unknown)
    expect(JSON.stringify(view)).not.toContain('token')
    expect(view).toMatchObject({
      state: 'unknown',
      leaseUntil: new Date(NOW_MS + 1_000),
      reconcileAt: new Date(NOW_MS + 500),
      createdAt: new Date(NOW_MS),
      lastRunAt: new Date(NOW_MS),
      completedAt: undefined,
      expiresAt: new Date(NOW_MS + 10_000),
    })
    expect(toView(settled(record, complete(lease))).completedAt).toEqual(new Date(NOW_MS))
  })
})
