// Takes about 19 s.
import { spawn } from 'node:child_process'
import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { text } from 'node:stream/consumers'
import { afterAll, describe, expect, it, onTestFinished } from 'vitest'
import { judgeMemory } from '../../chaos/soak/judge-memory.ts'
import { readSoakOptions } from '../../chaos/soak/options.ts'
import type { SoakReport } from '../../chaos/soak/soak.ts'
import { seededRandom } from '../process/random.ts'
import { scratchFolder } from '../stores/scratch-folder.ts'
import { copyPackageTo } from './payments/service.ts'

const scratch = scratchFolder()
afterAll(scratch.remove)

const MB = 1024 * 1024

const TURNS = ['good only', 'hostile', 'flood']

/** A sample every ten seconds for five minutes: a level for each phase, with jumps. */
function samples(heapMbAt: (minute: number) => number) {
  const random = seededRandom(7)
  return Array.from({ length: 30 }, (_, n) => ({
    atMs: n * 10_000,
    turn: TURNS[n % 3]!,
    heapUsedBytes: (heapMbAt(n / 6) + 5 * (n % 3) + 3 * (random() - 0.5)) * MB,
  }))
}

describe('the verdict on memory', () => {
  it('the memory verdict is flat when memory jumps up and down, or grows only at the start', () => {
    expect(judgeMemory(samples(() => 40)).kind).toBe('flat')
    expect(judgeMemory(samples((minute) => 40 + 10 * Math.min(minute, 1.5))).kind).toBe('flat')
  })

  it('the memory verdict ignores outliers', () => {
    const spiked = samples(() => 40).map((sample, n) =>
      n % 9 === 8 ? { ...sample, heapUsedBytes: 90 * MB } : sample,
    )
    expect(judgeMemory(spiked).kind).toBe('flat')
  })

  it('the memory verdict is growing when memory leaks, with the rate', () => {
    const verdict = judgeMemory(samples((minute) => 40 + 2 * minute))
    expect(verdict.kind).toBe('growing')
    expect(verdict.mbPerHour).toBeGreaterThan(100)
    expect(verdict.mbPerHour).toBeLessThan(140)
    expect(verdict.grownMb).toBeGreaterThan(5)
  })

  it('the memory verdict is omitted when a run was too short', () => {
    expect(judgeMemory(samples((minute) => 40 + 2 * minute).slice(0, 8)).kind).toBe('too_short')
    expect(judgeMemory([]).kind).toBe('too_short')
  })
})

it('invalid soak options are refused with one sentence', () => {
  expect(() => readSoakOptions(['--store', 'paper'])).toThrow('--store must be sqlite, postgres')
  expect(() => readSoakOptions(['--seconds', '1'])).toThrow('--seconds must be a whole number')
  expect(readSoakOptions([])).toMatchObject({ seconds: 300, store: 'sqlite', rate: 200 })
})

it('a soak of some seconds prints samples, and ends with a verdict and a report', async () => {
  const root = scratch.file('package')
  copyPackageTo(root)
  const reports = scratch.file('reports')
  const main = join(import.meta.dirname, '..', '..', 'chaos', 'soak', 'main.ts')
  const args = ['--seconds', '8', '--rate', '200', '--root', root, '--reports', reports]
  const child = spawn(process.execPath, [main, ...args], { stdio: ['ignore', 'pipe', 'pipe'] })
  onTestFinished(() => void child.kill('SIGKILL'))
  const [printed, errors] = await Promise.all([text(child.stdout), text(child.stderr)])

  expect(errors).toBe('')
  expect(printed).toMatch(/^soak: 8 s on sqlite, seed 1/)
  for (const turn of ['good only', 'hostile', 'flood']) expect(printed).toContain(turn)
  expect(printed).toMatch(/\d+ wrong answers, the service exited with 0/)
  expect(printed).toMatch(/memory: the run was too short for a verdict; heap \d+\.\d MB/)

  const [name] = readdirSync(reports)
  const report = JSON.parse(readFileSync(join(reports, name!), 'utf8')) as SoakReport
  expect(report.samples.length).toBeGreaterThan(2)
  // The answers that a hostile client got in time depend on the load of the machine.
  const { watched, good } = report.faults
  expect({ watched, good }).toEqual({ watched: [], good: [] })
  expect(report.samples.every(({ heapUsedBytes }) => heapUsedBytes > MB)).toBe(true)
}, 120_000)
