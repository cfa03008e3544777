/**
 * A private pgbouncer in transaction mode for one test file, on a free port, in a scratch folder.
 * Its clients share fewer connections than there are clients.
 */
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { chownSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { Client } from 'pg'
import { ownerOfServers } from './postgres.ts'
import { findPrograms, freePort, untilAnswering } from './programs.ts'

export interface Pgbouncer {
  /** URL of the database through pgbouncer. */
  readonly url: string
  readonly close: () => Promise<void>
}

/** Connections to the database; the tests have several times as many clients. */
const SERVER_CONNECTIONS = 6

export async function startPgbouncer(databaseUrl: string): Promise<Pgbouncer> {
  const bin = findPgbouncer()
  const user = ownerOfServers()
  const folder = mkdtempSync(join(tmpdir(), 'oncekey-pgbouncer-'))
  const port = await freePort()
  const config = join(folder, 'pgbouncer.ini')
  writeFileSync(config, configOf(new URL(databaseUrl), port))
  if (user !== undefined) {
    chownSync(folder, user.uid, user.gid)
    chownSync(config, user.uid, user.gid)
  }
  const bouncer = spawn(join(bin, 'pgbouncer'), ['-q', config], {
    ...user,
    cwd: folder,
    stdio: 'ignore',
  })
  const leave = () => void bouncer.kill('SIGKILL')
  process.once('exit', leave)
  const url = new URL(databaseUrl)
  url.host = `127.0.0.1:${port}`
  await untilAnswering(() => ask(url.href), bouncer)
  return {
    url: url.href,
    async close() {
      process.removeListener('exit', leave)
      const ended = bouncer.exitCode === null ? once(bouncer, 'exit') : undefined
      bouncer.kill('SIGKILL')
      await ended
      rmSync(folder, { recursive: true, force: true })
    },
  }
}

function configOf(database: URL, port: number): string {
  const { hostname, port: serverPort, username, password } = database
  const secret = password === '' ? '' : ` password=${decodeURIComponent(password)}`
  return `[databases]
* = host=${hostname} port=${serverPort || '5432'} user=${decodeURIComponent(username)}${secret}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = ${port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = ${SERVER_CONNECTIONS}
max_client_conn = 500
ignore_startup_parameters = extra_float_digits
`
}

async function ask(url: string): Promise<void> {
  const client = new Client({ connectionString: url })
  await client.connect()
  try {
    await client.query('SELECT 1')
  } finally {
    await client.end()
  }
}

/** The folder of the pgbouncer program. Installs it on Debian as root. */
export function findPgbouncer(): string {
  return findPrograms({
    names: ['pgbouncer'],
    debianPackage: 'pgbouncer',
    howTo: 'install pgbouncer (Debian: apt-get install pgbouncer; macOS: brew install pgbouncer)',
  })
}
