import { afterAll, beforeAll, expect, it, vi } from 'vitest'
import { createEngine } from '../../../src/core/engine/engine.ts'
import type { Engine } from '../../../src/core/engine/engine-contract.ts'
import { redisStore } from '../../../src/stores/redis/index.ts'
import {
  bytes,
  claim,
  claimRequest,
  completeOf,
  ofKind,
  only,
  settle,
  viewOf,
} from '../../../src/testing/store-cases/store-case.ts'
import { startRedis, type RedisServer } from '../../servers/redis.ts'
import { connectIoRedis, connectNodeRedis, CONNECT, startProxy } from './setup.ts'

const DRIVERS = Object.keys(CONNECT) as (keyof typeof CONNECT)[]

let server: RedisServer

beforeAll(async () => {
  server = await startRedis(['--appendonly', 'yes', '--appendfsync', 'always'])
}, 60_000)

afterAll(() => server.close())

const newPrefix = () => `test-${crypto.randomUUID()}`

// The script has run, its answer is lost, and ioredis sends the script again.
it('recognises a script that the client has sent again', async () => {
  const proxy = await startProxy(server)
  const store = redisStore({ client: connectIoRedis(proxy.url), prefix: newPrefix() })
  const admin = connectIoRedis(server.url)
  const scriptRuns = () => admin.info('commandstats').then(evalshaCalls)
  ofKind(await claim(store, { key: 'warm' }), 'claimed')
  ofKind(await settle(store, completeOf({ ...claimRequest(), attempt: 1 })), 'fenced')

  const before = await scriptRuns()
  proxy.onNextMatch(/EVALSHA/i, 'cut')
  const request = claimRequest()
  const won = ofKind(only(await store.claim([request])), 'claimed')
  expect([proxy.cuts(), (await scriptRuns()) - before]).toEqual([1, 2])
  expect([won.lease.attempt, won.from]).toEqual([1, 'new'])

  proxy.onNextMatch(/EVALSHA/i, 'cut')
  ofKind(await settle(store, completeOf(won.lease, bytes('once'))), 'settled')
  expect([proxy.cuts(), (await scriptRuns()) - before]).toEqual([2, 4])
  const view = await viewOf(store, request)
  expect([view.state, view.attempt, view.lapses]).toEqual(['completed', 1, 0])

  const { identity } = request
  ofKind(await store.discard!({ ref: { identity }, attempt: 2 }), 'other_attempt')
  proxy.onNextMatch(/EVALSHA/i, 'cut')
  const discarded = ofKind(await store.discard!({ ref: { identity }, attempt: 1 }), 'discarded')
  expect([proxy.cuts(), discarded.repeated]).toEqual([3, true])
  expect((await viewOf(store, request)).state).toBe('failed_retryable')
})

// node-redis does not repeat a command that may have run. The call fails, and the caller repeats.
it('recognises the repeat of a call whose connection was cut', async () => {
  const proxy = await startProxy(server)
  const store = redisStore({ client: await connectNodeRedis(proxy.url), prefix: newPrefix() })
  ofKind(await claim(store, { key: 'warm' }), 'claimed')
  const request = claimRequest()
  proxy.onNextMatch(/EVALSHA/i, 'cut')
  await expect(store.claim([request])).rejects.toMatchObject({ failure: 'unavailable' })
  const won = ofKind(only(await store.claim([request])), 'claimed')
  expect([won.lease.attempt, won.from]).toEqual([1, 'new'])

  ofKind(await settle(store, completeOf(won.lease)), 'settled')
  const discard = { ref: { identity: request.identity }, attempt: 1, idSeed: 'f'.repeat(32) }
  // The server gets the whole script, so that the next call sends only its hash.
  ofKind(await store.discard!({ ...discard, attempt: 2 }), 'other_attempt')
  proxy.onNextMatch(/EVALSHA/i, 'cut')
  await expect(store.discard!(discard)).rejects.toMatchObject({ failure: 'unavailable' })
  const { record, repeated } = ofKind(await store.discard!(discard), 'discarded')
  expect([repeated, record.idSeed]).toEqual([true, 'f'.repeat(32)])
})

// The client queues the claim while its server is down, longer than the lease of the claim.
it.each(DRIVERS)('claims nothing when a claim arrives too late: %s', async (driver) => {
  const store = redisStore({ client: await CONNECT[driver](server.url), prefix: newPrefix() })
  ofKind(await claim(store, { key: 'warm' }), 'claimed')
  await server.kill()
  const late = claim(store, { leaseMs: 1 }).catch(String)
  await server.start()
  expect(await late).toContain('LATE')
  const { identity } = claimRequest()
  expect(await store.read({ identity })).toBeUndefined()
  ofKind(await claim(store), 'claimed')
})

// Before its first claim the store knows neither the configuration nor the time of the server.
it.each(DRIVERS)('claims nothing when a first claim arrives too late: %s', async (driver) => {
  const client = await CONNECT[driver](server.url)
  for (const isChecked of [false, true]) {
    const store = redisStore({ client, prefix: newPrefix() })
    if (isChecked) await store.claim([])
    await server.kill()
    const late = Promise.all([1, 2].map(() => claim(store, { leaseMs: 1 }).catch(String)))
    await server.start()
    // `no answer within`: the server took longer to start than the store waits for its time.
    for (const outcome of await late) expect(outcome).toMatch(/LATE|no answer within/)
    expect(await store.read({ identity: claimRequest().identity })).toBeUndefined()
    ofKind(await claim(store), 'claimed')
  }
})

it('reads the time of a server once for all claims that need it', async () => {
  const client = connectIoRedis(server.url)
  const ask = vi.spyOn(client, 'callBuffer')
  const store = redisStore({ client, prefix: newPrefix() })
  const claims = ['a', 'b', 'c'].map((key) => claim(store, { key }))
  for (const outcome of await Promise.all(claims)) ofKind(outcome, 'claimed')
  ofKind(await claim(store, { key: 'd' }), 'claimed')
  const isTime = (args: readonly unknown[]) => args.some((arg) => String(arg).includes(':due'))
  const scripts = ask.mock.calls.filter(([command]) => command === 'EVALSHA')
  expect(scripts.filter((args) => args[2] === '1' && isTime(args)).length).toBe(1)
})

it('claims at once after the clock of the server was changed', async () => {
  const store = redisStore({ client: connectIoRedis(server.url), prefix: newPrefix() })
  ofKind(await claim(store, { key: 'warm' }), 'claimed')
  // As if the server were an hour ahead of its earlier answers, and then an hour behind.
  const startMs = performance.now()
  for (const [n, hours] of [-1, 1].entries()) {
    const clock = vi.spyOn(performance, 'now')
    clock.mockImplementation(() => startMs + hours * 3_600_000)
    ofKind(await claim(store, { key: `key-${n}` }), 'claimed')
    clock.mockRestore()
  }
})

it.each(DRIVERS)(
  'runs every request once and loses no result when the server restarts under load: %s',
  { timeout: 60_000 },
  async (driver) => {
    const client = await CONNECT[driver](server.url)
    const prefix = newPrefix()
    const engine = createEngine({ store: redisStore({ client, prefix }) })
    const runs = new Map<string, number>()
    const acknowledged: string[] = []
    const over = new AbortController()
    const worker = async (name: number) => {
      for (let n = 0; !over.signal.aborted; n++) {
        const key = `${name}-${n}`
        await untilDone(engine, key, runs)
        acknowledged.push(key)
      }
    }
    const workers = Array.from({ length: 16 }, (_, name) => worker(name))
    const count = () => acknowledged.length
    for (let restart = 1; restart <= 2; restart++) {
      const before = count()
      await expect.poll(count, { timeout: 20_000 }).toBeGreaterThan(before + 50)
      await server.kill()
      await server.start()
      if (restart === 2) await connectIoRedis(server.url).script('FLUSH')
    }
    const before = count()
    await expect.poll(count, { timeout: 20_000 }).toBeGreaterThan(before + 50)
    over.abort()
    await Promise.all(workers)
    await engine.close()

    expect([...runs.values()].filter((times) => times !== 1)).toEqual([])
    // A new client and store, so that only the data of the server counts.
    const store = redisStore({ client: connectIoRedis(server.url), prefix })
    const completed = await store.list({ state: 'completed', limit: 100_000 })
    expect(completed.map((view) => view.key).toSorted()).toEqual(acknowledged.toSorted())
    expect(await store.list({ state: 'unknown', limit: 10 })).toEqual([])
  },
)

/** Retries with the same key until there is an answer, as the client of an API does. */
async function untilDone(engine: Engine, key: string, runs: Map<string, number>): Promise<void> {
  const scope = { tenant: 't', operation: 'pay' }
  for (let tries = 0; tries < 500; tries++) {
    try {
      const outcome = await engine.run({ scope, key, fingerprint: 'f' }, () => {
        runs.set(key, (runs.get(key) ?? 0) + 1)
        return bytes(key)
      })
      if (outcome.kind === 'ran' || outcome.kind === 'replayed') return
    } catch {
      // The store is down. The next try may succeed.
    }
    await new Promise((resolve) => setTimeout(resolve, 20))
  }
  throw new Error('the store did not come back')
}

function evalshaCalls(info: string): number {
  return Number(/cmdstat_evalsha:calls=(\d+)/.exec(info)?.[1] ?? 0)
}
