/**
 * A private RabbitMQ for one test file, on free ports, in a scratch folder, with a separate name
 * service (epmd), so that no process is left behind. Tests may kill it and start it again.
 */
import { execFile, spawn, type ChildProcess } from 'node:child_process'
import { once } from 'node:events'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { connect } from 'amqplib'
import { findPrograms, freePort, untilAnswering } from './programs.ts'

export interface RabbitmqServer {
  readonly url: string
  /** Whether only this test file uses the server, so that it may be killed. */
  readonly isPrivate: boolean
  /**
   * Writes the list of queues to the disk. A broker that is killed right after it has declared a
   * queue may lose it, even a durable one, with its messages.
   */
  readonly writeQueues: () => Promise<void>
  /** Kills the server: only what was written to the disk is left. */
  readonly kill: () => Promise<void>
  readonly start: () => Promise<void>
  /** Ends the server and removes its folder. */
  readonly close: () => Promise<void>
}

const HOW_TO =
  'set ONCEKEY_TEST_RABBITMQ_URL to a server where queues may be declared, or install RabbitMQ ' +
  '(Debian: apt-get install rabbitmq-server; macOS: brew install rabbitmq)'

/** Erlang code. A broker without Mnesia has nothing to write here. */
const WRITE_QUEUES = `
  case whereis(mnesia_sup) of
    undefined -> ok;
    _ -> ok = mnesia:sync_log(), dumped = mnesia:dump_log()
  end.`

/**
 * Uses the server of the environment if there is one, otherwise a private one. A test that kills
 * its server always asks for a private one.
 */
export async function startRabbitmq(options: { private?: boolean } = {}): Promise<RabbitmqServer> {
  const url = process.env['ONCEKEY_TEST_RABBITMQ_URL']
  if (url === undefined || options.private === true) return privateServer()
  const refuse = () => Promise.reject(new Error('only a private server may be killed'))
  const close = () => Promise.resolve()
  return { url, isPrivate: false, writeQueues: refuse, kill: refuse, start: refuse, close }
}

async function privateServer(): Promise<RabbitmqServer> {
  const { server: program, control, epmd } = findRabbitmq()
  const folder = mkdtempSync(join(tmpdir(), 'oncekey-rabbitmq-'))
  const [port, distPort, epmdPort] = [await freePort(), await freePort(), await freePort()]
  const env = {
    ...process.env,
    ...settings(folder, { port, distPort }),
    ERL_EPMD_PORT: `${epmdPort}`,
    ERL_EPMD_ADDRESS: '127.0.0.1',
  }
  const url = `amqp://guest:guest@127.0.0.1:${port}`
  const names = spawn(epmd, ['-port', `${epmdPort}`, '-address', '127.0.0.1'], { stdio: 'ignore' })
  let server: ChildProcess | undefined

  const start = async () => {
    // A separate process group: the program is a script, and its children must end with it.
    const started = spawn(program, [], { cwd: folder, env, stdio: 'ignore', detached: true })
    server = started
    await untilAnswering(() => ping(url), started)
  }
  const kill = async () => {
    if (server === undefined || server.exitCode !== null || server.signalCode !== null) return
    const ended = once(server, 'exit')
    process.kill(-server.pid!, 'SIGKILL')
    await ended
  }
  const leave = () => {
    if (server?.exitCode === null && server.signalCode === null)
      process.kill(-server.pid!, 'SIGKILL')
    names.kill('SIGKILL')
  }
  process.once('exit', leave)
  try {
    await start()
  } catch (error) {
    // The caller gets no handle to close the server, so it is ended here.
    leave()
    throw error
  }
  return {
    url,
    isPrivate: true,
    async writeQueues() {
      await promisify(execFile)(control, ['eval', WRITE_QUEUES], { cwd: folder, env })
    },
    start,
    kill,
    async close() {
      await kill()
      names.kill('SIGKILL')
      process.removeListener('exit', leave)
      rmSync(folder, { recursive: true, force: true })
    },
  }
}

/** Settings that would otherwise be shared with a RabbitMQ of the machine. */
function settings(folder: string, { port, distPort }: { port: number; distPort: number }) {
  return {
    // Folder of the Erlang cookie.
    HOME: folder,
    RABBITMQ_NODENAME: `oncekey-${port}@localhost`,
    RABBITMQ_NODE_IP_ADDRESS: '127.0.0.1',
    RABBITMQ_NODE_PORT: `${port}`,
    RABBITMQ_DIST_PORT: `${distPort}`,
    RABBITMQ_MNESIA_BASE: join(folder, 'mnesia'),
    RABBITMQ_LOG_BASE: join(folder, 'log'),
    RABBITMQ_LOGS: join(folder, 'log', 'rabbit.log'),
    RABBITMQ_PID_FILE: join(folder, 'pid'),
    RABBITMQ_CONFIG_FILE: join(folder, 'rabbitmq'),
    RABBITMQ_CONF_ENV_FILE: join(folder, 'rabbitmq-env.conf'),
    RABBITMQ_ENABLED_PLUGINS_FILE: join(folder, 'enabled_plugins'),
  }
}

async function ping(url: string): Promise<void> {
  const connection = await connect(url)
  await connection.close()
}

export interface RabbitmqPrograms {
  readonly server: string
  /** Sends commands to a running server. */
  readonly control: string
  /** The name service. */
  readonly epmd: string
}

/** Installs the programs on Debian as root if they are missing. */
export function findRabbitmq(): RabbitmqPrograms {
  const options = { debianPackage: 'rabbitmq-server', howTo: HOW_TO }
  // The wrapper of the package in the PATH changes to another user, so it is not used.
  const folders = ['/usr/lib/rabbitmq/bin', '/opt/homebrew/opt/rabbitmq/sbin']
  const own = findPrograms({ ...options, names: ['rabbitmq-server', 'rabbitmqctl'], folders })
  const epmd = findPrograms({ ...options, names: ['epmd'] })
  return {
    server: join(own, 'rabbitmq-server'),
    control: join(own, 'rabbitmqctl'),
    epmd: join(epmd, 'epmd'),
  }
}
