/** `npm run chaos` as people run it: a process of its own. */
import { spawn } from 'node:child_process'
import { mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { onTestFinished } from 'vitest'
import type { Report } from '../../chaos/report.ts'

export interface ChaosRun {
  readonly code: number | null
  readonly output: string
  /** Absent where the run itself has failed. */
  readonly report: Report | undefined
}

const ROOT = join(import.meta.dirname, '..', '..')

export async function runChaos(...args: readonly string[]): Promise<ChaosRun> {
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
    // Of a test that has run out of time: it ends what it has started.
    child.kill('SIGTERM')
    await ended
    rmSync(folder, { recursive: true, force: true })
  })
  const code = await ended
  return { code, output, report: readReport(file) }
}

function readReport(file: string): Report | undefined {
  try {
    return JSON.parse(readFileSync(file, 'utf8')) as Report
  } catch {
    // The output says why there is none.
    return undefined
  }
}
