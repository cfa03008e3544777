import { expect, it } from 'vitest'
import { Round } from '../../src/stores/sqlite/round.ts'

/** The places that a round reaches, and whether it is whole. */
function roundOf(places: string[], start?: string, leapsMax = 100): string {
  let leaps = leapsMax
  const round = new Round({
    start,
    next: (behind) => places.find((place) => behind === undefined || place > behind),
    keyOf: (place) => place,
    mayLeap: () => leaps-- > 0,
  })
  return [...round.places()].join('') + (round.isWhole ? '' : '…')
}

it('reaches every place once, from the one behind its start', () => {
  expect(roundOf(['a', 'b', 'c'])).toBe('abc')
  expect(roundOf(['a', 'b', 'c'], 'a')).toBe('bca')
  expect(roundOf(['a', 'b', 'c'], 'c')).toBe('abc')
  expect(roundOf(['a'], 'a')).toBe('a')
  expect(roundOf([], 'a')).toBe('')
  expect(roundOf([])).toBe('')
})

it('reaches every place once where the one at which it starts is gone', () => {
  expect(roundOf(['a', 'c', 'd'], 'b')).toBe('cda')
  expect(roundOf(['b', 'c'], 'a')).toBe('bc')
  expect(roundOf(['a', 'b'], 'c')).toBe('ab')
})

it('ends where it may leap no more, and says that it is not whole', () => {
  expect(roundOf(['a', 'b', 'c'], undefined, 2)).toBe('ab…')
  expect(roundOf(['a', 'b', 'c'], 'b', 3)).toBe('ca…')
  expect(roundOf(['a', 'b', 'c'], 'b', 0)).toBe('…')
})
