import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { onTestFinished } from 'vitest'

export interface WorkerProcess {
  /** Every whole line it has written so far. */
  readonly lines: readonly string[]
  /** Resolves when it has written `count` lines; rejects if it ends before. */
  readonly written: (count: number) => Promise<void>
  readonly tell: (line: string) => void
  /** Ends it as a power cut would, and waits until it is gone and its last line was read. */
  readonly kill: () => Promise<void>
  /** Resolves with its exit code once its last line was read. */
  readonly ended: Promise<number | null>
}

/** Runs a file of this folder in a process of its own, which does not outlive the test. */
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
  // A worker that was killed no longer reads; what it is told then is lost, and may be.
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
