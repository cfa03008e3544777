/**
 * A real RabbitMQ for one test file: private, on free ports, in a scratch folder, with a name
 * service (epmd) of its own, so that nothing of it is left behind. Tests may kill it, and start it
 * again.
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
  /** Of this test file alone, so that it may be killed. */
  readonly isPrivate: boolean
  /**
   * Writes to the disk which queues there are. A broker that is killed right after it has declared
   * a queue may have lost it, also a durable one, and its messages with it.
   */
  readonly writeQueues: () => Promise<void>
  /** As a power cut would: what is left is what was written to the disk. */
  readonly kill: () => Promise<void>
  readonly start: () => Promise<void>
  /** Ends it and removes its folder. */
  readonly close: () => Promise<void>
}

const HOW_TO =
  'set ONCEKEY_TEST_RABBITMQ_URL to a server where queues may be declared, or install RabbitMQ ' +
  '(Debian: apt-get install rabbitmq-server; macOS: brew install rabbitmq)'

/** Erlang code. A broker that does not use Mnesia has nothing to write here. */
const WRITE_QUEUES = `
  case whereis(mnesia_sup) of
    undefined -> ok;
    _ -> ok = mnesia:sync_log(), dumped = mnesia:dump_log()
  end.`

/**
 * The server of the environment if there is one, otherwise a private one. A test that kills its
 * server asks for a private one in any case.
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
    // A group of its own: the program is a script, and what it starts must end with it.
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
    // Nobody gets to close it: it must not go on by itself.
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

/** Everything it would otherwise share with the RabbitMQ of the machine. */
function settings(folder: string, { port, distPort }: { port: number; distPort: number }) {
  return {
    // For the cookie of Erlang.
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
  /** Sends commands to a server that runs. */
  readonly control: string
  /** The name service. */
  readonly epmd: string
}

/** On Debian, as root, installs them where they are missing. */
export function findRabbitmq(): RabbitmqPrograms {
  const options = { debianPackage: 'rabbitmq-server', howTo: HOW_TO }
  // Not the wrapper of the package in the PATH: it changes to another user.
  const folders = ['/usr/lib/rabbitmq/bin', '/opt/homebrew/opt/rabbitmq/sbin']
  const own = findPrograms({ ...options, names: ['rabbitmq-server', 'rabbitmqctl'], folders })
  const epmd = findPrograms({ ...options, names: ['epmd'] })
  return {
    server: join(own, 'rabbitmq-server'),
    control: join(own, 'rabbitmqctl'),
    epmd: join(epmd, 'epmd'),
  }
}
