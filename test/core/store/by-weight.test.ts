import { expect, it } from 'vitest'
import { ByWeight, type Weighted } from '../../../src/core/store/by-weight.ts'

class Entry implements Weighted<Entry> {
  weight = 0
  before: Entry | undefined
  after: Entry | undefined
  readonly name: string

  constructor(name: string) {
    this.name = name
  }
}

/** A number from 0 to below `end`; the same sequence in each run. */
function numbers(): (end: number) => number {
  let state = 1
  return (end) => {
    state = (state * 48_271) % 2_147_483_647
    return state % end
  }
}

it('finds the heaviest entry after any change, and none when all are gone', () => {
  const byWeight = new ByWeight<Entry>()
  const entries = Array.from({ length: 12 }, (_, n) => new Entry(`${n}`))
  const next = numbers()
  for (let n = 0; n < 5_000; n++) {
    byWeight.weigh(entries[next(12)]!, next(3) === 0 ? 0 : next(8))
    const most = Math.max(...entries.map(({ weight }) => weight))
    expect(byWeight.heaviest?.weight ?? 0).toBe(most)
  }
  for (const entry of entries) byWeight.weigh(entry, 0)
  expect(byWeight.heaviest).toBeUndefined()
})

it('finds of entries with one weight the one that has had it longest', () => {
  const byWeight = new ByWeight<Entry>()
  const [a, b, c] = ['a', 'b', 'c'].map((name) => new Entry(name))
  for (const entry of [a!, b!, c!]) byWeight.weigh(entry, 2)
  const gone: (string | undefined)[] = []
  for (let n = 0; n < 6; n++) {
    const { heaviest } = byWeight
    gone.push(heaviest?.name)
    byWeight.weigh(heaviest!, heaviest!.weight - 1)
  }
  expect(gone).toEqual(['a', 'b', 'c', 'a', 'b', 'c'])
})
