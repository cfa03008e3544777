import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { onTestFinished } from 'vitest'

export interface WorkerProcess {
  /** Every complete line that the process has written. */
  readonly lines: readonly string[]
  /** Resolves when it has written `count` lines; rejects if it ends earlier. */
  readonly written: (count: number) => Promise<void>
  readonly tell: (line: string) => void
  /** Kills the process, and waits until it has ended and its last line was read. */
  readonly kill: () => Promise<void>
  /** Resolves with the exit code once the last line was read. */
  readonly ended: Promise<number | null>
}

/** Runs a file of this folder in a new process, which ends with the test. */
export function startWorker(file: string, args: readonly string[]): WorkerProcess {
  const child = spawn(process.execPath, [join(import.meta.dirname, file), ...args])
  const lines: string[] = []
  const listeners = new Set<() => void>()
  const notify = () => listeners.forEach((listener) => listener())
  let complaints = ''
  let isOver = false

  child.stderr.on('data', (chunk: Buffer) => {
    complaints += chunk.toString()
  })
  // A killed worker no longer reads, so a write to it fails, which is expected.
  child.stdin.on('error', () => undefined)
  createInterface({ input: child.stdout }).on('line', (line) => {
    lines.push(line)
    notify()
  })
  const ended = once(child, 'close').then(([code]) => {
    isOver = true
    notify()
    return code as number | null
  })
  const kill = async () => {
    child.kill('SIGKILL')
    await ended
  }
  onTestFinished(kill)

  const written = (count: number) =>
    new Promise<void>((resolve, reject) => {
      const check = () => {
        if (lines.length >= count) resolve()
        else if (isOver) reject(new Error(`the worker ended early: ${complaints}`))
        else return
        listeners.delete(check)
      }
      listeners.add(check)
      check()
    })
  return { lines, written, kill, ended, tell: (line) => child.stdin.write(`${line}\n`) }
}
