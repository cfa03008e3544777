/** Installs two versions of the package in separate folders, and starts nodes that run them. */
import { execFileSync, spawn } from 'node:child_process'
import { once } from 'node:events'
import { copyFileSync, mkdirSync, mkdtempSync, rmSync, symlinkSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createInterface } from 'node:readline'

export type Version = 'old' | 'new'

const ROOT = join(import.meta.dirname, '..', '..')
/** `npm pack` of commit 002247e, without comments, types and source maps. */
const OLD_PACKAGE = join(import.meta.dirname, 'oncekey-002247e.tgz')
const PROGRAM = ['node-program.ts', 'node-backend.ts']
/** The dependency of the package, and the drivers that the program passes to it. */
const DEPENDENCIES = ['mysql2', 'pg', 'structured-headers']

export interface Installed {
  /** The folder of each version. It contains the program of a node. */
  readonly folders: Readonly<Record<Version, string>>
  readonly remove: () => void
}

/** The new version is the build in `dist`. */
export function installVersions(): Installed {
  const scratch = mkdtempSync(join(tmpdir(), 'oncekey-versions-'))
  const folders = { old: join(scratch, 'old'), new: join(scratch, 'new') }
  for (const folder of Object.values(folders)) {
    mkdirSync(join(folder, 'node_modules'), { recursive: true })
    for (const file of PROGRAM) copyFileSync(join(import.meta.dirname, file), join(folder, file))
    for (const name of DEPENDENCIES) {
      symlinkSync(join(ROOT, 'node_modules', name), join(folder, 'node_modules', name))
    }
  }
  const old = join(folders.old, 'node_modules', 'oncekey')
  mkdirSync(old)
  execFileSync('tar', ['xzf', OLD_PACKAGE, '--strip-components=1', '-C', old])
  symlinkSync(ROOT, join(folders.new, 'node_modules', 'oncekey'))
  return { folders, remove: () => rmSync(scratch, { recursive: true, force: true }) }
}

export interface ServiceNode {
  readonly name: string
  readonly version: Version
  readonly port: number
  /** Lets running requests finish, and stops the process. Rejects if its exit code is not 0. */
  readonly stop: () => Promise<void>
  readonly kill: () => void
}

export interface NodeOptions {
  readonly installed: Installed
  readonly version: Version
  readonly name: string
  readonly database: { readonly engine: string; readonly place: string }
  readonly onDelivered: (key: string) => void
}

/** Resolves when the node accepts requests. */
export async function startNode(options: NodeOptions): Promise<ServiceNode> {
  const { installed, version, name, database, onDelivered } = options
  const program = join(installed.folders[version], PROGRAM[0]!)
  const child = spawn(process.execPath, [program, database.engine, database.place, name], {
    stdio: ['ignore', 'pipe', 'pipe'],
  })
  let stderr = ''
  child.stderr.on('data', (chunk: Buffer) => {
    stderr += chunk.toString()
  })
  const ended = once(child, 'close').then(([code]) => code as number | null)
  const port = await new Promise<number>((resolve, reject) => {
    createInterface({ input: child.stdout }).on('line', (line) => {
      const [word, value] = line.split(' ')
      if (word === 'ready') resolve(Number(value))
      else onDelivered(value!)
    })
    void ended.then(() => reject(new Error(`node ${name} ended early: ${stderr}`)))
  })
  const stop = async () => {
    child.kill('SIGTERM')
    const code = await ended
    if (code !== 0) throw new Error(`node ${name} ended with code ${code}: ${stderr}`)
  }
  return { name, version, port, stop, kill: () => void child.kill('SIGKILL') }
}
