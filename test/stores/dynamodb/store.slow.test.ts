import { DynamoDBClient, type DynamoDB } from '@aws-sdk/client-dynamodb'
import { expect, it, vi } from 'vitest'
import { createEngine } from '../../../src/core/engine/engine.ts'
import { dynamodbStore, tableDefinition } from '../../../src/stores/dynamodb/index.ts'
import { FakeClock } from '../../../src/testing/fake-clock.ts'
import {
  assertBytes,
  claim,
  claimRequest,
  claimRequests,
  completeOf,
  finish,
  hold,
  LEASE_MS,
  ofKind,
  releaseOf,
  RETENTION_MS,
  settle,
  viewOf,
} from '../../../src/testing/store-cases/store-case.ts'
import { around, counting, useDynamodb, type Call } from './setup.ts'

// Like DynamoDB, the server returns the item that a refused write found.
const setup = useDynamodb({ private: true, returnsItems: true })

const KIB = 1024
const MIB = 1024 * KIB

const pattern = (length: number) => new Uint8Array(length).map((_, n) => (n * 31) % 251)

it('rejects a bare client, unknown options and invalid names', async () => {
  const { client } = await setup()
  const bare = new DynamoDBClient({})
  expect(() => dynamodbStore({ client: bare as never })).toThrow('pass a DynamoDB of')
  expect(() => dynamodbStore({ client: {} as never })).toThrow('client must be a DynamoDB')
  expect(() => dynamodbStore({ client: undefined as never })).toThrow('got undefined')
  const mute = { ...methodsOf(client), middlewareStack: {} }
  expect(() => dynamodbStore({ client: mute as never })).toThrow('client must be a DynamoDB')
  expect(() => dynamodbStore({ client, tabel: 'x' } as never)).toThrow('no option "tabel"')
  expect(() => dynamodbStore({ client, table: 'a b' })).toThrow('table must be a name')
  expect(() => dynamodbStore({ client, history: 1 as never })).toThrow('history')
  expect(() => dynamodbStore({ client, shards: 7 })).toThrow('shards')
  expect(() => dynamodbStore({ client, shards: 257 })).toThrow('shards')
  expect(() => dynamodbStore({ client, inlineBytesMax: 32 * KIB + 1 })).toThrow('inlineBytesMax')
  expect(() => tableDefinition({ table: 'x' })).toThrow('table must be a name')
  expect(() => tableDefinition({ tables: 'x' } as never)).toThrow('no option "tables"')
})

function methodsOf(client: DynamoDB): Record<string, unknown> {
  const names: Call[] = ['getItem', 'putItem', 'deleteItem', 'batchGetItem', 'query']
  return Object.fromEntries(names.map((name) => [name, client[name].bind(client)]))
}

it('uses the default table name, and gives advice when the table does not exist', async () => {
  const { client, server } = await setup()
  const store = dynamodbStore({ client })
  expect(tableDefinition().createTable.TableName).toBe('oncekey_record')
  expect(tableDefinition().timeToLive.TableName).toBe('oncekey_record')
  await expect(claim(store)).rejects.toThrow('tableDefinition() describes')
  await server.table('oncekey_record')
  ofKind(await claim(store), 'claimed')
})

it('claims a free key in one call, and completes it in another', async () => {
  const { open, client } = await setup()
  const { counted, calls } = counting(client)
  const store = open({ client: counted, clock: new FakeClock() })
  const request = claimRequest()
  const take = () => calls.splice(0)
  const { lease } = ofKind(await claim(store, request), 'claimed')
  expect(take()).toEqual(['putItem'])
  expect(await store.renew([{ ...lease, leaseMs: LEASE_MS }])).toEqual([true])
  expect(take()).toEqual(['putItem'])
  // A duplicate: this process knows that the key is in use, and a read costs less than a write.
  ofKind(await claim(store), 'in_progress')
  expect(take()).toEqual(['getItem'])
  ofKind(await settle(store, completeOf(lease)), 'settled')
  expect(take()).toEqual(['putItem'])
  // A replay: this process has completed the key. Another process gets the record with its refused
  // write, without a read, and afterwards knows the key, too.
  ofKind(await claim(store), 'completed')
  const other = open({ client: counted, clock: new FakeClock() })
  ofKind(await claim(other), 'completed')
  ofKind(await claim(other), 'completed')
  expect(take()).toEqual(['getItem', 'putItem', 'getItem'])
  // Another process settles: it must read the record first.
  const second = await hold(store, { key: 'second' })
  take()
  ofKind(await settle(other, releaseOf(second)), 'settled')
  expect(take()).toEqual(['getItem', 'putItem'])
})

it('never answers from memory without a read or write of the table', async () => {
  const { open } = await setup()
  const clock = new FakeClock()
  const [one, two] = [open({ clock }), open({ clock })]
  const lease = await hold(one, { onLapse: 'rerun' })
  ofKind(await claim(two), 'in_progress')
  clock.advance(LEASE_MS)
  const second = await hold(two)
  // `one` remembers its own lease, but the table has another.
  ofKind(await settle(one, completeOf(second)), 'settled')
  expect(await settle(one, completeOf(lease))).toMatchObject({ own: false, state: 'completed' })
})

it('stores large results in parts, and removes the parts with their record', async () => {
  const { open, items } = await setup()
  const clock = new FakeClock()
  const store = open({ clock })
  const sizes = [KIB, KIB + 1, 384 * KIB, 384 * KIB + 1, 3 * MIB]
  for (const size of sizes) {
    await finish(store, { key: `${size}` }, pattern(size))
    const replay = ofKind(await claim(store, { key: `${size}` }), 'completed')
    assertBytes(replay.result, pattern(size))
    assertBytes((await viewOf(store, claimRequest({ key: `${size}` }))).result, pattern(size))
  }
  const parts = async () =>
    (await items()).filter(({ item }) => String(item).startsWith('result#')).length
  expect(await parts()).toBe(1 + 1 + 2 + 8)
  clock.advance(RETENTION_MS)
  // One record is replaced, the others are reaped.
  expect(ofKind(await claim(store, { key: `${3 * MIB}` }), 'claimed').from).toBe('expired')
  expect(await parts()).toBe(4)
  expect((await store.reap({ limit: 10 })).removed).toBe(4)
  expect(await parts()).toBe(0)
})

it('leaves no parts of a result that was recorded too late', async () => {
  const { open, client, items } = await setup()
  const clock = new FakeClock()
  const holder = open({ clock })
  const lease = await hold(holder, { onLapse: 'rerun' })
  let isTaken = false
  // Another process takes the key over between the writes of the parts and of the record.
  const slow = around(client, async ({ name, input, go }) => {
    if (name === 'putItem' && 'ConditionExpression' in input && !isTaken) {
      isTaken = true
      const other = open({ clock })
      ofKind(await claim(other), 'in_progress')
      clock.advance(LEASE_MS)
      ofKind(await claim(other), 'claimed')
    }
    return go()
  })
  const outcome = await settle(open({ clock, client: slow }), completeOf(lease, pattern(MIB)))
  expect(outcome).toEqual({ kind: 'fenced', own: false, state: 'in_progress' })
  expect((await items()).map(({ item }) => item)).toEqual(['record'])
})

it('keeps large results in the history, also of records from before it was on', async () => {
  const { open, items } = await setup()
  const before = open()
  const lease = await finish(before, { retentionMs: 1 }, pattern(MIB))
  expect((await items()).every(({ ttl }) => ttl !== undefined)).toBe(true)
  const clock = new FakeClock(Date.now() + 60_000)
  const store = open({ clock, history: true })
  expect((await store.reap({ limit: 10 })).removed).toBe(1)
  const [stored] = await store.history!({ ref: { identity: lease.identity }, limit: 10 })
  assertBytes(stored?.result, pattern(MIB))
  expect((await items()).filter(({ ttl }) => ttl !== undefined)).toEqual([])
})

it('fails, and does not run the work again, when a part of a result is missing', async () => {
  const { open, client, table, items } = await setup()
  const store = open({ clock: new FakeClock() })
  const lease = await finish(store, {}, pattern(MIB))
  const part = (await items()).find(({ item }) => String(item).endsWith('#1'))!
  const Key = { identity: { S: String(part['identity']) }, item: { S: String(part['item']) } }
  await client.deleteItem({ TableName: table, Key })
  const failure = { code: 'STORE_FAILED', failure: 'unavailable' }
  await expect(claim(store)).rejects.toMatchObject(failure)
  await expect(store.read({ identity: lease.identity })).rejects.toMatchObject(failure)
  const listed = await store.list({ state: 'completed', limit: 10 })
  expect(listed.length).toBe(1)
})

// The service removes expired items one by one, in any order.
it('reads an expired record without the result that the service has removed', async () => {
  const { open, client, table, items } = await setup()
  const store = open()
  const lease = await finish(store, {}, pattern(MIB))
  for (const { identity, item } of await items()) {
    if (item === 'record') continue
    const Key = { identity: { S: String(identity) }, item: { S: String(item) } }
    await client.deleteItem({ TableName: table, Key })
  }
  const gone = { code: 'STORE_FAILED', failure: 'unavailable' }
  await expect(store.read(lease)).rejects.toMatchObject(gone)
  const later = open({ clock: new FakeClock(Date.now() + RETENTION_MS + 60_000) })
  expect(await later.read(lease)).toMatchObject({ state: 'completed', result: undefined })
  ofKind(await claim(later), 'claimed')
})

it('rejects values that the table cannot hold, and writes nothing of their batch', async () => {
  const { open, items } = await setup()
  const store = open()
  const [good] = claimRequests(1)
  for (const bad of [
    { key: 'nul\0' },
    { key: 'half \ud800' },
    { leaseMs: Number.NaN },
    { maxLapses: Number.NaN },
    { identity: 'zz' },
    { tenant: 1 as never },
    { onLapse: 'never' as never },
    { afterExpiry: 'never' as never },
    { mode: 'never' as never },
    { idSeed: 'short' },
    { idSeed: `\0${'0'.repeat(31)}` },
    { refuseForMs: Number.NaN },
  ]) {
    const error = await store.claim([good!, claimRequest(bad)]).catch((thrown: unknown) => thrown)
    expect({ bad, error }).toMatchObject({ bad, error: { failure: 'rejected' } })
  }
  expect(await items()).toEqual([])
  const lease = await hold(store)
  const huge = completeOf(lease, new Uint8Array(16 * MIB + 1))
  await expect(store.settle([completeOf(lease), huge])).rejects.toMatchObject({
    failure: 'rejected',
  })
  await expect(store.settle([huge])).rejects.toThrow('lower replyBytesMax')
  await expect(store.settle([completeOf(lease, {} as never)])).rejects.toMatchObject({
    failure: 'rejected',
  })
  const lent = { ...lease, leaseMs: Number.NaN }
  await expect(store.renew([lent])).rejects.toMatchObject({ failure: 'rejected' })
  const verdict = { kind: 'completed', result: 'x' as never } as const
  const verdicts = [{ ref: { identity: lease.identity }, verdict, retentionMs: 1 }]
  await expect(store.resolve(verdicts)).rejects.toMatchObject({ failure: 'rejected' })
  expect((await viewOf(store, lease)).state).toBe('in_progress')
})

it('runs the work of an engine once for each key under concurrent requests', async () => {
  const { open } = await setup()
  const engine = createEngine({ store: open() })
  const runs: string[] = []
  const run = (key: string) =>
    engine.run({ scope: { tenant: 't', operation: 'o' }, key, fingerprint: 'f' }, () => {
      runs.push(key)
      return new Uint8Array([1])
    })
  const keys = Array.from({ length: 100 }, (_, n) => `key-${n % 50}`)
  const outcomes = await Promise.all(keys.map((key) => run(key)))
  expect(runs.length).toBe(50)
  expect(new Set(outcomes.map(({ kind }) => kind))).not.toContain('unknown')
  expect((await Promise.all(keys.map(run))).every(({ kind }) => kind === 'replayed')).toBe(true)
  await engine.close()
})

it('ends a call that gets no answer after 10 seconds', async () => {
  const { open, client } = await setup()
  const silent = new Proxy(client, {
    get: (target, name) =>
      name === 'getItem'
        ? (_: unknown, { abortSignal }: { abortSignal: AbortSignal }) =>
            new Promise((_resolve, reject) => {
              abortSignal.addEventListener('abort', () => reject(abortSignal.reason as Error))
            })
        : (Reflect.get(target, name) as unknown),
  })
  vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout'] })
  try {
    const claiming = claim(open({ client: silent }))
    const failed = claiming.catch((error: unknown) => error)
    await vi.advanceTimersByTimeAsync(10_000)
    expect(await failed).toMatchObject({ failure: 'unavailable' })
    expect(String(await failed)).toContain('no answer within 10000 ms')
  } finally {
    vi.useRealTimers()
  }
})

it(
  'lists and sweeps more records than fit into a page of the index',
  { timeout: 60_000 },
  async () => {
    const { client, table, open } = await setup()
    const clock = new FakeClock()
    // All in one shard, because their identities have the same end. The limits are per shard.
    const identities = Array.from(
      { length: 30 },
      (_, n) => `${n.toString(16).padStart(28, '0')}0000`,
    )
    const small = around(client, ({ name, input, go }) => {
      if (name === 'query') input['Limit'] = Math.min(7, Number(input['Limit']))
      return go()
    })
    const store = open({ clock, client: small, table })
    await store.claim(identities.map((identity, n) => claimRequest({ identity, key: `${n}` })))
    expect((await store.list({ state: 'in_progress', limit: 20 })).length).toBe(20)
    clock.advance(LEASE_MS)
    expect((await store.sweep({ limit: 100 })).length).toBe(30)
    expect((await store.list({ state: 'unknown', limit: 100 })).length).toBe(30)
  },
)
