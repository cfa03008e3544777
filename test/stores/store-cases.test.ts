import { expect, it } from 'vitest'
import { storeCases } from '../../src/testing/index.ts'

it('names every store case once', () => {
  const names = storeCases.map((storeCase) => storeCase.name)
  expect(names.filter((name, n) => names.indexOf(name) !== n)).toEqual([])
})
