/** A standby of a PostgreSQL server. Commits on the primary wait for it. */
import { execFileSync, spawn } from 'node:child_process'
import { once } from 'node:events'
import { chownSync, mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { findBinaries, hasEnded, ownerOfServers, run, signalChildrenOf } from './postgres.ts'
import { freePort, untilAnswering } from './programs.ts'

export interface PostgresStandby {
  /** URL of the same database on the standby, for reads. */
  readonly of: (url: string) => string
  /** Stops every process of the standby: it answers nothing, and its connections stay open. */
  readonly pause: () => void
  readonly resume: () => void
  readonly close: () => Promise<void>
}

const NAME = 'oncekey_standby'

/** `url`: any database of a private server, as a user who may change its settings. */
export async function startSynchronousStandby(url: string): Promise<PostgresStandby> {
  const bin = findBinaries()
  const user = ownerOfServers()
  const folder = mkdtempSync(join(tmpdir(), 'oncekey-standby-'))
  if (user !== undefined) chownSync(folder, user.uid, user.gid)
  const data = join(folder, 'data')
  const { port: primaryPort } = new URL(url)
  const source = `host=127.0.0.1 port=${primaryPort} user=postgres application_name=${NAME}`
  const args = ['-d', source, '-D', data, '-R', '-X', 'stream', '--checkpoint=fast', '--no-sync']
  execFileSync(join(bin, 'pg_basebackup'), args, { ...user, cwd: folder, stdio: 'pipe' })
  const port = await freePort()
  const of = (database: string) => {
    const own = new URL(database)
    own.port = String(port)
    return own.href
  }
  const server = spawn(
    join(bin, 'postgres'),
    ['-D', data, '-p', `${port}`, '-h', '127.0.0.1', '-k', folder],
    { ...user, cwd: folder, stdio: 'ignore' },
  )
  const leave = () => void server.kill('SIGKILL')
  process.once('exit', leave)
  await untilAnswering(() => run(of(url), 'SELECT 1'), server)
  await run(url, `ALTER SYSTEM SET synchronous_standby_names = '${NAME}'`)
  await run(url, 'SELECT pg_reload_conf()')

  const signalAll = (signal: 'SIGSTOP' | 'SIGCONT') => {
    server.kill(signal)
    signalChildrenOf(server.pid!, signal)
  }
  return {
    of,
    pause: () => signalAll('SIGSTOP'),
    resume: () => signalAll('SIGCONT'),
    async close() {
      if (!hasEnded(server)) {
        signalAll('SIGCONT')
        const ended = once(server, 'exit')
        server.kill('SIGQUIT')
        await ended
      }
      process.removeListener('exit', leave)
      rmSync(folder, { recursive: true, force: true })
    },
  }
}
