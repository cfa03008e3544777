/** What the private servers of the tests have in common: finding programs, ports and folders. */
import { execFileSync } from 'node:child_process'
import { existsSync } from 'node:fs'
import { createServer, type AddressInfo } from 'node:net'
import { delimiter, join } from 'node:path'

export interface Programs {
  /** All of them must be in one folder. */
  readonly names: readonly string[]
  /** Where to look beside the PATH. */
  readonly folders?: readonly string[]
  readonly debianPackage: string
  /** For people: what to set or to install. */
  readonly howTo: string
}

/** The folder of the programs. On Debian, as root, installs them where they are missing. */
export function findPrograms(programs: Programs): string {
  const found = search(programs)
  if (found !== undefined) return found
  if (process.getuid?.() === 0 && existsSync('/etc/debian_version')) install(programs.debianPackage)
  const installed = search(programs)
  if (installed !== undefined) return installed
  throw new Error(`there is no ${programs.names.join(' and ')} to test with: ${programs.howTo}`)
}

function install(debianPackage: string): void {
  console.info(`installing ${debianPackage} with apt-get, for the tests of its store`)
  const env = { ...process.env, DEBIAN_FRONTEND: 'noninteractive' }
  execFileSync('apt-get', ['update'], { stdio: 'pipe', env })
  execFileSync('apt-get', ['install', '-y', debianPackage], { stdio: 'pipe', env })
}

function search({ names, folders = [] }: Programs): string | undefined {
  const places = [
    ...folders,
    ...(process.env['PATH'] ?? '').split(delimiter),
    '/usr/local/bin',
    '/usr/local/sbin',
    '/usr/sbin',
    '/opt/homebrew/bin',
  ]
  return places.find((place) => names.every((name) => existsSync(join(place, name))))
}

/** The ids of a user of this machine, for servers that refuse to run as root. */
export function userIds(user: string): { readonly uid: number; readonly gid: number } {
  const idOf = (flag: string) =>
    Number(execFileSync('id', [flag, user], { encoding: 'utf8', stdio: 'pipe' }))
  return { uid: idOf('-u'), gid: idOf('-g') }
}

export function freePort(): Promise<number> {
  return new Promise((resolve, reject) => {
    const probe = createServer()
    probe.once('error', reject)
    probe.listen(0, '127.0.0.1', () => {
      const { port } = probe.address() as AddressInfo
      probe.close(() => resolve(port))
    })
  })
}

/** A minute: on a busy machine, RabbitMQ takes half of it. */
const TRIES_MAX = 1_200

/** Waits until `ask` succeeds; gives up with its last error when the server has gone. */
export async function untilAnswering(
  ask: () => Promise<unknown>,
  server: { readonly exitCode: number | null },
): Promise<void> {
  for (let tries = 0; ; tries++) {
    try {
      await ask()
      return
    } catch (error) {
      if (server.exitCode !== null || tries === TRIES_MAX) throw error
      await new Promise((resolve) => setTimeout(resolve, 50))
    }
  }
}
