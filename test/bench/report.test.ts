import { describe, expect, it } from 'vitest'
import { toSvg, type ChartOptions } from '../../bench/report/chart.ts'
import { shown, toTables, toVerdictLines } from '../../bench/report/table.ts'
import { judge } from '../../bench/report/verdicts.ts'
import { line } from './lines.ts'

describe('the tables', () => {
  const lines = [
    line('engine.a', { rate: [1000, 1100, 1200], p50: [1, 2, 3] }, { note: 'skips the fence' }),
    line('engine.b', { rate: [500, 550, 600] }, { base: 'engine.a', note: 'skips the fence' }),
    line('growth.c', { bytes: [2048] }, { group: 'growth' }),
  ]

  it('tables show medians with their spread, and only measured figures', () => {
    const [engine, growth] = toTables(lines).split('\n\n') as [string, string]
    expect(engine).toMatch(/engine\.a \[1\] +first requests +64 in flight +1,100 ±5 % +2\.00/)
    expect(engine).not.toContain('bytes')
    expect(growth).toMatch(/growth\.c .* 2,048$/m)
  })

  it('tables show a line relative to the line that it names', () => {
    expect(toTables(lines)).toMatch(/engine\.b .* 0\.50 × engine\.a$/m)
    expect(toTables(lines.slice(1))).toMatch(/engine\.b .* 550 ±5 %$/m)
  })

  it('tables have each note once', () => {
    expect(toTables(lines).match(/\[1\] skips the fence/g)).toHaveLength(1)
  })
})

describe('the targets', () => {
  const target = {
    name: 'a reap batch',
    of: { line: 'reap', figure: 'p50' },
    limit: { atMost: 10 },
    unit: 'ms',
  } as const

  it('targets are shown with the measured and the required value', () => {
    const missed = judge(target, [line('reap', { p50: [12, 12, 12] })])
    expect(toVerdictLines([missed])).toMatch(/a reap batch +12\.0 ±0\.00 +at most 10\.0 ms +MISSED/)
  })

  it('targets without a verdict are counted', () => {
    expect(toVerdictLines([judge(target, [])])).toContain('1 of 1 need lines')
  })
})

it('numbers have three digits, which is the precision of a shared machine', () => {
  expect([0.1234, 1.234, 12.34, 123.4, 1234.5].map(shown)).toEqual([
    '0.12',
    '1.23',
    '12.3',
    '123',
    '1,235',
  ])
})

describe('the chart', () => {
  const options: ChartOptions = {
    title: 'Ours & "theirs"',
    subtitle: 'a < b',
    panels: [
      {
        title: 'First requests',
        unit: 'a second',
        bars: [
          { label: 'ours', of: { line: 'ours', figure: 'rate' }, kind: 'own' },
          { label: 'left out', of: { line: 'none', figure: 'rate' }, kind: 'peer' },
          { label: 'theirs', of: { line: 'theirs', figure: 'rate' }, kind: 'peer' },
        ],
      },
      {
        title: 'Nothing measured',
        unit: 'a second',
        bars: [{ label: 'none', of: { line: 'none', figure: 'rate' }, kind: 'own' }],
      },
    ],
  }
  const lines = [line('ours', { rate: [90, 100, 110] }), line('theirs', { rate: [25, 25, 25] })]
  const svg = toSvg(options, lines)

  it('the chart is well-formed, with escaped texts', () => {
    expect(openTags(svg)).toEqual([])
    expect(svg).toContain('Ours &amp; &quot;theirs&quot;')
    expect(svg).toContain('a &lt; b')
  })

  it('the chart has bars as long as their medians, and none for missing values', () => {
    const widths = [...svg.matchAll(/class="(?:own|peer)" x="\d+" y="\d+" width="([\d.]+)"/g)]
    const [ours, theirs] = widths.map(([, width]) => Number(width)) as [number, number]
    expect(widths).toHaveLength(2)
    expect(ours / theirs).toBeCloseTo(4, 1)
    expect(svg).not.toContain('left out')
    expect(svg).not.toContain('Nothing measured')
  })

  it('the chart keeps all parts within its frame', () => {
    const [, width, height] = /viewBox="0 0 (\d+) (\d+)"/.exec(svg)!.map(Number)
    const xs = [...svg.matchAll(/\bx2?="([\d.]+)"/g)].map(([, x]) => Number(x))
    const ys = [...svg.matchAll(/\by2?="([\d.]+)"/g)].map(([, y]) => Number(y))
    expect(Math.max(...xs)).toBeLessThan(width!)
    expect(Math.max(...ys)).toBeLessThan(height!)
  })

  it('the chart has colours for light and dark backgrounds', () => {
    expect(svg).toContain('prefers-color-scheme: dark')
  })
})

/** Tags that are opened and not closed, or closed and not opened. */
function openTags(svg: string): string[] {
  const open: string[] = []
  for (const [, closing, name, self] of svg.matchAll(/<(\/?)(\w+)[^>]*?(\/?)>/g)) {
    if (closing === '/') {
      if (open.pop() !== name) return [`</${name}>`]
    } else if (self === '') open.push(name!)
  }
  return open
}
