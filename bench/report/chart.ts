/**
 * The chart of a run as hand-written SVG: bars with their spread, in panels, for light and dark
 * backgrounds. Without dependencies, and with text that every viewer can show.
 */
import { valuesOf, type FigureRef, type LineResult } from './results.ts'
import { summarise } from './statistics.ts'
import { shown } from './table.ts'

export interface ChartBar {
  readonly label: string
  readonly of: FigureRef
  /** Ours, a peer, or the base of the comparison. */
  readonly kind: 'own' | 'peer' | 'base'
}

export interface ChartPanel {
  readonly title: string
  readonly unit: string
  readonly bars: readonly ChartBar[]
}

export interface ChartOptions {
  readonly title: string
  /** The machine and the date, under the title. */
  readonly subtitle: string
  readonly panels: readonly ChartPanel[]
}

const WIDTH = 860
const MARGIN = 24
const LABEL_WIDTH = 280
const VALUE_WIDTH = 110
const BAR_HEIGHT = 16
const ROW_HEIGHT = 25
const TITLE_HEIGHT = 74
const PANEL_HEAD = 34
const PANEL_GAP = 22
const BARS_FROM = MARGIN + LABEL_WIDTH
const BARS_WIDTH = WIDTH - BARS_FROM - VALUE_WIDTH - MARGIN

const STYLE = `
  text { font: 13px system-ui, -apple-system, 'Segoe UI', sans-serif; fill: #1f2328 }
  .title { font-size: 18px; font-weight: 600 } .head { font-weight: 600 }
  .quiet { fill: #59636e } .ground { fill: #ffffff } .spread { stroke: #1f2328; stroke-width: 1.5 }
  .own { fill: #1a7f64 } .peer { fill: #8c959f } .base { fill: #b9c6d6 }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 } .quiet { fill: #9198a1 } .ground { fill: #0d1117 }
    .spread { stroke: #e6edf3 } .own { fill: #2ea883 } .peer { fill: #6e7681 }
    .base { fill: #3d4b5c }
  }`

interface DrawnBar {
  readonly bar: ChartBar
  readonly median: number
  readonly spread: number
}

/** Leaves out bars without a measurement, and panels without bars. */
export function toSvg(
  { title, subtitle, panels }: ChartOptions,
  lines: readonly LineResult[],
): string {
  const drawn = panels
    .map(({ bars, ...panel }) => ({ ...panel, bars: measuredBars(bars, lines) }))
    .filter(({ bars }) => bars.length > 0)
  let y = TITLE_HEIGHT
  const parts = drawn.map((panel) => {
    const part = panelSvg(panel, y)
    y += PANEL_HEAD + panel.bars.length * ROW_HEIGHT + PANEL_GAP
    return part
  })
  const height = y + MARGIN - PANEL_GAP
  return [
    `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${WIDTH} ${height}" role="img" ` +
      `aria-label="${escaped(title)}">`,
    `<title>${escaped(title)}</title>`,
    `<style>${STYLE}\n</style>`,
    `<rect class="ground" width="${WIDTH}" height="${height}" rx="8"/>`,
    `<text class="title" x="${MARGIN}" y="36">${escaped(title)}</text>`,
    `<text class="quiet" x="${MARGIN}" y="58">${escaped(subtitle)}</text>`,
    ...parts,
    '</svg>',
    '',
  ].join('\n')
}

function measuredBars(bars: readonly ChartBar[], lines: readonly LineResult[]): DrawnBar[] {
  return bars.flatMap((bar) => {
    const values = valuesOf(lines, bar.of)
    return values === undefined ? [] : [{ bar, ...summarise(values) }]
  })
}

function panelSvg(
  { title, unit, bars }: { title: string; unit: string; bars: readonly DrawnBar[] },
  top: number,
): string {
  const longest = Math.max(...bars.map(({ median, spread }) => median + spread))
  const heading =
    `<text class="head" x="${MARGIN}" y="${top + 16}">${escaped(title)}` +
    `<tspan class="quiet" font-weight="400" dx="8">${escaped(unit)}</tspan></text>`
  const rows = bars.map((bar, index) => {
    return barSvg(bar, top + PANEL_HEAD + index * ROW_HEIGHT, BARS_WIDTH / longest)
  })
  return [heading, ...rows].join('\n')
}

function barSvg({ bar, median, spread }: DrawnBar, y: number, perUnit: number): string {
  const middle = y + BAR_HEIGHT / 2
  const length = round(median * perUnit)
  const from = round(BARS_FROM + Math.max(0, median - spread) * perUnit)
  const to = round(BARS_FROM + (median + spread) * perUnit)
  return [
    `<text x="${BARS_FROM - 10}" y="${middle + 5}" text-anchor="end">${escaped(bar.label)}</text>`,
    `<rect class="${bar.kind}" x="${BARS_FROM}" y="${y}" width="${length}" ` +
      `height="${BAR_HEIGHT}" rx="2"/>`,
    `<line class="spread" x1="${from}" x2="${to}" y1="${middle}" y2="${middle}"/>`,
    `<text class="quiet" x="${to + 8}" y="${middle + 5}">${shown(median)}</text>`,
  ].join('\n')
}

const round = (value: number): number => Math.round(value * 10) / 10

function escaped(text: string): string {
  return text.replaceAll('&', '&amp;').replaceAll('<', '&lt;').replaceAll('"', '&quot;')
}
