import { fork, type ChildProcess } from 'node:child_process'
import { once } from 'node:events'
import { join } from 'node:path'
import type { ProgramCall, ProgramMessage } from './contract.ts'

export interface RunningProgram {
  readonly info: unknown
  /** Rejects if the program fails, or does not answer in time. */
  readonly call: (name: string, args?: unknown) => Promise<unknown>
  readonly close: () => Promise<void>
}

const MAIN = join(import.meta.dirname, '..', 'program.ts')
const START_TIMEOUT_MS = 120_000
/** Far longer than any round: a program that takes longer is broken. */
const CALL_TIMEOUT_MS = 300_000
const CLOSE_TIMEOUT_MS = 10_000

/**
 * Garbage is collected on demand where memory is measured; elsewhere the flag has no effect. The
 * suppressed warning (a Redis without persistence) is a note under the table.
 */
const FLAGS = ['--expose-gc', '--disable-warning=OncekeyWarning']

const running = new Set<ChildProcess>()

// Otherwise a stopped run would leave its processes running.
process.once('exit', () => {
  for (const child of running) child.kill('SIGKILL')
})

/** Starts one of `programs/`. `title` is for error messages. */
export async function startProgram(
  name: string,
  config: unknown,
  title: string,
): Promise<RunningProgram> {
  const env = { ...process.env, NODE_ENV: 'production' }
  const child = fork(MAIN, [name, JSON.stringify(config)], { execArgv: FLAGS, env })
  running.add(child)
  child.once('exit', () => running.delete(child))
  const answers = new Answers(child, title)
  const info = await answers.ready
  return {
    info,
    call: (call, args = {}) => answers.ask(call, args),
    close: () => end(child),
  }
}

async function end(child: ChildProcess): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null) return
  const ended = once(child, 'exit')
  child.disconnect()
  const timer = setTimeout(() => child.kill('SIGKILL'), CLOSE_TIMEOUT_MS)
  await ended
  clearTimeout(timer)
}

interface Waiting {
  readonly resolve: (value: unknown) => void
  readonly reject: (error: Error) => void
}

class Answers {
  readonly ready: Promise<unknown>
  readonly #child: ChildProcess
  readonly #title: string
  readonly #waiting = new Map<number, Waiting>()
  #lastId = 0

  constructor(child: ChildProcess, title: string) {
    this.#child = child
    this.#title = title
    this.ready = this.#wait(0, START_TIMEOUT_MS)
    child.on('message', (message) => this.#hear(message as ProgramMessage))
    child.on('error', (error) => this.#fail(error.message))
    child.on('exit', (code, signal) => this.#fail(`the program has ended (${signal ?? code})`))
  }

  ask(name: string, args: unknown): Promise<unknown> {
    const id = ++this.#lastId
    const answer = this.#wait(id, CALL_TIMEOUT_MS)
    this.#child.send({ id, name, args } satisfies ProgramCall)
    return answer
  }

  #wait(id: number, timeoutMs: number): Promise<unknown> {
    return new Promise((resolve, reject) => {
      const late = () => this.#settle(id, ({ reject: give }) => give(this.#error('no answer')))
      const timer = setTimeout(late, timeoutMs)
      this.#waiting.set(id, {
        resolve: (value) => {
          clearTimeout(timer)
          resolve(value)
        },
        reject: (error) => {
          clearTimeout(timer)
          reject(error)
        },
      })
    })
  }

  #hear(message: ProgramMessage): void {
    switch (message.kind) {
      case 'ready':
        return this.#settle(0, ({ resolve }) => resolve(message.info))
      case 'answer':
        return this.#settle(message.id, ({ resolve }) => resolve(message.value))
      case 'failed':
        return this.#settle(message.id, ({ reject }) => reject(this.#error(message.text)))
    }
  }

  #fail(text: string): void {
    for (const id of [...this.#waiting.keys()]) {
      this.#settle(id, ({ reject }) => reject(this.#error(text)))
    }
  }

  #settle(id: number, give: (waiting: Waiting) => void): void {
    const waiting = this.#waiting.get(id)
    this.#waiting.delete(id)
    if (waiting !== undefined) give(waiting)
  }

  #error(text: string): Error {
    return new Error(`${this.#title}: ${text}`)
  }
}
