import { expect, it } from 'vitest'
import { ABSENT_LEASE } from '../../../src/core/health/store-probe.ts'
import type { Store } from '../../../src/core/store/store.ts'
import { cachedStore, memoryCache } from '../../../src/stores/cached/index.ts'
import { FakeClock } from '../../../src/testing/fake-clock.ts'
import {
  claimRequest,
  completeOf,
  RETENTION_MS,
  releaseOf,
} from '../../../src/testing/store-cases/store-case.ts'

const LEASE = { identity: '0'.repeat(32), token: 'token', attempt: 1 }
const ID = '00000000-0000-7000-8000-000000000000'
const BY = { who: 'w', why: 'y' }

/** A store that records the signals of its calls. Its answers are empty. */
function recordingStore() {
  const signals: (AbortSignal | undefined)[] = []
  const record = (...values: unknown[]) => {
    const last = values.at(-1)
    signals.push(last instanceof AbortSignal ? last : undefined)
    return Promise.resolve(Object.assign([], { getTime: () => 0 }))
  }
  const of = (...names: readonly string[]) =>
    Object.fromEntries(names.map((name) => [name, record]))
  const durable = {
    name: 'recording',
    ...of('claim', 'settle', 'renew', 'probe', 'resolve', 'sweep', 'reap', 'read', 'list'),
    ...of('transaction', 'history', 'now', 'discard'),
    durable: {
      phases: of('advance', 'record', 'load', 'due', 'orphans'),
      outbox: of('claim', 'settle', 'renew', 'read', 'list', 'prune'),
      operator: of('takeUnknown', 'postpone', 'act', 'audit', 'discarded'),
    },
  } as unknown as Store
  return { durable, signals }
}

const work = () => Promise.reject(new Error('never run'))

const CALLS: Readonly<Record<string, (store: Store, signal: AbortSignal) => Promise<unknown>>> = {
  claim: (store, signal) => store.claim([claimRequest()], signal),
  settle: (store, signal) => store.settle([completeOf(LEASE), releaseOf(LEASE)], signal),
  renew: (store, signal) => store.renew([{ ...LEASE, leaseMs: 1 }], signal),
  probe: (store, signal) => store.probe!(ABSENT_LEASE.identity, signal),
  resolve: (store, signal) =>
    store.resolve(
      [{ ref: LEASE, verdict: { kind: 'failed_retryable' }, retentionMs: RETENTION_MS }],
      signal,
    ),
  sweep: (store, signal) => store.sweep({ limit: 1 }, signal),
  reap: (store, signal) => store.reap({ limit: 1 }, signal),
  read: (store, signal) => store.read(LEASE, signal),
  list: (store, signal) => store.list({ state: 'unknown', limit: 1 }, signal),
  transaction: (store, signal) => store.transaction!(LEASE, work, signal),
  history: (store, signal) => store.history!({ ref: LEASE, limit: 1 }, signal),
  discard: (store, signal) =>
    store.discard!({ ref: { identity: LEASE.identity }, attempt: 1 }, signal),
  now: (store, signal) => store.now!(signal),
  advance: (store, signal) => store.durable!.phases.advance(LEASE, work, signal),
  record: (store, signal) => store.durable!.phases.record(LEASE, {}, signal),
  load: (store, signal) => store.durable!.phases.load(ID, signal),
  due: (store, signal) => store.durable!.phases.due({ operations: [], limit: 1 }, signal),
  orphans: (store, signal) => store.durable!.phases.orphans({ operations: [], limit: 1 }, signal),
  'claim messages': (store, signal) =>
    store.durable!.outbox.claim({ topics: [], limit: 1, leaseMs: 1, token: 't' }, signal),
  'take unknown': (store, signal) =>
    store.durable!.operator.takeUnknown({ limit: 1, againMs: 1 }, signal),
  postpone: (store, signal) =>
    store.durable!.operator.postpone({ recordId: ID, attempt: 1, inMs: 1 }, signal),
  act: (store, signal) =>
    store.durable!.operator.act({ kind: 'drop_message', messageId: ID }, BY, signal),
  'discard a reply': (store, signal) => {
    const discard = { ref: { recordId: ID }, attempt: 1, despiteEffects: false }
    return store.durable!.operator.act({ kind: 'discard_reply', ...discard }, BY, signal)
  },
  discarded: (store, signal) =>
    store.durable!.operator.discarded({ recordId: ID, limit: 1 }, signal),
  audit: (store, signal) => store.durable!.operator.audit({ limit: 1 }, signal),
}

it.each(Object.keys(CALLS))('passes the signal of %s to the durable store', async (name) => {
  const { durable, signals } = recordingStore()
  const clock = new FakeClock()
  const store = cachedStore({ durable, cache: memoryCache(), clock, onError: () => {} })
  const { signal } = new AbortController()
  await CALLS[name]!(store, signal)
  // A claim also starts a query for the database's time, with another signal.
  expect(signals.filter((one) => one === signal).length).toBeGreaterThan(0)
  expect(signals).not.toContain(undefined)
})

it('aborts a query for the time of the database after 5 s', async () => {
  const { durable } = recordingStore()
  const asked = Promise.withResolvers<AbortSignal>()
  const silent: Store = {
    ...durable,
    now: (signal) => {
      asked.resolve(signal!)
      return new Promise(() => undefined)
    },
  }
  const clock = new FakeClock()
  const store = cachedStore({ durable: silent, cache: memoryCache(), clock, onError: () => {} })
  await store.claim([claimRequest()])
  const signal = await asked.promise
  clock.advance(5_000)
  await expect.poll(() => signal.aborted).toBe(true)
})
