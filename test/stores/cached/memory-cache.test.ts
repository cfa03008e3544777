import { expect, it } from 'vitest'
import { memoryCache } from '../../../src/stores/cached/index.ts'

it('memoryCache keeps the most recently used replies within its limits', async () => {
  const cache = memoryCache({ entriesMax: 2, bytesMax: 1000 })
  const fill = (length: number) => ({
    bytes: new Uint8Array(length),
    expiresAtMs: 1,
    ttlMs: 60_000,
  })
  const kept = async () => {
    const entries = await cache.get(['a', 'b', 'c'])
    return ['a', 'b', 'c'].filter((_, n) => entries[n] !== undefined)
  }
  await cache.fill('a', fill(1))
  await cache.fill('b', fill(1))
  await cache.get(['a'])
  await cache.fill('c', fill(1))
  expect(await kept()).toEqual(['a', 'c'])
  await cache.fill('b', fill(500))
  expect(await kept()).toEqual(['b', 'c'])
  await cache.fill('c', fill(500))
  expect(await kept()).toEqual(['c'])
  await cache.fill('a', fill(1001))
  expect(await kept()).toEqual([])
})

it('memoryCache refuses more tombstones than entriesMax', async () => {
  const cache = memoryCache({ entriesMax: 2, bytesMax: 1000 })
  await cache.forget('a', 60_000)
  await cache.forget('b', 60_000)
  await cache.forget('b', 60_000)
  await expect(cache.forget('c', 60_000)).rejects.toThrow('already has 2 tombstones')
})

it('memoryCache refuses unknown options and values out of range', () => {
  expect(() => memoryCache({ entriesMax: 0 })).toThrow(/entriesMax must be a whole number/)
  expect(() => memoryCache({ ttl: 1 } as never)).toThrow(/no option "ttl"/)
})
