/** The report as text, for people. */
import { GROUPS, type FigureName, type Group, type LineResult } from './results.ts'
import { compare, summarise } from './statistics.ts'
import type { Target } from './targets.ts'
import type { Verdict } from './verdicts.ts'

const GROUP_TITLES: Readonly<Record<Group, string>> = {
  engine: 'Engine: claim and complete, and replays, in one process',
  network: 'Network: a database with a delay, and a hot key',
  http: 'HTTP: against the bare route of the same framework',
  peers: 'Peers: the same work on the same servers',
  limits: 'Limits: the fastest possible implementation, and its parts',
  choices: 'Choices: our design against the alternatives',
  relay: 'The outbox relay',
  growth: 'Growth: large tables, memory, several processes',
}

const COLUMNS: readonly (readonly [FigureName, string])[] = [
  ['rate', 'a second'],
  ['p50', 'p50 ms'],
  ['p99', 'p99 ms'],
  ['cpu', 'CPU µs'],
  ['bytes', 'bytes'],
]

/** One table for each measured group, with the notes below. */
export function toTables(lines: readonly LineResult[]): string {
  return GROUPS.map((group) => lines.filter((line) => line.group === group))
    .filter((own) => own.length > 0)
    .map((own) => groupTable(own, lines))
    .join('\n\n')
}

function groupTable(own: readonly LineResult[], all: readonly LineResult[]): string {
  const columns = COLUMNS.filter(([name]) => own.some(({ figures }) => name in figures))
  const notes = [...new Set(own.flatMap(({ note }) => (note === undefined ? [] : [note])))]
  const hasBase = own.some(({ base }) => base !== undefined)
  const head = ['subject', 'what', 'load', ...columns.map(([, title]) => title)]
  if (hasBase) head.push('against')
  const rows = own.map((line) => {
    const mark = line.note === undefined ? '' : ` [${notes.indexOf(line.note) + 1}]`
    const cells = columns.map(([name]) => figureCell(line, name))
    const against = hasBase ? [againstCell(line, all)] : []
    return [`${line.subject}${mark}`, line.what, line.load, ...cells, ...against]
  })
  const footnotes = notes.map((note, index) => `  [${index + 1}] ${note}`)
  return [GROUP_TITLES[own[0]!.group], aligned([head, ...rows], 3), ...footnotes].join('\n')
}

function figureCell({ figures }: LineResult, name: FigureName): string {
  const values = figures[name]
  if (values === undefined || values.length === 0) return ''
  const { median, spread } = summarise(values)
  // For figures other than the rate, the medians are sufficient.
  if (name !== 'rate') return shown(median)
  return `${shown(median)} ±${percent(spread, median)}`
}

function againstCell(line: LineResult, all: readonly LineResult[]): string {
  if (line.base === undefined) return ''
  const base = all.find(({ id }) => id === line.base)
  const own = line.figures.rate
  if (base?.figures.rate === undefined || own === undefined) return ''
  return `${compare(own, base.figures.rate).median.toFixed(2)} × ${base.subject}`
}

const VERDICT_WORDS: Readonly<Record<Verdict['kind'], string>> = {
  reached: 'reached',
  within_spread: 'missed, within the spread',
  missed: 'MISSED',
  not_measured: '',
}

/** One line for each target with a verdict. */
export function toVerdictLines(verdicts: readonly Verdict[]): string {
  const judged = verdicts.filter(({ value }) => value !== undefined)
  const rows = judged.map(({ target, kind, value }) => {
    const got = `${shown(value!.median)} ±${shown(value!.spread)}`
    return [target.name, got, limitText(target), VERDICT_WORDS[kind]]
  })
  const lines = rows.length === 0 ? [] : [aligned([['target', 'got', 'wanted', ''], ...rows], 1)]
  const left = verdicts.length - judged.length
  if (left > 0) lines.push(`  ${left} of ${verdicts.length} need lines that this run left out.`)
  return ['Targets', ...lines].join('\n')
}

function limitText({ limit, unit, against }: Target): string {
  const times = against === undefined ? ` ${unit ?? ''}` : ' ×'
  return 'atLeast' in limit
    ? `at least ${shown(limit.atLeast)}${times}`
    : `at most ${shown(limit.atMost)}${times}`
}

/** Aligns the first `left` columns to the left, and the numbers after them to the right. */
function aligned(rows: readonly (readonly string[])[], left: number): string {
  const widths = rows[0]!.map((_, column) => Math.max(...rows.map((row) => row[column]!.length)))
  const toLine = (row: readonly string[]): string =>
    row
      .map((cell, column) =>
        column < left ? cell.padEnd(widths[column]!) : cell.padStart(widths[column]!),
      )
      .join('  ')
      .trimEnd()
  const rule = widths.map((width) => '-'.repeat(width)).join('  ')
  const [head, ...body] = rows
  return [toLine(head!), rule, ...body.map(toLine)].map((line) => `  ${line}`).join('\n')
}

/** Three digits are more than the precision of a shared machine. */
export function shown(value: number): string {
  const size = Math.abs(value)
  if (size >= 1000) return Math.round(value).toLocaleString('en')
  if (size >= 100) return value.toFixed(0)
  if (size >= 10) return value.toFixed(1)
  return value.toFixed(2)
}

function percent(part: number, whole: number): string {
  return whole === 0 ? '0 %' : `${Math.round((100 * part) / whole)} %`
}
