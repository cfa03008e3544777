/** `npm run chaos`: see `--help`. */
import { randomInt } from 'node:crypto'
import { rmSync } from 'node:fs'
import { HELP, readArguments, type ChaosOptions } from './arguments.ts'
import { describeComparison, toComparison } from './comparison.ts'
import { progress, type Progress } from './progress.ts'
import { describeReport, toReport, writeReport, type Report } from './report.ts'
import { runChaos } from './run.ts'

const FOUND = 1
const BROKEN = 2
const INTERRUPTED = 130

const given = readArguments(process.argv.slice(2), () => randomInt(2 ** 32))
switch (given.kind) {
  case 'help':
    process.stdout.write(HELP)
    break
  case 'wrong':
    process.stderr.write(`${given.sentence} See --help.\n`)
    process.exitCode = BROKEN
    break
  case 'run':
    // An explicit exit: after connection resets, Node may wait indefinitely for open handles.
    process.exit(await run(given.options))
}

async function run(options: ChaosOptions): Promise<number> {
  const interruption = new AbortController()
  for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) {
    // The second signal ends the run at once. All started processes are killed in any case.
    process.once(signal, () => {
      interruption.abort()
      process.once(signal, () => process.exit(INTERRUPTED))
    })
  }
  const logFolder = logFolderOf(options)
  const shown = progress(process.stdout, () => performance.now())
  try {
    const tried = options.neighbours === 'compare' ? runBoth : runOne
    const { ok } = await tried(options, shown, interruption.signal)
    return ok ? 0 : FOUND
  } catch (error) {
    shown.close()
    if (interruption.signal.aborted) {
      process.stderr.write('Interrupted; all started processes have ended.\n')
      return INTERRUPTED
    }
    process.stderr.write(`The run failed (seed ${options.seed}): ${wordsOf(error)}\n`)
    process.stderr.write(`The logs of the processes are in ${logFolder} or beside it.\n`)
    return BROKEN
  } finally {
    shown.close()
  }
}

async function runOne(
  options: ChaosOptions,
  shown: Progress,
  signal: AbortSignal,
): Promise<Report> {
  const startedAt = new Date().toISOString()
  const { reportFile } = options
  const logFolder = logFolderOf(options)
  rmSync(logFolder, { recursive: true, force: true })
  const result = await runChaos(options, { progress: shown, logFolder, signal })
  const report = toReport(result, startedAt)
  writeReport(reportFile, report)
  if (report.ok && !options.keepLogs) rmSync(logFolder, { recursive: true, force: true })
  shown.tell(`\n${describeReport(report)}\n\nReport: ${reportFile}`)
  return report
}

/** Runs one after the other, because concurrent runs would disturb each other. */
async function runBoth(
  options: ChaosOptions,
  shown: Progress,
  signal: AbortSignal,
): Promise<{ readonly ok: boolean }> {
  const base = baseOf(options)
  const of = (neighbours: 'on' | 'off', name: string) =>
    runOne({ ...options, neighbours, reportFile: `${base}-${name}.json` }, shown, signal)
  const without = await of('off', 'without')
  const comparison = toComparison(without, await of('on', 'with'))
  writeReport(options.reportFile, comparison)
  shown.tell(`\n${describeComparison(comparison)}\n\nBoth reports: ${options.reportFile}`)
  return comparison
}

function baseOf({ reportFile }: ChaosOptions): string {
  return reportFile.replace(/\.json$/, '')
}

function logFolderOf(options: ChaosOptions): string {
  return `${baseOf(options)}-logs`
}

function wordsOf(error: unknown): string {
  if (error instanceof AggregateError) return error.errors.map(wordsOf).join('; ')
  return error instanceof Error ? (error.stack ?? error.message) : String(error)
}
