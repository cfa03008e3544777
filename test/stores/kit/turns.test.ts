import { expect, it } from 'vitest'
import { pickInTurns, rotateBehind, TurnCursors } from '../../../src/stores/kit/turns.ts'

const lane = (key: string, candidates: Iterable<string>, max = 100) => ({ key, max, candidates })
const picked = (lanes: readonly ReturnType<typeof lane>[], limit: number) =>
  pickInTurns(lanes, limit).map(({ candidate }) => candidate)

it('picks the first candidate of each lane, then the second of each', () => {
  const lanes = [lane('a', ['a1', 'a2', 'a3']), lane('b', ['b1']), lane('c', ['c1', 'c2'])]
  expect(picked(lanes, 10)).toEqual(['a1', 'b1', 'c1', 'a2', 'c2', 'a3'])
  expect(picked(lanes, 4)).toEqual(['a1', 'b1', 'c1', 'a2'])
  expect(picked(lanes, 0)).toEqual([])
  expect(picked([], 10)).toEqual([])
})

it('picks at most the maximum of each lane', () => {
  const lanes = [lane('a', ['a1', 'a2', 'a3'], 2), lane('b', ['b1', 'b2'], 0), lane('c', ['c1'])]
  expect(picked(lanes, 10)).toEqual(['a1', 'c1', 'a2'])
})

it('returns the lane of each candidate', () => {
  expect(pickInTurns([lane('a', ['1']), lane('b', ['1'])], 2)).toEqual([
    { lane: 'a', candidate: '1' },
    { lane: 'b', candidate: '1' },
  ])
})

it('reads only the candidates that it picks', () => {
  const read: string[] = []
  function* endless(key: string) {
    for (let n = 1; ; n++) {
      read.push(`${key}${n}`)
      yield `${key}${n}`
    }
  }
  expect(picked([lane('a', endless('a')), lane('b', endless('b'), 1)], 3)).toEqual(read)
  expect(read).toEqual(['a1', 'b1', 'a2'])
})

it('starts after the last key, even if that key is absent', () => {
  const order = (keys: string[], last?: string) => rotateBehind(keys, (key) => key, last).join('')
  expect(order(['b', 'c', 'a'])).toBe('abc')
  expect(order(['b', 'c', 'a'], 'a')).toBe('bca')
  expect(order(['b', 'c', 'a'], 'c')).toBe('abc')
  expect(order(['d', 'a', 'c'], 'b')).toBe('cda')
  expect(order([], 'b')).toBe('')
})

it('remembers the tenants of at most 1,000 lanes', () => {
  const cursors = new TurnCursors()
  cursors.stopAt('kept', 'tenant-1')
  for (let n = 0; n < 999; n++) cursors.stopAt(`lane-${n}`, 'tenant-1')
  cursors.stopAt('kept', 'tenant-2')
  cursors.stopAt('one more', 'tenant-1')
  expect(cursors.tenantOf('kept')).toBe('tenant-2')
  expect(cursors.tenantOf('one more')).toBe('tenant-1')
  expect(cursors.tenantOf('lane-0')).toBeUndefined()
  expect(cursors.tenantOf('lane-1')).toBe('tenant-1')
})
