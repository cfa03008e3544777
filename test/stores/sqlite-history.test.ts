import { expect, it } from 'vitest'
import type { Store } from '../../src/core/store.ts'
import {
  bytes,
  claim,
  claimRequest,
  claimRequests,
  finish,
  hold,
  ofKind,
  RETENTION_MS,
} from '../../src/testing/store-cases/store-case.ts'
import { setup } from './sqlite-setup.ts'

const { identity } = claimRequest()

async function textsOf(store: Store): Promise<string[]> {
  const views = await store.history!({ ref: { identity }, limit: 10 })
  return views.map(({ result }) => new TextDecoder().decode(result))
}

it('fills no history that nobody asked for, and can be asked at any time', async () => {
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

it('has the history newest first when the file was vacuumed and opened again', async () => {
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

// A row that refers to the record forbids its removal: the transaction fails after the copy.
it('keeps nothing in the history of a record that could not be removed', async () => {
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
