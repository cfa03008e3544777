/**
 * A private MariaDB for one test file, on a free port, in a scratch folder, with default settings.
 * Tests may kill it and start it again.
 */
import { execFileSync, spawn, type ChildProcess } from 'node:child_process'
import { once } from 'node:events'
import { chownSync, mkdirSync, mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createConnection, type RowDataPacket } from 'mysql2/promise'
import { findPrograms, freePort, untilAnswering, userIds } from './programs.ts'
import { fromTemplate } from './templates.ts'

export interface MariadbServer {
  /** URL of a new database, which is removed with the server. */
  readonly database: () => Promise<string>
  /** Kills the server: only its log on the disk is left. */
  readonly kill: () => Promise<void>
  readonly start: () => Promise<void>
  /** Ends the server and removes its folder. */
  readonly close: () => Promise<void>
}

const HOW_TO =
  'set ONCEKEY_TEST_MYSQL_URL to a server where databases and users may be created, or install ' +
  'MariaDB (Debian: apt-get install mariadb-server; macOS: brew install mariadb)'

export interface MariadbOptions {
  /** Starts a private server even if the environment names one: tests may kill it. */
  readonly private?: boolean
  /** Arguments of the server program. They apply to every connection from the start. */
  readonly settings?: readonly string[]
}

/** Uses the server of the environment if there is one, otherwise a private one. */
export async function startMariadb(options: MariadbOptions = {}): Promise<MariadbServer> {
  const url = process.env['ONCEKEY_TEST_MYSQL_URL']
  if (url !== undefined && options.private !== true) return foreignServer(url)
  return privateServer(options.settings ?? [])
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

async function privateServer(settings: readonly string[]): Promise<MariadbServer> {
  const { server: program } = findMariadb()
  const user = ownerOfServers()
  const folder = mkdtempSync(join(tmpdir(), 'oncekey-mariadb-'))
  const [data, temporary] = [join(folder, 'data'), join(folder, 'temporary')]
  for (const path of [folder, temporary]) {
    mkdirSync(path, { recursive: true })
    if (user !== undefined) chownSync(path, user.uid, user.gid)
  }
  fromTemplate('mariadb', data, () => prepareData(data, temporary))
  // A separate folder: a starting server removes the temporary tables of all others in TMPDIR.
  const surroundings = { ...user, env: { ...process.env, TMPDIR: temporary } }
  let port = await freePort()
  let server: ChildProcess | undefined
  const urlOf = () => `mysql://root@127.0.0.1:${port}/mysql`

  const start = async () => {
    const args = [
      '--no-defaults',
      `--datadir=${data}`,
      `--port=${port}`,
      '--bind-address=127.0.0.1',
      `--socket=${join(data, 'socket')}`,
      `--pid-file=${join(data, 'pid')}`,
      '--max-connections=400',
      ...settings,
    ]
    server = spawn(program, args, { ...surroundings, cwd: folder, stdio: 'ignore' })
    await untilAnswering(() => checkOwn(urlOf(), data), server)
  }
  /** Another process may take a free port before the server uses it, so this retries. */
  const startSomewhere = async () => {
    for (let tries = 1; ; tries++) {
      try {
        return await start()
      } catch (error) {
        if (tries === 3) throw error
        await kill()
        port = await freePort()
      }
    }
  }
  const kill = async () => {
    if (server === undefined || server.exitCode !== null || server.signalCode !== null) return
    const ended = once(server, 'exit')
    server.kill('SIGKILL')
    await ended
  }
  const leave = () => void server?.kill('SIGKILL')
  process.once('exit', leave)
  await startSomewhere()
  return {
    start,
    kill,
    database: () => createDatabase(urlOf(), []),
    async close() {
      await kill()
      process.removeListener('exit', leave)
      rmSync(folder, { recursive: true, force: true })
    },
  }
}

function prepareData(data: string, temporary: string): void {
  const user = ownerOfServers()
  mkdirSync(data)
  if (user !== undefined) chownSync(data, user.uid, user.gid)
  const args = [
    '--no-defaults',
    `--datadir=${data}`,
    '--auth-root-authentication-method=normal',
    '--skip-test-db',
  ]
  const env = { ...process.env, TMPDIR: temporary }
  execFileSync(findMariadb().install, args, { ...user, env, stdio: 'pipe' })
}

async function createDatabase(url: string, made: string[]): Promise<string> {
  const name = `oncekey_${crypto.randomUUID().slice(0, 8)}`
  await run(url, `CREATE DATABASE \`${name}\``)
  made.push(name)
  const own = new URL(url)
  own.pathname = `/${name}`
  return own.href
}

/** Checks that no other server listens on the port. */
async function checkOwn(url: string, folder: string): Promise<void> {
  const [row] = await run(url, 'SELECT @@datadir AS folder')
  if (row?.['folder'] !== `${folder}/`) throw new Error('another server listens on the port')
}

async function run(url: string, sql: string): Promise<RowDataPacket[]> {
  const connection = await createConnection(url)
  try {
    return (await connection.query<RowDataPacket[]>(sql))[0]
  } finally {
    await connection.end()
  }
}

/** The server, and the program that prepares its folder. Installs them on Debian as root. */
export function findMariadb(): { readonly server: string; readonly install: string } {
  const options = { debianPackage: 'mariadb-server', howTo: HOW_TO }
  const server = findPrograms({ ...options, names: ['mariadbd'], folders: ['/usr/libexec'] })
  const install = findPrograms({ ...options, names: ['mariadb-install-db'] })
  return { server: join(server, 'mariadbd'), install: join(install, 'mariadb-install-db') }
}

/** MariaDB refuses to run as root; the package creates a user for it. */
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
