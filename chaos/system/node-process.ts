/** A Node process that can be killed, stalled, given a wrong clock, and restarted. */
import { spawn, type ChildProcess } from 'node:child_process'
import { once } from 'node:events'
import { createWriteStream, type WriteStream } from 'node:fs'
import { join } from 'node:path'
import type { UnexpectedExit } from '../check/facts.ts'

export interface NodeProcessOptions {
  readonly name: string
  readonly program: string
  readonly env: Readonly<Record<string, string>>
  readonly preloads: readonly string[]
  /** The output that shows that the process is ready. */
  readonly ready: RegExp
  readonly logFile: string
  /** Called with the address of the process, or `undefined` when it ends. */
  readonly onAddress?: (url: URL | undefined) => void
  /** Called when the process ends unexpectedly. */
  readonly onExit: (exit: UnexpectedExit) => void
}

export interface NodeProcess {
  readonly name: string
  readonly isUp: () => boolean
  /** Starts the process. Returns its output when it was ready. */
  readonly start: () => Promise<string>
  readonly kill: () => Promise<void>
  readonly stall: () => void
  readonly goOn: () => void
  /** Resolves when the clock is shifted; at once if the process does not run. */
  readonly shiftClock: (shiftMs: number) => Promise<void>
}

const ROOT = join(import.meta.dirname, '..', '..')
const READY_MS = 30_000
const STDERR_CHARACTERS = 4_000

export function nodeProcess(options: NodeProcessOptions): NodeProcess {
  return new ChaosProcess(options)
}

class ChaosProcess implements NodeProcess {
  readonly name: string
  readonly #options: NodeProcessOptions
  readonly #log: WriteStream
  #child: ChildProcess | undefined
  #stderr = ''
  /** The child that we end: its exit is expected. It may end after the next child has started. */
  #ending: ChildProcess | undefined

  constructor(options: NodeProcessOptions) {
    this.name = options.name
    this.#options = options
    this.#log = createWriteStream(options.logFile, { flags: 'a' })
  }

  readonly isUp = (): boolean => this.#child !== undefined && !hasEnded(this.#child)

  readonly start = async (): Promise<string> => {
    if (this.isUp()) throw new Error(`${this.name} runs already`)
    const { program, env, preloads, ready } = this.#options
    const args = [...preloads.flatMap((preload) => ['--import', preload]), program]
    this.#note(`--- started ${new Date().toISOString()}\n`)
    this.#stderr = ''
    const child = spawn(process.execPath, args, {
      cwd: ROOT,
      env: { PATH: process.env['PATH'] ?? '', NODE_NO_WARNINGS: '1', ...env },
      stdio: ['ignore', 'pipe', 'pipe', 'ipc'],
      // A separate process group: Ctrl-C reaches only the parent, which ends the child.
      detached: true,
    })
    this.#child = child
    leaveNone(child)
    this.#watch(child)
    const url = await this.#untilReady(child, ready)
    this.#options.onAddress?.(new URL(url))
    return url
  }

  readonly kill = async (): Promise<void> => {
    const child = this.#child
    if (child === undefined || hasEnded(child)) return
    this.#ending = child
    const ended = once(child, 'exit')
    child.kill('SIGKILL')
    await ended
  }

  readonly stall = (): void => {
    this.#child?.kill('SIGSTOP')
  }

  readonly goOn = (): void => {
    this.#child?.kill('SIGCONT')
  }

  readonly shiftClock = async (shiftMs: number): Promise<void> => {
    const child = this.#child
    if (child === undefined || hasEnded(child) || !child.connected) return
    const shifted = new Promise<void>((resolve) => {
      const done = () => {
        child.off('message', done)
        child.off('exit', done)
        resolve()
      }
      child.on('message', done)
      child.on('exit', done)
    })
    // A child that ends at this moment reports its exit.
    child.send({ shiftMs }, () => undefined)
    await shifted
  }

  #watch(child: ChildProcess): void {
    child.stdout!.on('data', (chunk: Buffer) => this.#note(chunk.toString()))
    child.stderr!.on('data', (chunk: Buffer) => {
      this.#stderr = (this.#stderr + chunk.toString()).slice(-STDERR_CHARACTERS)
      this.#note(chunk.toString())
    })
    child.once('exit', () => this.#options.onAddress?.(undefined))
    child.once('close', (code, signal) => {
      const how = signal ?? `exit code ${code}`
      this.#note(`--- ended with ${how} ${new Date().toISOString()}\n`)
      if (this.#ending === child) return
      this.#options.onExit({ name: this.name, how, stderr: this.#stderr.trim() })
    })
  }

  #note(text: string): void {
    this.#log.write(text)
  }

  #untilReady(child: ChildProcess, ready: RegExp): Promise<string> {
    return new Promise((resolve, reject) => {
      let printed = ''
      const fail = (why: string) => {
        clearTimeout(patience)
        reject(new Error(`${this.name} ${why}: ${this.#stderr.trim() || printed.trim()}`))
      }
      const patience = setTimeout(() => fail(`was not ready after ${READY_MS} ms`), READY_MS)
      child.once('error', (error) => fail(`could not be started (${error.message})`))
      child.once('close', () => fail('ended before it was ready'))
      child.stdout!.on('data', (chunk: Buffer) => {
        printed = (printed + chunk.toString()).slice(-STDERR_CHARACTERS)
        const found = ready.exec(printed)
        if (found === null) return
        clearTimeout(patience)
        resolve(found[1] ?? found[0])
      })
    })
  }
}

const living = new Set<ChildProcess>()

/** Kills the child when this process ends for any reason. */
function leaveNone(child: ChildProcess): void {
  if (living.size === 0) process.once('exit', killLiving)
  living.add(child)
  child.once('exit', () => {
    living.delete(child)
    if (living.size === 0) process.off('exit', killLiving)
  })
}

function killLiving(): void {
  for (const child of living) child.kill('SIGKILL')
}

function hasEnded({ exitCode, signalCode }: ChildProcess): boolean {
  return exitCode !== null || signalCode !== null
}
