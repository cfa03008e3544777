import { expect, it } from 'vitest'
import { Round } from '../../../../src/stores/sqlite/turns/walk.ts'

/** The entries that a round visits; an ellipsis marks a round that is not whole. */
function roundOf(entries: string[], start?: string, leapsMax = 100): string {
  let leaps = leapsMax
  const round = new Round({
    start,
    next: (behind) => entries.find((entry) => behind === undefined || entry > behind),
    keyOf: (entry) => entry,
    mayLeap: () => leaps-- > 0,
  })
  return [...round.entries()].join('') + (round.isWhole ? '' : '…')
}

it('a round visits every entry once, beginning behind its start', () => {
  expect(roundOf(['a', 'b', 'c'])).toBe('abc')
  expect(roundOf(['a', 'b', 'c'], 'a')).toBe('bca')
  expect(roundOf(['a', 'b', 'c'], 'c')).toBe('abc')
  expect(roundOf(['a'], 'a')).toBe('a')
  expect(roundOf([], 'a')).toBe('')
  expect(roundOf([])).toBe('')
})

it('a round visits every entry once if its start was removed', () => {
  expect(roundOf(['a', 'c', 'd'], 'b')).toBe('cda')
  expect(roundOf(['b', 'c'], 'a')).toBe('bc')
  expect(roundOf(['a', 'b'], 'c')).toBe('ab')
})

it('a round without leaps left ends and is not whole', () => {
  expect(roundOf(['a', 'b', 'c'], undefined, 2)).toBe('ab…')
  expect(roundOf(['a', 'b', 'c'], 'b', 3)).toBe('ca…')
  expect(roundOf(['a', 'b', 'c'], 'b', 0)).toBe('…')
})
