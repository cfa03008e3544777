import { expect, it } from 'vitest'
import { laneOf } from '../../../src/core/store/lane-of.ts'

const lanes = (of: (identity: string) => number | undefined) => ({ count: 4, of })

it('returns the lane that the store names', () => {
  expect(
    [0, 3].map((lane) =>
      laneOf(
        lanes(() => lane),
        'id',
      ),
    ),
  ).toEqual([0, 3])
})

it.each([4, -1, 1.5, Number.NaN, Infinity, undefined])(
  'treats the lane %s as the whole store',
  (lane) => {
    expect(
      laneOf(
        lanes(() => lane),
        'id',
      ),
    ).toBeUndefined()
  },
)

it('treats an of() that throws as the whole store', () => {
  expect(
    laneOf(
      lanes(() => expect.fail('no lane')),
      'id',
    ),
  ).toBeUndefined()
  expect(laneOf(undefined, 'id')).toBeUndefined()
})
