import { describe, expect, it } from 'vitest'
import { PANELS } from '../../bench/report/panels.ts'
import { wrongReferences } from '../../bench/report/references.ts'
import { GROUPS } from '../../bench/report/results.ts'
import { TARGETS, type Target } from '../../bench/report/targets.ts'
import { judge } from '../../bench/report/verdicts.ts'
import { line } from './lines.ts'

const atLeast: Target = {
  name: 'ours against theirs',
  of: { line: 'ours', figure: 'rate' },
  against: { line: 'theirs', figure: 'rate' },
  limit: { atLeast: 1 },
}
const theirs = line('theirs', { rate: [100, 100, 100] })

describe('a target', () => {
  it('a target is reached at its limit, from either side', () => {
    const lines = [line('ours', { rate: [100, 100, 100] }), theirs]
    expect(judge(atLeast, lines).kind).toBe('reached')
    expect(judge({ ...atLeast, limit: { atMost: 1 } }, lines).kind).toBe('reached')
  })

  it('a target is missed only if the gap exceeds the spread of the rounds', () => {
    const close = [line('ours', { rate: [80, 95, 110] }), theirs]
    expect(judge(atLeast, close).kind).toBe('within_spread')
    const steady = [line('ours', { rate: [94, 95, 96] }), theirs]
    expect(judge(atLeast, steady).kind).toBe('missed')
    const above = [line('ours', { rate: [104, 105, 106] }), theirs]
    expect(judge({ ...atLeast, limit: { atMost: 1 } }, above).kind).toBe('missed')
  })

  it('a target can be judged by the added cost', () => {
    const target: Target = {
      ...atLeast,
      of: { line: 'ours', figure: 'p50' },
      less: { line: 'bare', figure: 'p50' },
      against: { line: 'theirs', figure: 'p50' },
      limit: { atMost: 1.3 },
    }
    const lines = [
      line('ours', { p50: [5, 5, 5] }),
      line('bare', { p50: [1, 1, 1] }),
      line('theirs', { p50: [4, 4, 4] }),
    ]
    expect(judge(target, lines)).toMatchObject({ kind: 'reached', value: { median: 1 } })
    expect(judge(target, lines.slice(0, 1)).kind).toBe('not_measured')
  })

  it('a target without a comparison has a plain limit', () => {
    const { against, ...plain } = atLeast
    expect(against).toBeDefined()
    const target: Target = { ...plain, limit: { atMost: 10 }, unit: 'ms' }
    expect(judge(target, [line('ours', { rate: [11, 11, 11] })]).kind).toBe('missed')
    expect(judge(target, [line('ours', { rate: [9, 9, 9] })]).kind).toBe('reached')
  })

  it('a target is not judged if one of its lines was left out', () => {
    expect(judge(atLeast, [theirs]).kind).toBe('not_measured')
    expect(judge(atLeast, [line('ours', { rate: [1] })]).kind).toBe('not_measured')
  })
})

describe('the targets of the benchmark', () => {
  const named = TARGETS.flatMap(({ of, less, against }) =>
    [of, less, against].flatMap((ref) => (ref === undefined ? [] : [ref.line])),
  )

  it('targets name lines of existing groups, and have different names', () => {
    const groups = new Set(named.map((id) => id.split('.')[0]))
    expect([...GROUPS]).toEqual(expect.arrayContaining([...groups]))
    expect(new Set(TARGETS.map(({ name }) => name)).size).toBe(TARGETS.length)
  })

  it('targets that are no ratio have a unit', () => {
    const plain = TARGETS.filter(({ against }) => against === undefined)
    expect(plain.filter(({ unit }) => unit === undefined)).toEqual([])
  })
})

describe('names of lines', () => {
  const lines = [line('ours', {}, { base: 'theirs' }), line('theirs', {})]

  it('a target, a chart or a line must not name an unmeasured line', () => {
    const good = { lines, targets: [atLeast], panels: [] }
    expect(wrongReferences(good)).toEqual([])
    expect(wrongReferences({ ...good, lines: lines.slice(0, 1) })).toEqual(['theirs'])
    expect(wrongReferences({ ...good, panels: PANELS }).length).toBeGreaterThan(10)
  })

  it('two lines must not share a name', () => {
    expect(wrongReferences({ lines: [...lines, lines[0]!], targets: [], panels: [] })).toEqual([
      'ours',
    ])
  })
})
