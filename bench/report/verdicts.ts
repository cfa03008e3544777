import { valuesOf, type LineResult } from './results.ts'
import { compare, summarise, type Summary } from './statistics.ts'
import type { Target } from './targets.ts'

export interface Verdict {
  readonly target: Target
  /**
   * `within_spread`: missed by no more than the spread of the rounds, so another run may reach it.
   * `not_measured`: this run has left out one of its lines.
   */
  readonly kind: 'reached' | 'within_spread' | 'missed' | 'not_measured'
  readonly value?: Summary
}

export function judge(target: Target, lines: readonly LineResult[]): Verdict {
  const value = measured(target, lines)
  if (value === undefined) return { target, kind: 'not_measured' }
  const shortfall = shortOf(target.limit, value.median)
  if (shortfall <= 0) return { target, kind: 'reached', value }
  return { target, kind: shortfall <= value.spread ? 'within_spread' : 'missed', value }
}

function measured(target: Target, lines: readonly LineResult[]): Summary | undefined {
  const of = valuesOf(lines, target.of)
  const less = target.less === undefined ? undefined : valuesOf(lines, target.less)
  if (of === undefined || (target.less !== undefined && less === undefined)) return undefined
  const ours = less === undefined ? of : of.map((value, round) => value - less[round]!)
  if (target.against === undefined) return summarise(ours)
  const theirs = valuesOf(lines, target.against)
  return theirs === undefined ? undefined : compare(ours, theirs)
}

/** Positive if the limit is missed. */
function shortOf(limit: Target['limit'], value: number): number {
  return 'atLeast' in limit ? limit.atLeast - value : value - limit.atMost
}
