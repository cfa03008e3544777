/**
 * A private NATS server with JetStream for one test file, on a free port, with its streams in a
 * scratch folder. Tests may kill it and start it again.
 */
import { spawn, type ChildProcess } from 'node:child_process'
import { once } from 'node:events'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { connect } from '@nats-io/transport-node'
import { findPrograms, freePort, untilAnswering } from './programs.ts'

export interface NatsServer {
  readonly url: string
  /** Whether only this test file uses the server, so that it may be killed. */
  readonly isPrivate: boolean
  /** Kills the server: messages that a stream has acknowledged stay. */
  readonly kill: () => Promise<void>
  readonly start: () => Promise<void>
  /** Ends the server and removes its folder. */
  readonly close: () => Promise<void>
}

const HOW_TO =
  'set ONCEKEY_TEST_NATS_URL to a server with JetStream, or install NATS (Debian: apt-get ' +
  'install nats-server; macOS: brew install nats-server)'

/**
 * Uses the server of the environment if there is one, otherwise a private one. A test that kills
 * its server always asks for a private one.
 */
export async function startNats(options: { private?: boolean } = {}): Promise<NatsServer> {
  const url = process.env['ONCEKEY_TEST_NATS_URL']
  if (url === undefined || options.private === true) return privateServer()
  const refuse = () => Promise.reject(new Error('only a private server may be killed'))
  const close = () => Promise.resolve()
  return { url, isPrivate: false, kill: refuse, start: refuse, close }
}

async function privateServer(): Promise<NatsServer> {
  const program = join(findNats(), 'nats-server')
  const folder = mkdtempSync(join(tmpdir(), 'oncekey-nats-'))
  const port = await freePort()
  const url = `nats://127.0.0.1:${port}`
  let server: ChildProcess | undefined

  const start = async () => {
    const args = ['-a', '127.0.0.1', '-p', `${port}`, '-js', '-sd', folder]
    const started = spawn(program, args, { cwd: folder, stdio: 'ignore' })
    server = started
    await untilAnswering(() => ping(url), started)
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
    url,
    isPrivate: true,
    start,
    kill,
    async close() {
      await kill()
      process.removeListener('exit', leave)
      rmSync(folder, { recursive: true, force: true })
    },
  }
}

async function ping(url: string): Promise<void> {
  const connection = await connect({ servers: url, reconnect: false, timeout: 1_000 })
  await connection.close()
}

/** The folder of the server program. Installs it on Debian as root. */
export function findNats(): string {
  return findPrograms({ names: ['nats-server'], debianPackage: 'nats-server', howTo: HOW_TO })
}
