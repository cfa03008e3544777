/**
 * A real MariaDB for one test file: private, on a free port, in a scratch folder, with the settings
 * that it has by itself. Tests may kill it, and start it again.
 */
import { execFileSync, spawn, type ChildProcess } from 'node:child_process'
import { once } from 'node:events'
import { chownSync, mkdirSync, mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createConnection } from 'mysql2/promise'
import { findPrograms, freePort, untilAnswering, userIds } from './programs.ts'

export interface MariadbServer {
  /** Of a fresh database, made for this call and gone with the server. */
  readonly database: () => Promise<string>
  /** As a power cut would: what is left is the log on the disk. */
  readonly kill: () => Promise<void>
  readonly start: () => Promise<void>
  /** Ends it and removes its folder. */
  readonly close: () => Promise<void>
}

const HOW_TO =
  'set ONCEKEY_TEST_MYSQL_URL to a server where databases and users may be created, or install ' +
  'MariaDB (Debian: apt-get install mariadb-server; macOS: brew install mariadb)'

/**
 * The server of the environment if there is one, otherwise a private one. A test that kills its
 * server asks for a private one in any case.
 */
export async function startMariadb(options: { private?: boolean } = {}): Promise<MariadbServer> {
  const url = process.env['ONCEKEY_TEST_MYSQL_URL']
  if (url !== undefined && options.private !== true) return foreignServer(url)
  return privateServer()
}

async function foreignServer(url: string): Promise<MariadbServer> {
  const made: string[] = []
  const refuse = () => Promise.reject(new Error('only a private server may be killed'))
  return {
    kill: refuse,
    start: refuse,
    database: () => createDatabase(url, made),
    async close() {
      for (const name of made) await run(url, `DROP DATABASE \`${name}\``)
    },
  }
}

async function privateServer(): Promise<MariadbServer> {
  const { server: program, install } = findMariadb()
  const user = ownerOfServers()
  const folder = mkdtempSync(join(tmpdir(), 'oncekey-mariadb-'))
  const data = join(folder, 'data')
  mkdirSync(data)
  if (user !== undefined) for (const path of [folder, data]) chownSync(path, user.uid, user.gid)
  execFileSync(
    install,
    [
      '--no-defaults',
      `--datadir=${data}`,
      '--auth-root-authentication-method=normal',
      '--skip-test-db',
    ],
    { ...user, stdio: 'pipe' },
  )
  const port = await freePort()
  const url = `mysql://root@127.0.0.1:${port}/mysql`
  let server: ChildProcess | undefined

  const start = async () => {
    const args = [
      '--no-defaults',
      `--datadir=${data}`,
      `--port=${port}`,
      '--bind-address=127.0.0.1',
      `--socket=${join(data, 'socket')}`,
      `--pid-file=${join(data, 'pid')}`,
      '--max-connections=400',
    ]
    server = spawn(program, args, { ...user, cwd: folder, stdio: 'ignore' })
    await untilAnswering(() => run(url, 'SELECT 1'), server)
  }
  const kill = async () => {
    if (server === undefined || server.exitCode !== null || server.signalCode !== null) return
    const ended = once(server, 'exit')
    server.kill('SIGKILL')
    await ended
  }
  const leave = () => void server?.kill('SIGKILL')
  process.once('exit', leave)
  await start()
  return {
    start,
    kill,
    database: () => createDatabase(url, []),
    async close() {
      await kill()
      process.removeListener('exit', leave)
      rmSync(folder, { recursive: true, force: true })
    },
  }
}

async function createDatabase(url: string, made: string[]): Promise<string> {
  const name = `oncekey_${crypto.randomUUID().slice(0, 8)}`
  await run(url, `CREATE DATABASE \`${name}\``)
  made.push(name)
  const own = new URL(url)
  own.pathname = `/${name}`
  return own.href
}

async function run(url: string, sql: string): Promise<void> {
  const connection = await createConnection(url)
  try {
    await connection.query(sql)
  } finally {
    await connection.end()
  }
}

/** The server and what prepares its folder. On Debian, as root, installs them if missing. */
export function findMariadb(): { readonly server: string; readonly install: string } {
  const options = { debianPackage: 'mariadb-server', howTo: HOW_TO }
  const server = findPrograms({ ...options, names: ['mariadbd'], folders: ['/usr/libexec'] })
  const install = findPrograms({ ...options, names: ['mariadb-install-db'] })
  return { server: join(server, 'mariadbd'), install: join(install, 'mariadb-install-db') }
}

/** MariaDB refuses to run as root; the package has made a user for it. */
function ownerOfServers(): { readonly uid: number; readonly gid: number } | undefined {
  if (process.getuid?.() !== 0) return undefined
  try {
    return userIds('mysql')
  } catch (error) {
    throw new Error(`MariaDB does not run as root, and there is no user mysql: ${HOW_TO}`, {
      cause: error,
    })
  }
}
