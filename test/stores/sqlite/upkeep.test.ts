import { expect, it } from 'vitest'
import type { Store } from '../../../src/core/store/store.ts'
import {
  bytes,
  claim,
  claimRequest,
  claimRequests,
  completeOf,
  finish,
  hold,
  LEASE_MS,
  ofKind,
  RETENTION_MS,
} from '../../../src/testing/store-cases/store-case.ts'
import { setup } from './setup.ts'

const { identity } = claimRequest()

async function textsOf(store: Store): Promise<string[]> {
  const views = await store.history!({ ref: { identity }, limit: 10 })
  return views.map(({ result }) => new TextDecoder().decode(result))
}

it('keeps a history only with the history option, which can be switched on later', async () => {
  const { store, open, clock, app } = setup()
  const rows = () => app.prepare('SELECT count(*) AS n FROM oncekey_record_history').get()?.['n']
  await finish(store, {}, bytes('forgotten'))
  clock.advance(RETENTION_MS)
  await store.reap({ limit: 10 })
  expect(rows()).toBe(0)

  const keeping = open({ history: true })
  await finish(keeping, {}, bytes('kept'))
  clock.advance(RETENTION_MS)
  ofKind(await claim(keeping), 'claimed')
  expect(rows()).toBe(1)
  expect(await textsOf(keeping)).toEqual(['kept'])
})

it('lists the history newest first after VACUUM and after the file is opened again', async () => {
  const { store, open, clock, app } = setup({ history: true })
  for (const text of ['one', 'two', 'three']) {
    await finish(store, {}, bytes(text))
    clock.advance(RETENTION_MS)
    await store.reap({ limit: 10 })
  }
  await store.close()
  app.exec('DELETE FROM oncekey_record_history WHERE number = 1; VACUUM')
  expect(await textsOf(open({ history: true }))).toEqual(['three', 'two'])
})

// A foreign key forbids the removal of the record, so the transaction fails after the copy.
it('keeps no history of a record that could not be removed', async () => {
  const { store, clock, app } = setup({ history: true })
  app.exec('CREATE TABLE invoice (record_id TEXT REFERENCES oncekey_record (record_id))')
  const lease = await hold(store)
  await store.transaction(lease, (tx) => {
    tx.exec('INSERT INTO invoice SELECT record_id FROM oncekey_record')
    return { result: bytes('referred to'), retentionMs: RETENTION_MS }
  })
  clock.advance(RETENTION_MS)
  await expect(store.reap({ limit: 10 })).rejects.toMatchObject({ failure: 'rejected' })
  await expect(claim(store)).rejects.toMatchObject({ failure: 'rejected' })
  expect(await textsOf(store)).toEqual([])
})

it('completes more abandoned records than fit into one transaction', async () => {
  const { store, clock } = setup()
  await store.claim(claimRequests(250, { mode: 'accept' }))
  clock.advance(RETENTION_MS)
  const abandoned = { result: new Uint8Array(100_000), retentionMs: RETENTION_MS }
  const report = await store.reap({ limit: 240, abandoned })
  expect(report).toEqual({ removed: 0, expired: 0, abandoned: 240 })
  const rest = await store.reap({ limit: 240, abandoned })
  expect(rest).toEqual({ removed: 0, expired: 0, abandoned: 10 })
})

/** How many successive claims, one in each turn of the event loop, run during `call`. */
async function claimsDuring(store: Store, call: () => Promise<unknown>): Promise<number> {
  const over = new AbortController()
  const called = call().finally(() => over.abort())
  let count = 0
  for (; !over.signal.aborted; count++) {
    ofKind(await claim(store, { key: `between-${count}` }), 'claimed')
    await new Promise((resolve) => {
      setImmediate(resolve)
    })
  }
  await called
  return count
}

it('sweeps many records in pieces, and runs other calls in between', async () => {
  const { store, clock } = setup()
  await store.claim(claimRequests(450))
  clock.advance(LEASE_MS)
  const claims = await claimsDuring(store, async () => {
    expect((await store.sweep({ limit: 425 })).length).toBe(425)
  })
  expect(claims).toBeGreaterThanOrEqual(4)
  expect((await store.sweep({ limit: 425 })).length).toBe(25)
})

it('reaps many records in pieces, and runs other calls in between', async () => {
  const { store, clock } = setup()
  await completeAll(store, 450, new Uint8Array(1))
  clock.advance(RETENTION_MS)
  const claims = await claimsDuring(store, async () => {
    expect(await store.reap({ limit: 425 })).toEqual({ removed: 425, expired: 0, abandoned: 0 })
  })
  expect(claims).toBeGreaterThanOrEqual(4)
  expect(await store.reap({ limit: 425 })).toEqual({ removed: 25, expired: 0, abandoned: 0 })
})

it('reaps few records in each transaction if their results are large', async () => {
  const { store, clock } = setup({ synchronous: 'normal' })
  await completeAll(store, 20, new Uint8Array(1024 * 1024))
  clock.advance(RETENTION_MS)
  const claims = await claimsDuring(store, async () => {
    expect(await store.reap({ limit: 1000 })).toEqual({ removed: 20, expired: 0, abandoned: 0 })
  })
  expect(claims).toBeGreaterThanOrEqual(5)
})

it('reaps a record with a result that is larger than the limit of one transaction', async () => {
  const { store, clock } = setup({ synchronous: 'normal' })
  await completeAll(store, 2, new Uint8Array(5 * 1024 * 1024))
  clock.advance(RETENTION_MS)
  expect(await store.reap({ limit: 1000 })).toEqual({ removed: 2, expired: 0, abandoned: 0 })
})

// The store is closed while a sweep is between two of its pieces.
it('returns the records swept so far when a later piece fails', async () => {
  const { store, open, clock } = setup()
  await store.claim(claimRequests(250))
  clock.advance(LEASE_MS)
  const sweeping = store.sweep({ limit: 250 })
  ofKind(await claim(store, { key: 'between' }), 'claimed')
  await store.close()
  const swept = await sweeping
  expect(swept.length).toBeGreaterThan(0)
  const rest = await open().sweep({ limit: 250 })
  expect(swept.length + rest.length).toBe(250)
})

async function completeAll(store: Store, count: number, result: Uint8Array): Promise<void> {
  const outcomes = await store.claim(claimRequests(count))
  const leases = outcomes.map((outcome) => ofKind(outcome, 'claimed').lease)
  await store.settle(leases.map((lease) => completeOf(lease, result)))
}
