/** A run without bad neighbours and one with them, side by side. */
import {
  compareWaiting,
  FLOOR_MS,
  TIMES_MAX,
  type ComparedWaiting,
  type Waiting,
} from './check/waiting.ts'
import type { Report } from './report.ts'

export interface Comparison {
  readonly store: string
  readonly seed: number
  /** Both runs have no violation, and the other tenants did not wait much longer. */
  readonly ok: boolean
  readonly waiting: readonly ComparedWaiting[]
  readonly without: Report
  readonly with: Report
}

export function toComparison(without: Report, withThem: Report): Comparison {
  const { store, seed } = without
  const waiting = compareWaiting(without.waiting, withThem.waiting)
  const ok = without.ok && withThem.ok && waiting.every((line) => line.ok)
  return { store, seed, ok, waiting, without, with: withThem }
}

export function describeComparison({ ok, waiting, without, with: withThem }: Comparison): string {
  const lines = waiting.flatMap((line) => [
    row(line.kind, 'without', line.without),
    row('', 'with', line.with) + (line.ok ? '' : '  too long'),
  ])
  return [
    'waits of the other tenants in ms, without and with bad neighbours',
    HEAD,
    ...lines,
    '',
    `The p99 with them may be ${TIMES_MAX} times the p99 without them. Differences up to ` +
      `${FLOOR_MS} ms do not count: that is the poll interval of workers.`,
    'The p99 of fewer than 100 waits is the longest wait; a longer run is more precise.',
    `Violations: ${violationsOf(without)} without, ${violationsOf(withThem)} with.`,
    ok
      ? 'The other tenants did not wait longer.'
      : 'The other tenants waited longer, or a violation was found.',
  ].join('\n')
}

const COLUMNS = ['count', 'p50', 'p99', 'max']
const HEAD = ' '.repeat(30) + COLUMNS.map((name) => name.padStart(9)).join('')

function row(kind: string, which: string, { count, p50, p99, max }: Waiting): string {
  const numbers = [count, p50, p99, max].map((number) => String(number).padStart(9)).join('')
  return `  ${kind.padEnd(18)}${which.padEnd(10)}${numbers}`
}

/** The waits, for the report of one run. */
export function describeWaiting(waiting: readonly Waiting[]): string {
  return [
    'waits of the other tenants in ms',
    HEAD,
    ...waiting.map((line) => row(line.kind, '', line)),
    '',
  ].join('\n')
}

function violationsOf({ violations }: Report): number {
  return Object.values(violations).reduce((sum, count) => sum + count, 0)
}
