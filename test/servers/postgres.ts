/**
 * A private PostgreSQL for one test file, on a free port, in a scratch folder, with the settings of
 * initdb. Tests may kill it and start it again.
 */
import { execFileSync, spawn, type ChildProcess } from 'node:child_process'
import { once } from 'node:events'
import { chownSync, globSync, mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { Client } from 'pg'
import { findPrograms, freePort, untilAnswering, userIds } from './programs.ts'
import { fromTemplate } from './templates.ts'

export interface PostgresServer {
  /** URL of a new database, which is removed with the server. */
  readonly database: () => Promise<string>
  /** Stops without a checkpoint and cuts every connection: only the log on the disk is left. */
  readonly stopAtOnce: () => Promise<void>
  /** Kills all processes of the server at once, as when the machine fails. */
  readonly kill: () => Promise<void>
  readonly start: () => Promise<void>
  /** Ends the server and removes its folder. */
  readonly close: () => Promise<void>
}

const HOW_TO =
  'set ONCEKEY_TEST_POSTGRES_URL to a server where databases may be created, or install ' +
  'PostgreSQL (Debian: apt-get install postgresql; macOS: brew install postgresql)'

/**
 * Uses the server of the environment if there is one, otherwise a private one. A test that stops
 * its server always asks for a private one.
 */
export async function startPostgres(options: { private?: boolean } = {}): Promise<PostgresServer> {
  const url = process.env['ONCEKEY_TEST_POSTGRES_URL']
  if (url !== undefined && options.private !== true) return foreignServer(url)
  return privateServer()
}

async function foreignServer(url: string): Promise<PostgresServer> {
  const made: string[] = []
  const refuse = () => Promise.reject(new Error('only a private server may be stopped'))
  return {
    stopAtOnce: refuse,
    kill: refuse,
    start: refuse,
    database: () => createDatabase(url, made),
    async close() {
      for (const name of made) await run(url, `DROP DATABASE "${name}" WITH (FORCE)`)
    },
  }
}

async function privateServer(): Promise<PostgresServer> {
  const bin = findBinaries()
  const user = ownerOfServers()
  const folder = mkdtempSync(join(tmpdir(), 'oncekey-postgres-'))
  if (user !== undefined) chownSync(folder, user.uid, user.gid)
  const data = join(folder, 'data')
  const cwd = folder
  fromTemplate('postgres', data, () => prepareData(data, cwd))
  const port = await freePort()
  const url = `postgres://postgres@127.0.0.1:${port}/postgres`
  let server: ChildProcess | undefined

  const start = async () => {
    const args = ['-D', data, '-p', `${port}`, '-h', '127.0.0.1', '-k', folder]
    server = spawn(join(bin, 'postgres'), args, { ...user, cwd, stdio: 'ignore' })
    await untilAnswering(() => run(url, 'SELECT 1'), server)
  }
  const stopAtOnce = async () => {
    if (server === undefined || hasEnded(server)) return
    const ended = once(server, 'exit')
    server.kill('SIGQUIT')
    await ended
  }
  const kill = async () => {
    if (server === undefined || hasEnded(server)) return
    const ended = once(server, 'exit')
    // The main process is stopped first, so that it starts no new process during the kill.
    server.kill('SIGSTOP')
    signalChildrenOf(server.pid!, 'SIGKILL')
    server.kill('SIGKILL')
    await ended
  }
  const leave = () => void server?.kill('SIGQUIT')
  process.once('exit', leave)
  await start()
  return {
    start,
    stopAtOnce,
    kill,
    database: () => createDatabase(url, []),
    async close() {
      await stopAtOnce()
      process.removeListener('exit', leave)
      rmSync(folder, { recursive: true, force: true })
    },
  }
}

export function hasEnded({ exitCode, signalCode }: ChildProcess): boolean {
  return exitCode !== null || signalCode !== null
}

/** Skips children that have already ended, as idle sessions do. */
export function signalChildrenOf(parent: number, signal: NodeJS.Signals): void {
  for (const [pid, ppid] of processes()) if (ppid === parent) signalIfThere(pid, signal)
}

function signalIfThere(pid: number, signal: NodeJS.Signals): void {
  try {
    process.kill(pid, signal)
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'ESRCH') throw error
  }
}

/** Process ids with their parents. Some Linux systems lack `ps`, other systems lack /proc. */
function processes(): (readonly [number, number])[] {
  if (process.platform === 'linux') {
    return globSync('/proc/[0-9]*/stat').flatMap((path) => {
      const [, pid, ppid] = /^(\d+) \(.*\) \S (\d+)/s.exec(readIfThere(path)) ?? []
      return pid === undefined ? [] : [[Number(pid), Number(ppid)] as const]
    })
  }
  const table = execFileSync('ps', ['-A', '-o', 'pid=,ppid='], { encoding: 'utf8' })
  return table.split('\n').map((line) => {
    const [pid, ppid] = line.trim().split(/\s+/).map(Number)
    return [pid!, ppid!] as const
  })
}

/** Empty if the process has already ended. */
function readIfThere(path: string): string {
  try {
    return readFileSync(path, 'utf8')
  } catch {
    return ''
  }
}

function prepareData(data: string, cwd: string): void {
  const args = ['-D', data, '-U', 'postgres', '-A', 'trust', '-E', 'UTF8', '--locale=C']
  const options = { ...ownerOfServers(), cwd, stdio: 'pipe' } as const
  execFileSync(join(findBinaries(), 'initdb'), args, options)
}

async function createDatabase(url: string, made: string[]): Promise<string> {
  const name = `oncekey_${crypto.randomUUID().slice(0, 8)}`
  await run(url, `CREATE DATABASE "${name}"`)
  made.push(name)
  const own = new URL(url)
  own.pathname = `/${name}`
  return own.href
}

export async function run(url: string, sql: string): Promise<void> {
  const client = new Client({ connectionString: url })
  await client.connect()
  try {
    await client.query(sql)
  } finally {
    await client.end()
  }
}

/** The folder of initdb and postgres. Installs them on Debian as root. */
export function findBinaries(): string {
  return findPrograms({
    names: ['initdb', 'postgres'],
    folders: [
      ...globSync('/usr/lib/postgresql/*/bin').toSorted().toReversed(),
      '/usr/local/pgsql/bin',
    ],
    debianPackage: 'postgresql',
    howTo: HOW_TO,
  })
}

/** PostgreSQL refuses to run as root; the package creates a user for it. */
export function ownerOfServers(): { readonly uid: number; readonly gid: number } | undefined {
  if (process.getuid?.() !== 0) return undefined
  try {
    return userIds('postgres')
  } catch (error) {
    throw new Error(`PostgreSQL does not run as root, and there is no user postgres: ${HOW_TO}`, {
      cause: error,
    })
  }
}
