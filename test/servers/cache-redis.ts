/**
 * A private Redis for one test file, on a free port, in a scratch folder, without persistence.
 * Tests may stop it, freeze it, and start it again empty.
 */
import { spawn, type ChildProcess } from 'node:child_process'
import { once } from 'node:events'
import { mkdtempSync, rmSync } from 'node:fs'
import { connect } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { findPrograms, freePort, untilAnswering } from './programs.ts'

export interface RedisServer {
  readonly port: number
  readonly start: () => Promise<void>
  /** Stops at once and cuts every connection. */
  readonly stop: () => Promise<void>
  /** Connections stay open, and nothing is answered. */
  readonly freeze: () => void
  readonly thaw: () => void
  /** Ends the server and removes its folder. */
  readonly close: () => Promise<void>
}

const HOW_TO =
  'install Redis (Debian: apt-get install redis-server; macOS: brew install redis); these tests ' +
  'stop and freeze their server, so it has to be a private one'

/** With `cluster`, starts a Redis Cluster of this one node. */
export async function startRedis(options: { cluster?: boolean } = {}): Promise<RedisServer> {
  const bin = findPrograms({
    names: ['redis-server'],
    debianPackage: 'redis-server',
    howTo: HOW_TO,
  })
  const folder = mkdtempSync(join(tmpdir(), 'oncekey-redis-'))
  const port = await freePort()
  const isCluster = options.cluster === true
  let server: ChildProcess | undefined

  const start = async () => {
    server = spawn(join(bin, 'redis-server'), settings(port, folder, isCluster), {
      stdio: 'ignore',
    })
    await untilAnswering(() => ask(port, 'PING', '+PONG'), server)
    if (!isCluster) return
    await ask(port, 'CLUSTER ADDSLOTSRANGE 0 16383', '+OK')
    await untilAnswering(() => ask(port, 'CLUSTER INFO', 'cluster_state:ok'), server)
  }
  const stop = async () => {
    if (server === undefined || server.exitCode !== null || server.signalCode !== null) return
    const ended = once(server, 'exit')
    server.kill('SIGKILL')
    await ended
  }
  const leave = () => void server?.kill('SIGKILL')
  process.once('exit', leave)
  await start()
  return {
    port,
    start,
    stop,
    freeze: () => void server?.kill('SIGSTOP'),
    thaw: () => void server?.kill('SIGCONT'),
    async close() {
      await stop()
      process.removeListener('exit', leave)
      rmSync(folder, { recursive: true, force: true })
    },
  }
}

function settings(port: number, folder: string, isCluster: boolean): string[] {
  const common = ['--port', `${port}`, '--bind', '127.0.0.1', '--dir', folder, '--save', '']
  if (!isCluster) return common
  return [...common, '--cluster-enabled', 'yes', '--cluster-announce-ip', '127.0.0.1']
}

/** Sends one inline command on a new connection. */
function ask(port: number, command: string, expected: string): Promise<void> {
  return new Promise((resolve, reject) => {
    const socket = connect(port, '127.0.0.1')
    const give = (error?: Error) => {
      socket.destroy()
      if (error === undefined) resolve()
      else reject(error)
    }
    socket.once('error', give)
    socket.once('data', (data) => {
      const answer = data.toString()
      give(
        answer.includes(expected)
          ? undefined
          : new Error(`unexpected answer of redis-server: ${answer}`),
      )
    })
    socket.write(`${command}\r\n`)
  })
}
