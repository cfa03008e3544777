/**
 * Nodes of commit 002247e, whose records have no id seed and no `refuseForMs`, use the same keys as
 * nodes of this version: during a deploy, and after a rollback.
 */
import { execFileSync } from 'node:child_process'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { pathToFileURL } from 'node:url'
import { afterAll, beforeAll, expect, it } from 'vitest'
import type { ClaimOutcome, ClaimRequest, Store } from '../../../src/core/store/store.ts'
import { redisStore, type RedisStoreOptions } from '../../../src/stores/redis/index.ts'
import { SCORE_SPAN } from '../../../src/stores/redis/scripts/prelude.ts'
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
import { newTestPrefix, startSharedRedis } from '../../servers/redis.ts'
import { connectIoRedis } from './setup.ts'

const PACKAGE = join(import.meta.dirname, '../../versions/oncekey-002247e.tgz')
const REFUSE_MS = 5000
const SEED = '0123456789abcdef0123456789abcdef'
const NEW_FIELDS = {
  idSeed: SEED,
  afterExpiry: 'refuse',
  refuseForMs: REFUSE_MS,
  onLapse: 'rerun',
} as const

interface OldPackage {
  readonly redisStore: (options: RedisStoreOptions) => Store
}

let server: Awaited<ReturnType<typeof startSharedRedis>>
let folder: string
let oldPackage: OldPackage

beforeAll(async () => {
  server = await startSharedRedis()
  folder = mkdtempSync(join(tmpdir(), 'oncekey-old-redis-'))
  execFileSync('tar', ['xzf', PACKAGE, '--strip-components=1', '-C', folder])
  const index = join(folder, 'dist/stores/redis/index.js')
  oldPackage = (await import(pathToFileURL(index).href)) as OldPackage
}, 60_000)

afterAll(async () => {
  await server.close()
  rmSync(folder, { recursive: true, force: true })
})

function setup() {
  const client = connectIoRedis(server.url)
  const clock = new FakeClock()
  const options = { client, clock, prefix: newTestPrefix() }
  const nameOf = async (pattern: string) => (await client.keys(`${options.prefix}:*${pattern}`))[0]!
  return {
    client,
    clock,
    nameOf,
    old: oldPackage.redisStore(options),
    now: redisStore(options),
  }
}

/** A claim by an older node. It reads `maxLapses` by the name that this number had. */
async function oldClaim(
  store: Store,
  overrides: Partial<ClaimRequest> = {},
): Promise<ClaimOutcome> {
  const { idSeed: _, refuseForMs: __, ...request } = claimRequest(overrides)
  return only(await store.claim([{ ...request, maxAttempts: 5 } as never]))
}

const extrasOf = async (store: Store, lease = claimRequest()) => {
  const { key, idSeed, refuseForMs } = await viewOf(store, lease)
  return { key, idSeed, refuseForMs }
}
const KEPT = { key: 'key-1', idSeed: SEED, refuseForMs: REFUSE_MS }
const NONE = { key: 'key-1', idSeed: undefined, refuseForMs: undefined }

it('keeps the seed and the time of refusal of a record that older nodes change', async () => {
  const { old, now, clock } = setup()
  const lease = await hold(now, NEW_FIELDS)
  expect(await old.renew([{ ...lease, leaseMs: LEASE_MS }])).toEqual([true])
  expect(await extrasOf(now)).toEqual(KEPT)
  ofKind(await settle(old, releaseOf(lease)), 'settled')
  const retried = ofKind(await oldClaim(old, { onLapse: 'rerun' }), 'claimed')
  expect(retried.from).toBe('retry')
  clock.advance(LEASE_MS)
  expect((await old.sweep({ limit: 10 })).length).toBe(1)
  expect(await extrasOf(now)).toEqual(KEPT)
  const again = ofKind(await claim(now, { idSeed: 'f'.repeat(32), refuseForMs: 1 }), 'claimed')
  expect(again.idSeed).toBe(SEED)
  expect(await extrasOf(now)).toEqual({ ...KEPT, refuseForMs: 1 })
  ofKind(await settle(old, doubtOf(again.lease)), 'settled')
  const verdict = { kind: 'completed', result: bytes('found') } as const
  const ref = { identity: again.lease.identity }
  const [resolved] = await old.resolve([{ ref, verdict, retentionMs: RETENTION_MS }])
  assertBytes(ofKind(resolved!, 'resolved').record.result, bytes('found'))
  expect(await extrasOf(now)).toEqual({ ...KEPT, refuseForMs: 1 })
})

it('gives older nodes the same result and fingerprint as before', async () => {
  const { old, now } = setup()
  const lease = await hold(now, NEW_FIELDS)
  ofKind(await settle(old, completeOf(lease, bytes('from an older node'))), 'settled')
  await finish(now, { ...NEW_FIELDS, key: 'key-2' }, bytes('from this version'))
  for (const [key, result] of [
    ['key-1', 'from an older node'],
    ['key-2', 'from this version'],
  ] as const) {
    const { identity, tenant, operation } = claimRequest({ key })
    for (const store of [old, now]) {
      const view = await viewOf(store, { identity })
      assertBytes(view.result, bytes(result))
      expect(view).toMatchObject({ tenant, operation, fingerprint: 'fingerprint-1' })
    }
    assertBytes(ofKind(await oldClaim(old, { key }), 'completed').result, bytes(result))
    assertBytes(ofKind(await claim(now, { key }), 'completed').result, bytes(result))
    ofKind(await oldClaim(old, { key, fingerprint: 'other' }), 'mismatch')
  }
  expect((await old.list({ state: 'completed', limit: 10 })).length).toBe(2)
})

it('gives a record of an older node no seed, and the refusal of its next claim', async () => {
  const { old, now } = setup()
  const first = ofKind(await oldClaim(old), 'claimed')
  expect(await extrasOf(now)).toEqual(NONE)
  const { idSeed, refuseForMs } = NEW_FIELDS
  ofKind(await settle(old, releaseOf(first.lease)), 'settled')
  const second = ofKind(await claim(now, { idSeed, refuseForMs }), 'claimed')
  expect([second.from, second.idSeed]).toEqual(['retry', undefined])
  expect(await extrasOf(now)).toEqual({ ...NONE, refuseForMs })
})

it('gives a record without a seed to the older node that replaces an expired one', async () => {
  const { old, now, clock } = setup()
  await finish(now, NEW_FIELDS)
  clock.advance(RETENTION_MS)
  const replaced = ofKind(await oldClaim(old), 'claimed')
  expect(replaced.from).toBe('expired')
  expect(await extrasOf(now)).toEqual(NONE)
  ofKind(await settle(now, releaseOf(replaced.lease)), 'settled')
  expect(ofKind(await claim(now, { idSeed: SEED }), 'claimed').idSeed).toBeUndefined()
})

it('lets older nodes refuse and replace a tombstone, and leaves no index entry of it', async () => {
  const { old, now, clock, client, nameOf } = setup()
  const lease = await finish(now, NEW_FIELDS)
  const { recordId } = await viewOf(now, lease)
  clock.advance(RETENTION_MS)
  expect((await now.reap({ limit: 10 })).expired).toBe(1)
  expect(await oldClaim(old, { afterExpiry: 'refuse' })).toEqual({ kind: 'expired', recordId })
  expect((await old.list({ state: 'expired', limit: 10 })).map((view) => view.recordId)).toEqual([
    recordId,
  ])
  expect(await old.reap({ limit: 10 })).toEqual({ removed: 0, expired: 0, abandoned: 0 })
  const next = ofKind(await oldClaim(old), 'claimed')
  expect(next.from).toBe('expired')
  expect(await extrasOf(now)).toEqual(NONE)
  expect(await client.zrange(await nameOf('due'), '0', '-1')).toEqual([next.recordId])
  expect(await client.hkeys(await nameOf('ids'))).toEqual([next.recordId])
  clock.advance(REFUSE_MS)
  expect(await now.reap({ limit: 10 })).toEqual({ removed: 0, expired: 0, abandoned: 0 })
})

// The older node keeps the length of the lease in the field that is the end of a refusal here.
it('keeps a record that an older node has expired until a claim replaces it', async () => {
  const { old, now, clock, client, nameOf } = setup()
  await hold(now, NEW_FIELDS)
  clock.advance(LEASE_MS)
  expect((await old.sweep({ limit: 10 })).length).toBe(1)
  clock.advance(2 * RETENTION_MS)
  expect((await old.reap({ limit: 10 })).expired).toBe(1)
  const { recordId, state, reconcileAt } = await viewOf(now, claimRequest())
  expect([state, reconcileAt]).toEqual(['expired', undefined])
  // As if `reap` had found the record in the index before the older node expired it.
  const due = await nameOf('due')
  const score = await client.zscore(due, recordId)
  await client.zadd(due, 4 * SCORE_SPAN + 1, recordId)
  clock.advance(100 * REFUSE_MS)
  expect(await now.reap({ limit: 10 })).toEqual({ removed: 0, expired: 0, abandoned: 0 })
  expect(await client.zscore(due, recordId)).toBe(score)
  expect(await client.zcard(due)).toBe(1)
  const { afterExpiry, refuseForMs } = NEW_FIELDS
  ofKind(await claim(now, { afterExpiry }), 'expired')
  expect(ofKind(await claim(now, { afterExpiry, refuseForMs }), 'claimed').from).toBe('expired')
})

// An older node writes longer texts than this version, and their length has two bytes.
it('keeps the longest texts of an older node when a seed and an error code are added', async () => {
  const { old, now } = setup()
  const { recordId, token, fingerprint, operation, key } = claimRequest()
  const others = [recordId, token, fingerprint, operation, key].join('').length + 8 * 2
  const long = { tenant: 't'.repeat(32_767 - others), onLapse: 'rerun' } as const
  const first = ofKind(await oldClaim(old, long), 'claimed').lease
  ofKind(await settle(now, completeOf(first)), 'settled')
  const { identity } = first
  ofKind(await now.discard!({ ref: { identity }, attempt: 1, idSeed: SEED }), 'discarded')
  const second = ofKind(await oldClaim(old, long), 'claimed').lease
  const errorCode = 'e'.repeat(32_740)
  ofKind(await settle(now, { ...releaseOf(second), errorCode }), 'settled')
  const { tenant } = long
  expect(await viewOf(now, first)).toMatchObject({ tenant, key, errorCode, idSeed: SEED })
})
