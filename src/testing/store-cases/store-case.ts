import assert from 'node:assert/strict'
import { identityOf, newRecordId, newToken } from '../../core/record/identity.ts'
import type {
  ClaimOutcome,
  ClaimRequest,
  Lease,
  RecordView,
  SettleOutcome,
  Settlement,
  Store,
} from '../../core/store/store.ts'
import type { FakeClock } from '../fake-clock.ts'

export interface StoreFixture {
  /** An empty store. Create a new one for every case. */
  readonly store: Store
  /** The clock that the store was created with. Cases move it to let leases and records expire. */
  readonly clock: FakeClock
}

export interface StoreCase {
  /** A whole statement about behaviour. Skip a case by this name. */
  readonly name: string
  /** Run the case only on stores that have these methods. */
  readonly needs?: StoreNeed | readonly StoreNeed[]
  readonly run: (fixture: StoreFixture) => Promise<void>
}

/** A method or part that a store may leave out. */
export type StoreNeed = 'transaction' | 'history' | 'discard'

export const LEASE_MS = 10_000
export const RETENTION_MS = 60_000

/** A claim of `key-1` with a new token. `overrides` replaces any of its fields. */
export function claimRequest(overrides: Partial<ClaimRequest> = {}): ClaimRequest {
  const { tenant = 'tenant-1', operation = 'POST /payments', key = 'key-1' } = overrides
  return {
    mode: 'hold',
    identity: identityOf({ tenant, operation }, key),
    tenant,
    operation,
    key,
    fingerprint: 'fingerprint-1',
    recordId: newRecordId(0),
    idSeed: undefined,
    token: newToken(),
    leaseMs: LEASE_MS,
    retentionMs: RETENTION_MS,
    onLapse: 'unknown',
    maxLapses: 5,
    afterExpiry: 'new',
    refuseForMs: undefined,
    ...overrides,
  }
}

/** Claims of `count` different keys for one batch. */
export function claimRequests(
  count: number,
  overrides: Partial<ClaimRequest> = {},
): ClaimRequest[] {
  return Array.from({ length: count }, (_, n) => claimRequest({ key: `key-${n}`, ...overrides }))
}

export async function claim(
  store: Store,
  overrides: Partial<ClaimRequest> = {},
): Promise<ClaimOutcome> {
  return only(await store.claim([claimRequest(overrides)]))
}

/** Claims the key and fails the case if the claim does not win. */
export async function hold(store: Store, overrides: Partial<ClaimRequest> = {}): Promise<Lease> {
  return ofKind(await claim(store, overrides), 'claimed').lease
}

export async function settle(store: Store, settlement: Settlement): Promise<SettleOutcome> {
  return only(await store.settle([settlement]))
}

export function completeOf(lease: Lease, result = bytes('done')): Settlement {
  return { kind: 'complete', lease, result, retentionMs: RETENTION_MS }
}

export function releaseOf(
  lease: Lease,
  proof: 'proven' | 'declared' = 'proven',
): Extract<Settlement, { kind: 'release' }> {
  return { kind: 'release', lease, proof, errorCode: 'refused', retentionMs: RETENTION_MS }
}

export function doubtOf(
  lease: Lease,
  reconcileAfterMs = 0,
): Extract<Settlement, { kind: 'doubt' }> {
  return { kind: 'doubt', lease, errorCode: 'timed_out', reconcileAfterMs }
}

/** Holds a key and completes it. */
export async function finish(
  store: Store,
  overrides: Partial<ClaimRequest> = {},
  result = bytes('done'),
): Promise<Lease> {
  const lease = await hold(store, overrides)
  ofKind(await settle(store, completeOf(lease, result)), 'settled')
  return lease
}

export async function viewOf(
  store: Store,
  { identity }: Pick<Lease, 'identity'>,
): Promise<RecordView> {
  const view = await store.read({ identity })
  assert.ok(view !== undefined, 'expected a record, found none')
  return view
}

export function ofKind<Outcome extends { kind: string }, Kind extends Outcome['kind']>(
  outcome: Outcome,
  kind: Kind,
): Extract<Outcome, { kind: Kind }> {
  assert.equal(outcome.kind, kind)
  return outcome as Extract<Outcome, { kind: Kind }>
}

export function only<Item>(items: readonly Item[]): Item {
  assert.equal(items.length, 1, `expected one answer, got ${items.length}`)
  return items[0]!
}

/** Counts the outcomes of each kind. Race cases assert on these counts. */
export function tally(outcomes: readonly { kind: string }[]): Record<string, number> {
  const counts: Record<string, number> = {}
  for (const { kind } of outcomes) counts[kind] = (counts[kind] ?? 0) + 1
  return counts
}

/** Runs `work` `count` times concurrently. */
export function race<Result>(count: number, work: () => Promise<Result>): Promise<Result[]> {
  return Promise.all(Array.from({ length: count }, work))
}

export function bytes(text: string): Uint8Array {
  return new TextEncoder().encode(text)
}

/** Compares the bytes only: a `Buffer` and a `Uint8Array` with the same bytes are equal. */
export function assertBytes(actual: Uint8Array | undefined, expected: Uint8Array): void {
  assert.ok(actual !== undefined, 'expected bytes, found none')
  assert.ok(Buffer.from(expected).equals(actual), 'the bytes differ')
}
