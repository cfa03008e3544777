import type { Figures, LineResult } from '../../bench/report/results.ts'

/** A measured line: one value of each figure for every round. */
export function line(
  id: string,
  figures: { readonly [Name in keyof Figures]?: readonly number[] },
  more: Partial<LineResult> = {},
): LineResult {
  return {
    id,
    group: 'engine',
    subject: id,
    what: 'first requests',
    load: '64 in flight',
    figures,
    ...more,
  }
}
