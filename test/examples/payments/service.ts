import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { cpSync, mkdirSync, symlinkSync } from 'node:fs'
import { join } from 'node:path'
import { onTestFinished } from 'vitest'
import { copyBuildTo } from '../package-build.ts'

const root = join(import.meta.dirname, '..', '..', '..')

/**
 * Copies the package into a folder of the test: its manifest, the examples, and a build. An example
 * then finds `oncekey` by self-reference, as in the repository, but in a build that is not older
 * than the sources and that no other process removes during the test.
 */
export function copyPackageTo(folder: string): void {
  mkdirSync(folder)
  for (const name of ['package.json', 'examples']) {
    cpSync(join(root, name), join(folder, name), { recursive: true })
  }
  symlinkSync(join(root, 'node_modules'), join(folder, 'node_modules'), 'junction')
  copyBuildTo(folder)
}

export interface ServiceOptions {
  readonly folder: string
  readonly dataFolder: string
  /** @default '0', any free port */
  readonly port?: string
  /** Environment variables in addition to PORT and DATA_DIR. */
  readonly env?: Readonly<Record<string, string>>
}

export interface Service {
  /** Resolves with the output when the welcome text is complete; rejects if the process ends. */
  readonly started: Promise<string>
  readonly signal: (name: 'SIGINT' | 'SIGKILL' | 'SIGTERM') => void
  /** Resolves with the exit code and the error output. */
  readonly ended: Promise<{ code: number | null; errors: string }>
  /** Resolves with the output once it contains `text`; rejects if the process ends before. */
  readonly says: (text: string) => Promise<string>
}

/** Starts the example like `npm start`, in a process that ends with the test. */
export function startService(options: ServiceOptions): Service {
  const service = spawnService(options)
  onTestFinished(async () => {
    service.signal('SIGKILL')
    await service.ended
  })
  return service
}

/** Starts one service for all tests of a file. The caller must kill it. */
export function spawnService(options: ServiceOptions): Service {
  const { folder, dataFolder, port = '0', env = {} } = options
  const child = spawn(process.execPath, ['examples/payments/main.ts'], {
    cwd: folder,
    env: { PATH: process.env['PATH'], PORT: port, DATA_DIR: dataFolder, ...env },
  })
  let printed = ''
  let errors = ''
  child.stdout.on('data', (chunk: Buffer) => {
    printed += chunk.toString()
  })
  child.stderr.on('data', (chunk: Buffer) => {
    errors += chunk.toString()
  })
  const says = (text: string) =>
    new Promise<string>((resolve, reject) => {
      const look = () => {
        const all = printed + errors
        if (all.includes(text)) resolve(all)
      }
      child.stdout.on('data', look)
      child.stderr.on('data', look)
      child.once('close', () => reject(new Error(`the service ended: ${errors}`)))
      look()
    })
  // The last line of the welcome text.
  const started = says('Ctrl-C')
  // A test of a service that cannot start checks `ended` instead.
  started.catch(() => undefined)
  const ended = once(child, 'close').then(([code]) => ({ code: code as number | null, errors }))
  return { started, ended, says, signal: (name) => child.kill(name) }
}

/** The address of a service, from its output. */
export function addressIn(printed: string): string {
  const address = /http:\/\/localhost:\d+/.exec(printed)?.[0]
  if (address === undefined) throw new Error(`no address in: ${printed}`)
  return address
}

export interface PrintedRequest {
  readonly url: string
  readonly headers: Readonly<Record<string, string>>
  readonly body: string
}

/** The request that the printed `curl` sends. */
export function readCurl(printed: string): PrintedRequest {
  const url = /curl -i (\S+)/.exec(printed)?.[1]
  const body = /-d '([^']+)'/.exec(printed)?.[1]
  if (url === undefined || body === undefined) throw new Error(`no curl in: ${printed}`)
  const lines = [...printed.matchAll(/-H '([^:']+): ([^']+)'/g)]
  return { url, body, headers: Object.fromEntries(lines.map(([, name, value]) => [name!, value!])) }
}
