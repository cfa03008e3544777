/** Checks that targets, charts and lines name measured lines: a wrong name would go unnoticed. */
import type { ChartPanel } from './chart.ts'
import type { LineNames } from './results.ts'
import type { Target } from './targets.ts'

export interface Referrers {
  readonly lines: readonly LineNames[]
  readonly targets: readonly Target[]
  readonly panels: readonly ChartPanel[]
}

/** Names of lines that no group has, and names that two lines share. */
export function wrongReferences({ lines, targets, panels }: Referrers): string[] {
  const ids = lines.map(({ id }) => id)
  const known = new Set(ids)
  const named = [
    ...targets.flatMap(({ of, less, against }) => [of.line, less?.line, against?.line]),
    ...panels.flatMap(({ bars }) => bars.map(({ of }) => of.line)),
    ...lines.map(({ base }) => base),
  ]
  const missing = named.filter((id) => id !== undefined && !known.has(id))
  const twice = ids.filter((id, index) => ids.indexOf(id) !== index)
  return [...new Set([...missing, ...twice])] as string[]
}
