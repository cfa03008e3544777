import { expect, it } from 'vitest'
import {
  claim,
  claimRequest,
  claimRequests,
  finish,
  hold,
  ofKind,
  viewOf,
} from '../../../src/testing/store-cases/store-case.ts'
import { countingPool } from './counting.ts'
import { usePostgres } from './setup.ts'

const setup = usePostgres()

it('sends one statement for claims, and one more for look-ups beside them', async () => {
  const { open, url } = await setup()
  const { pool, sent } = countingPool(url)
  const store = await open({ pool })
  const functionsOf = async (modes: readonly ('hold' | 'find')[], tenant: string) => {
    const before = sent().length
    await store.claim(
      claimRequests(modes.length, { tenant }).map((one, n) => ({ ...one, mode: modes[n]! })),
    )
    const calls = sent().slice(before)
    const names = calls.map((sql) => /_record_(\w+)"\(/.exec(sql)?.[1] ?? sql)
    return names.toSorted((one, other) => one.localeCompare(other))
  }
  expect(await functionsOf(['hold'], 'a')).toEqual(['claim_one_4'])
  expect(await functionsOf(['hold', 'hold', 'hold'], 'b')).toEqual(['claim_4'])
  expect(await functionsOf(['find'], 'c')).toEqual(['find'])
  expect(await functionsOf(['find', 'find'], 'd')).toEqual(['find'])
  expect(await functionsOf(['hold', 'find', 'hold'], 'e')).toEqual(['claim_4', 'find'])
})

it('looks a key up while another transaction has locked its record', async () => {
  const { open, app } = await setup()
  const store = await open()
  await hold(store)
  const other = await app.connect()
  await other.query('BEGIN; SELECT FROM oncekey_record FOR UPDATE')
  await other.query(`UPDATE oncekey_record SET state = 'completed', result = ''`)
  ofKind(await claim(store, { mode: 'find' }), 'in_progress')
  await other.query('COMMIT')
  other.release()
  ofKind(await claim(store, { mode: 'find' }), 'completed')
})

it('looks a key up with a large result, for the same request and for another', async () => {
  const { open } = await setup()
  const store = await open()
  const result = new Uint8Array(3 * 1024 * 1024).fill(7)
  await finish(store, {}, result)
  const found = ofKind(await claim(store, { mode: 'find' }), 'completed')
  expect(Buffer.from(found.result).equals(result)).toBe(true)
  ofKind(await claim(store, { mode: 'find', fingerprint: 'other' }), 'mismatch')
})

it('rejects a batch with a look-up that is no identity, before its claims are sent', async () => {
  const { open } = await setup()
  const store = await open()
  const [good] = claimRequests(1)
  for (const identity of ['zz', 'abc', '', '"\\', good!.identity.toUpperCase()]) {
    const batch = [good!, claimRequest({ mode: 'find', identity })]
    await expect(store.claim(batch)).rejects.toMatchObject({ failure: 'rejected' })
    expect(await store.read({ identity: good!.identity })).toBeUndefined()
  }
})

it('says of claims that they may be written if only the look-up beside them fails', async () => {
  const { open, app } = await setup()
  const store = await open()
  const [good] = claimRequests(1, { tenant: 'good' })
  await app.query('ALTER FUNCTION oncekey_record_find RENAME TO moved')
  const batch = [good!, claimRequest({ mode: 'find' })]
  const failure = { failure: 'unavailable', wroteNothing: false }
  await expect(store.claim(batch)).rejects.toMatchObject(failure)
  const { recordId } = await viewOf(store, good!)
  await app.query('ALTER FUNCTION moved RENAME TO oncekey_record_find')
  const [repeated, found] = await store.claim(batch)
  expect(ofKind(repeated!, 'claimed').recordId).toBe(recordId)
  ofKind(found!, 'free')
})
