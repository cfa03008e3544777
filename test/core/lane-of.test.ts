import { expect, it } from 'vitest'
import { laneOf } from '../../src/core/lane-of.ts'

const lanes = (of: (identity: string) => number | undefined) => ({ count: 4, of })

it('gives the lane that the store names', () => {
  expect(
    [0, 3].map((lane) =>
      laneOf(
        lanes(() => lane),
        'id',
      ),
    ),
  ).toEqual([0, 3])
})

it.each([4, -1, 1.5, Number.NaN, Infinity, undefined])('takes %s for the whole store', (lane) => {
  expect(
    laneOf(
      lanes(() => lane),
      'id',
    ),
  ).toBeUndefined()
})

it('takes an of() that throws for the whole store', () => {
  expect(
    laneOf(
      lanes(() => expect.fail('no lane')),
      'id',
    ),
  ).toBeUndefined()
  expect(laneOf(undefined, 'id')).toBeUndefined()
})
