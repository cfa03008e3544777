import { expect, it } from 'vitest'
import {
  advanceWalk,
  nextStart,
  shareOf,
  startOf,
} from '../../../src/stores/dynamodb/shards/shard-walks.ts'

const MORE = { identity: { S: 'next' } }

const sized = (...sizes: number[]) => sizes.map((size, n) => startOf(`shard-${n}`, size))

it('divides the limit equally among shards that were not read to their end', () => {
  expect(shareOf(100, sized(Infinity, Infinity, Infinity))).toBe(33)
  expect(shareOf(2, sized(Infinity, Infinity, Infinity))).toBe(1)
})

it('gives the unused share of small shards to the others', () => {
  expect(shareOf(100, sized(0, 10, Infinity, Infinity))).toBe(45)
  expect(shareOf(100, sized(0, 0, 0, 1_000))).toBe(100)
  expect(shareOf(100, sized(50, 50))).toBe(Infinity)
  expect(shareOf(Infinity, sized(Infinity, 5))).toBe(Infinity)
})

it('starts a shard again after it has read its end or its share', () => {
  const atEnd = advanceWalk(startOf('shard'), 7, undefined)
  expect(nextStart(atEnd, 5)).toEqual(startOf('shard', 7))
  const within = advanceWalk(startOf('shard'), 4, MORE)
  expect(nextStart(within, 5)).toMatchObject({ last: MORE, count: 4 })
  expect(nextStart(advanceWalk(within, 1, MORE), 5)).toEqual(startOf('shard'))
})

it('discards the size of a shard that has grown', () => {
  const grown = advanceWalk(startOf('shard', 3), 2, MORE)
  expect(grown.size).toBe(3)
  expect(advanceWalk(grown, 1, MORE).size).toBe(Infinity)
})
