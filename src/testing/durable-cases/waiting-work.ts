/** Work that waits for its turn, for the cases on fairness between tenants and operations. */
import assert from 'node:assert/strict'
import type { OperationName } from '../../core/store/durable-store.ts'
import type { Lease, Settlement } from '../../core/store/store.ts'
import { claimRequest, doubtOf, ofKind, releaseOf } from '../store-cases/store-case.ts'
import { OPERATION, operationOf, type DurableFixture } from './durable-case.ts'

export interface WaitingWork {
  readonly tenant: string
  /** The operation on record, or `undefined` for a record without one. */
  readonly run?: OperationName | undefined
  /** The operation of the scope. */
  readonly operation?: string
  readonly afterMs?: number
}

/** Records per batch and steps recorded at once: within the limits of every store. */
const BATCH = 50
const AT_ONCE = 10

/** Releases operations, each with a different key. Returns the keys. */
export function releaseAll(
  fixture: DurableFixture,
  works: readonly WaitingWork[],
): Promise<string[]> {
  return settleAll(fixture, works, (lease, resumeAfterMs) => {
    return { ...releaseOf(lease), resumeAfterMs }
  })
}

/** Creates unknown records, each with a different key. Returns the keys. */
export function makeAllUnknown(
  fixture: DurableFixture,
  works: readonly WaitingWork[],
): Promise<string[]> {
  return settleAll(fixture, works, doubtOf)
}

type SettlementOf = (lease: Lease, afterMs: number) => Settlement

async function settleAll(
  fixture: DurableFixture,
  works: readonly WaitingWork[],
  settlementOf: SettlementOf,
): Promise<string[]> {
  const keys: string[] = []
  for (let start = 0; start < works.length; start += BATCH) {
    keys.push(...(await settleSome(fixture, works.slice(start, start + BATCH), settlementOf)))
  }
  return keys
}

async function settleSome(
  { store }: DurableFixture,
  works: readonly WaitingWork[],
  settlementOf: SettlementOf,
): Promise<string[]> {
  const requests = works.map(({ tenant, operation = 'POST /payments' }) =>
    claimRequest({ tenant, operation, key: `key-${keysMade++}`, onLapse: 'resume' }),
  )
  const outcomes = await store.claim(requests)
  const leases = outcomes.map((outcome) => ofKind(outcome, 'claimed').lease)
  for (let start = 0; start < works.length; start += AT_ONCE) {
    const some = leases.slice(start, start + AT_ONCE).map(async (lease, n) => {
      const work = works[start + n]!
      const run = 'run' in work ? work.run : OPERATION
      if (run === undefined) return
      const step = { operation: operationOf(run) }
      ofKind(await store.durable.phases.record(lease, step), 'advanced')
    })
    await Promise.all(some)
  }
  const settlements = leases.map((lease, n) => settlementOf(lease, works[n]?.afterMs ?? 0))
  for (const outcome of await store.settle(settlements)) ofKind(outcome, 'settled')
  return requests.map(({ key }) => key)
}

/** Numbers the keys, so that no two records of one store have the same key. */
let keysMade = 0

export function times<Item>(count: number, item: Item): Item[] {
  return Array.from({ length: count }, () => item)
}

/** Characters of three bytes each, in an order that no database compresses. */
export function longText(length: number): string {
  let state = 1
  const next = () => (state = (state * 48_271) % 2_147_483_647)
  return Array.from({ length }, () => String.fromCodePoint(0x4e00 + (next() % 20_000))).join('')
}

/** More tenants that wait for later than one call reads. */
export function manyTenants(): string[] {
  return Array.from({ length: 300 }, (_, n) => `tenant-${n}`)
}

/**
 * Takes items one at a time until each of `expected` was reached. Fails if an item is reached a
 * third time before that, because then the turns are not fair.
 */
export async function assertEachReached(
  expected: readonly string[],
  next: () => Promise<string | undefined>,
): Promise<void> {
  const reached = new Map<string, number>()
  const isLeft = () => expected.some((one) => !reached.has(one))
  while (isLeft()) {
    const one = await next()
    assert.ok(one !== undefined, `expected another one of ${expected.join(', ')}`)
    assert.ok(expected.includes(one), `expected one of ${expected.join(', ')}, got ${one}`)
    const count = (reached.get(one) ?? 0) + 1
    reached.set(one, count)
    const missing = expected.filter((other) => !reached.has(other))
    assert.ok(count < 3 || missing.length === 0, `${one} came again before ${missing.join(', ')}`)
  }
}
