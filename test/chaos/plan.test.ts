import { expect, it } from 'vitest'
import { makeStories } from '../../chaos/clients/story.ts'
import { MISCHIEF_KINDS, mischiefPlan, type Mischief } from '../../chaos/mischief/plan.ts'

const WORLD = { skus: ['tea'], paid: [] }

/** The first `count`; the plan itself has no end. */
function firstOf(seed: number, count: number): Mischief[] {
  const plan = mischiefPlan(seed)
  return Array.from({ length: count }, () => plan.next().value)
}

it('has every kind of mischief within the first 40, whatever the seed', () => {
  for (let seed = 0; seed < 20; seed++) {
    const first = firstOf(seed, 40)
    expect(new Set(first.map(({ kind }) => kind))).toEqual(new Set(MISCHIEF_KINDS))
  }
})

it('leaves old connections dead after some silences, and alive after others', () => {
  const silent = firstOf(1, 400).filter(({ kind }) => kind === 'silence_database')
  expect(new Set(silent.map(({ old }) => old))).toEqual(new Set(['dead', 'alive']))
})

it('has hot keys among the first 40 stories, whatever the seed', () => {
  for (let seed = 0; seed < 20; seed++) {
    const hot = Array.from({ length: 40 }, (_, n) => makeStories(seed, n + 1, WORLD)[0]!)
    expect(hot.some(({ isHot }) => isHot)).toBe(true)
  }
})
