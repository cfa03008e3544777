/**
 * Nodes of two versions on one table: the packed version of commit 002247e, and the sources. The
 * old version writes whole items, and knows neither id seeds nor tombstones that end.
 */
import { execFileSync } from 'node:child_process'
import { mkdirSync } from 'node:fs'
import { join } from 'node:path'
import { pathToFileURL } from 'node:url'
import { afterAll, beforeAll, expect, it } from 'vitest'
import type { ClaimOutcome, ClaimRequest, Store } from '../../../src/core/store/store.ts'
import type { dynamodbStore } from '../../../src/stores/dynamodb/index.ts'
import { FakeClock } from '../../../src/testing/fake-clock.ts'
import {
  assertBytes,
  bytes,
  claim,
  claimRequest,
  completeOf,
  doubtOf,
  finish,
  hold,
  LEASE_MS,
  ofKind,
  only,
  releaseOf,
  RETENTION_MS,
  settle,
  viewOf,
} from '../../../src/testing/store-cases/store-case.ts'
import { scratchFolder } from '../scratch-folder.ts'
import { useDynamodb } from './setup.ts'

const setupTable = useDynamodb()

const PACKAGE = join(import.meta.dirname, '..', '..', 'versions', 'oncekey-002247e.tgz')
const [SEED, OTHER] = ['0123456789abcdef0123456789abcdef', 'f'.repeat(32)]
const REFUSE_MS = 5000
const REFUSE = { afterExpiry: 'refuse', refuseForMs: REFUSE_MS } as const

const scratch = scratchFolder()
let openOld: typeof dynamodbStore

beforeAll(async () => {
  const folder = scratch.file('old')
  mkdirSync(folder)
  execFileSync('tar', ['xzf', PACKAGE, '--strip-components=1', '-C', folder])
  const { href } = pathToFileURL(join(folder, 'dist', 'stores', 'dynamodb', 'index.js'))
  const old = (await import(/* @vite-ignore */ href)) as { dynamodbStore: typeof dynamodbStore }
  openOld = old.dynamodbStore
})
afterAll(() => scratch.remove())

async function setup(history = false) {
  const { client, table, open, items } = await setupTable()
  const clock = new FakeClock()
  const old = openOld({ client, table, clock, history })
  return { clock, items, old, store: open({ clock, history }) }
}

/** Claims on a node of the old version, whose name for `maxLapses` was another. */
async function claimOn(old: Store, overrides: Partial<ClaimRequest> = {}): Promise<ClaimOutcome> {
  const request = { ...claimRequest(overrides), maxAttempts: 5 }
  return only(await old.claim([request]))
}

it('keeps the id seed when old nodes sweep, claim, renew and settle the record', async () => {
  const { clock, old, store } = await setup()
  const { identity } = await hold(store, { idSeed: SEED, onLapse: 'rerun' })
  const seedOf = async () => (await viewOf(store, { identity })).idSeed
  ofKind(await claimOn(old), 'in_progress')
  clock.advance(LEASE_MS)
  expect(await old.sweep({ limit: 10 })).toMatchObject([{ identity, to: 'failed_retryable' }])
  expect(await seedOf()).toBe(SEED)

  const { lease } = ofKind(await claimOn(old), 'claimed')
  expect(await old.renew([{ ...lease, leaseMs: LEASE_MS }])).toEqual([true])
  ofKind(await settle(old, doubtOf(lease)), 'settled')
  const verdict = { kind: 'failed_retryable' } as const
  const verdicts = [{ ref: { identity }, verdict, retentionMs: RETENTION_MS }]
  ofKind(only(await old.resolve(verdicts)), 'resolved')
  expect(await seedOf()).toBe(SEED)

  const third = ofKind(await claim(store, { idSeed: OTHER }), 'claimed')
  expect([third.from, third.lease.attempt, third.idSeed]).toEqual(['retry', 3, SEED])
  ofKind(await settle(store, completeOf(third.lease, bytes('paid'))), 'settled')
  assertBytes(ofKind(await claimOn(old), 'completed').result, bytes('paid'))
  expect((await viewOf(store, third.lease)).key).toBe('key-1')
})

it('gives the record of an old node no id seed, also in place of one that had a seed', async () => {
  const { clock, old, store } = await setup()
  await finish(store, { idSeed: SEED, ...REFUSE })
  clock.advance(RETENTION_MS)
  const { lease, from, recordId } = ofKind(await claimOn(old), 'claimed')
  expect(from).toBe('expired')
  const view = await viewOf(store, lease)
  expect([view.recordId, view.idSeed, view.refuseForMs]).toEqual([recordId, undefined, undefined])
  ofKind(await settle(old, releaseOf(lease)), 'settled')
  const retry = ofKind(await claim(store, { idSeed: OTHER }), 'claimed')
  expect([retry.from, retry.idSeed]).toEqual(['retry', undefined])
})

it('keeps the id seed in the history that an old node writes', async () => {
  const { clock, old, store } = await setup(true)
  const { identity } = await finish(store, { idSeed: SEED })
  clock.advance(RETENTION_MS)
  expect((await old.reap({ limit: 10 })).removed).toBe(1)
  const [kept] = await store.history!({ ref: { identity }, limit: 1 })
  expect([kept?.idSeed, kept?.key]).toEqual([SEED, 'key-1'])
})

// An old node refuses an expired key for ever, and ignores the attribute with the time.
it('refuses a key for ever when an old node has written its record last', async () => {
  const { clock, old, store } = await setup()
  const { lease } = ofKind(await claim(store, REFUSE), 'claimed')
  ofKind(await settle(old, completeOf(lease)), 'settled')
  clock.advance(RETENTION_MS)
  expect((await store.reap({ limit: 10 })).expired).toBe(1)
  expect(await viewOf(store, lease)).toMatchObject({ state: 'expired', reconcileAt: undefined })
  clock.advance(REFUSE_MS)
  expect(await store.reap({ limit: 10 })).toEqual({ removed: 0, expired: 0, abandoned: 0 })
})

it('refuses or replaces on an old node what a new node has kept of an expired record', async () => {
  const { clock, old, store } = await setup()
  const lease = await finish(store, { ...REFUSE, idSeed: SEED })
  clock.advance(RETENTION_MS)
  expect((await store.reap({ limit: 10 })).expired).toBe(1)
  ofKind(await claimOn(old, REFUSE), 'expired')
  expect(await old.reap({ limit: 10 })).toEqual({ removed: 0, expired: 0, abandoned: 0 })
  expect((await viewOf(store, lease)).idSeed).toBe(SEED)
  expect(ofKind(await claimOn(old), 'claimed').from).toBe('expired')
  // The end of the old refusal must not end the new record.
  clock.advance(REFUSE_MS)
  expect(await store.reap({ limit: 10 })).toEqual({ removed: 0, expired: 0, abandoned: 0 })
  expect((await viewOf(store, lease)).state).toBe('in_progress')
})

it('keeps what old nodes have kept of expired records, and gives their keys away', async () => {
  const { clock, old, store } = await setup()
  ofKind(
    await settle(old, completeOf(ofKind(await claimOn(old, REFUSE), 'claimed').lease)),
    'settled',
  )
  clock.advance(RETENTION_MS)
  expect((await old.reap({ limit: 10 })).expired).toBe(1)
  clock.advance(REFUSE_MS - 1)
  ofKind(await claim(store, REFUSE), 'expired')
  clock.advance(1)
  expect(await store.reap({ limit: 10 })).toEqual({ removed: 0, expired: 0, abandoned: 0 })
  expect(await store.list({ state: 'expired', limit: 10 })).toHaveLength(1)
  expect(ofKind(await claim(store, REFUSE), 'claimed').from).toBe('expired')
})

it('runs a discarded record again on an old node, which sees no result of it', async () => {
  const { old, store } = await setup(true)
  const { identity } = await finish(store, { idSeed: SEED })
  ofKind(await store.discard!({ ref: { identity }, attempt: 1 }), 'discarded')
  const { lease } = ofKind(await claimOn(old), 'claimed')
  ofKind(await settle(old, completeOf(lease, bytes('second'))), 'settled')
  const view = await viewOf(store, lease)
  expect([view.attempt, view.idSeed]).toEqual([2, SEED])
  assertBytes(view.result, bytes('second'))
  const past = await store.history!({ ref: { identity }, limit: 10 })
  expect(past.map(({ attempt }) => attempt)).toEqual([1])
})
