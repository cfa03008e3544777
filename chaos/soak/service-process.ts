/** The reference service as a separate process, with the probe preloaded. */
import { spawn, type ChildProcess } from 'node:child_process'
import { once } from 'node:events'
import { join } from 'node:path'
import type { Probe, ProbeAnswer, ProbeRequest } from './probe.ts'

const ROOT = join(import.meta.dirname, '..', '..')
const PROBE = join(import.meta.dirname, 'probe.ts')
const START_MS_MAX = 30_000
const PROBE_MS_MAX = 20_000
/** The process is blocked while it writes a snapshot. */
const SNAPSHOT_MS_MAX = 120_000
const STOP_MS_MAX = 25_000
/** Keeps the start of the error output: the first error explains the others. */
const ERRORS_LENGTH_MAX = 64 * 1024

export interface ServiceStart {
  /** The folder of package.json, dist and examples. @default this repository */
  readonly root?: string
  readonly env: Readonly<Record<string, string>>
}

export interface ServiceProcess {
  readonly port: number
  readonly probe: () => Promise<Probe>
  /** Writes a heap snapshot, which browser tools can open. */
  readonly snapshot: (path: string) => Promise<void>
  readonly isAlive: () => boolean
  /** How the process has ended, if it has. */
  readonly ending: () => string
  /** The error output. */
  readonly errors: () => string
  /** Stops the process, and returns its exit code, or `null` if it had to be killed. */
  readonly stop: () => Promise<number | null>
  readonly kill: () => Promise<void>
}

export async function startService({ root = ROOT, env }: ServiceStart): Promise<ServiceProcess> {
  const args = ['--expose-gc', '--import', PROBE, 'examples/payments/main.ts']
  const child = spawn(process.execPath, args, {
    cwd: root,
    env: { PATH: process.env['PATH'], PORT: '0', ...env },
    stdio: ['ignore', 'pipe', 'pipe', 'ipc'],
  })
  const ended = once(child, 'close')
  let errors = ''
  child.stderr!.on('data', (chunk: Buffer) => {
    if (errors.length < ERRORS_LENGTH_MAX) errors += chunk.toString()
  })
  const leave = () => void child.kill('SIGKILL')
  process.once('exit', leave)
  child.once('close', () => process.off('exit', leave))

  const isAlive = () => child.exitCode === null && child.signalCode === null
  const kill = async () => {
    child.kill('SIGKILL')
    await ended
  }
  const port = await portOf(child, () => errors).catch(async (error: unknown) => {
    await kill()
    throw error
  })
  const ask = asker(child)
  return {
    port,
    isAlive,
    ending: () => `by ${child.signalCode ?? `itself, with ${child.exitCode}`}`,
    kill,
    errors: () => errors,
    probe: () => ask((id) => ({ kind: 'probe', id }), PROBE_MS_MAX),
    snapshot: async (path) => {
      await ask((id) => ({ kind: 'snapshot', id, path }), SNAPSHOT_MS_MAX)
    },
    stop: async () => {
      const timer = setTimeout(leave, STOP_MS_MAX)
      child.kill('SIGTERM')
      await ended
      clearTimeout(timer)
      return child.exitCode
    },
  }
}

/** Reads the port from the line with the address. */
function portOf(child: ChildProcess, errors: () => string): Promise<number> {
  return new Promise((resolve, reject) => {
    let printed = ''
    const timer = setTimeout(() => {
      reject(new Error(`the service was not ready within ${START_MS_MAX} ms: ${errors()}`))
    }, START_MS_MAX)
    child.stdout!.on('data', (chunk: Buffer) => {
      // Always read, because a full pipe would block the process; kept only until it is ready.
      if (printed.length > ERRORS_LENGTH_MAX) return
      printed += chunk.toString()
      const port = /listening on http:\/\/localhost:(\d+)/.exec(printed)?.[1]
      if (port === undefined) return
      clearTimeout(timer)
      resolve(Number(port))
    })
    child.once('close', (code) => {
      clearTimeout(timer)
      reject(new Error(`the service ended with ${code} before it was ready: ${errors()}`))
    })
  })
}

type Ask = (make: (id: number) => ProbeRequest, limitMs: number) => Promise<Probe>

function asker(child: ChildProcess): Ask {
  let asked = 0
  return (make, limitMs) =>
    new Promise((resolve, reject) => {
      const id = ++asked
      const finish = (act: () => void) => {
        clearTimeout(timer)
        child.off('message', onMessage)
        child.off('close', onClose)
        act()
      }
      const onMessage = (answer: ProbeAnswer) => {
        if (answer.id === id) finish(() => resolve(answer.probe))
      }
      const onClose = () => finish(() => reject(new Error('the service has ended')))
      const timer = setTimeout(() => {
        finish(() => reject(new Error(`the service did not answer within ${limitMs} ms`)))
      }, limitMs)
      child.on('message', onMessage)
      child.once('close', onClose)
      child.send(make(id), (error) => {
        if (error !== null) finish(() => reject(error))
      })
    })
}
