import { expect, it } from 'vitest'
import { makeStories } from '../../chaos/clients/story.ts'
import {
  DISRUPTION_KINDS,
  disruptionPlan,
  type Disruption,
} from '../../chaos/disruptions/disruption-plan.ts'

const WORLD = { skus: ['tea'], paid: [] }

/** The first `count` disruptions of the infinite plan. */
function firstOf(seed: number, count: number): Disruption[] {
  const plan = disruptionPlan(seed)
  return Array.from({ length: count }, () => plan.next().value)
}

it('the plan has every kind of disruption within the first 40 for any seed', () => {
  for (let seed = 0; seed < 20; seed++) {
    const first = firstOf(seed, 40)
    expect(new Set(first.map(({ kind }) => kind))).toEqual(new Set(DISRUPTION_KINDS))
  }
})

it('the plan leaves old connections dead after some silences, and alive after others', () => {
  const silent = firstOf(1, 400).filter(({ kind }) => kind === 'silence_database')
  expect(new Set(silent.map(({ old }) => old))).toEqual(new Set(['dead', 'alive']))
})

it('the first 40 stories have hot keys for any seed', () => {
  for (let seed = 0; seed < 20; seed++) {
    const hot = Array.from({ length: 40 }, (_, n) => makeStories(seed, n + 1, WORLD)[0]!)
    expect(hot.some(({ isHot }) => isHot)).toBe(true)
  }
})
