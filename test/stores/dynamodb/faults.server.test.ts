import { expect, it } from 'vitest'
import { createEngine } from '../../../src/core/engine/engine.ts'
import type { ClaimRequest, Store } from '../../../src/core/store/store.ts'
import { FakeClock } from '../../../src/testing/fake-clock.ts'
import {
  assertBytes,
  bytes,
  claim,
  claimRequests,
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
import { around, losingProxy, useDynamodb } from './setup.ts'

const setup = useDynamodb({ private: true })

/** Long enough for a busy machine. */
const PATIENT = { timeout: 60_000 }

/** Loses the answer to every third write, and to every fifth read. */
function everyThird() {
  let [writes, reads] = [0, 0]
  return (target: string) =>
    target === 'PutItem' || target === 'DeleteItem' ? ++writes % 3 === 0 : ++reads % 5 === 0
}

/** Repeats the call with the same token while the store is unavailable, up to 50 times. */
async function persistently<Answer>(call: () => Promise<Answer>): Promise<Answer> {
  for (let tries = 1; ; tries++) {
    try {
      return await call()
    } catch (error) {
      expect(error).toMatchObject({ code: 'STORE_FAILED', failure: 'unavailable' })
      if (tries === 50) throw error
    }
  }
}

// The request takes effect, its answer is lost, and the SDK or the caller sends it again.
it.each([
  ['the SDK', 8],
  ['the caller', 1],
])('gives each key to one claim when answers are lost and %s repeats', async (_, maxAttempts) => {
  const { connect, open, server } = await setup()
  const endpoint = await losingProxy(server.endpoint, everyThird())
  const stores = [1, 2, 3].map(() =>
    open({ client: connect({ endpoint, maxAttempts, retryMode: 'standard' }) }),
  )
  const wins: string[] = []
  const compete = async (store: Store, request: ClaimRequest) => {
    const outcome = only(await persistently(() => store.claim([request])))
    if (outcome.kind !== 'claimed') return
    wins.push(request.key)
    // A repeated claim gets the same lease.
    const again = only(await persistently(() => store.claim([request])))
    expect(ofKind(again, 'claimed').lease).toEqual(outcome.lease)
    const settled = await persistently(() => store.settle([completeOf(outcome.lease)]))
    ofKind(only(settled), 'settled')
  }
  await Promise.all(
    stores.flatMap((store) => claimRequests(20).map((request) => compete(store, request))),
  )
  expect(wins.toSorted()).toEqual(
    claimRequests(20)
      .map(({ key }) => key)
      .toSorted(),
  )
  const views = await open().list({ state: 'completed', limit: 100 })
  expect(views.map(({ attempt }) => attempt)).toEqual(wins.map(() => 1))
})

it('makes every other move once when its answer is lost', async () => {
  const { connect, open, server } = await setup()
  let isLost = false
  const losePut = (target: string) => {
    const loses = isLost && target === 'PutItem'
    if (loses) isLost = false
    return loses
  }
  const endpoint = await losingProxy(server.endpoint, losePut)
  const clock = new FakeClock()
  const store = open({ client: connect({ endpoint, maxAttempts: 3 }), clock })
  const losing = <Answer>(call: () => Promise<Answer>) => {
    isLost = true
    return call()
  }

  const lease = ofKind(await losing(() => claim(store, { onLapse: 'rerun' })), 'claimed').lease
  expect(await losing(() => store.renew([{ ...lease, leaseMs: LEASE_MS }]))).toEqual([true])
  clock.advance(LEASE_MS)
  // The lapse is reported although only the refusal of the repeated write was answered.
  expect((await losing(() => store.sweep({ limit: 10 }))).length).toBe(1)
  const second = ofKind(await losing(() => claim(store)), 'claimed')
  expect([second.from, second.lease.attempt]).toEqual(['retry', 2])
  ofKind(await losing(() => settle(store, doubtOf(second.lease))), 'settled')
  const { identity } = lease
  const verdict = { kind: 'completed', result: bytes('found') } as const
  const verdicts = [{ ref: { identity }, verdict, retentionMs: RETENTION_MS }]
  ofKind(only(await losing(() => store.resolve(verdicts))), 'resolved')
  clock.advance(RETENTION_MS)
  expect(ofKind(await losing(() => claim(store)), 'claimed').from).toBe('expired')
  expect(isLost).toBe(false)
})

// The index shows an earlier state of the table.
it('acts on the table and not on the index when the index lags behind', async () => {
  const { client, open } = await setup()
  const clock = new FakeClock()
  const fresh = open({ clock })
  const answers = new Map<string, object>()
  let isBehind = false
  const stale = around(client, async ({ name, input, go }) => {
    if (name !== 'query') return go()
    const query = JSON.stringify(input['ExpressionAttributeValues'])
    if (!isBehind) answers.set(query, await go())
    return answers.get(query) ?? { Items: [] }
  })
  const store = open({ clock, client: stale })

  const renewed = await hold(store, { key: 'renewed' })
  const done = await hold(store, { key: 'done' })
  const old = await finish(store, { key: 'old', retentionMs: 1 })
  const { recordId } = await viewOf(store, old)
  await store.list({ state: 'in_progress', limit: 10 })
  await store.list({ state: 'completed', limit: 10 })
  await store.sweep({ limit: 10 })
  clock.advance(RETENTION_MS)
  await store.read({ recordId })
  expect((await store.list({ state: 'completed', limit: 10 })).length).toBe(1)
  // Records the index entry for the later reap, too: `old` has expired.
  const probe = await store.reap({ limit: 0 })
  expect(probe.removed).toBe(0)

  isBehind = true
  await fresh.renew([{ ...renewed, leaseMs: LEASE_MS }])
  await settle(fresh, completeOf(done))
  const reborn = ofKind(await claim(fresh, { key: 'old' }), 'claimed')

  expect(await store.sweep({ limit: 10 })).toEqual([])
  expect(await store.reap({ limit: 10 })).toEqual({ removed: 0, expired: 0, abandoned: 0 })
  expect((await store.list({ state: 'in_progress', limit: 10 })).map(({ key }) => key)).toEqual([
    'renewed',
  ])
  expect(await store.list({ state: 'completed', limit: 10 })).toEqual([])
  expect(await store.read({ recordId })).toBeUndefined()
  const verdict = { kind: 'failed_retryable' } as const
  const verdicts = [{ ref: { recordId }, verdict, retentionMs: 1 }]
  expect(await store.resolve(verdicts)).toEqual([{ kind: 'not_found' }])
  // A record that the index does not have yet is found after the index has caught up.
  expect(await store.read({ recordId: reborn.recordId })).toBeUndefined()
  isBehind = false
  expect((await store.read({ recordId: reborn.recordId }))?.key).toBe('old')
})

it('fails closed while the service is down, and serves requests after it', PATIENT, async () => {
  const { server, connect, open } = await setup()
  const store = open({ client: connect({ maxAttempts: 2 }) })
  const engine = createEngine({ store, settleTimeoutMs: 30_000 })
  const runs = new Map<string, number>()
  const acknowledged: string[] = []
  let failures = 0
  const stopped = new AbortController()
  const request = (key: string) => {
    const scope = { tenant: 'tenant-1', operation: 'POST /payments' }
    return { scope, key, fingerprint: 'fingerprint-1' }
  }
  const client = async (name: string) => {
    for (let n = 0; !stopped.signal.aborted; n++) {
      const key = `${name}-${n}`
      const work = () => {
        runs.set(key, (runs.get(key) ?? 0) + 1)
        return bytes(key)
      }
      // A client that retries the same key until it gets an outcome.
      for (let tries = 0; tries < 400; tries++) {
        const outcome = await engine.run(request(key), work).catch(() => undefined)
        if (outcome?.kind === 'ran' || outcome?.kind === 'replayed') acknowledged.push(key)
        if (outcome !== undefined) break
        failures++
        await new Promise((resolve) => setTimeout(resolve, 20))
      }
    }
  }
  const clients = Array.from({ length: 6 }, (_, n) => client(`c${n}`))
  await expect.poll(() => acknowledged.length, PATIENT).toBeGreaterThan(20)
  await server.stopAtOnce()
  await expect.poll(() => failures, PATIENT).toBeGreaterThan(20)
  await server.start()
  const before = acknowledged.length
  await expect.poll(() => acknowledged.length, PATIENT).toBeGreaterThan(before + 20)
  stopped.abort()
  await Promise.all(clients)
  await engine.close()

  expect(Math.max(...runs.values())).toBe(1)
  const fresh = open()
  for (const key of acknowledged) {
    assertBytes(ofKind(await claim(fresh, { key }), 'completed').result, bytes(key))
  }
})

it('is unavailable when the service throttles, and rejects a row that is invalid', async () => {
  const { client, open } = await setup()
  const failing = (name: string, message: string) =>
    open({
      client: around(client, () => Promise.reject(Object.assign(new Error(message), { name }))),
    })
  const busy = failing('ProvisionedThroughputExceededException', 'slow down')
  await expect(claim(busy)).rejects.toMatchObject({ failure: 'unavailable' })
  const strict = failing('ValidationException', 'Item size has exceeded')
  await expect(claim(strict)).rejects.toMatchObject({ failure: 'rejected' })
  // The other row may have been written.
  await expect(strict.claim(claimRequests(2))).rejects.toMatchObject({ failure: 'unavailable' })
  await expect(strict.sweep({ limit: 1 })).rejects.toMatchObject({ failure: 'unavailable' })
  const none = failing('ResourceNotFoundException', 'Requested resource not found')
  await expect(claim(none)).rejects.toThrow('create the table that tableDefinition() describes')
})

// The process crashes between the write of the history copy and the removal of the record.
it('keeps a record once in the history after repeated crashes at its end', async () => {
  const { client, open } = await setup()
  const clock = new FakeClock()
  let isDying = true
  const dying = around(client, ({ name, input, go }) => {
    const condition = String(input['ConditionExpression'])
    const isEnd = name === 'deleteItem' || (name === 'putItem' && condition.includes('version'))
    return isDying && isEnd ? Promise.reject(new Error('killed')) : go()
  })
  const healthy = open({ clock, history: true })
  const store = open({ clock, history: true, client: dying })
  const lease = await hold(healthy, { afterExpiry: 'refuse' })
  const { identity } = lease
  await settle(healthy, releaseOf(lease))
  clock.advance(RETENTION_MS)
  for (let n = 0; n < 3; n++) await expect(store.reap({ limit: 10 })).rejects.toThrow('killed')
  await expect(claim(store)).rejects.toThrow('killed')
  const history = () => healthy.history!({ ref: { identity }, limit: 10 })
  // The record is still in use: its holder may complete it.
  expect(await history()).toEqual([])
  ofKind(await settle(healthy, completeOf(lease, bytes('late'))), 'settled')
  clock.advance(RETENTION_MS)
  isDying = false
  expect((await store.reap({ limit: 10 })).expired).toBe(1)
  const [stored, ...more] = await history()
  assertBytes(stored?.result, bytes('late'))
  expect(more).toEqual([])
})

// a reaps the released record and stalls · the holder completes it · b reaps it · a continues
it('never replaces a result in the history with an older copy of the record', async () => {
  const { client, open } = await setup()
  const clock = new FakeClock()
  const [reached, resumed] = [Promise.withResolvers<void>(), Promise.withResolvers<void>()]
  const slow = around(client, async ({ name, input, go }) => {
    const { item } = (input['Item'] ?? {}) as { item?: { S?: string } }
    if (name === 'putItem' && item?.S?.startsWith('history#') === true) {
      reached.resolve()
      await resumed.promise
    }
    return go()
  })
  const [a, b] = [open({ clock, history: true, client: slow }), open({ clock, history: true })]
  const lease = await hold(b)
  ofKind(await settle(b, releaseOf(lease)), 'settled')
  clock.advance(RETENTION_MS)
  const reaping = a.reap({ limit: 10 })
  await reached.promise
  ofKind(await settle(b, completeOf(lease, bytes('paid'))), 'settled')
  clock.advance(RETENTION_MS)
  expect((await b.reap({ limit: 10 })).removed).toBe(1)
  resumed.resolve()
  expect((await reaping).removed).toBe(0)
  const [stored, ...more] = await b.history!({ ref: { identity: lease.identity }, limit: 10 })
  assertBytes(stored?.result, bytes('paid'))
  expect(more).toEqual([])
})
