/** `npm run soak`: hostile clients, floods and memory over minutes. Exits with 1 on a fault. */
import { mkdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { describeFlood, measureFlood, type FloodMeasure } from './flood-report.ts'
import { readSoakOptions, USAGE, type SoakOptions } from './options.ts'
import { soak, type SoakReport, type SoakSample } from './soak.ts'

const MB = 1024 * 1024

function readOptions(): SoakOptions {
  try {
    return readSoakOptions(process.argv.slice(2))
  } catch (error) {
    throw new Error(`${error instanceof Error ? error.message : String(error)}\n\n${USAGE}`, {
      cause: error,
    })
  }
}

async function runSoak(options: SoakOptions): Promise<number> {
  const { store, seconds, seed, rate } = options
  console.log(`soak: ${seconds} s on ${store}, seed ${seed}, ${rate} requests/s a tenant`)
  console.log(HEADINGS.join('  '))
  const report = await soak(options, (sample) => console.log(lineOf(sample)))
  console.log(summaryOf(report))
  console.log(`report: ${keep(options, `soak-${store}`, report)}`)
  const faults = Object.values(report.faults).flat().length
  const isSound = faults === 0 && report.exitCode === 0
  return isSound && report.memory.kind !== 'growing' ? 0 : 1
}

async function runFlood(options: SoakOptions): Promise<number> {
  const ms = (options.seconds * 1000) / 4
  const measures: FloodMeasure[] = []
  for (const rate of [0, options.rate]) {
    const measure = await measureFlood(options, { rate, ms })
    console.log(describeFlood(measure))
    measures.push(measure)
  }
  console.log(`report: ${keep(options, `flood-${options.store}`, measures)}`)
  return measures.some(({ faults }) => faults.length > 0) ? 1 : 0
}

const HEADINGS = [
  ' at s',
  'turn     ',
  ' req/s',
  'p50 ms',
  'p99 ms',
  'rss MB',
  'heap MB',
  'handles',
  'lag p99 ms',
  'rows',
]

function lineOf({ watched, ...sample }: SoakSample): string {
  const cells = [
    (sample.atMs / 1000).toFixed(0),
    sample.turn,
    sample.requestsPerSecond.toFixed(0),
    watched.p50Ms.toFixed(1),
    watched.p99Ms.toFixed(1),
    (sample.rssBytes / MB).toFixed(1),
    (sample.heapUsedBytes / MB).toFixed(2),
    `${sample.handles}`,
    sample.lagP99Ms.toFixed(1),
    `${sample.rows}`,
  ]
  return cells.map((cell, n) => cell.padStart(HEADINGS[n]!.length)).join('  ')
}

function summaryOf({ memory, faults, requests, exitCode }: SoakReport): string {
  const { kind, medianMb, grownMb, mbPerHour, percentPerHour, samples } = memory
  const numbers =
    `heap ${medianMb.toFixed(1)} MB, ${signed(grownMb)} MB over ${samples} samples, ` +
    `${signed(mbPerHour)} MB an hour (${signed(percentPerHour)} %)`
  const verdicts = {
    flat: `memory flat: ${numbers}`,
    growing: `memory GROWS: ${numbers}`,
    too_short: `memory: the run was too short for a verdict; ${numbers}`,
  }
  const wrong = Object.entries(faults).flatMap(([who, list]) => list.map((one) => `${who}: ${one}`))
  return [
    `${requests} requests, ${wrong.length} wrong answers, the service exited with ${exitCode}`,
    ...wrong.slice(0, 20).map((one) => `  ${one}`),
    verdicts[kind],
  ].join('\n')
}

const signed = (value: number): string => `${value < 0 ? '' : '+'}${value.toFixed(1)}`

function keep({ reportFolder }: SoakOptions, name: string, report: unknown): string {
  mkdirSync(reportFolder, { recursive: true })
  const stamp = new Date().toISOString().replaceAll(/[:.]/g, '-')
  const path = join(reportFolder, `${name}-${stamp}.json`)
  writeFileSync(path, `${JSON.stringify(report, undefined, 2)}\n`)
  return path
}

try {
  const options = readOptions()
  process.exitCode = options.onlyFlood ? await runFlood(options) : await runSoak(options)
} catch (error) {
  console.error(error instanceof Error ? error.message : error)
  process.exitCode = 2
}
