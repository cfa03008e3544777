import { expect, it } from 'vitest'
import { durableCases, storeCases } from '../../src/testing/index.ts'

it('names every store case once', () => {
  const names = storeCases.map((storeCase) => storeCase.name)
  expect(names.filter((name, n) => names.indexOf(name) !== n)).toEqual([])
})

it('names every durable case once', () => {
  const names = durableCases.map((durableCase) => durableCase.name)
  expect(names.filter((name, n) => names.indexOf(name) !== n)).toEqual([])
})
