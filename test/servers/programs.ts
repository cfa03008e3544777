/** Finds programs, ports and folders for the private servers of the tests. */
import { execFileSync } from 'node:child_process'
import { existsSync } from 'node:fs'
import { createServer, type AddressInfo } from 'node:net'
import { delimiter, join } from 'node:path'

export interface Programs {
  /** Names of the programs, all in one folder. */
  readonly names: readonly string[]
  /** Folders to search in addition to the PATH. */
  readonly folders?: readonly string[]
  readonly debianPackage: string
  /** Instructions for people: what to set or install. */
  readonly howTo: string
}

/** The folder of the programs. Installs them on Debian as root if they are missing. */
export function findPrograms(programs: Programs): string {
  const found = search(programs)
  if (found !== undefined) return found
  if (process.getuid?.() === 0 && existsSync('/etc/debian_version')) install(programs.debianPackage)
  const installed = search(programs)
  if (installed !== undefined) return installed
  throw new Error(`${programs.names.join(' and ')} not found: ${programs.howTo}`)
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

/** One minute: RabbitMQ takes half of it on a busy machine. */
const TRIES_MAX = 1_200

/** Waits until `ask` succeeds. Throws its last error when the server has ended. */
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
