import fc from 'fast-check'
import { expect, it } from 'vitest'
import { compare, median, quantile, summarise } from '../../bench/report/statistics.ts'

it('the median is the middle of an odd number of values, or the mean of the middle two', () => {
  expect(median([9, 1, 5])).toBe(5)
  expect(median([9, 1, 5, 7])).toBe(6)
  expect(median([4])).toBe(4)
})

it('an empty list has no summary', () => {
  expect(() => median([])).toThrow('needs at least one value')
})

it('the spread excludes one round in which the machine slept', () => {
  expect(summarise([100, 101, 102, 103, 104, 105, 1])).toEqual({ median: 102, spread: 1.5 })
})

it('lines are compared round by round, so that a common slowdown is no spread', () => {
  const { median: ratio, spread } = compare([200, 20, 100], [100, 10, 50])
  expect(ratio).toBe(2)
  expect(spread).toBe(0)
})

it('different numbers of rounds cannot be compared', () => {
  expect(() => compare([1], [1, 2])).toThrow('1 rounds cannot be compared with 2')
})

it('a quantile stays within the values, and grows with the requested part', () => {
  const values = fc.array(fc.integer(), { minLength: 1 })
  const part = fc.double({ noNaN: true, min: 0, max: 1 })
  fc.assert(
    fc.property(values, part, part, (given, one, other) => {
      const [low, high] = [Math.min(one, other), Math.max(one, other)]
      expect(quantile(given, low)).toBeGreaterThanOrEqual(Math.min(...given))
      expect(quantile(given, high)).toBeLessThanOrEqual(Math.max(...given))
      expect(quantile(given, low)).toBeLessThanOrEqual(quantile(given, high))
    }),
  )
})
