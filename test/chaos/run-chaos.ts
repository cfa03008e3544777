/** Runs `npm run chaos` as a separate process. */
import { spawn } from 'node:child_process'
import { mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { onTestFinished } from 'vitest'
import type { Report } from '../../chaos/report.ts'

export interface ChaosRun<Kind> {
  readonly code: number | null
  readonly output: string
  /** Absent if the run failed. */
  readonly report: Kind | undefined
}

const ROOT = join(import.meta.dirname, '..', '..')

export async function runChaos<Kind = Report>(...args: readonly string[]): Promise<ChaosRun<Kind>> {
  const folder = mkdtempSync(join(tmpdir(), 'oncekey-chaos-test-'))
  const file = join(folder, 'report.json')
  const program = join(ROOT, 'chaos', 'main.ts')
  const child = spawn(process.execPath, [program, ...args, '--report', file], { cwd: ROOT })
  let output = ''
  const hear = (chunk: Buffer) => {
    output += chunk.toString()
  }
  child.stdout.on('data', hear)
  child.stderr.on('data', hear)
  const ended = new Promise<number | null>((resolve, reject) => {
    child.once('error', reject)
    child.once('close', resolve)
  })
  onTestFinished(async () => {
    // If the test times out, the run ends the processes that it has started.
    child.kill('SIGTERM')
    await ended
    rmSync(folder, { recursive: true, force: true })
  })
  const code = await ended
  return { code, output, report: readReport(file) as Kind | undefined }
}

function readReport(file: string): unknown {
  try {
    return JSON.parse(readFileSync(file, 'utf8'))
  } catch {
    // The output contains the reason for the missing report.
    return undefined
  }
}
